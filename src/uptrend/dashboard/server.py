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
from collections.abc import AsyncIterator, Sequence
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

HERE = Path(__file__).parent
STATIC = HERE / "static"
SCRIPTS = (
    "core.js",
    "plots.js",
    "runs.js",
    "run.js",
    "rollouts.js",
    "doctor.js",
    "lab.js",
    "start.js",
)
# plotly makes an empty style element and fills it by script: the hash is that of nothing.
EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' {style}; img-src 'self' data: blob:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY.format(style=EMPTY_STYLE),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Bytes of a log that may be dropped on a page, and seconds between two looks at what somebody
# watches.
UPLOAD = 64_000_000
PULSE = 0.4
HEARTBEAT = 15.0
# Logs that may be sent or wait to be read at once; each takes room on the disk.
MAX_UPLOADS = 64
# Seconds in which a request's head, and then its body, must have arrived: a log of UPLOAD bytes
# over a slow line. They count from the first byte that is awaited, so that bytes which drip in gain
# nothing.
HEAD_S = 15.0
BODY_S = 300.0
# Bytes that a request's head may have. A browser sends the cookies of all servers of this host with
# it.
MAX_HEAD = 65_536
NO_TOKEN = (
    "This dashboard asks for its token: open the address that `uptrend serve` printed in its"
    " terminal, which ends in ?token=… (a program sends it as Authorization: Bearer TOKEN)."
)
PAGE = "dashboard/templates/page.html"
REFUSED = "dashboard/templates/refused.html"


