"""The client of model servers, against a server of sockets that sees connections begin and end."""

import asyncio
import contextlib
import gc
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from uptrend.rollout.http import HttpClient, proxy_of
from uptrend.tasks import event_loop

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server(socketserver.ThreadingTCPServer):
    """Sends `reply` to each request; with an empty one it waits for the client to go."""

    daemon_threads = True

    def __init__(self) -> None:
        self.reply = OK
        self.heads: list[bytes] = []
        self.opened = self.closed = 0
        self.ends_connections = False
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/x"


class Handler(socketserver.BaseRequestHandler):
    server: Server

    def handle(self) -> None:
        self.server.opened += 1
        with contextlib.suppress(ConnectionError):
            while request := self.request.recv(65_536):
                head, _, body = request.partition(b"\r\n\r\n")
                while b"POST" in head and not body:
                    body = self.request.recv(65_536)
                self.server.heads.append(head)
                self.request.sendall(self.server.reply)
                if self.server.ends_connections:
                    break
        self.server.closed += 1


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        yield server
        server.shutdown()


def wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


async def ask(client: HttpClient, url: str, count: int) -> None:
    replies = await event_loop.together(client.exchange(url, {"n": n}) for n in range(count))
    assert {(reply.status, reply.content) for reply in replies} == {(200, b"{}")}


def test_connections_are_kept_and_closed_with_their_client(server: Server) -> None:
    client = HttpClient("NO_KEY")
    for _ in range(3):
        event_loop.run(ask(client, server.url, 1))
    assert (len(server.heads), server.opened, server.closed) == (3, 1, 0)
    event_loop.run(ask(client, server.url, 8))
    assert server.opened <= 8
    del client
    gc.collect()
    wait_until(lambda: server.closed == server.opened)


def test_a_cancelled_request_closes_its_connection_alone(server: Server) -> None:
    """At which vLLM drops the turn."""
    client = HttpClient("NO_KEY")

    async def cancel() -> None:
        await client.exchange(server.url)
        server.reply = b""
        waiting = [asyncio.create_task(client.exchange(server.url, {"n": n})) for n in range(2)]
        while len(server.heads) < 3:
            await asyncio.sleep(0.01)
        assert server.closed == 0
        waiting[0].cancel()
        while server.closed < 1:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert server.closed == 1
        assert not waiting[1].done()
        waiting[1].cancel()
        await asyncio.wait(waiting)

    event_loop.run(asyncio.wait_for(cancel(), 10))
    wait_until(lambda: server.closed == server.opened)


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"SSH-2.0-Server\r\n\r\n",
    ],
)
def test_a_reply_that_is_not_whole_is_an_error(server: Server, reply: bytes) -> None:
    server.reply, server.ends_connections = reply, True
    with pytest.raises(OSError, match="the connection ended before the reply did"):
        event_loop.run(HttpClient("NO_KEY").exchange(server.url, {}))


def test_no_server_no_reply_in_time_and_no_address(server: Server) -> None:
    client = HttpClient("NO_KEY")
    with pytest.raises(ConnectionRefusedError, match=r"^\[Errno 111\] Connection refused$"):
        event_loop.run(client.exchange("http://127.0.0.1:9/"))
    with pytest.raises(OSError, match="is no address of a server"):
        event_loop.run(client.exchange("http://127.0.0.1:x/"))
    with pytest.raises(OSError, match=r"^localhost:8000/ is no address of a server"):
        event_loop.run(client.exchange("localhost:8000/"))
    with pytest.raises(OSError, match="SSL"):
        event_loop.run(client.exchange(server.url.replace("http:", "https:"), {}))
    server.reply = b""
    wait_until(lambda: server.closed == server.opened)
    with pytest.raises(TimeoutError):
        event_loop.run(client.exchange(server.url, {}, timeout_s=0.2))
    wait_until(lambda: server.closed == server.opened)


def test_an_idle_connection_that_the_server_ends_is_no_error(server: Server) -> None:
    client, server.ends_connections = HttpClient("NO_KEY"), True
    for count in range(1, 4):
        assert event_loop.run(client.exchange(server.url, {})).status == 200
        wait_until(lambda: server.closed == count)  # noqa: B023 (called at once)
        event_loop.run(asyncio.sleep(0.05))


def test_requests_bring_the_key_of_the_moment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = HttpClient("SOME_KEY")
    server.reply = b"HTTP/1.1 429 Slow\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"
    for key in (None, "first", "second"):
        if key:
            monkeypatch.setenv("SOME_KEY", key)
        reply = event_loop.run(client.exchange(server.url))
        assert (reply.status, reply.retry_after) == (429, "3")
        assert (b"Authorization: Bearer %s" % (key or "").encode() in server.heads[-1]) == (
            key is not None
        )


def test_a_proxy_is_for_other_machines(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    proxy = server.url.removesuffix("/x")
    monkeypatch.setenv("http_proxy", proxy)
    assert [proxy_of(f"http://{host}:8000/v1") for host in ("127.0.0.1", "[::1]", "localhost")] == [
        None
    ] * 3
    there = "http://models.example/v1"
    assert proxy_of(there) == proxy
    assert event_loop.run(HttpClient("NO_KEY", proxy_of(there)).exchange(there)).status == 200
    assert server.heads[-1].startswith(b"GET http://models.example/v1 ")
    monkeypatch.setenv("http_proxy", proxy.removeprefix("http://"))
    assert proxy_of(there) == proxy
    monkeypatch.setenv("no_proxy", "models.example")
    assert proxy_of(there) is None


def test_a_process_ends_silently_with_open_connections(server: Server) -> None:
    code = (
        "from uptrend.rollout.http import HttpClient\nfrom uptrend.tasks import event_loop\n"
        f"client = HttpClient('NO_KEY')\nprint(event_loop.run(client.exchange({server.url!r})).status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("200\n", "")
