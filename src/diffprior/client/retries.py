"""When a call is sent again, and after how long; and the error if it is not."""

import random
from dataclasses import dataclass
from typing import Any

import httpx

from .calls import Call
from .replies import CallError

TRANSIENT = (502, 503, 504)  # a proxy, or the service, asks for another try
LONGEST = 10.0  # seconds between two tries


@dataclass(frozen=True)
class Retries:
    """At most `number` further tries, `backoff` seconds before the first, twice as long each time,
    half of it at random so that clients do not come back together."""

    number: int
    backoff: float

    def delay(self, call: Call[Any], tries: int, failure: Any) -> float | None:
        """Seconds to wait after so many tries, None to give up."""
        if tries > self.number or not _may_repeat(call, failure):
            return None
        wait = min(LONGEST, self.backoff * 2 ** (tries - 1)) * random.uniform(0.5, 1.0)
        asked = failure.headers.get("Retry-After", "") if _is_reply(failure) else ""
        return max(wait, min(LONGEST, float(asked))) if asked.isdecimal() else wait


def error_of(call: Call[Any], tries: int, failure: Any) -> CallError:
    """What went wrong, and what to do about it."""
    about = f"{call.method} {call.path}"
    if not _is_reply(failure):
        reason = f"{type(failure).__name__}: {failure}".removesuffix(": ")
        return CallError(
            f"{about}: expected an answer, got none in {tries} tries ({reason}); is the service "
            "running there, and is `timeout` long enough?"
        )
    try:
        said = failure.json()["error"]
    except (ValueError, KeyError, TypeError):
        said = failure.text[:200] or failure.reason_phrase
    return CallError(f"{about}: {failure.status_code}: {said}", failure.status_code)


def _may_repeat(call: Call[Any], failure: Any) -> bool:
    if isinstance(failure, httpx.ConnectError):
        return True  # it was never sent
    if _is_reply(failure):
        return call.repeatable and failure.status_code in TRANSIENT
    return call.repeatable


def _is_reply(failure: Any) -> bool:
    return isinstance(failure, httpx.Response)
