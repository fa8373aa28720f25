"""HTTP/1.1 for clients that may be slow: a request's head has to come soon, and be short."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 20.0
HEAD_BYTES = 64 * 1024


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which by itself waits for ever for the rest of a head of any length."""

    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """Wait for the first head."""
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        """Count what a head has taken so far."""
        self._head_bytes += len(data) if self._in_head else 0
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        """Wait for the rest of the head."""
        super().on_message_begin()
        self._in_head = True
        self._start()

    def on_headers_complete(self) -> None:
        """Wait no more: a request is under way."""
        self._stop()
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()

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
