"""The web server: pages, JSON, live events, and the rules that keep others out.

It binds to loopback and asks for a token, which the page keeps in a cookie: other people of this
machine reach loopback too. The names by which a browser may reach it are known (`Host`), so that a
foreign page that points its own name here reads nothing; what such a page sends (`Origin`,
`Sec-Fetch-Site`) is refused. A connection ends where a request does not arrive whole in time. All
pages forbid inline scripts and anything from a network.
"""

import asyncio
import contextlib
import hmac
import importlib.util
import ipaddress
import json
import re
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from uptrend.dashboard import api, findings
from uptrend.dashboard.curves import thin
from uptrend.dashboard.filters import BadRequest
from uptrend.dashboard.library import Library
from uptrend.present.formatting import render
from uptrend.records import MissingExtra, RecordError
from uptrend.records.lines import plain

STATIC_FOLDER = Path(__file__).parent / "static"
SCRIPT_NAMES = (
    "core.js",
    "plots.js",
    "runs.js",
    "run.js",
    "rollouts.js",
    "doctor.js",
    "lab.js",
    "start.js",
)
PAGE_TEMPLATE = "dashboard/templates/page.html"
REFUSAL_TEMPLATE = "dashboard/templates/refused.html"
# plotly makes an empty style element and fills it by script: the hash is that of an empty text.
EMPTY_STYLE_HASH = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
RESPONSE_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src 'self'; style-src 'self' {EMPTY_STYLE_HASH};"
        " img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
YEAR_S = 365 * 86400
COOKIE_AGE_S = 30 * 86400
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
# Size of a log that may be dropped on a page.
MAX_UPLOAD_BYTES = 64_000_000
# Logs that may be sent or wait to be read at once; each takes space on the disk.
MAX_UPLOADS = 64
MAX_UPLOAD_NAME_BYTES = 120
# Time between two looks at what a page shows, and between two signs of life to the page.
POLL_INTERVAL_S = 0.4
HEARTBEAT_S = 15.0
# Time after which a page whose connection broke tries again.
RECONNECT_MS = 2000
# Time in which a request's head, and then its body, must have arrived: a log of MAX_UPLOAD_BYTES
# over a slow line. It counts from the first byte that is awaited, so that bytes which drip in gain
# nothing.
HEAD_S = 15.0
BODY_S = 300.0
# A browser sends the cookies of all servers of this host in a request's head.
MAX_HEAD_BYTES = 65_536
# Time that open requests may take after Ctrl-C.
SHUTDOWN_S = 2
LISTEN_BACKLOG = 128
TOKEN_BYTES = 24
NO_TOKEN_ERROR = (
    "This dashboard asks for its token: open the address that `uptrend serve` printed in its"
    " terminal, which ends in ?token=… (a program sends it as Authorization: Bearer TOKEN)."
)
FOREIGN_PAGE_ERROR = "Pages of other sites get no answer."
WRONG_NAME_ERROR = (
    "This server does not answer to that name. Add it with: uptrend serve --name NAME"
)


def plotly_script() -> Path:
    """Return plotly's JavaScript, which comes inside its Python package; the package itself is not
    imported.
    """
    package = importlib.util.find_spec("plotly")
    if package is None or not package.submodule_search_locations:
        raise MissingExtra("plotly", "dashboard")
    return Path(package.submodule_search_locations[0]) / "package_data" / "plotly.min.js"


@cache
def plotly_styles() -> list[str]:
    """Return the ids of style elements that plotly's script adds, for maps, unless elements with
    these ids are there.

    No page draws a map, and the pages' policy would refuse the styles with a message in the
    browser's console.
    """
    script = plotly_script().read_text("utf-8")
    return sorted(set(re.findall(r'if\(!document\.getElementById\("([0-9a-f]{64})"\)\)', script)))


