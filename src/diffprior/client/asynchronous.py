"""The client, for asyncio."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import httpx

from . import calls
from .calls import Call, DecisionRequest, new_id
from .replies import CallError, Decision
from .retries import Retries, error_of

Reply = TypeVar("Reply")


class AsyncClient:
    """As `Client`, with methods that are awaited.

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
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, transport=transport
        )
        self._retries = Retries(max_retries, backoff)

    async def __aenter__(self) -> "AsyncClient":
        """For `async with`, which closes the connections in the end."""
        return self

    async def __aexit__(self, *_: Any) -> None:
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
        features: Any = None,
        actions: Mapping[str, Any] | None = None,
        mask: Any = None,
        top_k: int | None = None,
        action_taken: str | int | None = None,
        deferred: bool = False,
        decision_id: str | None = None,
    ) -> Decision:
        """Await what `Client.decide` does, with arguments as of `Client.decide`."""
        about = (task, features, actions, mask, top_k, action_taken, deferred)
        request = DecisionRequest(*about, decision_id or new_id())
        return await self._send(calls.decide(model, request))

    async def decide_many(
        self, model: str, requests: Sequence[DecisionRequest]
    ) -> list[Decision | CallError]:
        """Await what `Client.decide_many` does, with arguments as of `Client.decide_many`."""
        return await self._send(calls.decide_many(model, requests))

    async def reward(self, decision_id: str, reward: float, *, reward_id: str | None = None) -> str:
        """Await what `Client.reward` does, with arguments as of `Client.reward`."""
        return await self._send(calls.reward(decision_id, reward, reward_id))

    async def activate(self, decision_id: str) -> Decision:
        """Await what `Client.activate` does, with arguments as of `Client.activate`."""
        return await self._send(calls.change(decision_id, "activate"))

    async def cancel(self, decision_id: str) -> Decision:
        """Await what `Client.cancel` does, with arguments as of `Client.cancel`."""
        return await self._send(calls.change(decision_id, "cancel"))

    async def read_decision(self, decision_id: str) -> dict[str, Any]:
        """Await what `Client.read_decision` does, with arguments as of `Client.read_decision`."""
        return await self._send(calls.read_decision(decision_id))

    async def list_models(self) -> list[dict[str, Any]]:
        """All models that the token may see."""
        return await self._send(calls.list_models())

    async def read_model(self, model: str) -> dict[str, Any]:
        """Await what `Client.read_model` does, with arguments as of `Client.read_model`."""
        return await self._send(calls.read_model(model))

    async def list_tasks(
        self, model: str, *, after: str = "", limit: int = 100
    ) -> list[dict[str, Any]]:
        """Await what `Client.list_tasks` does, with arguments as of `Client.list_tasks`."""
        return await self._send(calls.list_tasks(model, after, limit))

    async def read_task(self, model: str, task: str) -> dict[str, Any]:
        """Await what `Client.read_task` does, with arguments as of `Client.read_task`."""
        return await self._send(calls.read_task(model, task))

    async def put_model(
        self,
        model: str,
        prior: Any,
        *,
        settings: Mapping[str, Any] | None = None,
        share: float = 1.0,
    ) -> dict[str, Any]:
        """Await what `Client.put_model` does, with arguments as of `Client.put_model`."""
        return await self._send(calls.put_model(model, prior, settings, share))

    async def set_share(self, model: str, version: int, share: float) -> dict[str, Any]:
        """Await what `Client.set_share` does, with arguments as of `Client.set_share`."""
        return await self._send(calls.set_share(model, version, share))

    async def roll_back(self, model: str) -> dict[str, Any]:
        """Await what `Client.roll_back` does, with arguments as of `Client.roll_back`."""
        return await self._send(calls.roll_back(model))

    async def ready(self) -> bool:
        """Await what `Client.ready` does, with arguments as of `Client.ready`."""
        return await self._send(calls.ready())

    async def _send(self, call: Call[Reply]) -> Reply:
        tries = 0
        while True:
            tries += 1
            failure: Any
            try:
                failure = await self._http.request(call.method, call.path, json=call.body)
                if failure.is_success:
                    return call.read(failure.json())
            except httpx.TransportError as error:
                failure = error
            delay = self._retries.delay(call, tries, failure)
            if delay is None:
                raise error_of(call, tries, failure)
            await asyncio.sleep(delay)
