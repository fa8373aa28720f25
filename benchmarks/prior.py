"""Quality and speed of the learned prior: tables, and with --json FILE the numbers.

python benchmarks/prior.py [--json FILE] [--seeds 3] [--problems cross,H,...]
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

import diffprior as dp
from diffprior.bench.suite import scikit_learn_seconds
from diffprior.evaluate.distances import earth_movers_distance
from diffprior.priors.training import _random_evidence, _random_rotations
from diffprior.problems.mixtures import mixture
from diffprior.problems.synthetic import SYNTHETIC, synthetic

PAIRS, SIZE, TRAINING = 10, 2000, 10_000


def true_samples(name: str, seed: int, n: int) -> np.ndarray:
    key = jax.random.key(seed)
    if name in SYNTHETIC:
        return np.asarray(synthetic(name).sample_parameters(key, n), np.float64)
    return np.asarray(mixture(name).sample(key, n), np.float64)


def quality(name: str, preset: str, seeds: int, floor: np.ndarray) -> dict:
    """Earth mover's distance to fresh true samples over the floor, and the time to fit."""
    distances, seconds = [], []
    for seed in range(seeds):
        samples = true_samples(name, 100 + seed, TRAINING)
        begin = time.perf_counter()
        draws = prior_draws(samples, preset, seed)
        seconds.append(time.perf_counter() - begin)
        fresh = true_samples(name, 200 + seed, PAIRS * SIZE)
        sets = zip(np.split(draws, PAIRS), np.split(fresh, PAIRS), strict=True)
        distances.append([earth_movers_distance(a, b) for a, b in sets])
    means = np.mean(distances, axis=1)
    per_pair = np.ravel(distances)
    se = np.hypot(
        per_pair.std(ddof=1) / np.sqrt(per_pair.size) / floor.mean(),
        per_pair.mean() / floor.mean() ** 2 * floor.std(ddof=1) / np.sqrt(floor.size),
    )
    return {
        "problem": name,
        "preset": preset,
        "ratio": float(means.mean() / floor.mean()),
        "se": float(se),
        "seconds": seconds,
    }


def prior_draws(samples: np.ndarray, preset: str, seed: int) -> np.ndarray:
    """Draws of the prior learned with a preset; "resampled" is the training samples over again,
    which is what learning them by heart would give."""
    if preset == "resampled":
        return np.random.default_rng(seed).choice(samples, PAIRS * SIZE)
    prior = dp.DiffusionPrior.fit(samples, preset=preset, seed=seed)
    return np.asarray(prior.sample(jax.random.key(seed), PAIRS * SIZE), np.float64)


def floor_of(name: str, seeds: int) -> np.ndarray:
    halves = [true_samples(name, 300 + k, seeds * PAIRS * SIZE) for k in (0, 1)]
    sets = zip(*(np.split(half, seeds * PAIRS) for half in halves), strict=True)
    return np.array([earth_movers_distance(a, b) for a, b in sets])


