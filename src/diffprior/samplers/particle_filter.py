"""The sequential Monte Carlo baseline of Appendix C.4."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from ..checks import positive_int
from ..evidence.base import AbstractEvidence
from ..mixture import log_normalize
from ..priors.diffusion import DiffusionPrior
from ..threefry import unrolled
from .base import AbstractSampler, Info, checked_temperature, from_unit, to_unit
from .twisted_smc import systematic

JITTER = 0.1  # first perturbation, over the prior's standard deviation


class ParticleFilter(AbstractSampler):
    """Particles from the prior: perturbed, weighted by the likelihood, resampled, in rounds.

    Deviation: evidence keeps what the history adds up to, not its order, so that each of
    `num_rounds` rounds brings an equal share of it. The perturbation of round r is JITTER / r prior
    standard deviations. The particles that runs start from are drawn once.

    Args:
        prior: Any prior.
        num_particles: Particles of a run.
        num_rounds: Shares in which the evidence comes.
        temperature: Counts the evidence 1 / temperature times; 1 is Bayes' rule.
        seed: Of the particles that runs start from.

    References:
        Kveton et al. (2024), Appendix C.4.
    """

    prior: DiffusionPrior
    particles: Float[Array, "k d"]
    num_rounds: int = eqx.field(static=True)
    temperature: Float[Array, ""]

    def __init__(
        self,
        prior: object,
        *,
        num_particles: int = 3000,
        num_rounds: int = 20,
        temperature: ArrayLike = 1.0,
        seed: int = 0,
    ) -> None:
        self.prior = DiffusionPrior.from_prior(prior)
        count = positive_int("num_particles", num_particles)
        self.particles = self.prior.sample_unit(jax.random.key(seed), count)
        self.num_rounds = positive_int("num_rounds", num_rounds)
        self.temperature = checked_temperature(temperature)

    def validate(self) -> None:
        super().validate()
        positive_int("num_rounds", self.num_rounds)
        if 0 in self.particles.shape or self.particles.shape[1] != self.prior.dim:
            raise ValueError(f"`particles`: expected {self.prior.dim} columns")

    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Info]:
        return self._draw(key, evidence, JITTER)

    def _draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence, jitter: float
    ) -> tuple[Float[Array, " d"], Info]:
        """One particle of one run."""
        share = to_unit(self.prior, evidence).temper(float(self.num_rounds))

        def one_round(z: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
            key, number = inputs
            noise_key, resample_key = jax.random.split(key)
            z = z + jitter / number * jax.random.normal(noise_key, z.shape, z.dtype)
            weights, log_total = log_normalize(jax.vmap(share.log_likelihood)(z))
            uniform = jax.random.uniform(resample_key, (), z.dtype)
            log_mean = log_total - jnp.log(z.shape[0])
            size = 1.0 / jnp.sum(weights**2)
            return z[systematic(weights, uniform)], jnp.stack([log_mean, size])

        numbers = jnp.arange(1, self.num_rounds + 1, dtype=self.particles.dtype)
        keys = jax.random.split(unrolled(key), self.num_rounds + 1)
        chosen_key, inputs = keys[0], (keys[1:], numbers)
        particles, trace = jax.lax.scan(one_round, self.particles, inputs)
        chosen = jax.random.randint(chosen_key, (), 0, particles.shape[0])
        theta = from_unit(self.prior, particles[chosen])
        log_evidence = jnp.sum(trace[:, 0])
        failed = ~jnp.isfinite(log_evidence)
        return theta, Info.of(theta, log_evidence, jnp.min(trace[:, 1]), failed)
