"""Draws in a few passes: from the mixture base of a learned prior, refined under noise."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from ..denoisers.network import CorrectedDenoiser
from ..evidence.base import AbstractEvidence
from ..gaussian import Gaussian
from ..linalg import Spectral, eigh
from ..mixture import Conditioned, log_normalize, pick
from ..priors.diffusion import DiffusionPrior
from ..threefry import unrolled
from .base import AbstractSampler, Info, checked_temperature, first_belief, from_unit, to_unit

PROPOSALS = 16  # of a pass, of which one is chosen, where the likelihood is not quadratic
# Noise precisions after pass 1, by the number of passes.
REFINEMENTS = {1: (), 2: (3.0,), 3: (1.5, 8.0), 4: (1.0, 4.0, 16.0)}


class FewPasses(AbstractSampler):
    """Draws of the mixture under a prior, moved as its denoiser corrects it, in one to four passes.

    The base of a learned prior is a Gaussian mixture, in closed form under Gaussian evidence: the
    first pass draws from that, with every component moved as the network corrects the mean. A
    further pass hides the draw in noise of precision c (I + P), P that of the task's evidence, and
    draws again given both: what a pass gets wrong about the shape of the posterior
    matters less the smaller the region it has to describe. It is `EvidenceDPS` with 2 stages
    instead of 20, and exact where the mixture is. A likelihood that is not quadratic is expanded
    under a denoised belief first and at the last draw then; one of 16 draws is chosen by its
    likelihood over that of the expansion.

    Args:
        prior: A learned prior with a mixture base, or a Gaussian.
        passes: 1 to 4; more are more accurate where the network has much to correct.
        temperature: Counts the evidence 1 / temperature times; 1 is Bayes' rule.
    """

    prior: DiffusionPrior
    passes: int = eqx.field(static=True)
    temperature: Float[Array, ""]

    def __init__(self, prior: object, *, passes: int = 2, temperature: ArrayLike = 1.0) -> None:
        self.prior = DiffusionPrior.from_prior(prior)
        _check_mixture(self.prior)
        self.passes = _checked_passes(passes)
        self.temperature = checked_temperature(temperature)

    def validate(self) -> None:
        super().validate()
        _check_mixture(self.prior)
        _checked_passes(self.passes)

    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Info]:
        prior, local = self.prior, to_unit(self.prior, evidence)
        count = 1 if local.quadratic else PROPOSALS
        random = PassNoise.of(key, self.passes, count, prior.dim, prior.offset.dtype)
        theta = from_unit(prior, _passes(prior.denoiser, local, REFINEMENTS[self.passes], random))
        return theta, Info.of(theta)


class PassNoise(NamedTuple):
    """The random numbers of one draw."""

    hiding: Float[Array, "passes d"]
    noises: Float[Array, "passes m d"]
    components: Float[Array, "passes m"]
    choices: Float[Array, " passes"]

    @staticmethod
    def of(key: Key[Array, ""], passes: int, count: int, dim: int, dtype: jnp.dtype) -> "PassNoise":
        """For `passes` passes of `count` proposals each."""
        normal_key, uniform_key = jax.random.split(unrolled(key))
        normal = jax.random.normal(normal_key, (passes, count + 1, dim), dtype)
        uniform = jax.random.uniform(uniform_key, (passes, count + 1), dtype)
        return PassNoise(normal[:, 0], normal[:, 1:], uniform[:, 1:], uniform[:, 0])


def _passes(
    denoiser: Any, local: AbstractEvidence, refinements: tuple[float, ...], random: PassNoise
) -> Float[Array, " d"]:
    """A likelihood that is not quadratic is expanded anew for every pass."""
    if local.quadratic:
        belief = Gaussian.point(jnp.zeros_like(random.hiding[0]))
    else:
        matrix, shift = local.expand(first_belief(local))
        belief = denoiser.denoise(eigh(matrix).nonnegative(), shift)
    matrix, shift = local.expand(belief)
    task = both = eigh(matrix).nonnegative()
    hidden = Hidden.nothing(task)
    s = jnp.zeros_like(shift)
    for i, precision in enumerate((0.0, *refinements)):
        if i:
            hidden = hidden.more(precision, s, random.hiding[i])
            both = hidden.added_to(task)
        if i and not local.quadratic:
            matrix, shift = local.expand(Gaussian.point(s))
            both = eigh(matrix + hidden.matrix()).nonnegative()
        posterior = denoiser.posterior(both, shift + hidden.shift)
        if local.quadratic:
            s = posterior.draw(random.noises[i, 0], random.components[i, 0])
        else:
            s = _proposed(posterior, local, (matrix, shift), random, i)
    return s


def _proposed(
    posterior: Conditioned,
    local: AbstractEvidence,
    expansion: tuple[Float[Array, "d d"], Float[Array, " d"]],
    random: PassNoise,
    index: int,
) -> Float[Array, " d"]:
    """One of several draws, by the likelihood over that of its expansion."""
    draws = jax.vmap(posterior.draw)(random.noises[index], random.components[index])
    matrix, shift = expansion
    expanded = draws @ shift - 0.5 * jnp.sum((draws @ matrix) * draws, axis=1)
    shares, _ = log_normalize(jax.vmap(local.log_likelihood)(draws) - expanded)
    return draws[pick(shares, random.choices[index][None])[0]]


class Hidden(NamedTuple):
    """Evidence about the present draw, convolved with noise, of precision c (I + P)."""

    unit: Spectral  # I + P
    precision: Float[Array, ""]
    shift: Float[Array, " d"]

    @staticmethod
    def nothing(task: Spectral) -> "Hidden":
        """No draw yet."""
        zero = jnp.zeros_like(task.values)
        return Hidden(task.shifted(jnp.ones_like(zero[0])), zero[0], zero)

    def more(self, precision: float, s: Float[Array, " d"], noise: Float[Array, " d"]) -> "Hidden":
        """The draw s seen better, at `precision` in all."""
        gain = (precision - self.precision) * self.unit.values
        seen = gain * self.unit.rotate(s) + jnp.sqrt(gain) * noise
        total = jnp.full_like(self.precision, precision)
        return Hidden(self.unit, total, self.shift + self.unit.unrotate(seen))

    def matrix(self) -> Float[Array, "d d"]:
        """The precision of what is seen."""
        return self.unit.apply(lambda values: self.precision * values)

    def added_to(self, task: Spectral) -> Spectral:
        """The precision of the task's evidence and this together."""
        return Spectral(task.vectors, task.values + self.precision * self.unit.values)


def _checked_passes(passes: object) -> int:
    if isinstance(passes, bool) or passes not in REFINEMENTS:
        raise ValueError(
            f"`passes`: expected 1, 2, 3 or 4, got {passes!r}; EvidenceDPS takes more steps"
        )
    return int(passes)


def has_mixture_base(prior: DiffusionPrior) -> bool:
    """Whether the shape of what evidence leaves open is known, not just its mean and covariance."""
    denoiser = prior.denoiser
    return isinstance(denoiser, CorrectedDenoiser) and denoiser.is_mixture


def _check_mixture(prior: DiffusionPrior) -> None:
    if not has_mixture_base(prior):
        raise ValueError(
            "`prior`: expected a learned one with a mixture base, got one without; "
            "fit it with FitConfig(prefer_mixture=True), or use EvidenceDPS"
        )
