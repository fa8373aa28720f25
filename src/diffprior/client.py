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

__all__ = ["AsyncClient", "CallError", "ChoiceReply", "Client", "DecisionReply", "DecisionRequest"]

TRANSIENT = (500, 502, 503, 504)  # another try may succeed
MAX_REWARDS = 1_000  # of one call
MAX_DELAY = 10.0  # seconds between two tries
Json = dict[str, object]
RawRow = Mapping[str, object]  # raw columns by name: numbers, booleans, text, lists of labels, None
Failure = httpx.Response | httpx.TransportError
P = ParamSpec("P")
R = TypeVar("R")
Reply = TypeVar("Reply", "DecisionReply", "ChoiceReply")


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


@dataclass(frozen=True, kw_only=True)
class _AbstractReply:
    """What the service says of a decision, whatever it is among."""

    decision_id: str
    propensity: float | None
    propensity_se: float | None
    model_version: int
    expires: float | None
    status: str
    failed: bool


@dataclass(frozen=True, kw_only=True)
class DecisionReply(_AbstractReply):
    """A decision of the service.

    Args:
        decision_id: Its id, for reporting the reward.
        action: A row index of `features` or a name of `actions`; with `top_k` a list, best first.
        propensity: Estimated probability of the action; None without `propensity_draws`.
        propensity_se: Standard error of `propensity`.
        model_version: The version of the model that made it.
        expires: When it stops waiting for its reward, in seconds since 1970; None for never.
        status: active, deferred or cancelled.
        failed: Whether a draw given the evidence failed, so that the prior decided.
        recommended: In shadow mode, the action that the service would have taken if it differs.
    """

    action: str | int | list[str] | list[int]
    recommended: str | int | None = None


@dataclass(frozen=True, kw_only=True)
class ChoiceReply(_AbstractReply):
    """A choice of the service among items; what is not named here is as of `DecisionReply`.

    Args:
        item: The item to show; with `top_k` a list, best first. The reward is that of the first.
        propensity: Estimated probability of the item (to be among the best `top_k`).
        recommended: In shadow mode, the item that the service would have shown if it differs.
    """

    item: str | list[str]
    recommended: str | None = None


def _new_id() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True)
class DecisionRequest:
    """One decision of `decide_many`; actions are given by `features`, or by name by `actions`.

    Args:
        task: Name of the task.
        features: Features of each action (K, d), or a list of their raw rows.
        actions: Features (d,), or the raw row, of each action by its name.
        mask: Which actions are allowed (K,); None for all.
        top_k: Rank this many actions instead of choosing one.
        action_taken: Shadow mode: the action that your own system has taken.
        deferred: Wait for a reward only once the decision is activated.
        decision_id: Id of the decision; a new one by default. Repeating a request gets the same
            answer.
        attributes: What is known of the task, as of `put_task`.
    """

    task: str
    features: ArrayLike | Sequence[RawRow] | None = None
    actions: Mapping[str, ArrayLike | RawRow] | None = None
    mask: ArrayLike | None = None
    top_k: int | None = None
    action_taken: str | int | None = None
    deferred: bool = False
    decision_id: str = field(default_factory=_new_id)
    attributes: ArrayLike | RawRow | None = None

    def __post_init__(self) -> None:
        if isinstance(self.features, Mapping):
            raise ValueError(
                "`features`: expected a row per action, got a dict; pass actions={...} for rows by "
                "the name of the action"
            )

    def _body(self) -> Json:
        actions = self.actions
        return _given(
            features=_plain(self.features),
            actions=None if actions is None else {k: _plain(v) for k, v in actions.items()},
            mask=_plain(self.mask),
            top_k=self.top_k,
            action_taken=self.action_taken,
            deferred=self.deferred or None,
            decision_id=self.decision_id,
            attributes=_plain(self.attributes),
        )


def _given(**body: object) -> Json:
    """A body without what is None."""
    return {name: value for name, value in body.items() if value is not None}


def _plain(value: ArrayLike | RawRow | Sequence[RawRow] | None) -> object:
    """Numbers or raw rows as JSON, with null where a number is not known."""
    if isinstance(value, Mapping):
        return {name: _cell(cell) for name, cell in value.items()}
    if isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
        return [_plain(row) for row in value]
    return None if value is None else _cell(np.asarray(value).tolist())


