"""Limits on every request and connection, and the protocol that enforces those on connections."""

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_OVERHEAD = 8  # bytes received for one of a body that comes in small chunks


@dataclass(frozen=True)
class Limits:
    """Limits on one request, in bytes and seconds, and on all that are under way."""

    body: int = 2 * 2**20
    model_body: int = 64 * 2**20  # where an administrator adds a model
    seconds: float = 30.0  # for reading the body, for the engine to answer, and to take a reply
    head_bytes: int = 64 * 1024  # of the request line, headers and trailers
    head_seconds: float = 20.0  # for reading them
    draw_seconds: float = 1.0  # that a choice waits for the first draws of all items
    requests: int = 512  # under way
    bodies: int = 256 * 2**20  # bytes of all bodies under way
    connections: int = 900  # below the 1,024 files that a process may usually open

    def protocol(self) -> type[HttpToolsProtocol]:
        """The HTTP/1.1 protocol of uvicorn with these limits on heads."""
        return type("LimitedProtocol", (_TimedProtocol,), {"limits": self})


class _TimedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which alone waits forever for the rest of a head of any length, and for
    clients that do not read their replies, and queues any number of requests on one connection.
    """

    limits: Limits
    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _extra_bytes = 0  # of the request beside its body: head, sizes of chunks, trailers

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.close()
        else:
            self._start()

    def data_received(self, data: bytes) -> None:
        if not self._is_answering:
            self._start()  # for empty lines too, of which the parser does not tell
        self._extra_bytes += len(data)
        super().data_received(data)
        if self._extra_bytes > self.limits.head_bytes and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def send_400_response(self, msg: str) -> None:
        if self._is_answering:  # that request alone, and nothing after it
            self.cycle.keep_alive = False
            self.flow.pause_reading()
        else:
            super().send_400_response(msg)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_message_begin(self) -> None:
        if self._is_answering:
            raise ValueError("expected one request at a time")
        super().on_message_begin()
        self._extra_bytes = 0
        self._start()

    def on_headers_complete(self) -> None:
        self._stop()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._extra_bytes -= MAX_OVERHEAD * len(body)
        super().on_body(body)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.seconds, self._abort)

    def resume_writing(self) -> None:
        self._stop_writing()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._stop_writing()
        super().connection_lost(exc)

    def _start(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.limits.head_seconds, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abort(self) -> None:
        if self._is_answering:
            self.cycle.disconnected = True
        self.transport.abort()

    def _stop_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
