"""Limits on the size and duration of every request, below FastAPI because every request passes."""

import asyncio
import json
import logging
import time
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .metrics import Metrics

access_log = logging.getLogger("diffprior.access")


@dataclass(frozen=True)
class Limits:
    """Limits on one request, in bytes and seconds."""

    body: int = 2 * 2**20
    model_body: int = 64 * 2**20  # of a PUT, which may hold a prior
    seconds: float = 30.0  # for reading the body, and for the engine to answer
    head_bytes: int = 64 * 1024  # of the request line and headers
    head_seconds: float = 20.0  # for reading them

    def wrap(self, app: ASGIApp, metrics: Metrics) -> ASGIApp:
        """The application with these limits; its requests are counted and logged."""

        async def limited(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            begin = time.perf_counter()
            status = 500

            async def sending(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            try:
                body = await self._read(scope, receive)
                if isinstance(body, bytes):
                    await app(scope, _replayed(body, receive), sending)
                else:
                    await _reject(sending, *body)
            finally:
                _record(metrics, scope, status, time.perf_counter() - begin)

        return limited

    def protocol(self) -> type[HttpToolsProtocol]:
        """The HTTP/1.1 protocol of uvicorn with these limits on heads."""
        return type("LimitedProtocol", (_TimedProtocol,), {"limits": self})

    async def _read(self, scope: Scope, receive: Receive) -> bytes | tuple[int, str]:
        """The whole body, or a status and an error message."""
        limit = self.model_body if scope["method"] == "PUT" else self.body
        too_long = 413, f"expected a body of at most {limit} bytes"
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            return too_long
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self.seconds):
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        return b""
                    body += message.get("body", b"")
                    if len(body) > limit:
                        return too_long
                    more = message.get("more_body", False)
        except TimeoutError:
            return 408, f"expected a body within {self.seconds:g} seconds; send it faster"
        return bytes(body)


def _record(metrics: Metrics, scope: Scope, status: int, seconds: float) -> None:
    """Count a request, and log it without its body and headers."""
    metrics.http(scope["method"], status, seconds)
    if access_log.isEnabledFor(logging.INFO):
        line = {"method": scope["method"], "path": scope["path"], "status": status}
        access_log.info(json.dumps(line | {"ms": round(1e3 * seconds, 2)}))


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns a body that was already read."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


async def _reject(send: Send, status: int, message: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": message}).encode()})


class _TimedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which alone waits forever for the rest of a head of any length."""

    limits: Limits
    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
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
