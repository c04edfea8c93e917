"""A dashboard that listens, for every test of it."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from uptrend.dashboard.library import Library
from uptrend.dashboard.server import LOOPBACK_NAMES, DashboardServer, open_socket


class Dashboard:
    """Servers in threads of this process, each on a free port."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._running: list[tuple[DashboardServer, threading.Thread]] = []

    def __call__(
        self, *folders: Path, token: str = "", names: tuple[str, ...] = LOOPBACK_NAMES
    ) -> str:
        """Serve some folders, and return the address when all of them were read."""
        listener = open_socket("127.0.0.1", 0)
        server = DashboardServer(Library(folders, self._home), names, token)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        self._running.append((server, thread))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        headers = {"authorization": f"Bearer {token}"} if token else {}
        wait_until(lambda: not httpx.get(f"{url}/api/status", headers=headers).json()["indexing"])
        return url

    def close(self) -> None:
        for server, _ in self._running:
            server.handle_exit(signal.SIGTERM, None)
        for _, thread in self._running:
            thread.join(timeout=10)


@pytest.fixture
def wait() -> Callable[..., None]:
    """`wait(lambda: …)` waits until something holds."""
    return wait_until


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"not within {seconds} seconds"
        time.sleep(0.02)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """`serve(folder, …, token="", names=LOOPBACK_NAMES)` starts a dashboard and gives its address."""
    dashboard = Dashboard(tmp_path / "home")
    yield dashboard
    dashboard.close()


@pytest.fixture(scope="module")
def serve_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """`serve` for all tests of a module."""
    dashboard = Dashboard(tmp_path_factory.mktemp("home"))
    yield dashboard
    dashboard.close()


@pytest.fixture(scope="session")
def ask() -> Callable[..., Any]:
    """`ask(url, "run", run="runs/a", code=200)` gives an answer of the API, which must be strict
    JSON.
    """
    client = httpx.Client(timeout=60)

    def get(url: str, path: str, code: int = 200, **query: Any) -> Any:
        response = client.get(f"{url}/api/{path}", params=query)
        assert response.status_code == code, response.text[:500]
        assert response.headers["content-type"] == "application/json"
        return json.loads(response.content.decode(), parse_constant=pytest.fail)

    return get