def denoiser_error(name: str) -> dict:
    """Error of mean and covariance over random evidence, over that of the best Gaussian denoiser,
    in units where the posterior under a Gaussian prior has unit covariance."""
    truth = mixture(name)
    prior = dp.DiffusionPrior.fit(true_samples(name, 100, TRAINING))
    gaussian = dp.GaussianPrior(*(np.asarray(a) for a in _moments(truth)))
    dim, size = truth.dim, 4000
    vectors, log_precision = _random_evidence(
        jax.random.key(0), _random_rotations(dim, 1), size, isotropic=False
    )
    theta = jnp.asarray(true_samples(name, 400, size))
    scale_inverse = jnp.linalg.inv(prior.scale)

    def one(theta, vectors, log_precision, key):
        unit = vectors * jnp.exp(log_precision)[None] @ vectors.T
        precision = scale_inverse.T @ unit @ scale_inverse
        noise = vectors @ (jnp.exp(-log_precision / 2) * jax.random.normal(key, theta.shape))
        shift = precision @ (theta + prior.scale @ noise)
        whiten = jnp.sqrt(1 + jnp.exp(log_precision))[:, None] * vectors.T @ scale_inverse
        exact, ours, best = (p.denoise(precision, shift) for p in (truth, prior, gaussian))
        mean = [jnp.sum((whiten @ (p.mean - exact.mean)) ** 2) for p in (ours, best)]
        cov = [jnp.sum((whiten @ (p.cov - exact.cov) @ whiten.T) ** 2) for p in (ours, best)]
        traces = [jnp.trace(whiten @ p.cov @ whiten.T) for p in (ours, exact)]
        return jnp.array(mean + cov + traces)

    keys = jax.random.split(jax.random.key(2), size)
    values = np.asarray(jax.jit(jax.vmap(one))(theta, vectors, log_precision, keys))
    level = np.asarray(log_precision).mean(axis=1)
    rows = {}
    for low, high in ((-7, -3), (-3, 0), (0, 3), (3, 6), (6, 9), (-7, 9)):
        v = values[(level >= low) & (level <= high)].mean(axis=0)
        rows[f"{low}..{high}"] = [np.sqrt(v[0] / v[1]), np.sqrt(v[2] / v[3]), v[4] / v[5]]
    return {
        "problem": name,
        "by_log_precision": {k: [float(x) for x in r] for k, r in rows.items()},
    }


def _moments(prior: dp.MixturePrior) -> tuple:
    moments = prior.moments()
    return moments.mean, moments.cov


def speed() -> dict:
    """The fit against 100 scikit-learn regressors, and quality when samples are moved."""
    samples = true_samples("cross", 100, TRAINING)
    begin = time.perf_counter()
    prior = dp.DiffusionPrior.fit(samples)
    ours = time.perf_counter() - begin
    theirs = scikit_learn_seconds(samples, (10, 50, 90))
    print(f"\nfit {ours:.1f} s; 100 scikit-learn stages {theirs:.0f} s; ratio {theirs / ours:.0f}")
    scale, shift = 1e-2, 1e2
    moved = dp.DiffusionPrior.fit(samples * scale + shift)
    back = (np.asarray(moved.sample(jax.random.key(0), SIZE), np.float64) - shift) / scale
    unit = np.asarray(prior.sample(jax.random.key(0), SIZE))
    fresh = true_samples("cross", 500, SIZE)
    pair = [earth_movers_distance(x, fresh) for x in (unit, back)]
    print(f"unit samples {pair[0]:.4f}, scaled by {scale} and shifted by {shift} {pair[1]:.4f}")
    return {"fit": ours, "scikit_learn_100_stages": theirs, "ratio": theirs / ours, "moved": pair}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--problems", default=",".join((*SYNTHETIC, "ring", "clusters")))
    parser.add_argument("--presets", default="default,resampled,paper")
    parser.add_argument("--speed", action="store_true", help="time the fit against scikit-learn")
    arguments = parser.parse_args()
    names = arguments.problems.split(",")
    results: dict = {"quality": [], "denoiser": []}
    print(f"{'problem':10} {'preset':8} {'EMD / floor':>12} {'s.e.':>6}   seconds to fit")
    for name in names:
        floor = floor_of(name, arguments.seeds)
        for preset in arguments.presets.split(","):
            seeds = 1 if preset == "paper" else arguments.seeds
            row = quality(name, preset, seeds, floor)
            results["quality"].append(row)
            times = " ".join(f"{s:.1f}" for s in row["seconds"])
            print(
                f"{name:10} {preset:8} {row['ratio']:12.3f} {row['se']:6.3f}   {times}", flush=True
            )
    print("\nerror over that of the best Gaussian denoiser (mean, covariance); trace ratio")
    for name in [n for n in names if n in ("blobs", "cross", "ring", "clusters")]:
        row = denoiser_error(name)
        results["denoiser"].append(row)
        for level, (mean, cov, trace) in row["by_log_precision"].items():
            print(
                f"{name:10} log precision {level:7} {mean:6.3f} {cov:6.3f} {trace:6.3f}", flush=True
            )
    if arguments.speed:
        results |= speed()
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
