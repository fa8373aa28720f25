"""Evidence inside the denoiser: the reverse process of the posterior itself."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from ..checks import positive_int
from ..denoisers.base import AbstractDenoiser, reverse_distribution
from ..evidence.base import AbstractEvidence
from ..gaussian import Gaussian
from ..linalg import eigh
from ..priors.diffusion import DiffusionPrior
from ..schedule import Schedule, Stages
from ..threefry import unrolled
from .base import (
    AbstractSampler,
    Info,
    chain_noise,
    checked_temperature,
    draw_from,
    first_belief,
    from_unit,
    to_unit,
)

FIRST_EXPANSIONS = 4  # of a likelihood that is not quadratic, before the chain; then one a stage


class EvidenceDPS(AbstractSampler):
    """Reverse process of p(s_0 | h): a noisy sample is one more piece of Gaussian evidence.

    With linear evidence of precision Lam and shift b, p(s_0 | s_t, h) is the prior under Gaussian
    evidence of precision snr_t I + Lam and shift scale_t s_t + b, so the prior's own denoiser gives
    its mean and covariance, and no likelihood is approximated. The score and curvature of a
    generalized linear model are averaged over the denoised Gaussian of the stage before, with what
    the noisy sample has since added to it.

    Args:
        prior: Any prior that denoises any Gaussian evidence.
        steps: Stages of the reverse process, uniform in log SNR.
        temperature: Counts the evidence 1 / temperature times; 1 is Bayes' rule.
    """

    prior: DiffusionPrior
    schedule: Schedule = eqx.field(static=True)
    temperature: Float[Array, ""]

    def __init__(self, prior: object, *, steps: int = 20, temperature: ArrayLike = 1.0) -> None:
        self.prior = DiffusionPrior.from_prior(prior)
        _check_general(self.prior)
        self.schedule = Schedule.log_snr(positive_int("steps", steps))
        self.temperature = checked_temperature(temperature)

    def validate(self) -> None:
        super().validate()
        _check_general(self.prior)

    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Info]:
        prior, local = self.prior, to_unit(self.prior, evidence)
        process = prior.reverse_process(self.schedule)
        first_noise, noises = chain_noise(key, process, prior.dim)
        run = _linear_chain if local.quadratic else _expanding_chain
        count = noises.shape[:1]
        uniforms = jax.random.uniform(jax.random.fold_in(unrolled(key), 1), count, noises.dtype)
        z = run(prior.denoiser, local, self.schedule, first_noise, (noises, uniforms))
        theta = from_unit(prior, z)
        return theta, Info.of(theta)


def _linear_chain(
    denoiser: AbstractDenoiser,
    local: AbstractEvidence,
    schedule: Schedule,
    first_noise: Float[Array, " d"],
    random: tuple[Float[Array, "t d"], Float[Array, " t"]],
) -> Float[Array, " d"]:
    """The denoiser is conditioned on the task's evidence once; stages add their noisy samples."""
    given = denoiser.condition(*local.expand(Gaussian.point(jnp.zeros_like(first_noise))))

    def step(s_t: Array, inputs: Any) -> tuple[Array, None]:
        own, stage, (noise, uniform) = inputs
        return given.step_at(own, stage, s_t, noise, uniform), None

    stages = schedule.stages(first_noise.dtype)
    start = draw_from(starting_distribution(stages, given.moments()), first_noise)
    return jax.lax.scan(step, start, (given.stages(schedule), stages, random))[0]


def _expanding_chain(
    denoiser: AbstractDenoiser,
    local: AbstractEvidence,
    schedule: Schedule,
    first_noise: Float[Array, " d"],
    random: tuple[Float[Array, "t d"], Float[Array, " t"]],
) -> Float[Array, " d"]:
    """The likelihood is expanded anew at every stage, under the belief of the stage before."""

    def denoise(snr: Array, noisy_shift: Array, belief: Gaussian) -> Gaussian:
        precision, shift = local.expand(belief)
        spectral = eigh(precision).nonnegative().shifted(snr)
        return denoiser.denoise(spectral, noisy_shift + shift)

    def step(state: Any, inputs: Any) -> tuple[Any, None]:
        s_t, belief, snr, noisy_shift = state
        stage, (noise, _) = inputs
        new_shift = stage.shift_scale * s_t
        guess = _with_noisy(belief, stage.snr - snr, new_shift - noisy_shift)
        s_0 = denoise(stage.snr, new_shift, guess)
        return (
            draw_from(reverse_distribution(stage, s_t, s_0), noise),
            s_0,
            stage.snr,
            new_shift,
        ), None

    zero, stages = jnp.zeros_like(first_noise), schedule.stages(first_noise.dtype)
    clean = first_belief(local)
    for _ in range(FIRST_EXPANSIONS):
        clean = denoise(zero[0], zero, clean)
    state = (draw_from(starting_distribution(stages, clean), first_noise), clean, zero[0], zero)
    return jax.lax.scan(step, state, (stages, random))[0][0]


def _with_noisy(belief: Gaussian, snr: Float[Array, ""], shift: Float[Array, " d"]) -> Gaussian:
    """The belief with isotropic evidence more: a second expansion would begin about there."""
    identity = jnp.eye(shift.shape[0], dtype=shift.dtype)
    return belief.product(Gaussian(shift / snr, identity / snr))


def starting_distribution(stages: Stages, clean: Gaussian) -> Gaussian:
    """The distribution of s_T, from mean and covariance of s_0 under the task's evidence."""
    last = stages.snr[0] / (1.0 + stages.snr[0])  # alpha_bar_T
    identity = jnp.eye(clean.mean.shape[0], dtype=clean.mean.dtype)
    return Gaussian(jnp.sqrt(last) * clean.mean, last * clean.cov + (1.0 - last) * identity)


def _check_general(prior: DiffusionPrior) -> None:
    if not prior.denoiser.general:
        raise ValueError(
            "`prior`: expected one that denoises any Gaussian evidence, got one for isotropic "
            "evidence only; use LaplaceDPS, TwistedSMC or DPS with it, or fit without preset"
        )
