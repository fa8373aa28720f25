"""Where the network for any evidence stops paying: both kinds of network, by number of parameters.

    python benchmarks/dimensions.py [--dim D ...]

Ten clusters in d dimensions. The general network serves EvidenceDPS, the isotropic one TwistedSMC.
"""

import argparse
import time

import jax
import numpy as np

import diffprior as dp
from diffprior.evaluate.posterior import PosteriorQuality, posterior_quality
from diffprior.priors import diffusion

KINDS = {"general": (10**6, dp.EvidenceDPS), "isotropic": (0, dp.TwistedSMC)}


def clusters(dim: int) -> dp.MixturePrior:
    rng = np.random.default_rng(3)
    means = 1.5 * rng.standard_normal((10, dim))
    return dp.MixturePrior(np.ones(10), means, np.tile(0.3**2 * np.eye(dim), (10, 1, 1)))


def compare(dim: int, kind: str) -> None:
    general_up_to, sampler_of = KINDS[kind]
    diffusion.GENERAL_UP_TO = general_up_to
    true = clusters(dim)
    samples = np.asarray(true.sample(jax.random.key(77), 10_000), np.float64)
    prior = dp.DiffusionPrior.fit(samples)
    sampler = sampler_of(prior)
    assert prior.report is not None
    print(f"d = {dim}, {kind}: fitted in {prior.report.seconds:.0f} s", flush=True)

    def show(row: PosteriorQuality) -> None:
        print(
            f"  N = {row.num_observations:3} {row.sampler} EMD over floor "
            f"{row.distance.ratio:.2f} +- {row.distance.standard_error:.2f}, "
            f"trace {row.trace_ratio:.2f}, failed {row.failed}",
            flush=True,
        )

    samplers = {sampler_of.__name__: sampler}
    posterior_quality(
        true, samplers, (dim // 2, 100), num_histories=8, num_draws=150, callback=show
    )
    evidence = dp.Linear(1.0).observe(np.eye(dim), np.zeros(dim))
    jax.block_until_ready(sampler.sample_many(jax.random.key(0), evidence, 150))
    begin = time.perf_counter()
    jax.block_until_ready(sampler.sample_many(jax.random.key(1), evidence, 150))
    print(f"  {(time.perf_counter() - begin) / 150 * 1e6:.0f} microseconds a draw", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, nargs="*", default=[8, 10, 12, 16])
    for dim in parser.parse_args().dim:
        for kind in KINDS:
            compare(dim, kind)


if __name__ == "__main__":
    main()
