"""HTTP connections that end where a request does not arrive whole in time."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds in which a request's head, and then its body, must have arrived: a log of UPLOAD bytes
# over a slow line. They count from the first byte that is awaited, so that bytes which drip in gain
# nothing.
HEAD_S = 15.0
BODY_S = 300.0
# Bytes that a request's head may have. A browser sends the cookies of all servers of this host with
# it.
MAX_HEAD = 65_536


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
