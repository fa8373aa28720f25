"""Requests by the thousand, made from the service's own description: none is an error of ours."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from starlette.testclient import TestClient

from service.conftest import LINEAR, MakeService, decide
from service.openapi import Call, calls

# The engine's thread may draw random numbers while Hypothesis makes an example, which it reports.
pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
NUM_REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "120"))


def test_no_request_breaks_the_service(make_service: MakeService) -> None:
    client = make_service(**LINEAR)
    decide(client, decision_id="x1")
    seen: dict[int, int] = {}

    @settings(
        max_examples=NUM_REQUESTS,
        derandomize="FUZZ_REQUESTS" not in os.environ,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(call=calls(client.get("/openapi.json").json()))
    def ask(call: Call) -> None:
        reply = send(client, call)
        seen[reply] = seen.get(reply, 0) + 1

    ask()
    print(f"requests by status: {seen}")
    assert 200 in seen and 422 in seen and 404 in seen, seen
    decide(client)


def send(client: TestClient, call: Call) -> int:
    """The status of a call, which is no error of the service."""
    headers = {"content-type": "application/json"}
    reply = client.request(
        call.method, call.path, params=call.query, content=call.body, headers=headers
    )
    assert reply.status_code < 500, (call, reply.text)
    return reply.status_code
