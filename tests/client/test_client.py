"""The client: what it sends, when it sends it again, and what it says when that does not help."""

import asyncio
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

import diffprior as dp
from diffprior.client import (
    MAX_DELAY,
    AsyncClient,
    CallError,
    Client,
    DecisionRequest,
    _delay,
)
from service.conftest import (  # noqa: F401  (fixtures)
    LINEAR,
    MakeService,
    database,
    features,
    make_service,
    service,
)

Handler = Callable[[httpx.Request], httpx.Response]


def forward(service: TestClient, lost: int = 0) -> Handler:  # noqa: F811
    """Pass requests on to a service; of each, the first `lost` answers never arrive."""
    counts: dict[str, int] = {}

    def handle(request: httpx.Request) -> httpx.Response:
        text = f"{request.method} {request.url} {request.content!r}"
        reply = service.request(
            request.method, str(request.url), content=request.content, headers=dict(request.headers)
        )
        counts[text] = counts.get(text, 0) + 1
        if counts[text] <= lost:
            raise httpx.ReadTimeout("the answer was lost", request=request)
        return httpx.Response(reply.status_code, content=reply.content)

    return handle


def client_of(handle: Handler, **options: Any) -> Client:
    return Client("http://localhost", transport=httpx.MockTransport(handle), backoff=0.0, **options)


def test_every_call_does_what_it_says(service: TestClient) -> None:  # noqa: F811
    with client_of(forward(service)) as client:
        assert client.ready()
        named = client.decide("shop", "a b", actions={"red": np.ones(2), "blue": np.zeros(2)})
        assert named.action in ("red", "blue") and 0 <= named.propensity <= 1
        assert client.reward(named.decision_id, 0.5) == "learned"
        assert client.read_decision(named.decision_id)["rewards"][0]["value"] == 0.5
        ranked = client.decide(
            "shop", "a b", features=features(0), top_k=2, mask=[True, True, False]
        )
        assert sorted(ranked.action) == [0, 1]
        waiting = client.decide("shop", "a b", features=features(0), deferred=True)
        assert waiting.status == "deferred"
        assert client.activate(waiting.decision_id).status == "active"
        assert client.cancel(waiting.decision_id).status == "cancelled"
        shadow = client.decide("shop", "c", features=features(0), action_taken=1)
        assert shadow.action == 1
        with pytest.raises(ValueError, match="`features`: expected a row per action, got a dict"):
            DecisionRequest("c", {"a": [1.0]})
        both = [DecisionRequest("c", features(0)), DecisionRequest("c", [[1.0]])]
        good, rejected = client.decide_many("shop", both)
        assert good.decision_id == both[0].decision_id
        assert isinstance(rejected, CallError) and rejected.status == 422
        chosen = client.choose("shop", np.ones(2), items=["x", "y"], exclude=["x"], deferred=True)
        assert chosen.item == client.activate(chosen.decision_id).item == "y"
        assert client.reward(chosen.decision_id, 0.5) == "learned"
        assert client.read_task("shop", "a b")["num_rewards"] == 1
        said = client.reward_many({good.decision_id: 0.5, named.decision_id: 0.7, "none": 1})
        assert said[good.decision_id] == "learned"
        assert [said[name].status for name in (named.decision_id, "none")] == [409, 404]
        assert [t["task"] for t in client.list_tasks("shop", after="a b")] == ["c", "x", "y"]
        assert client.put_task("shop", "d")["retired"] is None
        assert client.retire_task("shop", "d")["retired"] is not None
        rows = [{"age": np.float64(3.0), "labels": ("a", "b")}, {"age": np.nan, "labels": None}]
        with pytest.raises(CallError, match="learned from arrays"):
            client.decide("shop", "c", features=rows)
        with pytest.raises(CallError, match="learned without"):
            client.put_task("shop", "d", [1.0, np.nan])
        prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
        assert len(client.put_model("shop", prior, settings=LINEAR, share=0.5)["versions"]) == 2
        assert client.set_share("shop", 2, 1.0)["versions"][0]["share"] == 1.0
        assert client.roll_back("shop")["versions"][0]["share"] == 0.0
        assert client.read_model("shop")["model"] == client.list_models()[0]["model"] == "shop"


