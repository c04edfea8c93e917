"""Requests to a server, many at once and without threads.

A request that is cancelled closes its connection, at which vLLM drops the turn.
"""

import asyncio
import ipaddress
import json
import os
from typing import Any
from urllib.parse import urlsplit

# Environment variable with the folder that a run and its servers share, where they are not on one machine.
SHARED = "UPTREND_WEIGHTS"
KEY = "VLLM_API_KEY"  # environment variable with a server's key, as vLLM itself reads it


class RequestRefused(Exception):  # noqa: N818 (what the server did)
    """A status with which a server refuses a request for good, and its sentence."""


def is_loopback(host: str) -> bool:
    """Return True for an address that only this machine reaches."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def exchange(url: str, body: dict[str, Any] | None = None, timeout: float = 60.0) -> tuple[int, bytes]:
    """Get a page, or post a JSON object; return status and content. Raises OSError where the connection fails."""
    parts = urlsplit(url)
    is_safe = parts.scheme == "https"
    data = b"" if body is None else json.dumps(body).encode()
    head = [f"{'GET' if body is None else 'POST'} {url.partition(parts.netloc)[2] or '/'} HTTP/1.0"]  # 1.0: one piece
    head += [f"Host: {parts.netloc}", "Content-Type: application/json", f"Content-Length: {len(data)}"]
    if key := os.environ.get(KEY):
        head.append(f"Authorization: Bearer {key}")
    async with asyncio.timeout(timeout):
        to = parts.hostname, parts.port or (443 if is_safe else 80)
        reader, writer = await asyncio.open_connection(*to, ssl=True if is_safe else None)
        try:
            writer.write("\r\n".join([*head, "", ""]).encode() + data)
            await writer.drain()
            told, _, content = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
    lines = told.decode("latin-1").lower().split("\r\n")
    lengths = [int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")]
    if not lines[0].startswith("http/") or lengths not in ([], [len(content)]):
        raise ConnectionError("the connection ended before the reply did")
    return int(lines[0].split()[1]), content


def sentence(data: bytes) -> str:
    """Return what a server says of an error: in OpenAI's form, in FastAPI's, or in any."""
    try:
        found = json.loads(data)
        found = found.get("error", found)
        found = found.get("message") or found.get("detail") or found
    except (ValueError, AttributeError):
        found = data.decode(errors="replace")
    return " ".join(str(found).split())[:300]
