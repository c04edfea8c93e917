"""Requests to model servers: JSON over kept-alive connections, many at once and without threads.

A request that is cancelled closes its connection, at which vLLM drops the turn.
"""

import asyncio
import concurrent.futures
import contextlib
import ipaddress
import json
import os
import urllib.request
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from aiohttp import ClientSession

# Seconds that an idle connection is kept: fewer than the 5 s after which uvicorn, vLLM's web
# server, ends it. A request on a connection that is being ended looks like a server that died.
KEEP_ALIVE_S = 2.0
CLOSE_TIMEOUT_S = 1.0  # for connections to be closed
MAX_SENTENCE_LENGTH = 300  # characters of a server's error that are shown


class RequestRefused(Exception):  # noqa: N818 (an answer, not an error of the program)
    """A server's refusal of a request, which trying again would not change."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True)
class HttpReply:
    """A server's reply."""

    status: int
    content: bytes
    retry_after: str = ""  # seconds, or a date, before which the server wants no other request


class HttpClient:
    """Client of model servers; `key_variable` names the environment variable with their API key.

    Closes its connections when it is collected, and at the end of the process.
    """

    def __init__(self, key_variable: str, proxy: str | None = None) -> None:
        self._key_variable = key_variable
        self._proxy = proxy
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: ClientSession | None = None

    async def exchange(
        self, url: str, body: dict[str, Any] | None = None, timeout_s: float = 60.0
    ) -> HttpReply:
        """Get a page, or post a JSON object.

        Raises TimeoutError, or another OSError if the connection fails.
        """
        import aiohttp  # not at the top: commands that use no server should not wait for it

        method = "GET" if body is None else "POST"
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self._key_variable):
            headers["Authorization"] = f"Bearer {key}"
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        request = self._session_of_loop().request(
            method, url, data=data, headers=headers, proxy=self._proxy, timeout=timeout
        )
        try:
            async with request as response:
                content = await response.read()
                retry_after = response.headers.get("Retry-After", "")
                return HttpReply(response.status, content, retry_after)
        except aiohttp.ClientSSLError as error:
            raise error.os_error from None
        except aiohttp.ClientConnectorError as error:
            # aiohttp's text gives the address, not the reason, so the system's text for the error
            # number is used. Errors of looking up a host name have negative numbers, which the
            # system has no text for; their own text gives the reason.
            if error.errno is not None and error.errno > 0:
                raise OSError(error.errno, os.strerror(error.errno)) from None
            raise error.os_error from None
        except aiohttp.ClientHttpProxyError as error:
            raise OSError(f"the proxy refuses: {error.status} {error.message}") from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise OSError(f"{error} is no address of a server") from None
        except aiohttp.ClientError as error:
            if isinstance(error, OSError):
                raise
            raise ConnectionError("the connection ended before the reply did") from None

    def _session_of_loop(self) -> "ClientSession":
        """Return the running event loop's session; open one if there is none or the last belongs to
        another loop, since connections can't change loops.
        """
        import aiohttp

        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            # limit=0: any number of connections at once; aiohttp would queue requests after 100.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
            cookies = aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=cookies)
            self._loop = loop
            weakref.finalize(self, _close, self._session, loop)
        return self._session


def _close(session: "ClientSession", loop: asyncio.AbstractEventLoop) -> None:
    """Close a session in its event loop, from any thread."""
    if loop.is_closed():
        return
    closing = asyncio.run_coroutine_threadsafe(session.close(), loop)
    # A thread that runs an event loop must not block. Any other waits, since at the end of the
    # process the loop's thread would otherwise end before the session is closed.
    if not _runs_event_loop():
        with contextlib.suppress(concurrent.futures.TimeoutError):
            closing.result(CLOSE_TIMEOUT_S)


def _runs_event_loop() -> bool:
    """Return True if this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return True for an address that only this machine reaches."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def proxy_of(url: str) -> str | None:
    """Return the proxy that the environment names for an address; None for this machine's own."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and "://" not in proxy:
        return f"http://{proxy}"
    return proxy


def error_sentence(content: bytes) -> str:
    """Return the message of an error's reply: in OpenAI's form, in FastAPI's, or the whole text."""
    try:
        reply = json.loads(content)
        error = reply.get("error", reply)
        message = error.get("message") or error.get("detail") or error
    except (ValueError, AttributeError):
        message = content.decode(errors="replace")
    return " ".join(str(message).split())[:MAX_SENTENCE_LENGTH]