def test_lost_answers_are_asked_for_again_and_nothing_is_done_twice(
    service: TestClient,  # noqa: F811
) -> None:
    with client_of(forward(service, lost=2)) as client:
        for i in range(5):
            decision = client.decide("shop", "a", features=features(i))
            assert client.reward(decision.decision_id, float(i)) == "learned"
        about = client.read_task("shop", "a")
        assert (about["num_decisions"], about["num_rewards"]) == (5, 5)
        with pytest.raises(CallError, match="got none in 1 tries .ReadTimeout"):
            client.put_model("shop", dp.GaussianPrior(np.zeros(2), np.eye(2)), settings=LINEAR)
        assert len(client.read_model("shop")["versions"]) == 2  # it was done, once


def test_the_async_client_is_the_same(service: TestClient) -> None:  # noqa: F811
    async def talk() -> dict[str, Any]:
        transport = httpx.MockTransport(forward(service, lost=1))
        async with AsyncClient("http://localhost", transport=transport, backoff=0.0) as client:
            wanted = [client.decide("shop", f"t{i}", features=features(i)) for i in range(4)]
            for decision in await asyncio.gather(*wanted):
                await client.reward(decision.decision_id, 1.0)
            return await client.read_task("shop", "t0")

    assert asyncio.run(talk())["num_rewards"] == 1
    names = [name for name, f in vars(Client).items() if inspect.isfunction(f) and name[0] != "_"]
    assert len(names) > 13
    for name in names:
        ours, theirs = getattr(Client, name), getattr(AsyncClient, name)
        assert inspect.signature(ours) == inspect.signature(theirs) or name == "close"
        assert inspect.iscoroutinefunction(theirs)


def answers(*given: int | Exception) -> tuple[Handler, list[httpx.Request]]:
    """A service that answers with these statuses one after the other, the last one for ever."""
    asked: list[httpx.Request] = []
    following = itertools.chain(given, itertools.repeat(given[-1]))

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        answer = next(following)
        if isinstance(answer, Exception):
            raise answer
        body = {"status": "learned"} if answer == 200 else {"error": "`reward`: too large"}
        return httpx.Response(answer, json=body, headers={"Retry-After": "0"})

    return handle, asked


@pytest.mark.parametrize(
    ("given", "tries", "words"),
    [
        ((503, httpx.ConnectError("refused"), httpx.ReadError("reset"), 200), 4, None),
        ((422,), 1, "POST /v1/decisions/d/reward: 422: `reward`: too large"),
        ((429,), 1, "429"),
        ((503,), 6, "503"),
        (
            (httpx.ConnectError("refused"),),
            6,
            "got none in 6 tries .ConnectError: refused.; is the",
        ),
    ],
)
def test_only_what_may_pass_is_sent_again(given: tuple, tries: int, words: str | None) -> None:
    handle, asked = answers(*given)
    with client_of(handle, token="dp_x") as client:
        if words is None:
            assert client.reward("d", 1.0) == "learned"
        else:
            with pytest.raises(CallError, match=words):
                client.reward("d", 1.0)
    assert len(asked) == tries and len({request.content for request in asked}) == 1
    assert asked[0].headers["Authorization"] == "Bearer dp_x"


def test_delays_grow_and_follow_the_service() -> None:
    for tries in range(1, 9):
        delay, longest = _delay(tries, httpx.ReadError("reset"), 0.1), 0.1 * 2 ** (tries - 1)
        assert 0.5 * min(MAX_DELAY, longest) <= delay <= min(MAX_DELAY, longest)
    assert _delay(1, httpx.Response(503, headers={"Retry-After": "7"}), 0.1) == 7.0


def test_models_with_slashes_are_rejected() -> None:
    handle, asked = answers(200)
    with client_of(handle) as client, pytest.raises(ValueError, match="`model`: expected text"):
        client.read_task("a/b", "shop")
    assert not asked
