"""The whole suite: every figure a ratio of things measured in turn on this machine."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..bandits.result import SimulationResult
from ..bandits.simulate import simulate
from ..priors.denoisers import NetworkDenoiser
from ..priors.diffusion import DiffusionPrior
from ..priors.gaussian import GaussianPrior
from ..priors.training import network_recipe
from ..problems.base import AbstractProblem
from ..problems.mixtures import mixture
from ..problems.synthetic import synthetic, uniform_in_ball
from ..reporting.machine import peak_memory
from ..reproduce.parts import Parts
from ..samplers.base import AbstractSampler
from ..samplers.evidence_dps import EvidenceDPS
from ..samplers.exact import Exact
from ..samplers.laplace_dps import LaplaceDPS
from ..samplers.twisted_smc import TwistedSMC
from .arithmetic import matrix_rate, multiply_adds
from .decisions import draws_per_second, first_decision, linear_decisions, logistic_decisions
from .rivals import numpy_thompson_sampling
from .timing import Timing, take_turns

RUNS, ROUNDS = 100, 200
FEWEST_STAGES = 20  # of LaplaceDPS that keep its distance within a tenth of the best


class Suite:
    """Sections by name; each returns plain numbers."""

    def __init__(self, parts: Parts, *, quick: bool = False) -> None:
        self.parts, self.quick = parts, quick
        self.sections: dict[str, Callable[[], Any]] = {
            "runs": self.runs,
            "decisions": self.decisions,
            "logistic": self.logistic,
            "first decision": lambda: first_decision(self.prior("cross")),
            "fit": self.fit,
            "growth": self.growth,
            "draws": self.draws,
        }

    def run(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The sections of these names, with the peak of memory after each."""
        self.parts.watch.plan(len(names))
        found: dict[str, Any] = {}
        for name in names:
            begin = time.perf_counter()
            found[name] = plain(self.sections[name]())
            found[name]["seconds in all"] = time.perf_counter() - begin
            found[name]["peak memory"] = peak_memory()
        return found

    def prior(self, name: str, preset: str = "default") -> DiffusionPrior:
        """A prior learned from 10,000 samples of a mixture."""
        samples = np.asarray(mixture(name).sample(jax.random.key(100), 10_000), np.float64)
        return self.parts.prior(f"prior, {name}, {preset}", samples, preset=preset)

    def samplers(self) -> dict[str, AbstractSampler]:
        """The configurations that the targets speak of, d = 2."""
        paper, ours = self.prior("cross", "paper"), self.prior("cross")
        return {
            "LaplaceDPS, the paper's preset": LaplaceDPS(paper, covariance="paper"),
            f"LaplaceDPS, {FEWEST_STAGES} stages": LaplaceDPS(ours, steps=FEWEST_STAGES),
            "EvidenceDPS": EvidenceDPS(ours),
            "TwistedSMC": TwistedSMC(ours),
        }

    def runs(self) -> dict[str, Any]:
        """100 runs of 200 rounds against Gaussian Thompson sampling in NumPy, and the least that
        the networks could cost."""
        samplers, problem = self.samplers(), synthetic("cross")
        repeats = 3 if self.quick else 5
        rate = matrix_rate()
        rows: dict[str, Any] = {}
        rival = _numpy_rival()
        for name, sampler in samplers.items():
            compiling = _play(name, sampler, problem).compile_seconds[name]
            seconds: dict[str, list[float]] = {"ours": [], "NumPy": []}
            for _ in range(repeats):
                seconds["ours"].append(_play(name, sampler, problem).seconds[name])
                seconds["NumPy"].append(take_turns({"NumPy": rival}, 1)["NumPy"].median)
            timings = {key: Timing.of(values, compiling) for key, values in seconds.items()}
            least = RUNS * ROUNDS * multiply_adds(sampler) / rate
            rows[name] = {
                "seconds": timings["ours"],
                "NumPy": timings["NumPy"],
                "ratio": timings["ours"].median / timings["NumPy"].median,
                "compiling": compiling,
                "arithmetic limit": least,
                "over the limit": timings["ours"].median / least,
            }
        return {"matrix rate, multiply-adds a second": rate, "rows": rows}

    def decisions(self) -> dict[str, Any]:
        """One linear decision among 100 actions."""
        eight = self.prior("clusters")
        samplers = {
            **self.samplers(),
            "exact Gaussian": Exact(GaussianPrior(np.zeros(2), np.eye(2))),
            "LaplaceDPS, the paper's preset, d = 8": LaplaceDPS(
                self.prior("clusters", "paper"), covariance="paper"
            ),
            "EvidenceDPS, d = 8": EvidenceDPS(eight),
            "TwistedSMC, d = 8": TwistedSMC(eight),
        }
        return linear_decisions(samplers, 100 if self.quick else 500)

    def logistic(self) -> dict[str, Any]:
        """A logistic decision after ever more rewards."""
        sizes = (1_000, 10_000) if self.quick else (1_000, 10_000, 100_000)
        sampler = EvidenceDPS(self.prior("cross"))
        return logistic_decisions(sampler, sizes, 50 if self.quick else 200)

    def fit(self) -> dict[str, Any]:
        """Learning the prior against 100 scikit-learn regressors, of which three are timed."""
        found = {}
        for name in ("cross",) if self.quick else ("cross", "clusters"):
            samples = np.asarray(mixture(name).sample(jax.random.key(100), 10_000), np.float64)
            begin = time.perf_counter()
            DiffusionPrior.fit(samples, progress=False)
            ours = time.perf_counter() - begin
            theirs = scikit_learn_seconds(samples, (50,) if self.quick else (10, 50, 90))
            found[name] = {"seconds": ours, "100 regressors": theirs, "ratio": theirs / ours}
        return found

    def growth(self) -> dict[str, Any]:
        """Microseconds a draw as one thing grows: stages, particles, draws at once, parameters."""
        paper, ours = self.prior("cross", "paper"), self.prior("cross")
        repeats = 3 if self.quick else 7

        def micro(sampler: AbstractSampler, count: int = 1024) -> float:
            return draws_per_second(sampler, count, repeats).median / count * 1e6

        stages, particles, dims = (5, 10, 20, 50, 100), (1, 4, 16, 64), (1, 2, 4, 8, 12)
        return {
            "LaplaceDPS, stages T": {t: micro(LaplaceDPS(paper, steps=t)) for t in stages},
            "EvidenceDPS, stages T": {t: micro(EvidenceDPS(ours, steps=t)) for t in stages},
            "TwistedSMC, particles": {
                k: micro(TwistedSMC(ours, num_particles=k), 128) for k in particles
            },
            "EvidenceDPS, draws at once": {
                n: micro(EvidenceDPS(ours), n) for n in (1, 10, 100, 1_000, 10_000)
            },
            "EvidenceDPS, parameters d": {d: micro(EvidenceDPS(untrained(d)), 256) for d in dims},
        }

    def draws(self) -> dict[str, Any]:
        """Posterior draws a second from one history, with as many chains as suit the device."""
        count = 10**6 if jax.default_backend() != "cpu" else 10**4
        rate = matrix_rate(8192 if jax.default_backend() != "cpu" else 2048)
        rows = {}
        for name, sampler in self.samplers().items():
            number = count if not isinstance(sampler, TwistedSMC) else count // 32
            timing = draws_per_second(sampler, number, 3 if self.quick else 7)
            rows[name] = {
                "draws a second": number / timing.median,
                "arithmetic limit": rate / multiply_adds(sampler),
                "seconds": timing,
            }
        return {"device": jax.devices()[0].device_kind, "rows": rows}