class RequestGuard:
    """ASGI layer that refuses foreign names, foreign pages and missing tokens, and adds headers to
    every response.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str], token: str) -> None:
        self._app = app
        self._names = {name.lower() for name in names}
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[str, str] = {}
        for key, value in scope["headers"]:
            headers[key.decode("latin-1")] = value.decode("latin-1")
        query = _pairs(scope["query_string"].decode("latin-1"), "&")
        is_first_page = scope["path"] == "/"

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _with_response_headers(message["headers"])}
            await send(message)

        refusal = self._refusal(scope, headers, query)
        if refusal is not None:
            status, reason = refusal
            response: Response = JSONResponse({"error": reason}, status)
            if is_first_page:
                page = render(REFUSAL_TEMPLATE, reason=reason, asks=status == 401)
                response = Response(page, status, media_type="text/html")
            await response(scope, receive, send_with_headers)
        elif self._token and is_first_page and "token" in query:
            # From the address into a cookie, so that no link that is copied contains it.
            redirect = Response(status_code=303, headers={"location": "/"})
            redirect.set_cookie(
                _cookie_name(headers["host"]),
                self._token,
                httponly=True,
                samesite="strict",
                max_age=COOKIE_AGE_S,
            )
            await redirect(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _refusal(
        self, scope: Scope, headers: dict[str, str], query: dict[str, str]
    ) -> tuple[int, str] | None:
        """Return the status and the error for a request that gets no answer; None for others."""
        if not self._is_own_name(headers.get("host", "")):
            return 421, WRONG_NAME_ERROR

        origin = headers.get("origin")
        if origin is not None:
            _, _, origin_host = origin.lower().partition("://")
            if origin_host != headers["host"].lower():
                return 403, FOREIGN_PAGE_ERROR
        # A link on another site may lead to the first page, and to nothing else.
        is_page = scope["path"] == "/" and scope["method"] in ("GET", "HEAD")
        is_own_site = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        if not is_own_site and not is_page:
            return 403, FOREIGN_PAGE_ERROR

        if self._token:
            # Not by http.cookies, which refuses all of them if another server on this host has set
            # one with an odd name.
            cookies = _pairs(headers.get("cookie", ""), ";")
            tokens = [
                headers.get("authorization", "").removeprefix("Bearer "),
                cookies.get(_cookie_name(headers["host"]), "").strip('"'),
                query.get("token", "") if is_page else "",
            ]
            if not any(self._is_token(token) for token in tokens):
                return 401, NO_TOKEN_ERROR
        return None

    def _is_token(self, token: str) -> bool:
        # In a time that does not tell how many characters are right.
        return hmac.compare_digest(token.encode(), self._token.encode())

    def _is_own_name(self, host: str) -> bool:
        """Return True for a `Host` by which this server may be reached."""
        match = re.fullmatch(r"\[([^\]]*)\](:\d*)?|([^:]*)(:\d*)?", host.lower())
        name = (match[1] or match[3] or "") if match else ""
        if name in self._names:
            return True
        # With a token, any address will do: a foreign page can point its name here, not an address.
        try:
            return bool(self._token) and bool(ipaddress.ip_address(name))
        except ValueError:
            return False


def _pairs(text: str, separator: str) -> dict[str, str]:
    """Return the values of a query string or a cookie header by name."""
    values: dict[str, str] = {}
    for pair in text.split(separator):
        name, _, value = pair.strip().partition("=")
        values[name] = value
    return values


def _with_response_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Add the headers of every response, except those that this one has."""
    names = {name for name, _ in headers}
    added: list[tuple[bytes, bytes]] = []
    for text, value in RESPONSE_HEADERS.items():
        name = text.lower().encode()
        if name not in names:
            added.append((name, value.encode()))
    return [*headers, *added]


def _cookie_name(host: str) -> str:
    """Return the cookie's name: browsers send a host's cookies to all of its ports, so each port
    has its own.
    """
    port = re.search(r":(\d+)$", host)
    return f"uptrend-token-{port[1] if port else 80}"


