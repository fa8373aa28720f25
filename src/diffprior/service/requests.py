"""Requests to the engine, replies made from rows, and errors."""

import hashlib
import json
import secrets
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..bandits.decisions import TaskOffer
from .store import Row

Cell = None | bool | int | float | str | list[str]
Json = dict[str, Cell]  # a row of raw columns
Attributes = Json | list[float | None]


class ServiceError(Exception):
    """A rejected request."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


def not_found(what: str, name: str) -> ServiceError:
    """Error for a model, task or decision that does not exist or is hidden from the token."""
    return ServiceError(404, f"`{what}`: expected an existing one, got {name!r}; check the name")


def unavailable(reason: str) -> ServiceError:
    """Error for a database that cannot be reached or written to; nothing was acknowledged."""
    return ServiceError(
        503, f"the database cannot take the request now ({reason}); try again", retry_after=1
    )


@dataclass
class Decide:
    """Choose an action for a task."""

    model: str
    task: str
    features: np.ndarray
    names: list[str] | None = None
    mask: np.ndarray | None = None
    top_k: int | None = None
    decision_id: str = field(default_factory=lambda: secrets.token_hex(16))
    taken: int | None = None
    deferred: bool = False
    token: str | None = None
    attributes: Attributes | None = None
    raw: list[Json] | None = None  # rows that become `features`
    future: Future[object] = field(default_factory=Future)

    @cached_property
    def digest(self) -> str:
        about = (self.model, self.task, self.raw, self.names, self.top_k, self.taken)
        text = json.dumps([*about, self.deferred, self.attributes])
        arrays = (self.features if self.raw is None else None, self.mask)
        parts = [text.encode(), *(b"" if part is None else part.tobytes() for part in arrays)]
        return hashlib.blake2b(b"\0".join(parts), digest_size=16).hexdigest()

    @property
    def offer(self) -> TaskOffer:
        return TaskOffer(self.features, self.mask, self.top_k or 1, self.taken)

    def check(self, dim: int) -> None:
        """Check what the body could not: that all fits the model, and the actions."""
        wrong = self._wrong(dim)
        if wrong:
            raise ServiceError(422, wrong)

    def _wrong(self, dim: int) -> str | None:
        k, mask = len(self.features), self.mask
        if self.features.shape[1] != dim:
            return (
                f"`features`: expected one row of {dim} numbers for each action, "
                f"got shape {self.features.shape}; use the features that the model learned from"
            )
        if mask is not None and (len(mask) != k or not np.any(mask)):
            return f"`mask`: expected {k} booleans, one of them true; allow an action"
        allowed = k if mask is None else int(np.sum(mask))
        if self.top_k is not None and self.top_k > allowed:
            return f"`top_k`: expected 1 to {allowed}, the allowed actions, got {self.top_k}"
        if self.taken is not None and not 0 <= self.taken < k:
            return "`action_taken`: expected one of the actions; check it"
        return None


@dataclass
class Choose:
    """Choose among items, which are tasks of the model; among all active ones if None are named."""

    model: str
    features: np.ndarray  # (1, d)
    items: list[str] | None = None
    exclude: list[str] = field(default_factory=list)
    top_k: int | None = None
    decision_id: str = field(default_factory=lambda: secrets.token_hex(16))
    taken: str | None = None
    deferred: bool = False
    token: str | None = None
    raw: list[Json] | None = None  # the row that becomes `features`
    future: Future[object] = field(default_factory=Future)

    @cached_property
    def digest(self) -> str:
        about = (self.model, self.items, self.exclude, self.top_k, self.taken, self.deferred)
        context = self.features.tolist() if self.raw is None else self.raw
        text = json.dumps(["choice", *about, context])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def check(self, dim: int) -> None:
        """Check what the body could not: that the context fits the model."""
        if self.features.shape[1] != dim:
            raise ServiceError(
                422,
                f"`context`: expected {dim} numbers, got {self.features.shape[1]}; use the "
                "features that the model learned from",
            )


@dataclass
class ChangeTask:
    """Create or update a task, or retire it."""

    model: str
    task: str
    attributes: Attributes | None = None
    retire: bool = False
    token: str | None = None
    future: Future[object] = field(default_factory=Future)


@dataclass
class Reward:
    """Report the reward of a decision. `models` are those that the caller may see; None for all."""

    decision_id: str
    value: float
    reward_id: str = ""
    models: tuple[str, ...] | None = None
    future: Future[object] = field(default_factory=Future)


@dataclass
class Change:
    """Activate or cancel a decision; `models` as of `Reward`."""

    decision_id: str
    status: str
    models: tuple[str, ...] | None = None
    future: Future[object] = field(default_factory=Future)


@dataclass
class Settle:
    """Learn default, last and summed rewards of at most `limit` decisions that have expired."""

    limit: int = 500
    future: Future[object] = field(default_factory=Future)


Request = Decide | Choose | ChangeTask | Reward | Change | Settle
Reply = dict[str, object]


def decision_reply(row: Row) -> Reply:
    """Reply to a decision; made from its row, so that a repeated call gets the same."""
    names = json.loads(row["names"]) if row["names"] else None
    ranking = json.loads(row["ranking"])

    def label(action: int) -> str | int:
        return names[action] if names else action

    reply: Reply = {
        "decision_id": row["id"],
        "item" if row["candidates"] else "action": (
            [label(action) for action in ranking] if row["top_k"] else label(row["taken"])
        ),
        "propensity": row["propensity"],
        "propensity_se": row["propensity_se"],
        "model_version": row["version"],
        "expires": row["expires"],
        "status": row["status"],
        "failed": row["failed"],
    }
    if row["taken"] != ranking[0]:  # shadow mode
        reply["recommended"] = label(ranking[0])
    return reply


def task_reply(row: Row) -> Reply:
    """Reply to a change of a task."""
    attributes = json.loads(row["attributes"] or "null")
    reply = {"model": row["model"], "task": row["name"], "attributes": attributes}
    return reply | {"created": row["created"], "retired": row["retired"]}


def reward_reply(decision_id: str, status: str) -> Reply:
    """Reply to a reward that is learned, waiting for the end of `reward_wait`, late or ignored."""
    return {"decision_id": decision_id, "status": status}
