"""What runs, decisions and draws cost, side by side with peers and with the machine's limit."""

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from diffprior.bandits.bandit import Bandit
from diffprior.bandits.simulate import simulate
from diffprior.evidence.families import Logistic
from diffprior.evidence.linear import Linear
from diffprior.priors.diffusion import DiffusionPrior
from diffprior.priors.gaussian import GaussianPrior
from diffprior.problems.synthetic import synthetic, uniform_in_ball
from diffprior.samplers.base import AbstractSampler
from diffprior.samplers.evidence_dps import EvidenceDPS
from diffprior.samplers.exact import Exact
from diffprior.samplers.few_passes import FewPasses, stands_on_a_mixture
from diffprior.samplers.laplace_dps import LaplaceDPS
from diffprior.samplers.twisted_smc import TwistedSMC

from .arithmetic import layers_over, matrix_rate, over_limit
from .peers import library_decision, numpy_thompson_sampling
from .section import Bench, Measurement, milliseconds
from .timing import Timing, take_turns

RUNS, ROUNDS = 100, 200
NUM_ACTIONS = 100
FEWEST_STAGES = 20  # of LaplaceDPS that keep its distance within a tenth of the best


def samplers(bench: Bench) -> dict[str, AbstractSampler]:
    """Samplers of two parameters, with priors learned from cross."""
    paper, ours = bench.prior("cross", "paper"), bench.prior("cross")
    return {
        "LaplaceDPS, the paper's preset": LaplaceDPS(paper, covariance="paper"),
        f"LaplaceDPS, {FEWEST_STAGES} stages": LaplaceDPS(ours, steps=FEWEST_STAGES),
        "EvidenceDPS": EvidenceDPS(ours),
        **_few_passes("FewPasses", ours),
        "TwistedSMC": TwistedSMC(ours),
    }


def _few_passes(name: str, prior: DiffusionPrior) -> dict[str, AbstractSampler]:
    """Where there is a mixture to draw from."""
    return {name: FewPasses(prior)} if stands_on_a_mixture(prior) else {}


def runs(bench: Bench) -> list[Measurement]:
    """100 runs of 200 rounds, beside Gaussian Thompson sampling in NumPy."""
    problem, rate, peer = synthetic("cross"), matrix_rate(), _numpy_peer()
    found = []
    for name, sampler in samplers(bench).items():
        compiling = 0.0
        ours, theirs = [], []
        for turn in range(1 + (3 if bench.quick else 5)):
            result = simulate(problem, {name: sampler}, RUNS, ROUNDS, progress=False, throw=False)
            if turn == 0:
                compiling = result.compile_seconds[name]
                continue
            ours.append(result.seconds[name])
            theirs.append(take_turns({"NumPy": peer}, 1)["NumPy"].median)
        seconds, numpy_seconds = float(np.median(ours)), float(np.median(theirs))
        quantities = {
            "seconds": seconds,
            "NumPy TS, s": numpy_seconds,
            "over NumPy": seconds / numpy_seconds,
            "over arithmetic limit": over_limit(sampler, seconds / (RUNS * ROUNDS), rate),
            "its layers, over NumPy": layers_over(sampler, RUNS, numpy_seconds / ROUNDS),
            "compiling, s": compiling,
        }
        found.append(Measurement(name, quantities))
    return found


def decisions(bench: Bench) -> list[Measurement]:
    """One linear decision among 100 actions after 50 rewards, beside bayesianbandits'."""
    eight = bench.prior("clusters")
    everyone = {
        **samplers(bench),
        "exact Gaussian": Exact(GaussianPrior(np.zeros(2), np.eye(2))),
        "EvidenceDPS, d = 8": EvidenceDPS(eight),
        **_few_passes("FewPasses, d = 8", eight),
        "TwistedSMC, d = 8": TwistedSMC(eight),
    }
    found = []
    for dim in sorted({sampler.prior.dim for sampler in everyone.values()}):
        features = _features(dim)
        calls: dict[str, Callable[[], object]] = {
            name: _decision(sampler, features)
            for name, sampler in everyone.items()
            if sampler.prior.dim == dim
        }
        calls[f"bayesianbandits, d = {dim}"] = library_decision(features, seed=0)
        timings = take_turns(calls, 100 if bench.quick else 500)
        found += [Measurement(name, milliseconds(timing)) for name, timing in timings.items()]
    return found


