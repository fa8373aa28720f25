"""Protection of the process: limits on requests and connections, and what enforces them.

The protocol limits connections. The gate checks host, origin, token, size and load before the body
of a request is read; it is below FastAPI, which parses a body before a route looks at the token.
"""

import asyncio
import contextlib
import json
import logging
import re
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

import sqlalchemy as sa
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .auth import Token, Tokens
from .metrics import Metrics
from .requests import ServiceError, unavailable

access_log = logging.getLogger("diffprior.access")
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
SAFE = ("GET", "HEAD", "OPTIONS")  # methods that write nothing
FORM_BODY = 16 * 2**10  # bytes of a body that needs no token, such as the sign-in form
MAX_OVERHEAD = 8  # bytes received for one of a body that comes in small chunks
MAX_MARKS = 10_000  # commas and brackets of a large body, which is one long text and few settings
MODEL_PATH = re.compile(r"/v1/models/([^/]+)")
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"content-security-policy": b"frame-ancestors 'none'; base-uri 'none'; object-src 'none'",
}


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


class Gate:
    """An application behind limits and checks; its requests are counted and logged.

    Without tokens, only pages and programs that name this machine `hosts` may call: a page of
    another origin can make a browser send requests, and a name that resolves to loopback can make
    the service look like that origin. With tokens, None allows any host.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        limits: Limits,
        metrics: Metrics,
        hosts: frozenset[str] = frozenset(),
    ) -> None:
        self._app, self._tokens, self._limits, self._metrics = app, tokens, limits, metrics
        self._hosts = hosts if tokens.required else LOOPBACK | hosts
        self._large = asyncio.Semaphore(1)  # one model at a time
        self._requests = self._bytes = 0  # under way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = list(message.get("headers", ()))
                names = {name.lower() for name, _ in given}
                given += [each for each in HEADERS.items() if each[0] not in names]
                message["headers"] = given
            await send(message)

        self._requests += 1
        try:
            await self._serve(scope, receive, sending)
        except ServiceError as error:
            await _reject(sending, error)
        finally:
            self._requests -= 1
            self._record(scope, status, time.perf_counter() - begin)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if self._requests > self._limits.requests and scope["path"] != "/health":
            raise ServiceError(503, "the service is too busy; try again", 1)
        self._check_host(headers)
        _check_origin(scope["method"], headers)
        _check_path(scope)
        limit = await self._limit(scope, headers)
        held: list[int] = []
        large = limit > self._limits.body
        try:
            async with self._large if large else contextlib.nullcontext():
                body = await self._read(receive, headers, limit, held)
                if large and len(body) > self._limits.body:
                    _check_structure(body)
                await self._app(scope, _replayed(body, receive), send)
        finally:
            self._bytes -= sum(held)

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        host = re.sub(r":\d*$", "", headers.get(b"host", b"").decode("latin-1").lower())
        if self._hosts and host not in self._hosts:
            raise ServiceError(
                421,
                f"`Host`: expected one of {', '.join(sorted(self._hosts))}, got {host[:100]!r}; "
                "start the service with --allow-host NAME",
            )

    async def _limit(self, scope: Scope, headers: dict[bytes, bytes]) -> int:
        """The most bytes that the body may have, once the token is known to be valid."""
        path = scope["path"]
        if not path.startswith("/v1/"):
            return FORM_BODY
        try:
            given = headers.get(b"authorization", b"").decode("latin-1")
            token = await self._tokens.identify(given)
        except sa.exc.SQLAlchemyError as error:
            raise unavailable(type(error.__cause__ or error).__name__) from error
        if scope["method"] in SAFE:
            return FORM_BODY
        return self._limits.model_body if _adds_model(scope, token) else self._limits.body

    async def _read(
        self, receive: Receive, headers: dict[bytes, bytes], limit: int, held: list[int]
    ) -> bytes:
        """The whole body; the sizes of its parts are `held` until the request is served."""
        declared = headers.get(b"content-length", b"0")
        too_long = ServiceError(413, f"expected a body of at most {limit} bytes")
        if not declared.isdigit() or int(declared) > limit:
            raise too_long
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._limits.seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        return b""
                    parts.append(message.get("body", b""))
                    held.append(len(parts[-1]))
                    self._bytes += held[-1]
                    if sum(held) > limit:
                        raise too_long
                    if self._bytes > self._limits.bodies:
                        raise ServiceError(503, "the service is too busy; try again", 1)
                    more = message.get("more_body", False)
        except TimeoutError as error:
            raise ServiceError(
                408, f"expected a body within {self._limits.seconds:g} seconds; send it faster"
            ) from error
        return b"".join(parts)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request, and log it without its body and headers."""
        self._metrics.http(scope["method"], status, seconds)
        if access_log.isEnabledFor(logging.INFO):
            line = {"method": scope["method"], "path": scope["path"], "status": status}
            access_log.info(json.dumps(line | {"ms": round(1e3 * seconds, 2)}))


def _adds_model(scope: Scope, token: Token) -> bool:
    """Whether the body may hold a prior."""
    found = MODEL_PATH.fullmatch(scope["path"]) if scope["method"] == "PUT" else None
    return found is not None and token.allows("admin", found[1])


def _check_origin(method: str, headers: dict[bytes, bytes]) -> None:
    """Reject what a page of another origin makes a browser send."""
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
    own = headers.get(b"host", b"").lower()
    if site is not None:  # which no page can set
        foreign = site not in (b"same-origin", b"none")
    else:
        foreign = origin is not None and origin.lower().partition(b"://")[2] != own
    if foreign and method not in SAFE:
        raise ServiceError(403, "`Origin`: expected no page of another origin; call from here")


def _check_path(scope: Scope) -> None:
    try:
        unquote_to_bytes(scope.get("raw_path") or b"").decode()
    except UnicodeDecodeError as error:
        raise ServiceError(400, "`path`: expected UTF-8; encode names of tasks in it") from error


def _check_structure(body: bytes) -> None:
    """Reject a large body that would become many objects."""
    if sum(map(body.count, (b",", b"[", b"{"))) > MAX_MARKS:
        raise ServiceError(413, "expected one long text and few settings; send the file in base64")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns a body that was already read."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


async def _reject(send: Send, error: ServiceError) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if error.retry_after:
        headers.append((b"retry-after", str(error.retry_after).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    body = json.dumps({"error": error.message}).encode()
    await send({"type": "http.response.body", "body": body})