def make_app(library: Library, names: Sequence[str] = LOOPBACK_NAMES, token: str = "") -> ASGIApp:
    """Return the application over a library; it starts and closes the library."""
    upload_slots = asyncio.Semaphore(MAX_UPLOADS)
    # Uploads are read one at a time, and none takes a thread that pages need while it waits.
    reading_slot = asyncio.Semaphore()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        library.start()
        yield
        await run_in_threadpool(library.close)

    async def answer(request: Request) -> Response:
        path = request.url.path.removeprefix("/api/")
        return await _answer(api.call, library, path, dict(request.query_params))

    async def live(request: Request) -> Response:
        run = request.query_params.get("run")
        if run is not None:
            try:
                await run_in_threadpool(library.entry, run, "run", "log")
            except RecordError as error:
                return _error(str(error), 404)
        return StreamingResponse(_changes(library, run, request), media_type="text/event-stream")

    async def diagnose_upload(request: Request) -> Response:
        if upload_slots.locked():
            return _error(f"{MAX_UPLOADS} logs are being sent already. Try again in a moment.", 503)
        name = _file_name(request.query_params.get("name", ""))
        async with upload_slots:
            with tempfile.TemporaryDirectory(prefix="uptrend-") as folder:
                path = Path(folder) / name
                try:
                    is_whole = await _receive(request, path)
                except ClientDisconnect:  # the response reaches no one
                    return Response(status_code=400)
                if not is_whole:
                    limit = f"{MAX_UPLOAD_BYTES // 1_000_000} MB"
                    return _error(
                        f"{name} is larger than {limit}: uptrend doctor {name} reads it.", 413
                    )
                async with reading_slot:
                    return await _answer(_diagnose, library, path)

    routes = [
        Route("/", _page),
        Route("/static/{name}", _static),
        Route("/api/live", live),
        Route("/api/openapi.json", _schema),
        Route("/api/doctor", diagnose_upload, methods=["POST"]),
        *(Route(f"/api/{path}", answer) for path in api.ENDPOINTS),
    ]
    handlers = {404: _no_such_address, 405: _no_such_address}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return RequestGuard(app, names, token)


async def _page(_: Request) -> Response:
    script = plotly_script()
    page = render(
        PAGE_TEMPLATE,
        title="Uptrend",
        style="",
        policy="",
        data="",
        scripts=SCRIPT_NAMES,
        # A newer plotly has another size, and with it another address.
        plotly=f"/static/plotly.js?v={script.stat().st_size}",
        plotly_styles=plotly_styles(),
    )
    return Response(page, media_type="text/html")


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name == "plotly.js":
        cached = {"Cache-Control": f"public, max-age={YEAR_S}, immutable"}
        return FileResponse(plotly_script(), headers=cached)
    # By the names that exist, so that no name leads out of the folder.
    files_by_name = {path.name: path for path in STATIC_FOLDER.iterdir()}
    if name not in files_by_name:
        return _error("There is no such file.", 404)
    return FileResponse(files_by_name[name])


async def _schema(_: Request) -> Response:
    return JSONResponse(api.openapi())


async def _no_such_address(request: Request, error: Exception) -> Response:
    path = request.url.path[:120]
    return _error(
        f"There is no {request.method} {path}. What there is: /api/openapi.json",
        getattr(error, "status_code", 404),
    )


def _file_name(text: str) -> str:
    """Return the name of a file for a name that a browser sent: its last part, and of it only
    characters that are harmless in one.
    """
    last_part = re.split(r"[/\\]", text)[-1]
    name = re.sub(r"[^\w .()+=@-]", "_", last_part).lstrip(".")
    # The end of a long name, because its suffix says how to read it.
    name = name.encode()[-MAX_UPLOAD_NAME_BYTES:].decode("utf-8", "ignore")
    return name or "log.txt"


async def _receive(request: Request, path: Path) -> bool:
    """Write a request's body to a file; return False where it is too large, the rest unread."""
    size = 0
    with path.open("wb") as file:
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_UPLOAD_BYTES:
                return False
            file.write(chunk)
    return True


async def _answer(function: Callable[..., Any], *arguments: Any) -> Response:
    """Return a function's result, from another thread; for an error, a sentence."""
    try:
        result = await run_in_threadpool(function, *arguments)
        return _json(result)
    except BadRequest as error:
        return _json({"error": str(error)}, 400)
    except RecordError as error:
        return _json({"error": str(error)}, 404)
    except Exception as error:
        # A damaged record may have anything anywhere; the server goes on.
        return _json({"error": f"This could not be read: {type(error).__name__}: {error}"}, 500)


