"""How good learned priors and samplers are: distances over their floors, and coverage."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from diffprior.evaluate.calibration import coverage, rank_uniformity
from diffprior.evaluate.distances import prior_distances
from diffprior.evaluate.posterior import posterior_quality
from diffprior.evaluate.tasks import Tasks
from diffprior.evidence.base import AbstractLikelihood
from diffprior.evidence.families import Logistic
from diffprior.evidence.linear import Linear
from diffprior.priors.base import AbstractPrior
from diffprior.priors.diffusion import DiffusionPrior
from diffprior.priors.gaussian import GaussianPrior
from diffprior.priors.mixture import MixturePrior
from diffprior.problems.mixtures import example_mixture
from diffprior.problems.synthetic import SYNTHETIC, synthetic
from diffprior.samplers.base import AbstractSampler
from diffprior.samplers.choose import best_sampler
from diffprior.samplers.dps import DPS
from diffprior.samplers.evidence_dps import EvidenceDPS
from diffprior.samplers.exact import Exact
from diffprior.samplers.few_passes import FewPasses, stands_on_a_mixture
from diffprior.samplers.laplace_dps import LaplaceDPS
from diffprior.samplers.twisted_smc import TwistedSMC

from .section import NUM_SAMPLES, Bench, Measurement, clusters, mixture_samples

LEVELS = ((-7, -3), (-3, 0), (0, 3), (3, 6), (6, 9))  # of log precision


def prior(bench: Bench) -> list[Measurement]:
    """Distance of prior samples from fresh true ones over the floor, and the time to fit."""
    found = []
    for name in ("cross", "corners") if bench.quick else SYNTHETIC:
        true, fresh = (
            np.asarray(synthetic(name).sample_parameters(jax.random.key(seed), 2 * NUM_SAMPLES))
            for seed in (1, 2)
        )
        seen = true[:NUM_SAMPLES]
        for label, fit in _FITS.items():
            begin = time.perf_counter()
            learned = fit(seen)
            seconds = time.perf_counter() - begin
            distance = prior_distances({label: learned}, true[NUM_SAMPLES:], fresh)[label]
            quantities = {
                "over floor": distance.ratio,
                "s.e.": distance.standard_error,
                "fit, s": seconds,
            }
            found.append(Measurement(f"{name}, {label}", quantities))
    return found


_FITS: dict[str, Callable[[np.ndarray], AbstractPrior]] = {
    "Gaussian": GaussianPrior.fit,
    "mixture, K chosen": MixturePrior.fit,
    "diffusion": lambda samples: DiffusionPrior.fit(samples, progress=False),
}


def denoiser(bench: Bench) -> list[Measurement]:
    """Error of the learned denoiser over that of the best Gaussian one, by strength of evidence,
    in units where the posterior under a Gaussian prior has unit covariance."""
    found = []
    for name in ("cross",) if bench.quick else ("blobs", "cross", "ring", "clusters"):
        truth, learned = example_mixture(name), bench.prior(name)
        moments = truth.moments()
        gaussian = GaussianPrior(np.asarray(moments.mean), np.asarray(moments.cov))
        errors = _denoiser_errors(truth, learned, gaussian)
        for (low, high), (mean, cov, trace) in zip(LEVELS, errors, strict=True):
            quantities = {"mean": mean, "covariance": cov, "trace over exact": trace}
            found.append(Measurement(f"{name}, log precision {low} to {high}", quantities))
    return found


def _denoiser_errors(
    truth: AbstractPrior, learned: DiffusionPrior, best: AbstractPrior
) -> list[tuple[float, float, float]]:
    """Ratios of the errors of mean and covariance, and of traces, at every level."""
    unit = jnp.linalg.inv(learned.scale)
    dim, count = truth.dim, 1000
    thetas = jnp.asarray(mixture_samples(truth, count, 400), unit.dtype)

    def one(
        key: Key[Array, ""], theta: Float[Array, " d"], level: Float[Array, " 2"]
    ) -> Float[Array, "3 2"]:
        rotation_key, level_key, noise_key = jax.random.split(key, 3)
        vectors = jax.random.orthogonal(rotation_key, dim).astype(unit.dtype)
        log_precision = jax.random.uniform(level_key, (dim,), unit.dtype, *level)
        root = jnp.exp(0.5 * log_precision)[:, None] * vectors.T @ unit  # P = root' root
        noise = jax.random.normal(noise_key, (dim,), unit.dtype)
        precision, shift = root.T @ root, root.T @ (root @ theta + noise)
        whiten = jnp.sqrt(1 + jnp.exp(log_precision))[:, None] * vectors.T @ unit
        exact, *others = (p.denoise(precision, shift) for p in (truth, learned, best))
        mean = [jnp.sum((whiten @ (p.mean - exact.mean)) ** 2) for p in others]
        cov = [jnp.sum((whiten @ (p.cov - exact.cov) @ whiten.T) ** 2) for p in others]
        trace = [jnp.trace(whiten @ p.cov @ whiten.T) for p in (others[0], exact)]
        return jnp.array([mean, cov, trace])

    keys = jax.random.split(jax.random.key(2), count)
    many = jax.jit(jax.vmap(one, in_axes=(0, 0, None)))
    found = []
    for level in LEVELS:
        means = np.asarray(many(keys, thetas, jnp.asarray(level, unit.dtype))).mean(axis=0)
        mean, cov, trace = means[:, 0] / means[:, 1]
        found.append((float(np.sqrt(mean)), float(np.sqrt(cov)), float(trace)))
    return found


def samplers_of(prior: AbstractPrior) -> dict[str, AbstractSampler]:
    """The samplers that are judged; `FewPasses` where there is a mixture to draw from."""
    learned = DiffusionPrior.from_prior(prior)
    passes = {"FewPasses": FewPasses(learned)} if stands_on_a_mixture(learned) else {}
    return {
        **passes,
        "EvidenceDPS": EvidenceDPS(prior),
        "TwistedSMC": TwistedSMC(prior),
        "LaplaceDPS": LaplaceDPS(prior),
        "LaplaceDPS, paper's covariance": LaplaceDPS(prior, covariance="paper", steps=100),
    }


def posterior(bench: Bench) -> list[Measurement]:
    """Distance from the exact posterior over its floor, with the true and the learned prior."""
    found = []
    for name in ("cross",) if bench.quick else ("blobs", "cross", "ring"):
        for label, known in (("true", example_mixture(name)), ("learned", bench.prior(name))):
            everyone = samplers_of(known)
            found += _judged(f"{name}, {label} prior", example_mixture(name), everyone, bench)
    return found


def posterior_logistic(bench: Bench) -> list[Measurement]:
    """The same with binary rewards, beside Laplace's approximation of the true mixture."""
    name = "cross"
    everyone = {
        **samplers_of(bench.prior(name)),
        "true mixture, Laplace": Exact(example_mixture(name)),
    }
    return _judged(f"{name}, logistic", example_mixture(name), everyone, bench, Logistic())


