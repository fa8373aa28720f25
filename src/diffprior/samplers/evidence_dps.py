"""Evidence inside the denoiser: the reverse process of the posterior itself."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ..checks import positive_int
from ..evidence.base import AbstractEvidence
from ..gaussian import Gaussian
from ..linalg import eigh
from ..priors.diffusion import DiffusionPrior, reverse_law
from ..schedule import Schedule
from .base import AbstractSampler, Info, checked_temperature
from .chain import (
    EXPANSIONS,
    chain_noise,
    draw_from,
    first_belief,
    from_unit,
    to_unit,
)


class EvidenceDPS(AbstractSampler):
    """Reverse process of p(s_0 | h): a noisy sample is one more piece of Gaussian evidence.

    With linear evidence of precision Lam and shift b, p(s_0 | s_t, h) is the prior under Gaussian
    evidence of precision snr_t I + Lam and shift scale_t s_t + b, so the prior's own denoiser gives
    its mean and covariance, and no likelihood is approximated. The score and curvature of a
    generalised linear model are averaged over the denoised Gaussian of the stage before.

    Args:
        prior: Any prior that denoises any Gaussian evidence.
        steps: Stages of the reverse process, uniform in log SNR.
        temperature: Counts the evidence 1 / temperature times; 1 is Bayes' rule.
    """

    prior: DiffusionPrior
    schedule: Schedule = eqx.field(static=True)
    temperature: Float[Array, ""]

    def __init__(self, prior: Any, *, steps: int = 20, temperature: Any = 1.0) -> None:
        self.prior = DiffusionPrior.from_prior(prior)
        _check_general(self.prior)
        self.schedule = Schedule.log_snr(positive_int("steps", steps))
        self.temperature = checked_temperature(temperature)

    def validate(self) -> None:
        """Refuse a prior that denoises isotropic evidence only."""
        super().validate()
        _check_general(self.prior)

    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Info]:
        """One chain."""
        prior, local = self.prior, to_unit(self.prior, evidence)
        process = prior.reverse_process(self.schedule)
        first_noise, noises = chain_noise(key, process, prior.dim)
        denoise = _denoiser_with(prior, local)
        zero = jnp.zeros_like(first_noise)
        clean = denoise(zero[0], zero, first_belief(local))
        last = process.stages.snr[0] / (1.0 + process.stages.snr[0])  # alpha_bar_T
        identity = jnp.eye(prior.dim, dtype=zero.dtype)
        start = Gaussian(jnp.sqrt(last) * clean.mean, last * clean.cov + (1.0 - last) * identity)

        def step(state: Any, inputs: Any) -> tuple[Any, None]:
            s_t, belief = state
            stage, noise = inputs
            s_0 = denoise(stage.snr, stage.shift_scale * s_t, belief)
            return (draw_from(reverse_law(stage, s_t, s_0), noise), s_0), None

        state = (draw_from(start, first_noise), clean)
        (z, _), _ = jax.lax.scan(step, state, (process.stages, noises))
        theta = from_unit(prior, z)
        return theta, Info.of(theta)


def _denoiser_with(prior: DiffusionPrior, local: AbstractEvidence) -> Any:
    """Mean and covariance of s_0 given isotropic evidence and the task's own; `belief` is what a
    likelihood that is not quadratic is first expanded under."""
    denoise = prior.denoiser.denoise
    if local.quadratic:
        precision, shift = local.expand(Gaussian.point(jnp.zeros_like(prior.offset)))
        spectral = eigh(precision).nonnegative()

        def linear(snr: Array, noisy_shift: Array, belief: Gaussian) -> Gaussian:
            return denoise(spectral.shifted(snr), noisy_shift + shift)

        return linear

    def expanding(snr: Array, noisy_shift: Array, belief: Gaussian) -> Gaussian:
        for _ in range(EXPANSIONS):
            precision, shift = local.expand(belief)
            spectral = eigh(precision).nonnegative().shifted(snr)
            belief = denoise(spectral, noisy_shift + shift)
        return belief

    return expanding


def _check_general(prior: DiffusionPrior) -> None:
    if not prior.denoiser.general:
        raise ValueError(
            "`prior`: expected one that denoises any Gaussian evidence, got one for isotropic "
            "evidence only; use LaplaceDPS, TwistedSMC or DPS with it, or fit without preset"
        )
