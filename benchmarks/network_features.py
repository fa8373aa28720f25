"""Features learned by a network: regret and held-out log evidence beside known and raw features.

`--section real` learns from InstEval and MovieLens 1M in the folder $DIFFPRIOR_DATA, by default
`data`, as `experiments.real_tasks` does.
"""

import copy
import functools
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

import diffprior as dp
from diffprior.learning.network_encoder import with_network
from diffprior.learning.scoring import gain
from experiments.real_tasks import DATA_SETS

from .harness import Bench, Measurement, command

NOISE_STD, NUM_TASKS, NUM_ROWS = 0.5, 1000, 30
NUM_NEW, NUM_ROUNDS, NUM_ACTIONS = 100, 50, 20
FOLDER = Path(os.environ.get("DIFFPRIOR_DATA", "data"))
Features = Callable[[np.ndarray], np.ndarray]
learn = functools.partial(dp.learn, likelihood=dp.Linear(), quick=True, progress=False)


def waves(x: np.ndarray) -> np.ndarray:
    """Four waves in three columns."""
    rng = np.random.default_rng(5)
    directions, phases = 1.5 * rng.standard_normal((3, 4)), rng.uniform(0, 2 * np.pi, 4)
    return np.sqrt(2.0) * np.cos(x @ directions + phases)


def shapes(x: np.ndarray) -> np.ndarray:
    """A threshold, an interaction, a bend and a bump."""
    a, b, c = x[..., 0], x[..., 1], x[..., 2]
    return np.stack([np.tanh(3 * a), 2 * b * c, np.abs(a), 2 * np.exp(-4 * b**2)], axis=-1)


def columns(x: np.ndarray) -> np.ndarray:
    """The raw columns and a constant."""
    return np.insert(x, 0, 1.0, axis=-1)


def parameters(rng: np.random.Generator, n: int, dim: int) -> np.ndarray:
    """Of tasks, around the corners of a cube."""
    return 0.8 * rng.choice([-1.0, 1.0], (n, dim)) + 0.4 * rng.standard_normal((n, dim))


def rows(rng: np.random.Generator, features: Features, num_columns: int) -> tuple[np.ndarray, ...]:
    """Tasks, columns and rewards of past tasks."""
    phi = features(x := rng.uniform(-1, 1, (NUM_TASKS, NUM_ROWS, num_columns)))
    eta = np.einsum("tnd,td->tn", phi, parameters(rng, NUM_TASKS, phi.shape[-1]))
    rewards = eta + NOISE_STD * rng.standard_normal(eta.shape)
    return np.repeat(np.arange(NUM_TASKS), NUM_ROWS), x.reshape(-1, num_columns), rewards.ravel()


def regret(model: dp.Model, features: Features, given: Features, num_new: int) -> np.ndarray:
    """Of new tasks, each with fresh actions every round; `given` makes what the model takes."""
    rng, found = np.random.default_rng(1), np.zeros(num_new)
    for task in range(num_new):
        bandit, x = model.bandit(seed=task), rng.uniform(-1, 1, (NUM_ROUNDS, NUM_ACTIONS, 3))
        theta, noise = parameters(rng, 1, 4)[0], NOISE_STD * rng.standard_normal(NUM_ROUNDS)
        for actions, error in zip(x, noise, strict=True):
            means, offered = features(actions) @ theta, given(actions)
            taken = bandit.decide(offered).action
            bandit.update(offered[taken], means[taken] + error)
            found[task] += means.max() - means[taken]
    return found


def nonlinear(bench: Bench) -> list[Measurement]:
    """Regret of new tasks after 50 rounds, with features known, learned, and raw."""
    found, num_new = [], 2 if bench.quick else NUM_NEW
    for world in (waves, shapes):
        tasks, x, y = rows(np.random.default_rng(0), world, 3)
        known = regret(learn(dp.Logs(tasks, world(x), y)), world, world, num_new)
        raw = dp.Logs(tasks, columns(x), y)
        models = {"learned": learn(raw, encoder=dp.NetworkEncoder()), "raw": learn(raw)}
        each = {name: regret(one, world, columns, num_new) for name, one in models.items()}
        for name, values in {"known": known, **each}.items():
            over = gain(values - known)
            about = {"regret": float(values.mean()), "over known": over.mean, "se": over.error}
            found.append(Measurement(f"{world.__name__}, {name}", about))
    return found


def compared(name: str, seen: dp.Logs, new: dp.Logs) -> Measurement:
    """Held-out nats per task of new tasks, with learned features over without."""
    nats, model = [], None
    for encoder in (None, dp.NetworkEncoder()):
        model, logs = learn(seen, encoder=encoder), copy.copy(new)
        logs.encoder = model.encoder
        if logs.encoder is not None and logs.encoder.network is not None:
            logs = with_network(logs, logs.encoder.network)
        nats.append(dp.evaluate.log_evidence(model.prior, logs, model.likelihood))
    over, about = gain(nats[1] - nats[0]), str(model and model.report and model.report.features)
    print(name, over, about, flush=True)
    return Measurement(name, {"over raw": over.mean, "se": over.error, "features": about})


def linear(bench: Bench) -> list[Measurement]:
    """Held-out nats in linear worlds of 3 and 12 columns, with learned features over without."""
    found = list[Measurement]()
    for num_columns, seed in itertools.product((3, 12), range(1 if bench.quick else 3)):
        rng = np.random.default_rng([num_columns, seed])
        parts = (rows(rng, columns, num_columns) for _ in range(2))
        seen, new = (dp.Logs(tasks, columns(x), y) for tasks, x, y in parts)
        found.append(compared(f"{num_columns} columns, seed {seed}", seen, new))
    return found


def real(bench: Bench) -> list[Measurement]:
    """Held-out nats of real data, first turn, with learned features over without."""
    some = [each for each in DATA_SETS if each.name in ("InstEval", "movielens")]
    return [compared(each.name, *next(each.turns(FOLDER, 0))) for each in some]


if __name__ == "__main__":
    command({"nonlinear": nonlinear, "linear": linear, "real": real}, ("nonlinear", "linear"))