def plotly_script() -> Path:
    """Return plotly's JavaScript, which comes inside its Python package; the package itself is not
    imported.
    """
    found = importlib.util.find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise MissingExtra("plotly", "dashboard")
    return Path(found.submodule_search_locations[0]) / "package_data" / "plotly.min.js"


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
    every answer.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str], token: str) -> None:
        self._app = app
        self._names = {name.lower() for name in names}
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {
            key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]
        }
        query = dict(
            pair.partition("=")[::2] for pair in scope["query_string"].decode("latin-1").split("&")
        )
        refused = self._refusal(scope, headers, query)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {key for key, _ in message["headers"]}
                added = [
                    (k.lower().encode(), v.encode())
                    for k, v in HEADERS.items()
                    if k.lower().encode() not in known
                ]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        if refused is not None:
            code, reason = refused
            answer: Response = JSONResponse({"error": reason}, code)
            if scope["path"] == "/":
                answer = Response(
                    render(REFUSED, reason=reason, asks=code == 401), code, media_type="text/html"
                )
            await answer(scope, receive, send_with_headers)
        elif self._token and scope["path"] == "/" and "token" in query:
            # From the address into a cookie, so that it is in no link that somebody copies.
            moved = Response(status_code=303, headers={"location": "/"})
            name = _cookie_name(headers["host"])
            moved.set_cookie(
                name, self._token, httponly=True, samesite="strict", max_age=30 * 86400
            )
            await moved(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _refusal(
        self, scope: Scope, headers: dict[str, str], query: dict[str, str]
    ) -> tuple[int, str] | None:
        if not self._is_ours(headers.get("host", "")):
            return (
                421,
                "This server does not answer to that name. Add it with: uptrend serve --name NAME",
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] != headers["host"].lower():
            return 403, "Pages of other sites get no answer."
        is_page = scope["path"] == "/" and scope["method"] in ("GET", "HEAD")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not is_page:
            return 403, "Pages of other sites get no answer."
        if self._token:
            bearer = headers.get("authorization", "").removeprefix("Bearer ")
            # By hand: http.cookies refuses all of them for an odd name of another server's on this
            # host.
            cookies = dict(
                one.strip().partition("=")[::2] for one in headers.get("cookie", "").split(";")
            )
            cookie = cookies.get(_cookie_name(headers["host"]), "").strip('"')
            tokens = [bearer, cookie, query.get("token", "") if is_page else ""]
            if not any(hmac.compare_digest(one.encode(), self._token.encode()) for one in tokens):
                return 401, NO_TOKEN
        return None

    def _is_ours(self, host: str) -> bool:
        match = re.fullmatch(r"\[([^\]]*)\](:\d*)?|([^:]*)(:\d*)?", host.lower())
        name = (match[1] or match[3] or "") if match else ""
        if name in self._names:
            return True
        try:  # no name can be pointed here by somebody else where there is none
            return bool(self._token) and bool(ipaddress.ip_address(name))
        except ValueError:
            return False


def _cookie_name(host: str) -> str:
    """Return the cookie's name: browsers send a host's cookies to all of its ports, so each port
    has its own.
    """
    port = re.search(r":(\d+)$", host)
    return f"uptrend-token-{port[1] if port else 80}"


def make_app(library: Library, names: Sequence[str] = LOOPBACK, token: str = "") -> ASGIApp:
    """Return the application over a library; it starts and closes the library."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        library.start()
        yield
        await run_in_threadpool(library.close)

    async def answer(request: Request) -> Response:
        path = request.url.path.removeprefix("/api/")
        return await _answer(api.call, library, path, dict(request.query_params))

    async def page(_: Request) -> Response:
        plotly = f"/static/plotly.js?v={plotly_script().stat().st_size}"
        values = {"scripts": SCRIPTS, "plotly": plotly, "plotly_styles": plotly_styles()}
        text = render(PAGE, title="Uptrend", style="", policy="", data="", **values)
        return Response(text, media_type="text/html")

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name == "plotly.js":
            # A year: a newer plotly has another address, which the page asks for by its size.
            return FileResponse(
                plotly_script(), headers={"Cache-Control": "public, max-age=31536000, immutable"}
            )
        known = {path.name: path for path in STATIC.iterdir()}
        return (
            FileResponse(known[name])
            if name in known
            else JSONResponse({"error": "There is no such file."}, 404)
        )

    async def live(request: Request) -> Response:
        run = request.query_params.get("run")
        if run is not None:
            try:
                await run_in_threadpool(library.entry, run, "run", "log")
            except RecordError as error:
                return JSONResponse({"error": str(error)}, 404)
        return StreamingResponse(_pulse(library, run, request), media_type="text/event-stream")

    places = asyncio.Semaphore(MAX_UPLOADS)
    reading = asyncio.Semaphore()

    async def doctor(request: Request) -> Response:
        if places.locked():
            return JSONResponse(
                {"error": f"{MAX_UPLOADS} logs are being sent already. Try again in a moment."}, 503
            )
        async with places:
            try:
                return await diagnosed(request)
            except ClientDisconnect:  # nobody is there to be answered
                return Response(status_code=400)

    async def diagnosed(request: Request) -> Response:
        # Of a name only what is plain: it becomes a file's.
        name = re.sub(
            r"[^\w .()+=@-]", "_", re.split(r"[/\\]", request.query_params.get("name", ""))[-1]
        ).lstrip(".")
        name = name.encode()[-120:].decode("utf-8", "ignore") or "log.txt"
        with tempfile.TemporaryDirectory(prefix="uptrend-") as folder:
            path = Path(folder) / name
            size = 0
            with path.open("wb") as file:
                async for part in request.stream():
                    size += len(part)
                    if size > UPLOAD:
                        most = f"{UPLOAD // 1_000_000} MB"
                        return JSONResponse(
                            {
                                "error": (
                                    f"{name} is larger than {most}: uptrend doctor {name} reads it."
                                )
                            },
                            413,
                        )
                    file.write(part)
            async with reading:  # one at a time, and no thread that pages need waits for its turn
                return await _answer(_diagnose, library, path)

    async def schema(_: Request) -> Response:
        return JSONResponse(api.openapi())

    routes = [
        Route("/", page),
        Route("/static/{name}", static),
        Route("/api/live", live),
        Route("/api/openapi.json", schema),
        Route("/api/doctor", doctor, methods=["POST"]),
        *(Route(f"/api/{path}", answer) for path in api.ENDPOINTS),
    ]
    missing = {404: _no_such_address, 405: _no_such_address}
    return RequestGuard(
        Starlette(routes=routes, lifespan=lifespan, exception_handlers=missing), names, token
    )


async def _no_such_address(request: Request, error: Exception) -> Response:
    told = (
        f"There is no {request.method} {request.url.path[:120]}. What there is: /api/openapi.json"
    )
    return JSONResponse({"error": told}, getattr(error, "status_code", 404))


async def _answer(ask: Any, *arguments: Any) -> Response:
    """Answer in a thread, and say in a sentence what was wrong."""
    try:
        answer = await run_in_threadpool(ask, *arguments)
        return _json(answer)
    except BadRequest as error:
        return _json({"error": str(error)}, 400)
    except RecordError as error:
        return _json({"error": str(error)}, 404)
    except Exception as error:
        # A damaged record may hold anything anywhere; the page says so, and the server goes on.
        return _json({"error": f"This could not be read: {type(error).__name__}: {error}"}, 500)


def _json(answer: dict[str, Any], status: int = 200) -> Response:
    # Half a surrogate pair, which JSON's escapes and names of files can hold, is no character.
    text = json.dumps(answer, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    return Response(text, status, media_type="application/json")


def _diagnose(library: Library, path: Path) -> dict[str, Any]:
    """Return report and curves of a log that was dropped on the page."""
    import pyarrow as pa

    stem = path.parent / "dropped-0.arrow"
    try:
        told = library.uploads.call("read_log", str(path), str(stem.parent), stem.stem)
    except RecordError as error:  # by the name that it was sent with
        raise RecordError(str(error).replace(f"{path.parent}/", "")) from None
    runs = []
    for number, one in enumerate(told):
        table = pa.ipc.open_file(str(path.parent / f"dropped-{number}.arrow")).read_all()
        names = [name for name in table.column_names if table[name].null_count < len(table)]
        runs.append(
            {
                "name": one["name"] or path.name,
                "trainer": one["trainer"],
                "notes": one["notes"],
                "report": findings.page_report(one["report"], path.name, one["trainer"]),
                "curves": thin(table, names),
            }
        )
    return dict(plain({"name": path.name, "runs": runs}))


async def _pulse(library: Library, run: str | None, request: Request) -> AsyncIterator[str]:
    """Yield an event whenever the run's files, or the table's rows, have changed."""
    last: Any = None
    waited = 0.0
    yield "retry: 2000\n\n"
    while not (library.closing or await request.is_disconnected()):
        if run is None:
            now: Any = (library.progress.version, library.progress.done, library.progress.indexing)
        else:
            try:
                entry = await run_in_threadpool(library.entry, run, "run", "log")
                stamp = await run_in_threadpool(entry.source.stamp)
                # a killed run changes no file
                now = (stamp, entry.row.get("status"), library.judged[entry.source.id])
            except (RecordError, OSError):
                now = "gone"
        if now != last and last is not None:
            yield f"data: {json.dumps({'run': run})}\n\n"
            waited = 0.0
        last = now
        await asyncio.sleep(PULSE)
        waited += PULSE
        if waited >= HEARTBEAT:
            waited = 0.0
            yield ": still here\n\n"


class TimedProtocol(H11Protocol):
    """A connection of the server; half-sent requests would hold it, and what it takes, for ever."""

    _awaited: object = None
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
        """Begin to count where something else is awaited of the client than before."""
        state = self.conn.their_state
        if state is self._awaited:
            return
        self._stop()
        self._awaited = state
        limits_s = {h11.IDLE: HEAD_S, h11.SEND_BODY: BODY_S}
        if state in limits_s and not self.transport.is_closing():
            self._timer = self.loop.call_later(limits_s[state], self.transport.abort)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class DashboardServer(uvicorn.Server):
    """A server that ends its streams first: they would hold up Ctrl-C."""

    def __init__(self, library: Library, names: Sequence[str] = LOOPBACK, token: str = "") -> None:
        self._library = library
        app = make_app(library, names, token)
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=2,
                ws="none",
                http=TimedProtocol,
                h11_max_incomplete_event_size=MAX_HEAD,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._library.closing = True
        super().handle_exit(sig, frame)


def open_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; a port that is taken is an error with a sentence."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
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
    return secrets.token_urlsafe(24)
