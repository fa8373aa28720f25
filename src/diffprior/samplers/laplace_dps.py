"""The samplers of the paper: LaplaceDPS (Algorithm 2), and DPS, its baseline (Algorithm 4)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key
from numpy.typing import ArrayLike

from ..checks import choice
from ..evidence.base import AbstractEvidence
from ..gaussian import Gaussian
from ..linalg import eigh
from ..priors.diffusion import DiffusionPrior, ReverseProcess
from ..schedule import Schedule
from .base import (
    AbstractSampler,
    Info,
    chain_noise,
    checked_temperature,
    chosen_schedule,
    draw_from,
    from_unit,
    to_unit,
)


class LaplaceDPS(AbstractSampler):
    """Laplace diffusion posterior sampling: each reverse step multiplied by diffused evidence.

    covariance="fitted" takes the reverse covariance from the residuals of the denoiser; "paper" is
    beta_tilde, whose last stage ignores the evidence. The key approximation, Eq. (6), makes the
    posterior too narrow: about half its variance.

    Args:
        prior: Any prior.
        covariance: "fitted" or "paper".
        steps: Stages, by the cosine schedule; 20 by default. Of a prior learned with the paper's
            preset, stages of its own, strided; all by default.
        temperature: Counts the evidence 1 / temperature times; 1 is Bayes' rule.

    References:
        Kveton et al. (2024), Theorems 2 and 4, Eqs. (6) to (8), Algorithm 2.
    """

    prior: DiffusionPrior
    covariance: str = eqx.field(static=True)
    schedule: Schedule = eqx.field(static=True)
    temperature: Float[Array, ""]

    def __init__(
        self,
        prior: object,
        *,
        covariance: str = "fitted",
        steps: int | None = None,
        temperature: ArrayLike = 1.0,
    ) -> None:
        self.prior = DiffusionPrior.from_prior(prior)
        self.covariance = choice("covariance", covariance, ("fitted", "paper"))
        self.schedule = chosen_schedule(self.prior, steps, 20, Schedule.cosine)
        self.temperature = checked_temperature(temperature)

    def validate(self) -> None:
        super().validate()
        choice("covariance", self.covariance, ("fitted", "paper"))

    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Info]:
        process = self.prior.reverse_process(self.schedule)
        local = to_unit(self.prior, evidence)
        chain = _linear_chain if local.quadratic else _glm_chain
        z, failed = chain(self.prior, process, self.covariance, local, key)
        theta = from_unit(self.prior, z)
        return theta, Info.of(theta, failed=failed)


def _linear_chain(
    prior: DiffusionPrior,
    process: ReverseProcess,
    covariance: str,
    local: AbstractEvidence,
    key: Key[Array, ""],
) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
    """Theorem 2. Sigma_t is a multiple of I, so one eigendecomposition of the evidence diagonalizes
    every stage.
    """
    first_noise, noises = chain_noise(key, process, prior.dim)
    precision, shift = local.expand(Gaussian.point(jnp.zeros_like(first_noise)))
    spectral = eigh(precision)
    values, rotated_shift = jnp.maximum(spectral.values, 0.0), spectral.rotate(shift)

    def multiply(mean: Array, variance: Array, alpha_bar: Array, noise: Array) -> Array:
        """Eqs. (7) and (8), for a prior variance that may be zero."""
        shrink = 1.0 / (1.0 + variance * values / alpha_bar)
        pull = variance * rotated_shift / jnp.sqrt(alpha_bar)
        rotated = shrink * (spectral.rotate(mean) + pull) + jnp.sqrt(variance * shrink) * noise
        return spectral.unrotate(rotated)

    def step(s_t: Array, inputs: Any) -> tuple[Array, None]:
        stage, stage_inputs, variance, noise = inputs
        s_0 = prior.denoiser.mean_at(stage_inputs, s_t)
        mean = stage.weight_clean * s_0 + stage.weight_noisy * s_t
        return multiply(mean, variance, stage.alpha_bar_before, noise), None

    one = jnp.ones((), first_noise.dtype)
    s_T = multiply(jnp.zeros_like(first_noise), one, _last_alpha_bar(process), first_noise)
    inputs = (process.stages, process.denoiser_stages, process.variance(covariance), noises)
    return jax.lax.scan(step, s_T, inputs)[0], jnp.array(False)


def _glm_chain(
    prior: DiffusionPrior,
    process: ReverseProcess,
    covariance: str,
    local: AbstractEvidence,
    key: Key[Array, ""],
) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
    """Theorem 4. The search for each stage's mode begins at the mode of the stage before."""
    first_noise, noises = chain_noise(key, process, prior.dim)
    identity = jnp.eye(prior.dim, dtype=first_noise.dtype)

    def condition(
        mean: Array, variance: Array, alpha_bar: Array, start: Array, noise: Array
    ) -> tuple[Array, Array, Array]:
        root = jnp.sqrt(alpha_bar)
        scaled = Gaussian(mean / root, variance / alpha_bar * identity)
        posterior, log_evidence = local.condition(scaled, start)
        draw = draw_from(posterior.rescale(root), noise)
        return draw, posterior.mean, jnp.isnan(log_evidence)

    def step(state: Any, inputs: Any) -> tuple[Any, None]:
        s_t, mode, failed = state
        stage, stage_inputs, variance, noise = inputs
        s_0 = prior.denoiser.mean_at(stage_inputs, s_t)
        mean = stage.weight_clean * s_0 + stage.weight_noisy * s_t
        s, mode, lost = condition(mean, variance, stage.alpha_bar_before, mode, noise)
        return (s, mode, failed | lost), None

    zero, one = jnp.zeros_like(first_noise), jnp.ones((), first_noise.dtype)
    start = condition(zero, one, _last_alpha_bar(process), zero, first_noise)
    inputs = (process.stages, process.denoiser_stages, process.variance(covariance), noises)
    (z, _, failed), _ = jax.lax.scan(step, start, inputs)
    return z, failed


