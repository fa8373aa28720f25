"""DPS of Chung et al., the paper's baseline: Algorithm 4."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from ..evidence.base import AbstractEvidence
from ..priors.diffusion import DiffusionPrior
from ..schedule import Schedule
from .base import (
    AbstractSampler,
    Info,
    chain_noise,
    checked_temperature,
    chosen_schedule,
    from_unit,
    to_unit,
)


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
