"""A bandit behind Gunicorn: one to each worker, made after the worker was started.

    gunicorn --chdir examples --workers 2 --threads 4 --bind 127.0.0.1:8000 gunicorn_app:app

Without --preload, every worker imports this module on its own, so that JAX begins to work in it and
not in the process it was forked from. The threads of a worker share its bandit. Workers learn
apart; what all of them must learn belongs into a database, or into one worker with many threads.

    curl 127.0.0.1:8000/decide --data '{"features": [[1, 0], [0, 1]]}'
    curl 127.0.0.1:8000/reward --data '{"phi": [1, 0], "reward": 1}'
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import diffprior as dp

bandit = dp.Bandit(dp.GaussianPrior(np.zeros(2), np.eye(2)), dp.Logistic(), max_rows=256)
bandit.warm_up(num_actions=8)


def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a call returns."""
    if path == "/decide":
        decision = bandit.decide(body["features"])
        return {"action": decision.action, "num_decisions": bandit.num_decisions}
    if path == "/reward":
        bandit.update(body["phi"], body["reward"])
        return {"learned": True}
    raise ValueError(f"`path`: expected /decide or /reward, got {path}; use one of those")


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """The application as WSGI defines it; a rejected call is answered by the reason."""
    try:
        size = int(environ.get("CONTENT_LENGTH") or 0)
        found = answer(environ["PATH_INFO"], json.loads(environ["wsgi.input"].read(size)))
        status = "200 OK"
    except (KeyError, ValueError) as error:
        found, status = {"error": str(error)}, "400 Bad Request"
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(found).encode()]
