"""Samplers against exact posteriors: tables, and with --json FILE the numbers.

    python benchmarks/posterior.py SECTION [--problem NAME] [--json FILE]

Sections: exact (closed-form denoiser), learned, logistic, coverage, isotropic, cost.
"""

import argparse
import json
import time

import jax
import numpy as np

import diffprior as dp
from diffprior.evaluate import Tasks, coverage, rank_uniformity
from diffprior.evaluate.distances import Distance, earth_movers_distance
from diffprior.evaluate.posterior import PosteriorQuality as Quality
from diffprior.evaluate.posterior import posterior_quality
from diffprior.problems.mixtures import mixture

SIZES = (0, 1, 5, 20, 100, 1000, 10_000)
LOGISTIC_SIZES = (1, 5, 20, 100, 500)


def learned(name: str, preset: str = "default") -> dp.DiffusionPrior:
    samples = np.asarray(mixture(name).sample(jax.random.key(77), 10_000), np.float64)
    return dp.DiffusionPrior.fit(samples, preset=preset)


def ours(prior: dp.AbstractPrior) -> dict[str, dp.AbstractSampler]:
    return {
        "EvidenceDPS": dp.EvidenceDPS(prior),
        "TwistedSMC": dp.TwistedSMC(prior),
        "LaplaceDPS": dp.LaplaceDPS(prior),
        "Laplace, paper": dp.LaplaceDPS(prior, covariance="paper", steps=100),
    }


def show(row: Quality) -> None:
    d = row.distance
    print(
        f"  N={row.num_observations:<6} {row.sampler:15} EMD {d.distances.mean():.4f} "
        f"floor {d.floors.mean():.4f} ratio {d.ratio:6.2f} +- {d.standard_error:.2f} "
        f"trace {row.trace_ratio:6.2f} ({row.mean_trace_ratio:.2f}) failed {row.failed}",
        flush=True,
    )


def as_numbers(rows: list[Quality]) -> list[dict]:
    return [
        {
            "sampler": r.sampler,
            "N": r.num_observations,
            "emd": float(r.distance.distances.mean()),
            "floor": float(r.distance.floors.mean()),
            "ratio": r.distance.ratio,
            "se": r.distance.standard_error,
            "trace": r.trace_ratio,
            "mean_trace_ratio": r.mean_trace_ratio,
            "failed": r.failed,
        }
        for r in rows
    ]


def table(name: str, samplers: dict, sizes: tuple[int, ...], likelihood=None, histories=20):
    print(name)
    return as_numbers(
        posterior_quality(
            mixture(name),
            samplers,
            sizes,
            likelihood=likelihood,
            num_histories=histories,
            num_draws=500,
            callback=show,
        )
    )


def logistic(name: str) -> list[dict]:
    prior = learned(name)
    samplers = {
        **{f"{k}, exact": v for k, v in list(ours(mixture(name)).items())[:2]},
        **ours(prior),
        "MixTS (Laplace)": dp.Exact(mixture(name)),
    }
    return table(name, samplers, LOGISTIC_SIZES, dp.Logistic())