def _last_alpha_bar(process: ReverseProcess) -> Float[Array, ""]:
    snr = process.stages.snr[0]
    return snr / (1.0 + snr)


class DPS(AbstractSampler):
    """Diffusion posterior sampling: the reverse process plus a step down the squared error.

    The gradient goes through the denoiser, and the step size is one over the root of the squared
    error, as in Appendix D. Deviation: line 4 of Algorithm 4 prints the score as
    -eps / (1 - alpha_bar); line 5 needs -eps / sqrt(1 - alpha_bar), so that S_0 is E[s_0 | s_t].

    Args:
        prior: Any prior.
        steps: Stages, by the cosine schedule; 100 by default. Of a prior learned with the paper's
            preset, stages of its own, strided; all by default.
        temperature: Counts the evidence 1 / temperature times; 1 is Bayes' rule.

    References:
        Kveton et al. (2024), Algorithm 4 and Appendix D; Chung et al. (2023).
    """

    prior: DiffusionPrior
    schedule: Schedule = eqx.field(static=True)
    temperature: Float[Array, ""]

    def __init__(
        self, prior: object, *, steps: int | None = None, temperature: ArrayLike = 1.0
    ) -> None:
        self.prior = DiffusionPrior.from_prior(prior)
        self.schedule = chosen_schedule(self.prior, steps, 100, Schedule.cosine)
        self.temperature = checked_temperature(temperature)

    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Info]:
        prior, local = self.prior, to_unit(self.prior, evidence)
        process = prior.reverse_process(self.schedule)
        s_T, noises = chain_noise(key, process, prior.dim)

        def step(s_t: Array, inputs: Any) -> tuple[Array, None]:
            stage, stage_inputs, noise = inputs

            s_0, pull_back = jax.vjp(lambda s: prior.denoiser.mean_at(stage_inputs, s), s_t)
            error, gradient = local.squared_error(s_0)
            # zeta_t = 1 / sqrt(error); nothing pulls where there is no error
            scale = jnp.where(error > 0, 1.0 / jnp.sqrt(jnp.where(error > 0, error, 1.0)), 0.0)
            (pull,) = pull_back(scale * gradient)
            mean = stage.weight_clean * s_0 + stage.weight_noisy * s_t
            return mean + jnp.sqrt(stage.beta_tilde) * noise - pull, None

        inputs = (process.stages, process.denoiser_stages, noises)
        z, _ = jax.lax.scan(step, s_T, inputs)
        theta = from_unit(prior, z)
        return theta, Info.of(theta)
