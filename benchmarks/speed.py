"""Cost of runs, decisions, updates, draws and fits, beside what a user would run instead.

`python -m benchmarks.speed --quick --section decisions --json FILE`
"""

import functools
import warnings
from collections.abc import Callable

import jax
import numpy as np

import diffprior as dp

from .harness import Bench, Calls, Measurement, command, seconds, take_turns, timed

RUNS, ROUNDS = 100, 200
NUM_ACTIONS = 100
FEWEST_STAGES = 20  # of LaplaceDPS that keep its distance within a tenth of the best


def samplers(bench: Bench) -> dict[str, dp.AbstractSampler]:
    """Samplers of two parameters, with priors learned from cross."""
    paper, ours = bench.prior("cross", "paper"), bench.prior("cross")
    return {
        "LaplaceDPS, the paper's preset": dp.LaplaceDPS(paper, covariance="paper"),
        f"LaplaceDPS, {FEWEST_STAGES} stages": dp.LaplaceDPS(ours, steps=FEWEST_STAGES),
        "EvidenceDPS": dp.EvidenceDPS(ours),
        **_few_passes("FewPasses", ours),
        "TwistedSMC": dp.TwistedSMC(ours),
    }


def _few_passes(name: str, prior: dp.DiffusionPrior) -> dict[str, dp.AbstractSampler]:
    """`FewPasses`, where the prior has the mixture that it needs."""
    try:
        return {name: dp.FewPasses(prior)}
    except ValueError:
        return {}


def runs(bench: Bench) -> list[Measurement]:
    """100 runs of 200 rounds, beside Gaussian Thompson sampling in NumPy."""
    problem, peer, found = dp.synthetic("cross"), _numpy_peer(), []
    for name, sampler in samplers(bench).items():
        play = functools.partial(
            dp.simulate, problem, {name: sampler}, RUNS, ROUNDS, progress=False, throw=False
        )
        compiling = play().compile_seconds[name]
        turns = [(play().seconds[name], seconds(peer)) for _ in range(3 if bench.quick else 5)]
        ours, theirs = map(float, np.median(turns, axis=0))
        quantities = {
            "seconds": ours,
            "NumPy TS, s": theirs,
            "over NumPy": ours / theirs,
            "compiling, s": compiling,
        }
        found.append(Measurement(name, quantities))
    return found


def decisions(bench: Bench) -> list[Measurement]:
    """One linear decision among 100 actions after 50 rewards, beside bayesianbandits'."""
    eight = bench.prior("clusters")
    everyone = {
        **samplers(bench),
        "exact Gaussian": dp.Exact(dp.GaussianPrior(np.zeros(2), np.eye(2))),
        "EvidenceDPS, d = 8": dp.EvidenceDPS(eight),
        **_few_passes("FewPasses, d = 8", eight),
        "TwistedSMC, d = 8": dp.TwistedSMC(eight),
    }
    found = []
    for dim in sorted({sampler.prior.dim for sampler in everyone.values()}):
        features = _features(dim)
        calls: Calls = {
            name: functools.partial(_bandit(sampler, dp.Linear(noise_std=1.0)).decide, features)
            for name, sampler in everyone.items()
            if sampler.prior.dim == dim
        }
        calls[f"bayesianbandits, d = {dim}"] = library_decision(features)
        found += timed(calls, 100 if bench.quick else 500)
    return found


def updates(bench: Bench) -> list[Measurement]:
    """Learning one reward."""
    calls: Calls = {}
    for name in ("cross", "clusters"):
        prior = bench.prior(name)
        for family in (dp.Linear(noise_std=1.0), dp.Logistic()):
            bandit = _bandit(dp.EvidenceDPS(prior), family)
            case = f"{type(family).__name__.lower()}, d = {prior.dim}"
            feature, rng = _features(prior.dim)[0], np.random.default_rng(2)
            calls[case] = functools.partial(_update, bandit, feature, rng)
    return timed(calls, 100 if bench.quick else 500)


def _update(bandit: dp.Bandit, features: np.ndarray, rng: np.random.Generator) -> None:
    bandit.update(features, float(rng.random() < 0.5))


def logistic(bench: Bench) -> list[Measurement]:
    """A logistic decision after ever more rewards, and how far bounded rows move the posterior."""
    sizes = (1_000, 10_000) if bench.quick else (1_000, 10_000, 100_000)
    sampler, features = dp.EvidenceDPS(bench.prior("cross")), _features(2)
    bandits = {}
    for size in sizes:
        bandits[size] = dp.Bandit(sampler, dp.Logistic(), seed=0)
        bandits[size].update(*history(2, size))
    calls = {str(size): functools.partial(b.decide, features) for size, b in bandits.items()}
    timings = take_turns(calls, 50 if bench.quick else 200)
    return [
        Measurement(
            f"{size} rewards",
            {**timings[str(size)].milliseconds(), **bounding_error(sampler, size, bandit)},
        )
        for size, bandit in bandits.items()
    ]


def bounding_error(sampler: dp.AbstractSampler, size: int, bandit: dp.Bandit) -> dict[str, float]:
    """How far a bounded history moves the posterior of all rows: its mean in posterior standard
    deviations, its variances as ratios."""
    prior = sampler.prior.moments()
    exact, _ = dp.Logistic().observe(*history(sampler.prior.dim, size)).condition(prior)
    ours, _ = bandit.evidence.condition(prior)
    whiten = np.linalg.inv(np.linalg.cholesky(np.asarray(exact.cov, float)))
    mean, cov = (np.asarray(a, float) for a in (ours.mean - exact.mean, ours.cov))
    ratios = np.linalg.eigvalsh(whiten @ cov @ whiten.T)
    return {
        "mean off, deviations": float(np.linalg.norm(whiten @ mean)),
        "least variance ratio": float(ratios[0]),
        "largest": float(ratios[-1]),
    }


