"""The token of `uptrend serve`, and clients that send slowly, too much, or only half."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from synthetic import write_run
from uptrend.cli.main import main
from uptrend.dashboard import server

Serve = Callable[..., str]
Start = Callable[..., str]
LOG = "step,reward,kl,loss\n" + "".join(f"{i},0.5,{0.001 * i},0\n" for i in range(5_000))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start("--no-token")` runs `uptrend serve` over a folder with one run, and gives the address
    that it prints.
    """
    write_run(tmp_path / "runs" / "a", steps=2)
    processes: list[subprocess.Popen[str]] = []

    def run(*options: str) -> str:
        command = [sys.executable, "-P", "-m", "uptrend", "serve", "--port", "0", *options]
        environment = {**os.environ, "UPTREND_HOME": str(tmp_path / f"home-{len(processes)}")}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
        )
        processes.append(process)
        assert process.stdout is not None
        address = re.search(r"http://\S+", process.stdout.readline())
        assert address, "no address was printed"
        return address[0]

    yield run
    for process in processes:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.slow
def test_serve_asks_for_the_token_that_it_prints(start: Start) -> None:
    first, second, third = start(), start("--token", "mine"), start("--no-token")
    url, _, token = first.partition("/?token=")
    assert len(token) >= 32
    with httpx.Client() as browser:
        closed = browser.get(url)
        assert closed.status_code == 401
        assert "open the address that `uptrend serve` printed in its terminal" in closed.text
        assert "open the address" in browser.get(f"{url}/api/runs").json()["error"]
        assert (
            browser.get(f"{url}/api/runs", headers={"authorization": f"Bearer {token}"}).json()[
                "total"
            ]
            >= 0
        )
        # One browser, two servers on one host: neither cookie takes the other's place.
        for address in (first, second):
            assert browser.get(address, follow_redirects=True).status_code == 200
        assert len({cookie.name for cookie in browser.cookies.jar}) == 2
        for address in (first, second):
            assert browser.get(f"{address.partition('?')[0]}api/status").status_code == 200
    assert second.endswith("/?token=mine")
    assert "token" not in third
    assert httpx.get(f"{third}api/status").status_code == 200


def test_no_token_is_for_loopback_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_run(tmp_path / "a", steps=1)
    for options, told in (
        (["--host", "0.0.0.0"], "--no-token would show everything to whoever reaches 0.0.0.0"),
        (["--token", "x"], "--no-token and --token exclude each other"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["serve", str(tmp_path), "--no-token", *options])
        assert end.value.code == 2
        assert told in " ".join(capsys.readouterr().err.split())


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def is_closed_within(connection: socket.socket, seconds: float) -> bool:
    """Return True where the server ends a connection in time, whatever it says first."""
    connection.settimeout(seconds)
    with contextlib.suppress(TimeoutError):
        try:
            while connection.recv(65_536):
                pass
        except ConnectionError:
            pass
        return True
    return False


@pytest.mark.slow
def test_half_sent_requests_are_closed(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_S", 2.0)
    monkeypatch.setattr(server, "BODY_S", 2.0)
    url = serve(write_run(tmp_path / "runs" / "a", steps=2).parent)
    host = url.removeprefix("http://")
    post = (
        f"POST /api/doctor?name=a.csv HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\nstep,"
    )
    halves = {
        "nothing": "", "head": f"GET / HTTP/1.1\r\nHost: {host}\r\nX-Slow: ", "body": post,
        "unread body": f"GET /api/status HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\nx",
    }  # fmt: skip
    connections = {name: socket.create_connection(address_of(url)) for name in halves}
    for name, connection in connections.items():
        connection.sendall(halves[name].encode())
    # Bytes that drip in must not keep the connection.
    until = time.monotonic() + 6
    while time.monotonic() < until:
        for name in ("head", "body"):
            with contextlib.suppress(OSError):
                connections[name].sendall(b"x")
        time.sleep(0.5)
    closed = {name: is_closed_within(connection, 30) for name, connection in connections.items()}
    assert closed == dict.fromkeys(halves, True)
    assert httpx.get(f"{url}/api/status").status_code == 200


def test_a_head_without_end_is_refused(serve: Serve, tmp_path: Path) -> None:
    url = serve(write_run(tmp_path / "runs" / "a", steps=2).parent)
    with socket.create_connection(address_of(url)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with contextlib.suppress(ConnectionError):
            for number in range(4 * server.MAX_HEAD_BYTES // 1000):
                connection.sendall(f"X-{number}: {'x' * 1000}\r\n".encode())
        assert is_closed_within(connection, 60)


@pytest.mark.slow
def test_many_uploads_do_not_hold_up_pages(serve: Serve, tmp_path: Path) -> None:
    url = serve(write_run(tmp_path / "runs" / "a", steps=2).parent)
    answers: list[int] = []

    def send(number: int) -> None:
        path = f"{url}/api/doctor?name=log-{number}.csv"
        answers.append(httpx.post(path, content=LOG.encode(), timeout=600).status_code)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(45)]
    slow = [socket.create_connection(address_of(url)) for _ in range(10)]
    for connection in slow:
        connection.sendall(
            b"POST /api/doctor?name=a.csv HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\nstep"
        )
    for thread in threads:
        thread.start()
    time.sleep(1.0)  # all of them are sent by then, and the first one's reader is being started
    pages = [httpx.get(f"{url}/api/runs", timeout=120).status_code for _ in range(3)]
    read_by_then = len(answers)
    for thread in threads:
        thread.join()
    for connection in slow:
        connection.close()
    assert (answers, pages) == ([200] * 45, [200] * 3)
    # In a queue with them, pages would come after those that came before.
    assert read_by_then < 4
