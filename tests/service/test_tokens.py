"""Who may do what, on every call."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from diffprior.service.auth import create_token, revoke_token
from diffprior.service.server import check_access, is_loopback
from diffprior.service.store import Database
from service.conftest import LINEAR, MakeService, decide, features

FEATURES = {"features": features(0)}
CALLS = [
    ("POST", "/v1/models/shop/tasks/a/decisions", FEATURES, "decide"),
    ("POST", "/v1/models/shop/decisions", {"decisions": [{"task": "a", **FEATURES}]}, "decide"),
    ("POST", "/v1/models/shop/choices", {"context": [0.0, 0.0], "items": ["a"]}, "decide"),
    ("POST", "/v1/decisions/x/reward", {"reward": 1.0}, "reward"),
    ("POST", "/v1/rewards", {"rewards": [{"decision_id": "x", "reward": 1.0}]}, "reward"),
    ("POST", "/v1/decisions/x/activate", None, "reward"),
    ("POST", "/v1/decisions/x/cancel", None, "reward"),
    ("GET", "/v1/decisions/x", None, "read"),
    ("GET", "/v1/models", None, "read"),
    ("GET", "/v1/models/shop", None, "read"),
    ("GET", "/v1/models/shop/tasks", None, "read"),
    ("GET", "/v1/models/shop/tasks/a", None, "read"),
    ("PUT", "/v1/models/shop/tasks/a", {}, "decide"),
    ("DELETE", "/v1/models/shop/tasks/a", None, "decide"),
    ("PUT", "/v1/models/shop", {"prior": ""}, "admin"),
    ("PUT", "/v1/models/shop/versions/1", {"share": 1.0}, "admin"),
    ("POST", "/v1/models/shop/rollback", None, "admin"),
]


def call(client: TestClient, method: str, path: str, body: dict | None, token: str | None) -> int:
    """The status of a call with this token."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return client.request(method, path, json=body, headers=headers).status_code


def test_every_call_needs_its_right(make_service: MakeService, database: Database) -> None:
    client = make_service(required=True, **LINEAR)
    paths = client.get("/openapi.json").json()["paths"]
    documented = sum(path.startswith("/v1") * len(calls) for path, calls in paths.items())
    assert documented == len(CALLS), "a call is missing from this test"
    good = {
        right: create_token(database, (right,)) for right in ("decide", "reward", "read", "admin")
    }
    elsewhere = {right: create_token(database, (right,), model="other") for right in good}
    wrong = good["decide"][:-3] + "abc"
    for method, path, body, right in CALLS:
        for token in (None, "", "dp_x", wrong, "dp_00000000_secret"):
            assert call(client, method, path, body, token) == 401, (path, token)
        for other in set(good) - {right}:
            assert call(client, method, path, body, good[other]) == 403, (path, other)
        assert call(client, method, path, body, good[right]) not in (401, 403, 500), path
        if "/shop" in path:
            assert call(client, method, path, body, elsewhere[right]) == 403, path


def test_metrics_need_the_right_to_read(make_service: MakeService, database: Database) -> None:
    client = make_service(required=True, **LINEAR)
    for token in (None, "dp_x", "dp_00000000_secret"):
        assert call(client, "GET", "/metrics", None, token) == 401
    others = create_token(database, ("decide", "reward", "admin"))
    assert call(client, "GET", "/metrics", None, others) == 403
    assert call(client, "GET", "/metrics", None, create_token(database, ("read",))) == 200
    for path in ("/health", "/ready", "/docs", "/openapi.json"):
        assert call(client, "GET", path, None, None) == 200, path


def test_a_token_of_one_model_sees_no_other(make_service: MakeService, database: Database) -> None:
    client = make_service(**LINEAR)
    identity = decide(client)["decision_id"]
    token = create_token(database, ("reward", "read"), model="other")
    path = f"/v1/decisions/{identity}"
    assert call(client, "POST", f"{path}/reward", {"reward": 1.0}, token) == 404
    assert call(client, "GET", path, None, token) == 404
    headers = {"Authorization": f"Bearer {token}"}
    assert client.get("/v1/models", headers=headers).json() == {"models": []}


def test_a_revoked_token_is_rejected(make_service: MakeService, database: Database) -> None:
    client = make_service(required=True, **LINEAR)
    token = create_token(database, ("read",))
    assert revoke_token(database, token.split("_")[1])
    assert not revoke_token(database, "nobody")
    assert call(client, "GET", "/v1/models", None, token) == 401


def test_a_token_creates_no_more_tasks_than_it_may(
    make_service: MakeService, database: Database
) -> None:
    client = make_service(required=True, **LINEAR)
    token = create_token(database, ("decide",), max_tasks=2)
    statuses = [
        call(client, "POST", f"/v1/models/shop/tasks/{name}/decisions", FEATURES, token)
        for name in "abcab"
    ]
    assert statuses == [200, 200, 429, 200, 200]


def test_secrets_are_not_in_the_database(database: Database) -> None:
    secret = create_token(database).split("_", 2)[2]
    path = Path(str(database.url.database))
    files = [file for file in path.parent.iterdir() if file.name.startswith(path.name)]
    assert files and all(secret.encode() not in p.read_bytes() for p in files)


def test_nobody_else_is_let_in_without_tokens(database: Database) -> None:
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.org")
    assert check_access(database, "127.0.0.1", False) is False
    for host, required in (("0.0.0.0", False), ("127.0.0.1", True)):
        with pytest.raises(ValueError, match="token create"):
            check_access(database, host, required)
    create_token(database)
    assert check_access(database, "0.0.0.0", False) is True
    with pytest.raises(ValueError, match="rights"):
        create_token(database, ("everything",))