def draws(bench: Bench) -> list[Measurement]:
    """Posterior draws per second from one history, with as many chains as suit the device."""
    count, found = 10**4 if jax.default_backend() == "cpu" else 10**6, []
    evidence, key = dp.Linear(noise_std=1.0).observe(*history(2, 20)), jax.random.key(0)
    for name, sampler in samplers(bench).items():
        number = count // 32 if isinstance(sampler, dp.TwistedSMC) else count
        draw = functools.partial(sampler.sample_many, key, evidence, number, throw=False)
        call = functools.partial(lambda draw: jax.block_until_ready(draw()), draw)
        timing = take_turns({"": call}, 3 if bench.quick else 7)[""]
        found.append(Measurement(name, {"draws per second": number / timing.median}))
    return found


def fit(bench: Bench) -> list[Measurement]:
    """Seconds to fit the default prior, and scikit-learn's 100 regressors, some of them timed."""
    found = []
    for name in ("cross",) if bench.quick else ("cross", "clusters"):
        samples = np.asarray(dp.example_mixture(name).sample(jax.random.key(100), 10_000), float)
        ours = seconds(lambda samples=samples: dp.DiffusionPrior.fit(samples, progress=False))
        theirs = scikit_learn_seconds(samples, (50,) if bench.quick else (10, 50, 90))
        quantities = {"seconds": ours, "100 regressors, s": theirs, "ratio": theirs / ours}
        found.append(Measurement(name, quantities))
    return found


def scikit_learn_seconds(samples: np.ndarray, stages: tuple[int, ...]) -> float:
    """Seconds for one regressor per stage of the paper's 100, from some of them."""
    from sklearn.neural_network import MLPRegressor

    rng = np.random.default_rng(0)
    unit = (samples - samples.mean(axis=0)) / samples.std(axis=0)
    total = 0.0
    for t in stages:
        noise = rng.standard_normal(unit.shape)
        noisy = np.sqrt(0.97**t) * unit + np.sqrt(1 - 0.97**t) * noise
        regressor = MLPRegressor(hidden_layer_sizes=(100, 100), random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            total += seconds(functools.partial(regressor.fit, noisy, noise))
    return total * 100 / len(stages)


def numpy_thompson_sampling(
    theta: np.ndarray, features: np.ndarray, noise: np.ndarray, seed: int
) -> np.ndarray:
    """Regret (runs, rounds) of exact Thompson sampling under N(0, I), all runs in one batch.

    `theta` (runs, d), `features` (runs, K, d), `noise` (runs, rounds) of standard deviation 1.
    """
    rng = np.random.default_rng(seed)
    runs, _, dim = features.shape
    means = np.einsum("rkd,rd->rk", features, theta)
    best = means.max(axis=1)
    precision, shift = np.tile(np.eye(dim), (runs, 1, 1)), np.zeros((runs, dim))
    regret, every = np.empty(noise.shape), np.arange(runs)
    for round_ in range(noise.shape[1]):
        cov = np.linalg.inv(precision)
        tril = np.linalg.cholesky(cov)
        draw = np.einsum("rij,rj->ri", cov, shift)
        draw += np.einsum("rij,rj->ri", tril, rng.standard_normal((runs, dim)))
        action = np.argmax(np.einsum("rkd,rd->rk", features, draw), axis=1)
        phi, mean = features[every, action], means[every, action]
        precision += phi[:, :, None] * phi[:, None, :]
        shift += phi * (mean + noise[:, round_])[:, None]
        regret[:, round_] = best - mean
    return regret


def library_decision(features: np.ndarray) -> Callable[[], object]:
    """One decision of bayesianbandits' Gaussian regressor, by the shortest way: a draw of every
    action's mean, and the largest."""
    from bayesianbandits import NormalRegressor

    rng = np.random.default_rng(0)
    model = NormalRegressor(alpha=1.0, beta=1.0, random_state=0)
    model.partial_fit(rng.standard_normal((50, features.shape[1])), rng.standard_normal(50))
    return lambda: int(np.argmax(model.sample(features)[0]))


def history(dim: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Features (size, dim) of random actions, and rewards of 0 or 1."""
    rng = np.random.default_rng(size)
    features, theta = rng.standard_normal((size, dim)) / dim**0.5, rng.standard_normal(dim)
    return features, (rng.random(size) < 1 / (1 + np.exp(-features @ theta))).astype(float)


def _features(dim: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((NUM_ACTIONS, dim)) / dim**0.5


def _bandit(sampler: dp.AbstractSampler, likelihood: dp.AbstractLikelihood) -> dp.Bandit:
    """A bandit after 50 rewards."""
    features, rewards = history(sampler.prior.dim, 50)
    if isinstance(likelihood, dp.Linear):
        rewards = np.random.default_rng(1).standard_normal(50)
    bandit = dp.Bandit(sampler, likelihood, seed=0)
    bandit.update(features, rewards)
    return bandit


def _numpy_peer() -> Callable[[], object]:
    problem, keys = dp.synthetic("cross"), jax.random.split(jax.random.key(0), RUNS)
    features = np.stack([np.asarray(problem.features(key), float) for key in keys])
    rng = np.random.default_rng(0)
    theta, noise = rng.standard_normal((RUNS, 2)), rng.standard_normal((RUNS, ROUNDS))
    return lambda: numpy_thompson_sampling(theta, features, noise, seed=0)


if __name__ == "__main__":
    command({f.__name__: f for f in (runs, decisions, updates, logistic, draws, fit)})
