"""HTTP/1.1 for clients that may be slow: a request's head has to come within some seconds."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0


class TimedProtocol(H11Protocol):
    """uvicorn's protocol, which by itself waits for ever for the rest of a head."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for the first head."""
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        """Wait on where a head has begun; else a request is under way, or one was answered."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._start()
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        super().connection_lost(exc)

    def _start(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
