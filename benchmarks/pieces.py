"""Where the time of one call goes: the pieces of a decision, and of learning a reward."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from diffprior.bandits.bandit import Bandit
from diffprior.bandits.decisions import awaited
from diffprior.bandits.requests import Request
from diffprior.evidence.base import AbstractLikelihood
from diffprior.evidence.families import Logistic
from diffprior.evidence.linear import Linear
from diffprior.samplers.evidence_dps import EvidenceDPS

from .section import Bench, Measurement, milliseconds
from .timing import take_turns

NUM_ACTIONS = 100
LIKELIHOODS: dict[str, Callable[[], AbstractLikelihood]] = {
    "linear": lambda: Linear(noise_std=1.0),
    "logistic": Logistic,
}


def pieces(bench: Bench) -> list[Measurement]:
    """Microseconds of the pieces of one linear decision among 100 actions, one after the other."""
    found = []
    for name in ("cross", "clusters"):
        bandit, features = _bandit(bench, name, Linear(noise_std=1.0))
        measure = functools.partial(_pieces_of, bandit, features)
        parts = _medians(measure, 200 if bench.quick else 1000)
        own = sum(seconds for part, seconds in parts.items() if part != "program")
        parts |= {"all but the program": own}
        dim = features.shape[1]
        found += [
            Measurement(f"{part}, d = {dim}", {"microseconds": seconds * 1e6})
            for part, seconds in parts.items()
        ]
    return found


def updates(bench: Bench) -> list[Measurement]:
    """Learning one reward."""
    calls: dict[str, Callable[[], object]] = {}
    for name in ("cross", "clusters"):
        for family, likelihood in LIKELIHOODS.items():
            bandit, features = _bandit(bench, name, likelihood())
            case = f"{family}, d = {features.shape[1]}"
            calls[case] = functools.partial(bandit.update, features[0], 1.0)
    timings = take_turns(calls, 100 if bench.quick else 500)
    return [Measurement(case, milliseconds(timing)) for case, timing in timings.items()]


def _bandit(bench: Bench, name: str, likelihood: AbstractLikelihood) -> tuple[Bandit, np.ndarray]:
    prior = bench.prior(name)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((NUM_ACTIONS, prior.dim)) / prior.dim**0.5
    bandit = Bandit(EvidenceDPS(prior), likelihood, seed=0)
    bandit.update(features[:50], (rng.random(50) < 0.5).astype(float))
    return bandit, features


def _pieces_of(bandit: Bandit, features: np.ndarray) -> dict[str, float]:
    """Seconds of the pieces of a decision, as `Bandit.decide` puts them together. The program is
    timed on arrays that it has been handed before, so that dispatch is what is left of the call."""
    begin = time.perf_counter()
    request = Request(features, None, None, None, features.shape[1])
    checked = time.perf_counter()
    (block,) = bandit._blocks(request, bandit._state)
    padded = time.perf_counter()
    program, arguments = bandit._programs.decision(bandit._state, 0, block)
    packed = time.perf_counter()
    result = program(*arguments)
    row = awaited(result)[0]
    answered = time.perf_counter()
    request.decision(row, block)
    replied = time.perf_counter()
    seconds = _seconds(program, jax.device_put(arguments))
    return {
        "checks": checked - begin,
        "padding": padded - checked,
        "packing": packed - padded,
        "dispatch and transfer": max(answered - packed - seconds, 0.0),
        "program": seconds,
        "reply": replied - answered,
    }


def _seconds(program: Callable[..., Any], arguments: Any) -> float:
    jax.block_until_ready(arguments)
    begin = time.perf_counter()
    awaited(program(*arguments))
    return time.perf_counter() - begin


def _medians(measure: Callable[[], dict[str, float]], num_rounds: int) -> dict[str, float]:
    measure()  # compiles
    found = [measure() for _ in range(num_rounds)]
    return {part: float(np.median([each[part] for each in found])) for part in found[0]}
