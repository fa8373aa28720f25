"""How long one decision takes: through `Bandit.decide`, as histories grow, and in a new process."""

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..bandits.bandit import Bandit
from ..evidence.families import Logistic
from ..evidence.linear import Linear
from ..priors.diffusion import DiffusionPrior
from ..samplers.base import AbstractSampler
from .rivals import library_decision
from .timing import Timing, take_turns

NUM_ACTIONS = 100


def linear_decisions(
    samplers: dict[str, AbstractSampler], num_rounds: int
) -> dict[str, dict[str, Timing]]:
    """Decisions of each sampler after 50 observations, with the library's in turn, by dimension."""
    found = {}
    for dim in sorted({sampler.prior.dim for sampler in samplers.values()}):
        features = _features(dim)
        calls: dict[str, Callable[[], object]] = {
            name: _decision(sampler, features)
            for name, sampler in samplers.items()
            if sampler.prior.dim == dim
        }
        library = library_decision(features, seed=0)
        if library is not None:
            calls["bayesianbandits"] = library
        found[f"d = {dim}"] = take_turns(calls, num_rounds)
    return found


def logistic_decisions(
    sampler: AbstractSampler, sizes: tuple[int, ...], num_rounds: int
) -> dict[str, Any]:
    """Decisions after ever more binary rewards, and how far the bounded history has moved the
    posterior: of its mean in posterior deviations, of its variances as ratios."""
    features = _features(sampler.prior.dim)
    bandits = {size: _taught(sampler, size) for size in sizes}
    calls = {str(size): functools.partial(b.decide, features) for size, b in bandits.items()}
    timings = take_turns(calls, num_rounds)
    errors = {str(size): _folding_error(sampler, size, bandit) for size, bandit in bandits.items()}
    return {"timings": timings, "errors": errors}


def first_decision(prior: DiffusionPrior, repeats: int = 3) -> dict[str, list[float]]:
    """Seconds from the start of a Python process to its first decision, where the compilation
    cache is cold, and then warm."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prior.dprior"
        prior.save(path)
        cold = [_new_process(path, Path(folder) / "cold")]
        warm = [_new_process(path, Path(folder) / "cold") for _ in range(repeats)]
    return {"cold": cold, "warm": warm}


_SCRIPT = """
import sys
import diffprior as dp
dp.keep_compiled(sys.argv[2])
import numpy as np
prior = dp.DiffusionPrior.load(sys.argv[1])
bandit = dp.Bandit(prior, dp.Linear(noise_std=1.0))
bandit.decide(np.random.default_rng(0).standard_normal((100, prior.dim)))
"""


def _new_process(prior: Path, cache: Path) -> float:
    begin = time.perf_counter()
    command = [sys.executable, "-c", _SCRIPT, str(prior), str(cache)]
    subprocess.run(command, check=True, env=os.environ.copy())
    return time.perf_counter() - begin


def _features(dim: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((NUM_ACTIONS, dim)) / dim**0.5


def _decision(sampler: AbstractSampler, features: np.ndarray) -> Callable[[], object]:
    bandit = Bandit(sampler, Linear(noise_std=1.0))
    rng = np.random.default_rng(1)
    bandit.update(features[:50], rng.standard_normal(50))
    return lambda: bandit.decide(features)


def _history(dim: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size)
    features, theta = rng.standard_normal((size, dim)) / dim**0.5, rng.standard_normal(dim)
    return features, (rng.random(size) < 1 / (1 + np.exp(-features @ theta))).astype(float)


def _taught(sampler: AbstractSampler, size: int) -> Bandit:
    bandit = Bandit(sampler, Logistic())
    bandit.update(*_history(sampler.prior.dim, size))
    return bandit


def _folding_error(sampler: AbstractSampler, size: int, bandit: Bandit) -> dict[str, float]:
    prior = sampler.prior.moments()
    exact, _ = Logistic().observe(*_history(sampler.prior.dim, size)).condition(prior)
    ours, _ = bandit.evidence.condition(prior)
    whiten = np.linalg.inv(np.linalg.cholesky(np.asarray(exact.cov, np.float64)))
    mean, cov = (np.asarray(a, np.float64) for a in (ours.mean - exact.mean, ours.cov))
    ratios = np.linalg.eigvalsh(whiten @ cov @ whiten.T)
    return {
        "mean_in_deviations": float(np.linalg.norm(whiten @ mean)),
        "smallest_variance_ratio": float(ratios[0]),
        "largest_variance_ratio": float(ratios[-1]),
    }


def draws_per_second(sampler: AbstractSampler, count: int, repeats: int) -> Timing:
    """The time of `count` posterior draws, all from one history."""
    history = Linear(noise_std=1.0).observe(*_history(sampler.prior.dim, 20))
    key = jax.random.key(0)

    def draw() -> object:
        return jax.block_until_ready(sampler.sample_many(key, history, count, throw=False))

    return take_turns({"draws": draw}, repeats)["draws"]
