"""The client, for code that waits."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import httpx

from . import calls
from .calls import Call, DecisionRequest, new_id
from .replies import CallError, Decision
from .retries import Retries, error_of

Reply = TypeVar("Reply")


class Client:
    """Calls the decision service.

    Calls that got no answer, or 502, 503 or 504, are sent again after a pause. That is safe: every
    decision has an id, made before the first try, by which the service knows it again, and so has
    every reward. `put_model` and `roll_back`, which would be done twice, are sent again only where
    no connection was made.

    Args:
        url: Where the service is, such as http://127.0.0.1:8000.
        token: As `diffprior token create` printed it; None where none is required.
        timeout: Seconds to wait for each answer.
        max_retries: How often a call is sent again.
        backoff: Seconds before the first of these, doubled each time.
        transport: Of httpx, for proxies and tests; its own by default.

    Raises:
        CallError: By every method, where the service refuses or does not answer.
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
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(
            base_url=url, headers=headers, timeout=timeout, transport=transport
        )
        self._retries = Retries(max_retries, backoff)

    def __enter__(self) -> "Client":
        """For `with`, which closes the connections in the end."""
        return self

    def __exit__(self, *_: Any) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def decide(
        self,
        model: str,
        task: str,
        *,
        features: Any = None,
        actions: Mapping[str, Any] | None = None,
        mask: Any = None,
        top_k: int | None = None,
        action_taken: str | int | None = None,
        deferred: bool = False,
        decision_id: str | None = None,
    ) -> Decision:
        """Choose an action for a task, which comes into being at its first decision.

        Args:
            model: Name of the model.
            task: As of `DecisionRequest`, and so are the others.
            features: Features of each action (K, d); or pass `actions`.
            actions: Features (d,) of each action by its name.
            mask: Which actions are allowed (K,); None for all.
            top_k: Rank so many actions instead of choosing one.
            action_taken: Shadow mode: the action that was taken by someone else.
            deferred: Wait for no reward until the decision is activated.
            decision_id: What the decision is called; a fresh id by default.

        Returns:
            The decision.
        """
        about = (task, features, actions, mask, top_k, action_taken, deferred)
        request = DecisionRequest(*about, decision_id or new_id())
        return self._send(calls.decide(model, request))

    def decide_many(
        self, model: str, requests: Sequence[DecisionRequest]
    ) -> list[Decision | CallError]:
        """Choose actions for up to 256 tasks.

        Args:
            model: Name of the model.
            requests: What to decide.

        Returns:
            A decision for each request; of one that was refused the error, which is not raised.
        """
        return self._send(calls.decide_many(model, requests))

    def reward(self, decision_id: str, reward: float, *, reward_id: str | None = None) -> str:
        """Tell what a decision earned. The same call again changes nothing.

        Args:
            decision_id: Of the decision.
            reward: What it earned.
            reward_id: Of a further reward of the same decision, one of its own.

        Returns:
            What became of it: learned, waiting, late or ignored.
        """
        return self._send(calls.reward(decision_id, reward, reward_id))

    def activate(self, decision_id: str) -> Decision:
        """Begin to wait for the reward of the deferred decision `decision_id`."""
        return self._send(calls.change(decision_id, "activate"))

    def cancel(self, decision_id: str) -> Decision:
        """Learn nothing from the decision `decision_id`, which was not carried out."""
        return self._send(calls.change(decision_id, "cancel"))

    def read_decision(self, decision_id: str) -> dict[str, Any]:
        """The decision `decision_id` and the rewards that came for it."""
        return self._send(calls.read_decision(decision_id))

    def list_models(self) -> list[dict[str, Any]]:
        """All models that the token may see."""
        return self._send(calls.list_models())

    def read_model(self, model: str) -> dict[str, Any]:
        """The model `model` and its versions."""
        return self._send(calls.read_model(model))

    def list_tasks(self, model: str, *, after: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Tasks of `model` by name: the first `limit`, at most 1,000, after that named `after`."""
        return self._send(calls.list_tasks(model, after, limit))

    def read_task(self, model: str, task: str) -> dict[str, Any]:
        """What is known of `task` of `model`: counts, its posterior, and the prior beside it."""
        return self._send(calls.read_task(model, task))

    def put_model(
        self,
        model: str,
        prior: Any,
        *,
        settings: Mapping[str, Any] | None = None,
        share: float = 1.0,
    ) -> dict[str, Any]:
        """Add a model, or a version of it.

        Args:
            model: Name of the model.
            prior: A prior, or anything with its `to_bytes`.
            settings: As the service takes them: `likelihood`, `likelihood_options`, `sampler`, ...
            share: Of the tasks that it serves, 0 to 1.

        Returns:
            The model and its versions.
        """
        return self._send(calls.put_model(model, prior, settings, share))

    def set_share(self, model: str, version: int, share: float) -> dict[str, Any]:
        """Let `version` of `model` serve this `share` of the tasks, 0 to 1."""
        return self._send(calls.set_share(model, version, share))

    def roll_back(self, model: str) -> dict[str, Any]:
        """Give all tasks of `model` back to the version before the newest one that serves any."""
        return self._send(calls.roll_back(model))

    def ready(self) -> bool:
        """True as soon as the service answers; tried again as other calls are."""
        return self._send(calls.ready())

    def _send(self, call: Call[Reply]) -> Reply:
        tries = 0
        while True:
            tries += 1
            failure: Any
            try:
                failure = self._http.request(call.method, call.path, json=call.body)
                if failure.is_success:
                    return call.read(failure.json())
            except httpx.TransportError as error:
                failure = error
            delay = self._retries.delay(call, tries, failure)
            if delay is None:
                raise error_of(call, tries, failure)
            time.sleep(delay)