def covered(name: str, num_tasks: int = 2000, num_draws: int = 99) -> list[dict]:
    """90 % intervals over simulated tasks of 1 to 100 observations, and ranks of the truth."""
    prior = learned(name)
    samplers = {**ours(prior), "DPS": dp.DPS(prior), "SMC": dp.ParticleFilter(prior)}
    rows = []
    for kind, likelihood in (("linear", dp.Linear(1.0)), ("logistic", dp.Logistic())):
        sizes = (1, 5, 20, 100)
        rows_each = np.repeat(sizes, num_tasks // len(sizes))
        tasks = Tasks.simulate(
            mixture(name), likelihood, num_tasks=len(rows_each), num_observations=rows_each, seed=10
        )
        for label, sampler in samplers.items():
            if label == "SMC" and kind == "logistic":
                continue
            share = coverage(sampler, tasks, num_draws=num_draws)
            p_value = rank_uniformity(sampler, tasks, num_draws=num_draws).p_value
            rows.append(
                {
                    "kind": kind,
                    "sampler": label,
                    "coverage": share.share,
                    "se": share.standard_error,
                    "rank_p": p_value,
                }
            )
            print(
                f"  {name} {kind:8} {label:15} covers {share.share:.3f} +- "
                f"{share.standard_error:.3f}, ranks uniform p = {p_value:.3f}",
                flush=True,
            )
    return rows


def isotropic(name: str) -> list[dict]:
    """The learned prior's own reverse chain, entered half way, is its exact posterior under
    isotropic evidence, so training error plays no part."""
    prior = learned(name)
    schedule = dp.Schedule.log_snr(200)
    rows = []
    for stage in (40, 90, 120, 150):
        alpha_bar = schedule.alpha_bar[stage]
        noise = np.sqrt((1 - alpha_bar) / alpha_bar)
        z = np.asarray(prior.sample(jax.random.key(stage), 24)) - np.asarray(prior.offset)
        for index, clean in enumerate(z @ np.linalg.inv(np.asarray(prior.scale)).T):
            rng = np.random.default_rng([stage, index])
            centre = clean + noise * rng.standard_normal(prior.dim)
            first, second = (chain_from(prior, schedule, stage, centre, key, 500) for key in (1, 2))
            inverse = np.linalg.inv(np.asarray(prior.scale, np.float64))
            precision = inverse.T @ inverse / noise**2
            centre_user = np.asarray(prior.offset) + np.asarray(prior.scale) @ centre
            evidence = dp.LinearEvidence.from_natural(
                *(
                    jax.device_put(np.asarray(a, np.float32))
                    for a in (precision, precision @ centre_user)
                )
            )
            floor = earth_movers_distance(first, second)
            for label, sampler in list(ours(prior).items())[:3]:
                draws, _ = sampler.sample_many(jax.random.key(9 + index), evidence, 500)
                rows.append(
                    {
                        "log_snr": float(np.log(alpha_bar / (1 - alpha_bar))),
                        "sampler": label,
                        "emd": earth_movers_distance(np.asarray(draws), first),
                        "floor": floor,
                    }
                )
    for label in sorted({r["sampler"] for r in rows}):
        for level in sorted({r["log_snr"] for r in rows}):
            chosen = [r for r in rows if r["sampler"] == label and r["log_snr"] == level]
            emds, floors = (np.array([r[key] for r in chosen]) for key in ("emd", "floor"))
            found = Distance(emds, floors)
            print(
                f"  {name} {label:15} log precision {level:5.2f}: ratio {found.ratio:.2f} +- "
                f"{found.standard_error:.2f}",
                flush=True,
            )
    return rows


def chain_from(prior, schedule, stage, centre, seed, count) -> np.ndarray:
    """The prior's reverse chain from s_t = sqrt(alpha_bar) centre at the given stage."""
    alpha_bar = schedule.alpha_bar
    part = dp.Schedule(alpha_bar[: stage + 1])
    process = prior.reverse_process(part)
    from diffprior.priors.diffusion import _moment_step

    @jax.jit
    def run(key):
        def step(s, inputs):
            coefficients, inside, noise = inputs
            return _moment_step(prior, coefficients, inside, s, noise), None

        def one(key):
            noises = jax.random.normal(key, (stage, prior.dim))
            start = np.sqrt(alpha_bar[stage]) * jax.numpy.asarray(centre, noises.dtype)
            inputs = (process.stages, process.denoiser_stages, noises)
            return jax.lax.scan(step, start, inputs)[0]

        return jax.vmap(one)(jax.random.split(key, count))

    z = np.asarray(run(jax.random.key(seed)), np.float64)
    return np.asarray(prior.offset) + z @ np.asarray(prior.scale, np.float64).T


def cost(name: str) -> list[dict]:
    """What each stage and each particle buys: ratio, trace and time of 500 draws."""
    prior = learned(name)
    samplers: dict[str, dp.AbstractSampler] = {}
    for steps in (5, 8, 12, 20, 40):
        samplers[f"EvidenceDPS {steps}"] = dp.EvidenceDPS(prior, steps=steps)
        samplers[f"LaplaceDPS {steps}"] = dp.LaplaceDPS(prior, steps=steps)
    for particles in (1, 4, 8, 16, 32, 64):
        samplers[f"TwistedSMC {particles}"] = dp.TwistedSMC(prior, num_particles=particles)
    rows = table(name, samplers, (1, 5, 20, 100), histories=8)
    task = Tasks.simulate(mixture(name), dp.Linear(1.0), num_tasks=1, num_observations=20)
    history = task.likelihood.observe(task.features, task.rewards)
    for label, sampler in samplers.items():
        jax.block_until_ready(sampler.sample_many(jax.random.key(0), history, 500))
        begin = time.perf_counter()
        jax.block_until_ready(sampler.sample_many(jax.random.key(1), history, 500))
        seconds = time.perf_counter() - begin
        rows.append({"sampler": label, "microseconds_per_draw": seconds / 500 * 1e6})
        print(f"  {label:16} {seconds / 500 * 1e6:9.1f} microseconds a draw", flush=True)
    return rows


SECTIONS = {
    "exact": lambda name: table(name, ours(mixture(name)), SIZES),
    "learned": lambda name: table(name, ours(learned(name)), SIZES),
    "logistic": logistic,
    "coverage": covered,
    "isotropic": isotropic,
    "cost": cost,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("--problem", default="blobs,cross,ring")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    names = arguments.problem.split(",")
    results = {name: SECTIONS[arguments.section](name) for name in names}
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
