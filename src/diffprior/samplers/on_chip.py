"""`sample_many` for one history on a GPU, by the kernel of `fused`."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..checks import positive_int
from ..evidence.base import AbstractEvidence
from ..gaussian import Gaussian
from ..linalg import Spectral
from ..mixture import MIN_SNR
from ..priors.corrected import CorrectedDenoiser, Prepared
from ..priors.correction import Correction
from ..schedule import Stages
from .chain import chain_noise, draw_from, to_unit
from .evidence_dps import EvidenceDPS, starting_law
from .few_passes import REFINEMENTS, FewPasses, Hidden, Noise
from .fused import BLOCK, Given, Layers, Stage, Tables, follow, tabulate

TWO = 2  # passes that the kernel knows


def sample_on_chip(
    sampler: EvidenceDPS | FewPasses,
    key: Key[Array, ""],
    evidence: AbstractEvidence,
    num_samples: int,
    *,
    interpret: bool = False,
) -> Float[Array, "n d"]:
    """The draws of `sampler.sample_many`, by a kernel that keeps chains on chip.

    Args:
        sampler: `EvidenceDPS`, or `FewPasses` in two passes, in single precision, with a prior
            that stands on a mixture and has a network.
        key: a JAX random key.
        evidence: of linear rewards.
        num_samples: how many; a multiple of 128.
        interpret: run the kernel as ordinary JAX, on any device: for tests.

    Returns:
        Parameters (num_samples, d).

    Raises:
        ValueError: if the sampler, its prior, the evidence or the number is none of those.
    """
    denoiser = _checked(sampler, evidence, positive_int("num_samples", num_samples))
    with jax.default_matmul_precision("highest"):
        prepared = _prepared(sampler, evidence)
        keys = jax.random.split(key, num_samples)
        run = _chains if isinstance(sampler, EvidenceDPS) else _passes
        return run(sampler, denoiser, prepared, keys, interpret)


@eqx.filter_jit
def _prepared(sampler: Any, evidence: AbstractEvidence) -> Prepared:
    """The denoiser given the task's evidence, for all chains."""
    local = to_unit(sampler.prior, evidence.temper(sampler.temperature))
    at = Gaussian.point(jnp.zeros_like(sampler.prior.offset))
    return sampler.prior.denoiser.prepare(*local.expand(at))


def _checked(sampler: Any, evidence: Any, num_samples: int) -> CorrectedDenoiser:
    sampler._check(evidence)
    denoiser = sampler.prior.denoiser
    known = isinstance(sampler, EvidenceDPS) or getattr(sampler, "passes", None) == TWO
    corrects = isinstance(denoiser, CorrectedDenoiser) and denoiser.correction is not None
    if not (known and corrects and denoiser.base is not None and evidence.quadratic):
        raise ValueError(
            "`sampler`: expected EvidenceDPS, or FewPasses in two passes, with a mixture, a "
            f"network and linear rewards, got {type(sampler).__name__}; use its `sample_many`"
        )
    if num_samples % BLOCK:
        raise ValueError(
            f"`num_samples`: expected a multiple of {BLOCK}, got {num_samples}; draw a few more"
        )
    return denoiser


def _chains(
    sampler: Any, denoiser: CorrectedDenoiser, prepared: Prepared, keys: Any, interpret: bool
) -> Float[Array, "n d"]:
    process = sampler.prior.reverse_process(sampler.schedule)
    stages = jax.tree.map(_double, process.stages)
    each = [Stages(*numbers) for numbers in zip(*stages, strict=True)]
    tables = _tables(denoiser, prepared, [_stage(prepared, stage) for stage in each])
    return _follow_chains(sampler, prepared, tables, keys, interpret)


@eqx.filter_jit
def _follow_chains(
    sampler: Any, prepared: Prepared, tables: Tables, keys: Any, interpret: bool
) -> Float[Array, "n d"]:
    prior, denoiser = sampler.prior, sampler.prior.denoiser
    process = prior.reverse_process(sampler.schedule)
    zero = jnp.zeros_like(prior.offset)
    first = starting_law(process.stages, denoiser.denoise_with(prepared, zero[0], zero))
    start, noises = jax.vmap(lambda key: chain_noise(key, process, prior.dim))(keys)
    folded = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    count, dtype = noises.shape[1:2], noises.dtype
    uniforms = jax.vmap(lambda key: jax.random.uniform(key, count, dtype))(folded)
    s_T = jax.vmap(lambda noise: draw_from(first, noise))(start)
    random = (jnp.transpose(noises, (1, 2, 0)), uniforms.T)
    layers = Layers.of(denoiser.correction)
    z = follow(tables, layers, s_T.T, *random, split="bf16", interpret=interpret)
    return prior.offset[None] + z.T @ prior.scale.T


