"""Sequential Monte Carlo: particles made exact by weights, and the filter of Appendix C.4."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key
from numpy.typing import ArrayLike

from ..checks import positive_int
from ..denoisers.base import reverse_distribution
from ..evidence.base import AbstractEvidence
from ..gaussian import Gaussian
from ..mixture import log_normalize, pick
from ..priors.diffusion import DiffusionPrior
from ..schedule import Schedule, Stages
from ..threefry import unrolled
from .base import (
    AbstractSampler,
    Info,
    checked_temperature,
    chosen_schedule,
    draw_from,
    first_belief,
    from_unit,
    to_unit,
)

EXPANSIONS = 2  # of a likelihood that is not quadratic, at each stage


class TwistedSMC(AbstractSampler):
    """Sequential Monte Carlo over the reverse process, twisted towards the evidence.

    Each particle believes s_0 ~ N(m, C) from its own s_t, conditions that on the evidence in clean
    space, and moves by q(s_{t-1} | s_t, s_0) integrated over the result; log p(h) under that belief
    is its potential. The weights make up for what the belief gets wrong, so more particles come
    closer to the exact posterior. One particle is the moment-matched step alone.

    Args:
        prior: Any prior.
        num_particles: Particles of a run; each draw is a run.
        steps: Stages, uniform in log SNR; 20 by default. Of a prior learned with the paper's
            preset, stages of its own, strided; all by default.
        temperature: Counts the evidence 1 / temperature times; 1 is Bayes' rule.

    References:
        Wu, Trippe, Naesseth, Blei and Cunningham (2023); here the twist conditions a Gaussian
        belief.
    """

    prior: DiffusionPrior
    num_particles: int = eqx.field(static=True)
    schedule: Schedule = eqx.field(static=True)
    temperature: Float[Array, ""]

    def __init__(
        self,
        prior: object,
        *,
        num_particles: int = 16,
        steps: int | None = None,
        temperature: ArrayLike = 1.0,
    ) -> None:
        self.prior = DiffusionPrior.from_prior(prior)
        self.num_particles = positive_int("num_particles", num_particles)
        self.schedule = chosen_schedule(self.prior, steps, 20, Schedule.log_snr)
        self.temperature = checked_temperature(temperature)

    def validate(self) -> None:
        super().validate()
        positive_int("num_particles", self.num_particles)

    @property
    def num_proposals(self) -> int:
        return self.num_particles

    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Info]:
        prior, local = self.prior, to_unit(self.prior, evidence)
        process = prior.reverse_process(self.schedule)
        start_key, chain_key, last_key = jax.random.split(unrolled(key), 3)
        shape = (self.num_particles, prior.dim)
        s_T = jax.random.normal(start_key, shape, process.residual.dtype)
        first, rest = (
            jax.tree.map(lambda leaf, which=which: leaf[which], process.denoiser_stages)
            for which in (0, slice(1, None))
        )
        guess = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (self.num_particles, *leaf.shape)),
            first_belief(local),
        )
        beliefs = _believe(prior, local, first, s_T, guess)
        cloud = _Cloud(s_T, beliefs, beliefs.log_potential, jnp.zeros((), s_T.dtype), s_T[0, 0])

        def step(cloud: _Cloud, inputs: Any) -> tuple[_Cloud, Float[Array, ""]]:
            stage, stage_inputs, key = inputs
            cloud, s, log_ratio = _move(key, cloud, stage)
            beliefs = _believe(prior, local, stage_inputs, s, cloud.beliefs.posterior)
            gain = log_ratio + beliefs.log_potential - cloud.beliefs.log_potential
            cloud = cloud._replace(s=s, beliefs=beliefs, log_weights=cloud.log_weights + gain)
            return cloud, cloud.effective_size

        keys = jax.random.split(chain_key, process.residual.shape[0])
        stages = jax.tree.map(lambda leaf: leaf[:-1], process.stages)
        cloud, sizes = jax.lax.scan(step, cloud, (stages, rest, keys[:-1]))
        final = jax.tree.map(lambda leaf: leaf[-1], process.stages)
        cloud, z, log_ratio = _move(keys[-1], cloud, final)
        log_likelihood = jax.vmap(local.log_likelihood)(z)
        gain = log_ratio + log_likelihood - cloud.beliefs.log_potential
        weights, log_mean = log_normalize(cloud.log_weights + gain)
        log_evidence = cloud.log_evidence + log_mean - jnp.log(self.num_particles)
        chosen = jax.random.choice(last_key, self.num_particles, p=weights)
        theta = from_unit(prior, z[chosen])
        size = jnp.minimum(jnp.min(sizes, initial=self.num_particles), 1.0 / jnp.sum(weights**2))
        return theta, Info.of(theta, log_evidence, size, failed=~jnp.isfinite(log_evidence))


class _Beliefs(NamedTuple):
    """Each particle's Gaussian of s_0, before and after the evidence, and log p(h) under it."""

    prior: Gaussian
    posterior: Gaussian
    log_potential: Float[Array, " k"]