def _play(name: str, sampler: AbstractSampler, problem: AbstractProblem) -> SimulationResult:
    return simulate(problem, {name: sampler}, RUNS, ROUNDS, progress=False)


def untrained(dim: int) -> DiffusionPrior:
    """A default prior of `dim` parameters that has learned nothing: as fast as one that has."""
    _, width, depth = network_recipe(dim, isotropic=False)
    standard = DiffusionPrior.from_denoiser(GaussianPrior(np.zeros(dim), np.eye(dim)))
    network = NetworkDenoiser.initialise(
        jax.random.key(0), dim, width=width, depth=depth, isotropic=False
    )
    network = jax.tree.map(lambda leaf: leaf.astype(standard.offset.dtype), network)
    return dataclasses.replace(standard, denoiser=network)


def _numpy_rival() -> Callable[[], object]:
    keys = jax.random.split(jax.random.key(0), RUNS)
    features = np.stack([np.asarray(uniform_in_ball(key, 100, 2), np.float64) for key in keys])
    rng = np.random.default_rng(0)
    theta, noise = rng.standard_normal((RUNS, 2)), rng.standard_normal((RUNS, ROUNDS))
    return lambda: numpy_thompson_sampling(theta, features, noise, seed=0)


def scikit_learn_seconds(samples: np.ndarray, stages: tuple[int, ...]) -> float:
    """Seconds for a regressor of each of 100 stages, from some of them."""
    import warnings

    from sklearn.neural_network import MLPRegressor

    rng = np.random.default_rng(0)
    unit = (samples - samples.mean(axis=0)) / samples.std(axis=0)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for t in stages:
            noise = rng.standard_normal(unit.shape)
            noisy = np.sqrt(0.97**t) * unit + np.sqrt(1 - 0.97**t) * noise
            MLPRegressor(hidden_layer_sizes=(100, 100), random_state=0).fit(noisy, noise)
    return (time.perf_counter() - begin) * 100 / len(stages)


def plain(value: Any) -> Any:
    """Timings as dictionaries, all the way down."""
    if isinstance(value, Timing):
        return dataclasses.asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value
