"""Limits on every request and connection, and the protocol that enforces those on connections."""

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


@dataclass(frozen=True)
class Limits:
    """Limits on one request, in bytes and seconds, and on all that are under way."""

    body: int = 2 * 2**20
    model_body: int = 64 * 2**20  # where an administrator adds a model
    seconds: float = 30.0  # for reading the body, and for the engine to answer
    head_bytes: int = 64 * 1024  # of the request line and headers
    head_seconds: float = 20.0  # for reading them
    requests: int = 512  # under way
    bodies: int = 256 * 2**20  # bytes of all bodies under way
    connections: int = 900  # below the 1,024 files that a process may usually open

    def protocol(self) -> type[HttpToolsProtocol]:
        """The HTTP/1.1 protocol of uvicorn with these limits on heads."""
        return type("LimitedProtocol", (_TimedProtocol,), {"limits": self})


class _TimedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which alone waits forever for the rest of a head of any length."""

    limits: Limits
    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.close()
        else:
            self._start()

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._start()  # for empty lines too, of which the parser does not tell
        self._head_bytes += len(data) if self._in_head else 0
        super().data_received(data)
        if self._head_bytes > self.limits.head_bytes and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._start()

    def on_headers_complete(self) -> None:
        self._stop()
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _start(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.limits.head_seconds, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