def logistic(bench: Bench) -> list[Measurement]:
    """A logistic decision after ever more rewards, and how far bounded rows move the posterior."""
    sizes = (1_000, 10_000) if bench.quick else (1_000, 10_000, 100_000)
    sampler = EvidenceDPS(bench.prior("cross"))
    features = _features(2)
    bandits = {size: _taught(sampler, size) for size in sizes}
    calls = {str(size): functools.partial(b.decide, features) for size, b in bandits.items()}
    timings = take_turns(calls, 50 if bench.quick else 200)
    return [
        Measurement(
            f"{size} rewards",
            {**milliseconds(timings[str(size)]), **bounding_error(sampler, size, bandit)},
        )
        for size, bandit in bandits.items()
    ]


def first_decision(bench: Bench) -> list[Measurement]:
    """Seconds from the start of a Python process to its first decision, cache cold and warm."""
    with tempfile.TemporaryDirectory() as folder:
        path, cache = Path(folder) / "prior.dprior", Path(folder) / "compiled"
        bench.prior("cross").save(path)
        cold = _new_process(path, cache)
        warm = [_new_process(path, cache) for _ in range(3)]
    return [
        Measurement("nothing compiled", {"seconds": cold}),
        Measurement("compiled before", {"seconds": float(np.median(warm))}),
    ]


def draws(bench: Bench) -> list[Measurement]:
    """Posterior draws a second from one history, with as many chains as suit the device."""
    on_cpu = jax.default_backend() == "cpu"
    count, rate = (10**4, matrix_rate(2048)) if on_cpu else (10**6, matrix_rate(8192))
    found = []
    for name, sampler in samplers(bench).items():
        number = count // 32 if isinstance(sampler, TwistedSMC) else count
        timing = time_draws(sampler, number, 3 if bench.quick else 7)
        quantities = {
            "draws a second": number / timing.median,
            "over arithmetic limit": over_limit(sampler, timing.median / number, rate),
        }
        found.append(Measurement(name, quantities))
    return found


def time_draws(sampler: AbstractSampler, count: int, repeats: int) -> Timing:
    """The time of `count` posterior draws, all from one history of 20 rewards."""
    history = Linear(noise_std=1.0).observe(*_history(sampler.prior.dim, 20))
    key = jax.random.key(0)

    def draw() -> object:
        return jax.block_until_ready(sampler.sample_many(key, history, count, throw=False))

    return take_turns({"draws": draw}, repeats)["draws"]


def bounding_error(sampler: AbstractSampler, size: int, bandit: Bandit) -> dict[str, float]:
    """How far a bounded history moves the posterior of all rows: its mean in posterior
    deviations, its variances as ratios."""
    prior = sampler.prior.moments()
    exact, _ = Logistic().observe(*_history(sampler.prior.dim, size)).condition(prior)
    ours, _ = bandit.evidence.condition(prior)
    whiten = np.linalg.inv(np.linalg.cholesky(np.asarray(exact.cov, np.float64)))
    mean, cov = (np.asarray(a, np.float64) for a in (ours.mean - exact.mean, ours.cov))
    ratios = np.linalg.eigvalsh(whiten @ cov @ whiten.T)
    return {
        "mean off, deviations": float(np.linalg.norm(whiten @ mean)),
        "least variance ratio": float(ratios[0]),
        "largest": float(ratios[-1]),
    }


_SCRIPT = """
import sys
import diffprior as dp
dp.keep_compiled(sys.argv[2])
import numpy as np
prior = dp.DiffusionPrior.load(sys.argv[1])
bandit = dp.Bandit(prior, dp.Linear(noise_std=1.0), seed=0)
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
    bandit = Bandit(sampler, Linear(noise_std=1.0), seed=0)
    bandit.update(features[:50], np.random.default_rng(1).standard_normal(50))
    return lambda: bandit.decide(features)


def _history(dim: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size)
    features, theta = rng.standard_normal((size, dim)) / dim**0.5, rng.standard_normal(dim)
    return features, (rng.random(size) < 1 / (1 + np.exp(-features @ theta))).astype(float)


def _taught(sampler: AbstractSampler, size: int) -> Bandit:
    bandit = Bandit(sampler, Logistic(), seed=0)
    bandit.update(*_history(sampler.prior.dim, size))
    return bandit


def _numpy_peer() -> Callable[[], object]:
    keys = jax.random.split(jax.random.key(0), RUNS)
    features = np.stack([np.asarray(uniform_in_ball(key, NUM_ACTIONS, 2)) for key in keys])
    rng = np.random.default_rng(0)
    theta, noise = rng.standard_normal((RUNS, 2)), rng.standard_normal((RUNS, ROUNDS))
    return lambda: numpy_thompson_sampling(theta, features.astype(float), noise, seed=0)