def dimensions(bench: Bench) -> list[Measurement]:
    """Distance and time of the best sampler for a learned prior, by number of parameters."""
    found = []
    for dim in (2, 8) if bench.quick else (2, 4, 8, 10, 12, 16):
        true = clusters(dim)
        begin = time.perf_counter()
        learned = DiffusionPrior.fit(mixture_samples(true), progress=False)
        seconds = time.perf_counter() - begin
        best = best_sampler(learned)
        label = f"d = {dim}, {type(best).__name__}"
        found += [
            Measurement(row.case, {**row.quantities, "fit, s": seconds})
            for row in _judged(label, true, {"": best}, bench, sizes=(dim // 2, 100))
        ]
    return found


def calibration(bench: Bench) -> list[Measurement]:
    """Coverage of 90 % intervals over tasks of 1 to 100 rewards, and whether ranks are uniform."""
    found = []
    for kind, likelihood in (("linear", Linear(1.0)), ("logistic", Logistic())):
        sizes = np.repeat((1, 5, 20, 100), 25 if bench.quick else 500)
        tasks = Tasks.simulate(
            example_mixture("cross"),
            likelihood,
            num_tasks=len(sizes),
            num_observations=sizes,
            seed=10,
        )
        learned = bench.prior("cross")
        for name, sampler in {**samplers_of(learned), "DPS": DPS(learned)}.items():
            covered = coverage(sampler, tasks, num_draws=99)
            quantities = {
                "coverage": covered.share,
                "s.e.": covered.standard_error,
                "p of ranks": rank_uniformity(sampler, tasks, num_draws=99).p_value,
            }
            found.append(Measurement(f"{kind}, {name}", quantities))
    return found


def _judged(
    label: str,
    true: MixturePrior,
    everyone: dict[str, AbstractSampler],
    bench: Bench,
    likelihood: AbstractLikelihood | None = None,
    sizes: tuple[int, ...] = (1, 5, 20, 100),
) -> list[Measurement]:
    num_histories, num_draws = (4, 150) if bench.quick else (20, 500)
    rows = posterior_quality(
        true,
        everyone,
        sizes,
        likelihood=likelihood,
        num_histories=num_histories,
        num_draws=num_draws,
    )
    return [
        Measurement(
            ", ".join(filter(None, (label, row.sampler, f"N = {row.num_observations}"))),
            {
                "over floor": row.distance.ratio,
                "s.e.": row.distance.standard_error,
                "trace over exact": row.trace_ratio,
                "failed": row.failed,
            },
        )
        for row in rows
    ]