class _Cloud(NamedTuple):
    s: Float[Array, "k d"]
    beliefs: _Beliefs
    log_weights: Float[Array, " k"]
    log_evidence: Float[Array, ""]
    effective_size: Float[Array, ""]


def _believe(
    prior: DiffusionPrior,
    local: AbstractEvidence,
    stage_inputs: Any,
    s: Float[Array, "k d"],
    guess: Gaussian,
) -> _Beliefs:
    def one(s: Float[Array, " d"], guess: Gaussian) -> _Beliefs:
        s_0 = prior.denoiser.denoise_at(stage_inputs, s)
        return _Beliefs(s_0, *_condition(s_0, local, guess))

    return jax.vmap(one)(s, guess)


def _condition(
    belief: Gaussian, local: AbstractEvidence, guess: Gaussian
) -> tuple[Gaussian, Float[Array, ""]]:
    """The belief after the evidence and log p(h) under it: of a likelihood that is not quadratic,
    under its expansion about `guess` and again about what follows. The weights make up for the
    rest.
    """
    if local.quadratic:
        return local.condition(belief)
    for _ in range(EXPANSIONS):
        precision, shift = local.expand(guess)
        about_guess = Gaussian(belief.mean - guess.mean, belief.cov)
        change, log_mass = about_guess.tilt(precision, shift - precision @ guess.mean)
        log_potential = local.log_likelihood(guess.mean) + log_mass
        guess = Gaussian(guess.mean + change.mean, change.cov)
    return guess, log_potential


def _move(
    key: Key[Array, ""], cloud: _Cloud, stage: Stages
) -> tuple[_Cloud, Float[Array, "k d"], Float[Array, " k"]]:
    """Resample if need be, step every particle, and log the prior over the proposal density."""
    resample_key, noise_key = jax.random.split(key)
    cloud = _resample(resample_key, cloud)
    noise = jax.random.normal(noise_key, cloud.s.shape, cloud.s.dtype)

    def one(
        s: Float[Array, " d"], beliefs: _Beliefs, noise: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        proposal = reverse_distribution(stage, s, beliefs.posterior)
        moved = draw_from(proposal, noise)
        chain = reverse_distribution(stage, s, beliefs.prior)
        return moved, chain.log_density(moved) - proposal.log_density(moved)

    moved, log_ratio = jax.vmap(one)(cloud.s, cloud.beliefs, noise)
    return cloud, moved, log_ratio


def _resample(key: Key[Array, ""], cloud: _Cloud) -> _Cloud:
    """Systematic resampling where the effective sample size has fallen below half."""
    weights, log_total = log_normalize(cloud.log_weights)
    count = weights.shape[0]
    effective_size = 1.0 / jnp.sum(weights**2)
    needed = effective_size < 0.5 * count
    chosen = jnp.where(
        needed,
        systematic(weights, jax.random.uniform(key, (), weights.dtype)),
        jnp.arange(count, dtype=jnp.int32),
    )
    s, beliefs = jax.tree.map(lambda leaf: leaf[chosen], (cloud.s, cloud.beliefs))
    log_mean = log_total - jnp.log(count)
    return _Cloud(
        s,
        beliefs,
        jnp.where(needed, 0.0, cloud.log_weights),
        cloud.log_evidence + jnp.where(needed, log_mean, 0.0),
        effective_size,
    )


def systematic(weights: Float[Array, " k"], uniform: Float[Array, ""]) -> Int[Array, " k"]:
    """Indices drawn with one uniform number: copies of each differ from k weight by less than 1."""
    count = weights.shape[0]
    positions = (jnp.arange(count, dtype=weights.dtype) + uniform) / count
    return pick(weights, positions)


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
