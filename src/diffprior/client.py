"""Python clients of the decision service: `Client`, and `AsyncClient` with the same methods.

`pip install 'diffprior[client]'` installs what they need.
"""

import asyncio
import base64
import functools
import random
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import ArrayLike

from .checks import require

require("client", "httpx")

import httpx  # noqa: E402

__all__ = ["AsyncClient", "CallError", "Client", "Decision", "DecisionRequest"]

TRANSIENT = (502, 503, 504)  # a proxy or the service asks for another try
MAX_DELAY = 10.0  # seconds between two tries
Json = dict[str, object]
P = ParamSpec("P")
R = TypeVar("R")


class Saved(Protocol):
    """A prior, or anything else that is saved in the same format."""

    def to_bytes(self) -> bytes:
        """Contents of the file."""


class CallError(Exception):
    """A call that the service rejected or did not answer.

    Attributes:
        status: The HTTP status; None if there was no answer.
        message: The error message of the service, with the fix.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.message, self.status = message, status


@dataclass(frozen=True)
class Decision:
    """A decision of the service.

    Args:
        decision_id: Its id, for reporting the reward.
        action: A row index of `features` or a name of `actions`; with `top_k` a list, best first.
        propensity: Estimated probability of the action; None without `propensity_draws`.
        propensity_se: Standard error of `propensity`.
        model_version: The version of the model that made it.
        expires: When it stops waiting for its reward, in seconds since 1970; None for never.
        status: active, deferred or cancelled.
        failed: Whether the draw failed, so that the action is random.
        recommended: In shadow mode, the action that the service would have taken if it differs.
    """

    decision_id: str
    action: str | int | list[str] | list[int]
    propensity: float | None
    propensity_se: float | None
    model_version: int
    expires: float | None
    status: str
    failed: bool
    recommended: str | int | None = None


def _new_id() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True)
class DecisionRequest:
    """One decision of `decide_many`; actions are given by `features`, or by name by `actions`.

    Args:
        task: Name of the task.
        features: Features of each action (K, d).
        actions: Features (d,) of each action by its name.
        mask: Which actions are allowed (K,); None for all.
        top_k: Rank this many actions instead of choosing one.
        action_taken: Shadow mode: the action that your own system has taken.
        deferred: Wait for a reward only once the decision is activated.
        decision_id: Id of the decision; a new one by default. Repeating a request gets the same
            answer.
    """

    task: str
    features: ArrayLike | None = None
    actions: Mapping[str, ArrayLike] | None = None
    mask: ArrayLike | None = None
    top_k: int | None = None
    action_taken: str | int | None = None
    deferred: bool = False
    decision_id: str = field(default_factory=_new_id)

    def _body(self) -> Json:
        actions = self.actions
        body = {
            "features": _plain(self.features),
            "actions": None if actions is None else {k: _plain(v) for k, v in actions.items()},
            "mask": _plain(self.mask),
            "top_k": self.top_k,
            "action_taken": self.action_taken,
            "deferred": self.deferred or None,
            "decision_id": self.decision_id,
        }
        return {name: value for name, value in body.items() if value is not None}


def _plain(value: ArrayLike | None) -> object:
    return None if value is None else np.asarray(value).tolist()


@dataclass(frozen=True)
class _Call:
    """One HTTP request. The service recognizes a `repeatable` one that is sent again."""

    method: str
    path: str
    body: Json | None = None
    repeatable: bool = True


@dataclass(frozen=True)
class _Retries:
    """At most `number` further tries, after delays that double from `backoff` seconds.

    Half of each delay is random, so that clients do not return together.
    """

    number: int
    backoff: float

    def delay(
        self, call: _Call, tries: int, failure: httpx.Response | httpx.TransportError
    ) -> float:
        """Seconds to wait after this many tries; raises a `CallError` to give up."""
        if tries > self.number or not _may_repeat(call, failure):
            raise _error(call, tries, failure)
        wait = min(MAX_DELAY, self.backoff * 2 ** (tries - 1)) * random.uniform(0.5, 1.0)
        headers = failure.headers if isinstance(failure, httpx.Response) else {}
        asked = headers.get("Retry-After", "")
        return max(wait, min(MAX_DELAY, float(asked))) if asked.isdecimal() else wait


def _may_repeat(call: _Call, failure: httpx.Response | httpx.TransportError) -> bool:
    if isinstance(failure, httpx.Response):
        return call.repeatable and failure.status_code in TRANSIENT
    return call.repeatable or isinstance(failure, httpx.ConnectError)  # which was never sent


def _error(call: _Call, tries: int, failure: httpx.Response | httpx.TransportError) -> CallError:
    about = f"{call.method} {call.path}"
    if not isinstance(failure, httpx.Response):
        reason = f"{type(failure).__name__}: {failure}".removesuffix(": ")
        return CallError(
            f"{about}: expected an answer, got none in {tries} tries ({reason}); is the service "
            "running there, and is `timeout` long enough?"
        )
    try:
        message = failure.json()["error"]
    except (ValueError, KeyError, TypeError):
        message = failure.text[:200] or failure.reason_phrase
    return CallError(f"{about}: {failure.status_code}: {message}", failure.status_code)


class AsyncClient:
    """Calls the decision service from asyncio.

    Calls without an answer, or answered 502, 503 or 504, are sent again after a delay. That is
    safe: decisions and rewards have ids, by which the service recognizes a repeated call.
    `put_model` and `roll_back`, which would be done twice, are sent again only if no connection was
    made.

    Args:
        url: Address of the service, such as http://127.0.0.1:8000.
        token: As printed by `diffprior token create`; None where none is required.
        timeout: Seconds to wait for each answer.
        max_retries: How often a call is sent again.
        backoff: Seconds before the first retry, doubled for each further one.
        transport: Transport of httpx, for proxies and tests; None for its default.

    Raises:
        CallError: From every method, if the service rejects the call or does not answer.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 10.0,
        max_retries: int = 5,
        backoff: float = 0.1,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=url, headers=_headers(token), timeout=timeout, transport=transport
        )
        self._retries = _Retries(max_retries, backoff)

    async def __aenter__(self) -> "AsyncClient":
        """For `async with`, which closes the connections."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def decide(
        self,
        model: str,
        task: str,
        *,
        features: ArrayLike | None = None,
        actions: Mapping[str, ArrayLike] | None = None,
        mask: ArrayLike | None = None,
        top_k: int | None = None,
        action_taken: str | int | None = None,
        deferred: bool = False,
        decision_id: str | None = None,
    ) -> Decision:
        """Choose an action for a task, which is created on its first decision.

        Args:
            model: Name of the model.
            task: Name of the task.
            features: Features of each action (K, d); or pass `actions`.
            actions: Features (d,) of each action by its name.
            mask: Which actions are allowed (K,); None for all.
            top_k: Rank this many actions instead of choosing one.
            action_taken: Shadow mode: the action that your own system has taken.
            deferred: Wait for a reward only once the decision is activated.
            decision_id: Id of the decision; a new one by default.

        Returns:
            The decision.
        """
        options = (features, actions, mask, top_k, action_taken, deferred)
        request = DecisionRequest(task, *options, decision_id or _new_id())
        path = f"{_task_path(model, task)}/decisions"
        return _decision(await self._send(_Call("POST", path, request._body())))

    async def decide_many(
        self, model: str, requests: Sequence[DecisionRequest]
    ) -> list[Decision | CallError]:
        """Choose actions for up to 256 tasks.

        Args:
            model: Name of the model.
            requests: The decisions to make.

        Returns:
            A decision for each request; for a rejected one the error, which is not raised.
        """
        bodies = [{"task": request.task, **request._body()} for request in requests]
        call = _Call("POST", f"{_model_path(model)}/decisions", {"decisions": bodies})
        return [
            CallError(one["error"], one["status"]) if "error" in one else _decision(one)
            for one in (await self._send(call))["decisions"]
        ]

    async def reward(self, decision_id: str, reward: float, *, reward_id: str | None = None) -> str:
        """Report the reward of a decision. Repeating the call changes nothing.

        Args:
            decision_id: Id of the decision.
            reward: Its reward.
            reward_id: A new id for each further reward of the same decision.

        Returns:
            The status of the reward: learned, waiting, late or ignored.
        """
        body: Json = {"reward": float(reward)}
        body |= {} if reward_id is None else {"reward_id": reward_id}
        reply = await self._send(_Call("POST", f"{_decision_path(decision_id)}/reward", body))
        return str(reply["status"])

    async def activate(self, decision_id: str) -> Decision:
        """Start waiting for the reward of the deferred decision `decision_id`."""
        path = f"{_decision_path(decision_id)}/activate"
        return _decision(await self._send(_Call("POST", path)))

    async def cancel(self, decision_id: str) -> Decision:
        """Learn nothing from the decision `decision_id`, which was not carried out."""
        path = f"{_decision_path(decision_id)}/cancel"
        return _decision(await self._send(_Call("POST", path)))

    async def read_decision(self, decision_id: str) -> Json:
        """The decision `decision_id` and its rewards."""
        return await self._send(_Call("GET", _decision_path(decision_id)))

    async def list_models(self) -> list[Json]:
        """All models that the token may see."""
        return (await self._send(_Call("GET", "/v1/models")))["models"]

    async def read_model(self, model: str) -> Json:
        """The model `model` and its versions."""
        return await self._send(_Call("GET", _model_path(model)))

    async def list_tasks(self, model: str, *, after: str = "", limit: int = 100) -> list[Json]:
        """Tasks of `model` by name: the first `limit`, at most 1,000, after the name `after`."""
        path = f"{_model_path(model)}/tasks?after={quote(after, safe='')}&limit={limit}"
        return (await self._send(_Call("GET", path)))["tasks"]

    async def read_task(self, model: str, task: str) -> Json:
        """Counts, posterior and prior of the task `task` of `model`."""
        return await self._send(_Call("GET", _task_path(model, task)))

    async def put_model(
        self,
        model: str,
        prior: Saved,
        *,
        settings: Mapping[str, object] | None = None,
        share: float = 1.0,
    ) -> Json:
        """Add a model, or a version of it.

        Args:
            model: Name of the model.
            prior: The prior.
            settings: Settings of the service: `likelihood`, `likelihood_options`, `sampler`, ...
            share: Share of the tasks that it serves, 0 to 1.

        Returns:
            The model and its versions.
        """
        data = base64.b64encode(prior.to_bytes()).decode()
        body: Json = {"prior": data, "settings": dict(settings or {}), "share": share}
        return await self._send(_Call("PUT", _model_path(model), body, repeatable=False))

    async def set_share(self, model: str, version: int, share: float) -> Json:
        """Let `version` of `model` serve this `share` of the tasks, 0 to 1."""
        path = f"{_model_path(model)}/versions/{version:d}"
        return await self._send(_Call("PUT", path, {"share": share}))

    async def roll_back(self, model: str) -> Json:
        """Return all tasks of `model` to the version before the newest one that serves any."""
        path = f"{_model_path(model)}/rollback"
        return await self._send(_Call("POST", path, repeatable=False))

    async def ready(self) -> bool:
        """True as soon as the service answers; retried like other calls."""
        return bool((await self._send(_Call("GET", "/ready")))["ready"])

    async def _send(self, call: _Call) -> Any:
        """The JSON of the reply."""
        tries = 0
        while True:
            tries += 1
            failure: httpx.Response | httpx.TransportError
            try:
                failure = await self._request(call)
                if failure.is_success:
                    return failure.json()
            except httpx.TransportError as error:
                failure = error
            await self._sleep(self._retries.delay(call, tries, failure))

    async def _request(self, call: _Call) -> httpx.Response:
        return await self._http.request(call.method, call.path, json=call.body)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _BlockingClient(AsyncClient):
    """`AsyncClient` whose coroutines never suspend, so that `Client` can run them to their end."""

    def __init__(self, http: httpx.Client, retries: _Retries) -> None:
        self._blocking_http, self._retries = http, retries

    async def _request(self, call: _Call) -> httpx.Response:
        return self._blocking_http.request(call.method, call.path, json=call.body)

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["Client", P], R]:
    """The method of `Client` that does what a method of `AsyncClient` does."""

    @functools.wraps(method)
    def call(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            method(self._calls, *args, **kwargs).send(None)
        except StopIteration as done:
            return done.value
        raise RuntimeError("expected a coroutine that never suspends")

    return call


class Client:
    """Calls the decision service.

    Arguments and methods are as of `AsyncClient`; the methods are not awaited. `transport` is one
    of httpx for blocking calls.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 10.0,
        max_retries: int = 5,
        backoff: float = 0.1,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(
            base_url=url, headers=_headers(token), timeout=timeout, transport=transport
        )
        self._calls = _BlockingClient(self._http, _Retries(max_retries, backoff))

    def __enter__(self) -> "Client":
        """For `with`, which closes the connections."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    decide = _blocking(AsyncClient.decide)
    decide_many = _blocking(AsyncClient.decide_many)
    reward = _blocking(AsyncClient.reward)
    activate = _blocking(AsyncClient.activate)
    cancel = _blocking(AsyncClient.cancel)
    read_decision = _blocking(AsyncClient.read_decision)
    list_models = _blocking(AsyncClient.list_models)
    read_model = _blocking(AsyncClient.read_model)
    list_tasks = _blocking(AsyncClient.list_tasks)
    read_task = _blocking(AsyncClient.read_task)
    put_model = _blocking(AsyncClient.put_model)
    set_share = _blocking(AsyncClient.set_share)
    roll_back = _blocking(AsyncClient.roll_back)
    ready = _blocking(AsyncClient.ready)


def _headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _decision(reply: Mapping[str, Any]) -> Decision:
    """The decision of a JSON reply; unknown fields are left out."""
    names = {field.name for field in fields(Decision)}
    return Decision(**{name: value for name, value in reply.items() if name in names})


def _model_path(model: str) -> str:
    return f"/v1/models/{_segment('model', model)}"


def _task_path(model: str, task: str) -> str:
    return f"{_model_path(model)}/tasks/{_segment('task', task)}"


def _decision_path(decision_id: str) -> str:
    return f"/v1/decisions/{_segment('decision_id', decision_id)}"


def _segment(name: str, value: str) -> str:
    if not isinstance(value, str) or not value or "/" in value:
        raise ValueError(
            f"`{name}`: expected text without a slash, got {value!r}; rename it, or pass tasks "
            "with slashes to decide_many"
        )
    return quote(value, safe="")