def _cell(cell: object) -> object:
    if isinstance(cell, list | tuple | set | frozenset):
        return [_cell(part) for part in cell]
    cell = cell.item() if isinstance(cell, np.generic) else cell
    return None if isinstance(cell, float) and np.isnan(cell) else cell


def _may_repeat(failure: Failure, repeatable: bool) -> bool:
    """Whether to send a call again, which the service recognizes if it is `repeatable`."""
    if isinstance(failure, httpx.Response):
        return repeatable and failure.status_code in TRANSIENT
    return repeatable or isinstance(failure, httpx.ConnectError)  # which was never sent


def _call_error(about: str, tries: int, failure: Failure) -> CallError:
    if not isinstance(failure, httpx.Response):
        reason = f"{type(failure).__name__}: {failure}".removesuffix(": ")
        return CallError(
            f"{about}: expected an answer, got none in {tries} tries ({reason}); is the "
            "service running there, and is `timeout` long enough?"
        )
    try:
        message = failure.json()["error"]
    except (ValueError, KeyError, TypeError):
        message = failure.text[:200] or failure.reason_phrase
    return CallError(f"{about}: {failure.status_code}: {message}", failure.status_code)


def _delay(tries: int, failure: Failure, backoff: float) -> float:
    """Seconds to wait after this many tries; half is random, lest clients return together."""
    wait = min(MAX_DELAY, backoff * 2 ** (tries - 1)) * random.uniform(0.5, 1.0)
    headers = failure.headers if isinstance(failure, httpx.Response) else {}
    asked = headers.get("Retry-After", "")
    return max(wait, min(MAX_DELAY, float(asked))) if asked.isdecimal() else wait