def _stage(prepared: Prepared, stage: Stages) -> Stage:
    """A stage of a chain: the noisy sample's evidence is isotropic."""
    snr = max(float(stage.snr), MIN_SNR)
    vectors, variances = (
        _double(part) for part in (prepared.components.vectors, prepared.components.variances)
    )
    given = variances / (1.0 + snr * variances)
    stds = np.sqrt(stage.beta_tilde + stage.weight_clean**2 * given)
    weights = (float(stage.shift_scale), float(stage.weight_clean), float(stage.weight_noisy))
    return Stage(np.full(vectors.shape[-1], snr), *weights, vectors * stds[:, None, :])


def _passes(
    sampler: Any, denoiser: CorrectedDenoiser, prepared: Prepared, keys: Any, interpret: bool
) -> Float[Array, "n d"]:
    """The first pass has one law for all draws; the second is a stage of the kernel."""
    factors, noise = (_double(part) for part in _refined(denoiser, prepared))
    tables = _tables(denoiser, prepared, [Stage(noise, 1.0, 1.0, 0.0, factors)])
    return _follow_passes(sampler, prepared, tables, keys, interpret)


@eqx.filter_jit
def _refined(
    denoiser: CorrectedDenoiser, prepared: Prepared
) -> tuple[Float[Array, "k d d"], Float[Array, " d"]]:
    """Factors of the components in the second pass, and what its evidence adds to precisions."""
    (refined,) = REFINEMENTS[TWO]
    task = prepared.precision
    noise = refined * (1.0 + task.values)
    both = Spectral(task.vectors, task.values + noise)
    return denoiser.posterior(both, prepared.shift).factors, noise


@eqx.filter_jit
def _follow_passes(
    sampler: Any, prepared: Prepared, tables: Tables, keys: Any, interpret: bool
) -> Float[Array, "n d"]:
    prior, task, (refined,) = sampler.prior, prepared.precision, REFINEMENTS[TWO]
    first = prior.denoiser.posterior(task, prepared.shift)
    dtype = prior.offset.dtype
    random = jax.vmap(lambda key: Noise.of(key, TWO, 1, prior.dim, dtype))(keys)
    s = jax.vmap(first.draw)(random.noises[:, 0, 0], random.components[:, 0, 0])
    hide = jax.vmap(lambda s, z: Hidden.nothing(task).more(refined, s, z).shift)
    shifts = hide(s, random.hiding[:, 1])
    last = (random.noises[:, 1, 0].T[None], random.components[:, 1, 0][None])
    layers = Layers.of(prior.denoiser.correction)
    z = follow(tables, layers, shifts.T, *last, split="tf32", interpret=interpret)
    return prior.offset[None] + z.T @ prior.scale.T


def _tables(denoiser: CorrectedDenoiser, prepared: Prepared, stages: list[Stage]) -> Tables:
    """Reckoned in double precision on the host, for they are few."""
    task, components = prepared.precision, prepared.components
    vectors, variances = _double(components.vectors), _double(components.variances)
    given = Given(
        _double(task.vectors),
        _double(task.values),
        _double(prepared.shift),
        _double(components.log_weights),
        _double(components.means),
        np.einsum("kij,kj,klj->kil", vectors, variances, vectors),
    )
    found = [tabulate(given, stage) for stage in stages]
    dtype = prepared.shift.dtype
    correction: Any = denoiser.correction
    noises = jnp.asarray(np.stack([stage.noise for stage in stages]), dtype)
    rows, numbers = (jnp.asarray(np.stack(part), dtype) for part in zip(*found, strict=True))
    return Tables(rows, numbers, _biases(correction, task, noises))


@eqx.filter_jit
def _biases(
    correction: Correction, task: Spectral, noises: Float[Array, "t d"]
) -> Float[Array, "t width"]:
    """What the network makes of each stage's evidence."""
    return jax.vmap(lambda noise: correction.evidence_bias(task.vectors, task.values + noise))(
        noises
    )


def _double(array: Any) -> np.ndarray:
    return np.asarray(array, np.float64)
