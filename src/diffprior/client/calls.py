"""The service's calls: method, path and body of each, and how its answer is read."""

import base64
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import numpy as np

from .replies import CallError, Decision

Reply = TypeVar("Reply")


def new_id() -> str:
    """An id that nothing else has."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Call(Generic[Reply]):
    """One request. What is `repeatable` may be sent again when no answer came: once it is done, the
    service answers the same and changes nothing."""

    method: str
    path: str
    read: Callable[[Any], Reply]
    body: dict[str, Any] | None = None
    repeatable: bool = True


@dataclass(frozen=True)
class DecisionRequest:
    """What to decide: actions as `features`, or by name as `actions`.

    Args:
        task: Name of the task.
        features: Features of each action (K, d).
        actions: Features (d,) of each action by its name.
        mask: Which actions are allowed (K,); None for all.
        top_k: Rank so many actions instead of choosing one.
        action_taken: Shadow mode: the action that was taken by someone else.
        deferred: Wait for no reward until the decision is activated.
        decision_id: What the decision is called; a fresh id by default. The same request again
            gets the same answer.
    """

    task: str
    features: Any = None
    actions: Mapping[str, Any] | None = None
    mask: Any = None
    top_k: int | None = None
    action_taken: str | int | None = None
    deferred: bool = False
    decision_id: str = field(default_factory=new_id)

    def body(self) -> dict[str, Any]:
        """As JSON, without what was not given."""
        actions = self.actions
        found = {
            "features": None if self.features is None else np.asarray(self.features).tolist(),
            "actions": None if actions is None else {k: _plain(v) for k, v in actions.items()},
            "mask": None if self.mask is None else np.asarray(self.mask).tolist(),
            "top_k": self.top_k,
            "action_taken": self.action_taken,
            "deferred": self.deferred or None,
            "decision_id": self.decision_id,
        }
        return {name: value for name, value in found.items() if value is not None}


def decide(model: str, request: DecisionRequest) -> Call[Decision]:
    """A decision for one task."""
    path = f"{_model(model)}/tasks/{_segment('task', request.task)}/decisions"
    return Call("POST", path, Decision.of, request.body())


def decide_many(
    model: str, requests: Sequence[DecisionRequest]
) -> Call[list[Decision | CallError]]:
    """Decisions for many tasks; those that are refused are errors in their place."""
    bodies = [{"task": request.task, **request.body()} for request in requests]

    def read(reply: Any) -> list[Decision | CallError]:
        found = reply["decisions"]
        return [_refused(one) if "error" in one else Decision.of(one) for one in found]

    return Call("POST", f"{_model(model)}/decisions", read, {"decisions": bodies})


def reward(decision_id: str, value: float, reward_id: str | None) -> Call[str]:
    """What a decision earned; the answer is what became of it."""
    body: dict[str, Any] = {"reward": float(value)}
    body |= {} if reward_id is None else {"reward_id": reward_id}
    return Call("POST", _decision(decision_id, "/reward"), lambda reply: reply["status"], body)


def change(decision_id: str, what: str) -> Call[Decision]:
    """Activate or cancel a decision."""
    return Call("POST", _decision(decision_id, f"/{what}"), Decision.of)


def read_decision(decision_id: str) -> Call[dict[str, Any]]:
    """A decision with its rewards."""
    return Call("GET", _decision(decision_id), dict)


def list_models() -> Call[list[dict[str, Any]]]:
    """All models."""
    return Call("GET", "/v1/models", lambda reply: reply["models"])


def read_model(model: str) -> Call[dict[str, Any]]:
    """A model with its versions."""
    return Call("GET", _model(model), dict)


def list_tasks(model: str, after: str, limit: int) -> Call[list[dict[str, Any]]]:
    """Tasks by name."""
    path = f"{_model(model)}/tasks?after={quote(after, safe='')}&limit={limit}"
    return Call("GET", path, lambda reply: reply["tasks"])


def read_task(model: str, task: str) -> Call[dict[str, Any]]:
    """A task with its posterior."""
    return Call("GET", f"{_model(model)}/tasks/{_segment('task', task)}", dict)


def put_model(
    model: str, prior: Any, settings: Mapping[str, Any] | None, share: float
) -> Call[dict[str, Any]]:
    """A new version. Sent again, it would be another version, so it is not."""
    data = base64.b64encode(prior.to_bytes()).decode()
    body = {"prior": data, "settings": dict(settings or {}), "share": share}
    return Call("PUT", _model(model), dict, body, repeatable=False)


def set_share(model: str, version: int, share: float) -> Call[dict[str, Any]]:
    """The share of the tasks that a version serves."""
    return Call("PUT", f"{_model(model)}/versions/{version:d}", dict, {"share": share})


def roll_back(model: str) -> Call[dict[str, Any]]:
    """Back to the version before. Sent again, it would go back further, so it is not."""
    return Call("POST", f"{_model(model)}/rollback", dict, repeatable=False)


def ready() -> Call[bool]:
    """Whether the service answers calls."""
    return Call("GET", "/ready", lambda reply: bool(reply["ready"]))


def _plain(value: Any) -> Any:
    return np.asarray(value).tolist()


def _refused(one: dict[str, Any]) -> CallError:
    return CallError(one["error"], one["status"])


def _model(model: str) -> str:
    return f"/v1/models/{_segment('model', model)}"


def _decision(decision_id: str, what: str = "") -> str:
    return f"/v1/decisions/{_segment('decision_id', decision_id)}{what}"


def _segment(name: str, value: str) -> str:
    if not isinstance(value, str) or not value or "/" in value:
        raise ValueError(
            f"`{name}`: expected text without a slash, got {value!r}; name it otherwise, or pass "
            "tasks with slashes to decide_many"
        )
    return quote(value, safe="")