class AsyncClient:
    """Calls the decision service from asyncio.

    Calls without an answer, or answered 500, 502, 503 or 504, are sent again after a delay. That is
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
        self._max_retries, self._backoff = max_retries, backoff

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def decide(
        self,
        model: str,
        task: str,
        *,
        features: ArrayLike | Sequence[RawRow] | None = None,
        actions: Mapping[str, ArrayLike | RawRow] | None = None,
        mask: ArrayLike | None = None,
        top_k: int | None = None,
        action_taken: str | int | None = None,
        deferred: bool = False,
        decision_id: str | None = None,
        attributes: ArrayLike | RawRow | None = None,
    ) -> DecisionReply:
        """Choose an action for a task, which is created on its first decision.

        `model` is the name of the model; the other arguments are as of `DecisionRequest`.

        Returns:
            The decision.
        """
        options = (features, actions, mask, top_k, action_taken, deferred)
        request = DecisionRequest(task, *options, decision_id or _new_id(), attributes)
        path = f"{_model(model, task)}/decisions"
        return _reply(DecisionReply, await self._send("POST", path, request._body()))

    async def choose(
        self,
        model: str,
        context: ArrayLike | RawRow,
        *,
        items: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        top_k: int | None = None,
        item_taken: str | None = None,
        deferred: bool = False,
        decision_id: str | None = None,
    ) -> ChoiceReply:
        """Choose among items, which are the tasks of the model.

        Args:
            model: Name of the model.
            context: Features (d,) of the visitor, or their raw row.
            items: Names to choose among; None for all that are not retired.
            exclude: Names not to choose.
            top_k: Rank this many items instead of choosing one.
            item_taken: Shadow mode: the item that your own system has shown.
            deferred: Wait for a reward only once the choice is activated.
            decision_id: As of `DecisionRequest`.

        Returns:
            The choice.
        """
        body = _given(
            context=_plain(context),
            items=None if items is None else list(items),
            exclude=list(exclude) or None,
            top_k=top_k,
            item_taken=item_taken,
            deferred=deferred or None,
            decision_id=decision_id or _new_id(),
        )
        reply = await self._send("POST", f"{_model(model)}/choices", body)
        return _reply(ChoiceReply, reply)

    async def decide_many(
        self, model: str, requests: Sequence[DecisionRequest]
    ) -> list[DecisionReply | CallError]:
        """Choose actions for up to 256 tasks.

        Args:
            model: Name of the model.
            requests: The decisions to make.

        Returns:
            A decision for each request; for a rejected one the error, which is not raised.
        """
        bodies = [{"task": request.task, **request._body()} for request in requests]
        reply = await self._send("POST", f"{_model(model)}/decisions", {"decisions": bodies})
        return [_error(one) or _reply(DecisionReply, one) for one in reply["decisions"]]

    async def reward(self, decision_id: str, reward: float, *, reward_id: str | None = None) -> str:
        """Report the reward of a decision. Repeating the call changes nothing.

        Args:
            decision_id: Id of the decision.
            reward: Its reward.
            reward_id: A new id for each further reward of the same decision.

        Returns:
            The status of the reward: learned, waiting, late or ignored.
        """
        body = _given(reward=float(reward), reward_id=reward_id)
        reply = await self._send("POST", f"{_decision(decision_id)}/reward", body)
        return str(reply["status"])

    async def reward_many(self, rewards: Mapping[str, float]) -> dict[str, str | CallError]:
        """Report the rewards of many decisions, a thousand per call.

        Args:
            rewards: Reward by id of the decision.

        Returns:
            The status of each reward, as of `reward`; for a rejected one the error, which is not
            raised.
        """
        found: dict[str, str | CallError] = {}
        for start in range(0, len(rewards), MAX_REWARDS):
            some = list(rewards.items())[start : start + MAX_REWARDS]
            bodies = [{"decision_id": name, "reward": float(reward)} for name, reward in some]
            replies = (await self._send("POST", "/v1/rewards", {"rewards": bodies}))["rewards"]
            for (name, _), one in zip(some, replies, strict=True):
                found[name] = _error(one) or str(one["status"])
        return found

    async def activate(self, decision_id: str) -> DecisionReply | ChoiceReply:
        """Start waiting for the reward of the deferred decision `decision_id`."""
        return _either(await self._send("POST", f"{_decision(decision_id)}/activate"))

    async def cancel(self, decision_id: str) -> DecisionReply | ChoiceReply:
        """Learn nothing from the decision `decision_id`, which was not carried out."""
        return _either(await self._send("POST", f"{_decision(decision_id)}/cancel"))

    async def read_decision(self, decision_id: str) -> Json:
        """The decision `decision_id` and its rewards."""
        return await self._send("GET", _decision(decision_id))

    async def list_models(self) -> list[Json]:
        """All models that the token may see."""
        return (await self._send("GET", "/v1/models"))["models"]

    async def read_model(self, model: str) -> Json:
        """The model `model` and its versions."""
        return await self._send("GET", _model(model))

    async def list_tasks(self, model: str, *, after: str = "", limit: int = 100) -> list[Json]:
        """Tasks of `model` by name: the first `limit`, at most 1,000, after the name `after`."""
        path = f"{_model(model)}/tasks?after={quote(after, safe='')}&limit={limit}"
        return (await self._send("GET", path))["tasks"]

    async def read_task(self, model: str, task: str) -> Json:
        """Counts, posterior and prior of the task `task` of `model`."""
        return await self._send("GET", _model(model, task))

    async def put_task(
        self, model: str, task: str, attributes: ArrayLike | RawRow | None = None
    ) -> Json:
        """Create a task, tell what is known of it, or use it again after it was retired.

        Args:
            model: Name of the model.
            task: Name of the task.
            attributes: Raw columns by name, or numbers (a,), NaN where one is not known. Without
                them, what was known of the task stays.

        Returns:
            The task.
        """
        return await self._send("PUT", _model(model, task), _given(attributes=_plain(attributes)))

    async def retire_task(self, model: str, task: str) -> Json:
        """Let `task` of `model` get no more decisions; its evidence stays, rewards still count."""
        return await self._send("DELETE", _model(model, task))

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
            prior: The model, or the prior with its likelihood in `settings`.
            settings: Settings of the service: `likelihood`, `likelihood_options`, `sampler`, ...
            share: Share of the tasks that it serves, 0 to 1.

        Returns:
            The model and its versions.
        """
        data = base64.b64encode(prior.to_bytes()).decode()
        body: Json = {"prior": data, "settings": dict(settings or {}), "share": share}
        return await self._send("PUT", _model(model), body, False)

    async def set_share(self, model: str, version: int, share: float) -> Json:
        """Let `version` of `model` serve this `share` of the tasks, 0 to 1."""
        path = f"{_model(model)}/versions/{version:d}"
        return await self._send("PUT", path, {"share": share})

    async def roll_back(self, model: str) -> Json:
        """Return all tasks of `model` to the version before the newest one that serves any."""
        return await self._send("POST", f"{_model(model)}/rollback", repeatable=False)

    async def ready(self) -> bool:
        """True as soon as the service answers; retried like other calls."""
        return bool((await self._send("GET", "/ready"))["ready"])

    async def _send(
        self, method: str, path: str, body: Json | None = None, repeatable: bool = True
    ) -> Any:
        """The JSON of the reply."""
        tries = 0
        while True:
            tries += 1
            try:
                reply = await self._request(method, path, body)
                if reply.is_success:
                    return reply.json()
                failure: Failure = reply
            except httpx.TransportError as error:
                failure = error
            if tries > self._max_retries or not _may_repeat(failure, repeatable):
                raise _call_error(f"{method} {path}", tries, failure)
            await self._sleep(_delay(tries, failure, self._backoff))

    async def _request(self, method: str, path: str, body: Json | None) -> httpx.Response:
        return await self._http.request(method, path, json=body)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _BlockingClient(AsyncClient):
    """`AsyncClient` whose coroutines never suspend, so that `Client` can run them to their end."""

    def __init__(self, http: httpx.Client, max_retries: int, backoff: float) -> None:
        self._blocking_http, self._max_retries, self._backoff = http, max_retries, backoff

    async def _request(self, method: str, path: str, body: Json | None) -> httpx.Response:
        return self._blocking_http.request(method, path, json=body)

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
        self._calls = _BlockingClient(self._http, max_retries, backoff)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    decide = _blocking(AsyncClient.decide)
    choose = _blocking(AsyncClient.choose)
    decide_many = _blocking(AsyncClient.decide_many)
    reward = _blocking(AsyncClient.reward)
    reward_many = _blocking(AsyncClient.reward_many)
    activate = _blocking(AsyncClient.activate)
    cancel = _blocking(AsyncClient.cancel)
    read_decision = _blocking(AsyncClient.read_decision)
    list_models = _blocking(AsyncClient.list_models)
    read_model = _blocking(AsyncClient.read_model)
    list_tasks = _blocking(AsyncClient.list_tasks)
    read_task = _blocking(AsyncClient.read_task)
    put_task = _blocking(AsyncClient.put_task)
    retire_task = _blocking(AsyncClient.retire_task)
    put_model = _blocking(AsyncClient.put_model)
    set_share = _blocking(AsyncClient.set_share)
    roll_back = _blocking(AsyncClient.roll_back)
    ready = _blocking(AsyncClient.ready)


def _headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _either(reply: Mapping[str, Any]) -> DecisionReply | ChoiceReply:
    return _reply(ChoiceReply, reply) if "item" in reply else _reply(DecisionReply, reply)


def _reply(kind: type[Reply], reply: Mapping[str, Any]) -> Reply:
    """The JSON of a reply as a dataclass; unknown fields are left out."""
    names = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in reply.items() if name in names})


def _error(reply: Mapping[str, Any]) -> CallError | None:
    """The error in place of one reply of many."""
    return CallError(reply["error"], reply["status"]) if "error" in reply else None


def _model(model: str, task: str | None = None) -> str:
    """The path of a model, or of one of its tasks."""
    path = f"/v1/models/{_part('model', model)}"
    return path if task is None else f"{path}/tasks/{_part('task', task)}"


def _decision(decision_id: str) -> str:
    return f"/v1/decisions/{_part('decision_id', decision_id)}"


def _part(name: str, value: str) -> str:
    if not isinstance(value, str) or not value or ("/" in value and name != "task"):
        raise ValueError(f"`{name}`: expected text without a slash, got {value!r}; rename it")
    return quote(value, safe="")