def _error(text: str, status: int) -> Response:
    return JSONResponse({"error": text}, status)


def _json(answer: dict[str, Any], status: int = 200) -> Response:
    text = json.dumps(answer, ensure_ascii=False, allow_nan=False)
    # JSON's escapes and names of files may have half a surrogate pair, which is no character.
    return Response(text.encode("utf-8", "replace"), status, media_type="application/json")


def _diagnose(library: Library, path: Path) -> dict[str, Any]:
    """Return report and curves of a log that was dropped on the page."""
    import pyarrow as pa

    folder = path.parent
    try:
        log_runs = library.upload_reader.call("read_log", str(path), str(folder), "dropped-0")
    except RecordError as error:
        # By the name that it was sent with, not by the folder that it was stored in.
        raise RecordError(str(error).replace(f"{folder}/", "")) from None
    runs: list[dict[str, Any]] = []
    for number, log_run in enumerate(log_runs):
        table = pa.ipc.open_file(str(folder / f"dropped-{number}.arrow")).read_all()
        names = [name for name in table.column_names if table[name].null_count < len(table)]
        trainer = log_run["trainer"]
        run = {
            "name": log_run["name"] or path.name,
            "trainer": trainer,
            "notes": log_run["notes"],
            "report": findings.page_report(log_run["report"], path.name, trainer),
            "curves": thin(table, names),
        }
        runs.append(run)
    return dict(plain({"name": path.name, "runs": runs}))


async def _changes(library: Library, run: str | None, request: Request) -> AsyncIterator[str]:
    """Yield an event whenever the files of a run have changed, or without one the table's rows."""
    last_state: Any = None
    silent_s = 0.0
    yield f"retry: {RECONNECT_MS}\n\n"
    while not (library.closing or await request.is_disconnected()):
        state = await _state_of(library, run)
        if state != last_state and last_state is not None:
            yield f"data: {json.dumps({'run': run})}\n\n"
            silent_s = 0.0
        last_state = state
        await asyncio.sleep(POLL_INTERVAL_S)
        silent_s += POLL_INTERVAL_S
        if silent_s >= HEARTBEAT_S:
            silent_s = 0.0
            yield ": still here\n\n"


async def _state_of(library: Library, run: str | None) -> Any:
    """Return a value that changes with what a page shows of a run, or of all runs."""
    if run is None:
        progress = library.progress
        return progress.version, progress.done, progress.indexing
    try:
        entry = await run_in_threadpool(library.entry, run, "run", "log")
        stamp = await run_in_threadpool(entry.source.stamp)
    except (RecordError, OSError):
        return "gone"
    # The status too: a run that is killed changes no file.
    return stamp, entry.row.get("status"), library.report_counts[entry.source.id]


class TimedProtocol(H11Protocol):
    """Connection that ends if a request does not arrive whole in time; half-sent ones would occupy
    it forever.
    """

    _client_state: object = None
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Restart the timer if the client has something else to send than before."""
        state = self.conn.their_state
        if state is self._client_state:
            return
        self._stop()
        self._client_state = state
        limits_s = {h11.IDLE: HEAD_S, h11.SEND_BODY: BODY_S}
        if state in limits_s and not self.transport.is_closing():
            self._timer = self.loop.call_later(limits_s[state], self.transport.abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class DashboardServer(uvicorn.Server):
    """Server that ends its streams first: they would hold up Ctrl-C."""

    def __init__(
        self, library: Library, names: Sequence[str] = LOOPBACK_NAMES, token: str = ""
    ) -> None:
        self._library = library
        app = make_app(library, names, token)
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=SHUTDOWN_S,
                ws="none",
                http=TimedProtocol,
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._library.closing = True
        super().handle_exit(sig, frame)


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; RecordError if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        listener.close()
        raise RecordError(
            f"{host}:{port} can't be listened on: {error.strerror or error}. Another port: --port 0"
            " takes a free one."
        ) from None
    return listener


@cache
def new_token() -> str:
    """Return the token of this server."""
    return secrets.token_urlsafe(TOKEN_BYTES)
