"""Bounds on every request, and a line of log for it: pure ASGI, because each one passes here."""

import asyncio
import json
import logging
import time
from dataclasses import dataclass
from typing import Any

from .metrics import Metrics

log = logging.getLogger("diffprior.access")


@dataclass(frozen=True)
class Limits:
    """How large a body may be, in bytes, and how long a request may take, in seconds."""

    body: int = 2 * 2**20
    model_body: int = 64 * 2**20  # a prior's file
    seconds: float = 30.0

    def wrap(self, app: Any, metrics: Metrics) -> Any:
        """The application with these limits."""

        async def limited(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            begin = time.perf_counter()
            status = 500

            async def sending(message: Any) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            try:
                body = await self._read(scope, receive)
                if isinstance(body, bytes):
                    await app(scope, _replayed(body, receive), sending)
                else:
                    await _answer(sending, *body)
            finally:
                _note(metrics, scope, status, time.perf_counter() - begin)

        return limited

    async def _read(self, scope: Any, receive: Any) -> bytes | tuple[int, str]:
        """The whole body; or a status and what was wrong with it."""
        allowed = self.model_body if scope["method"] == "PUT" else self.body
        try:
            async with asyncio.timeout(self.seconds):
                body = await _read(scope, receive, allowed)
        except TimeoutError:
            return 408, f"expected a body within {self.seconds:g} seconds; send it faster"
        return body if body is not None else (413, f"expected a body of at most {allowed} bytes")


def _note(metrics: Metrics, scope: Any, status: int, seconds: float) -> None:
    """Count a request, and log it without its body and headers."""
    metrics.http(scope["method"], status, seconds)
    if log.isEnabledFor(logging.INFO):
        about = {"method": scope["method"], "path": scope["path"], "status": status}
        log.info(json.dumps(about | {"ms": round(1e3 * seconds, 2)}))


async def _read(scope: Any, receive: Any, allowed: int) -> bytes | None:
    """The whole body, or None if it is too long."""
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    if not declared.isdigit() or int(declared) > allowed:
        return None
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > allowed:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def _replayed(body: bytes, receive: Any) -> Any:
    """A `receive` that gives the body that was read already."""
    given = False

    async def replay() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _answer(send: Any, status: int, message: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": message}).encode()})
