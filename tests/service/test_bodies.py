"""Bodies that are malformed, too large or too slow."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import uvicorn
from starlette.testclient import TestClient

from diffprior.service.api import make_app
from diffprior.service.auth import Tokens
from diffprior.service.engine import Engine
from diffprior.service.gate import Limits
from diffprior.service.metrics import Metrics
from diffprior.service.server import free_port, server_config
from diffprior.service.settings import Settings
from diffprior.service.store import Database
from service.conftest import LINEAR, PRIOR, features


def test_oversized_and_malformed_bodies_are_rejected(service: TestClient) -> None:
    path = "/v1/models/shop/tasks/a/decisions"
    assert service.post(path, content=b"x" * (3 * 2**20)).status_code == 413
    assert service.post(path, content=b'{"features": [[1').status_code == 422
    assert "content-type: application/json" in service.post(path, content=b"{}").json()["error"]
    head = {"content-type": "application/json"}
    for body, words in (
        (b"{features: 1}", "`body`: expected JSON, got a mistake at character 1"),
        (b'{"actions": [{"age": 1}]}', '`actions`: expected names mapped to values, as in {"a"'),
        (b'{"actions": {}}', "`body`: expected at least one action"),
    ):
        reply = service.post(path, content=body, headers=head)
        assert reply.status_code == 422 and reply.json()["error"].startswith(words)
    assert service.post(path, content=b"\xff\xfe").status_code == 422
    many = {"features": [[1.0, 2.0]] * 1001}
    assert service.post(path, json=many).status_code == 422
    assert service.post(path, content=iter([b"x" * 2**20] * 4)).status_code == 413  # chunked
    for strange in (b"[" * 100_000, b'{"top_k": ' + b"9" * 5_000 + b"}", b'{"features": NaN}'):
        assert service.post(path, content=strange).status_code in (400, 422)
    assert service.post("/v1/models/shop/tasks/%00/decisions", json={}).status_code == 422
    assert service.get("/v1/models/shop/tasks", params={"after": "\0"}).status_code == 422


REQUESTS = 60  # under way


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A service on a socket that waits a second for heads and bodies."""
    limits = Limits(seconds=1.0, head_seconds=1.0, requests=REQUESTS)
    database = Database(str(tmp_path_factory.mktemp("bodies") / "log.sqlite"))
    engine = Engine(database, metrics=Metrics())
    engine.catalog.put("shop", Settings(**LINEAR), PRIOR, 1.0)
    app = make_app(engine, Tokens(database, required=False), limits=limits)
    number = free_port()
    server = uvicorn.Server(server_config(app, "127.0.0.1", number, limits))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    engine.prepare()
    yield number
    server.should_exit = True
    thread.join()
    database.close()


HEAD = b"POST /v1/models/shop/tasks/a/decisions HTTP/1.1\r\nHost: localhost\r\n"


def test_slow_clients_are_disconnected_and_delay_nobody(port: int) -> None:
    expected = {
        b"": b"",
        HEAD: b"",
        b"\r\n": b"",
        HEAD + b"Content-Length: 100\r\n\r\n{": b"408",
        HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"fea': b"408",
    }
    slow = []
    for sent in 10 * list(expected):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(sent)
        slow.append((connection, sent))
    url = f"http://127.0.0.1:{port}/v1/models/shop/tasks/a/decisions"
    assert httpx.post(url, json={"features": features(0)}, timeout=30).status_code == 200
    for connection, sent in slow:
        connection.settimeout(30)
        assert connection.recv(1000).partition(b" ")[2][:3] == expected[sent]
        connection.close()


def test_long_heads_are_rejected(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(30)
        connection.sendall(HEAD)
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                connection.sendall(b"X-Padding: " + b"x" * 1000 + b"\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400")


def test_clients_that_do_not_read_are_disconnected(port: int) -> None:
    """More of them than there may be requests under way."""
    head = b"GET /static/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    slow = []
    for _ in range(2 * REQUESTS):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        slow.append(connection)
    gone, end = 0, time.monotonic() + 30
    while gone < len(slow) and time.monotonic() < end:  # buffers hold some replies
        gone = 0
        for connection in slow:
            try:
                connection.sendall(head)
            except ConnectionError:
                gone += 1
        time.sleep(0.05)
    assert gone == len(slow)
    url = f"http://127.0.0.1:{port}/v1/models/shop/tasks/a/decisions"
    assert httpx.post(url, json={"features": features(0)}, timeout=30).status_code == 200
    for connection in slow:
        connection.close()


CHUNKED = b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "more", "status"),
    [
        (CHUNKED + b"0\r\n", b"X-Trailer: " + b"x" * 1000 + b"\r\n", b"408"),
        (CHUNKED + b"1;a=", b"x" * 1000, b"408"),
        (b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"200"),
    ],
    ids=["trailers", "chunk extensions", "pipelined requests"],
)
def test_endless_requests_are_not_read(port: int, begin: bytes, more: bytes, status: bytes) -> None:
    """What the service does not take stays with the client; the first request is answered."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(0.5)
        sent, part = 0, begin + more * (2**20 // len(more))
        with contextlib.suppress(ConnectionError, TimeoutError):
            while sent < 64 * 2**20:
                sent += connection.send(part)
        assert sent < 32 * 2**20
        received = b""
        with contextlib.suppress(ConnectionError, TimeoutError):
            while part := connection.recv(2**16):
                received += part
        assert received.startswith(b"HTTP/1.1 " + status) and received.count(b"HTTP/1.1") == 1


def test_small_chunks_are_a_body(port: int) -> None:
    """Whose overhead is several times its size."""
    body = json.dumps({"features": [[0.5] * 2] * 900}).encode()
    parts = (body[i : i + 1] for i in range(len(body)))
    url = f"http://127.0.0.1:{port}/v1/models/shop/tasks/a/decisions"
    about = {"Content-Type": "application/json"}
    assert httpx.post(url, content=parts, headers=about, timeout=30).status_code == 200
