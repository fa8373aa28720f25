"""The contract of a sampler: one draw is written per sampler, the rest is here."""

import abc
import copy
import warnings
from collections.abc import Callable
from typing import ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key
from numpy.typing import ArrayLike

from ..checks import describe, is_traced, positive, positive_int, random_key, settings
from ..evidence.base import AbstractEvidence
from ..evidence.response import ResponseEvidence
from ..files.base import Serializable
from ..gaussian import Gaussian
from ..linalg import cholesky
from ..priors.base import AbstractPrior
from ..priors.diffusion import DiffusionPrior, ReverseProcess
from ..schedule import Schedule
from ..threefry import unrolled

Sampler = TypeVar("Sampler", bound="AbstractSampler")
AT_ONCE = {"cpu": 2**10, "gpu": 2**18}  # draws whose chains run side by side, to bound the memory


class Info(eqx.Module):
    """How a draw went. A leading axis runs over draws where there are many.

    Attributes:
        failed: Whether the draw is of no use.
        log_evidence: Of the history, in nats; NaN where it is not estimated.
        effective_sample_size: Of the particles; NaN where there are none.
    """

    failed: Bool[Array, "..."]
    log_evidence: Float[Array, "..."]
    effective_sample_size: Float[Array, "..."]

    @staticmethod
    def of(
        theta: Float[Array, " d"],
        log_evidence: Float[Array, ""] | None = None,
        effective_sample_size: Float[Array, ""] | None = None,
        failed: Bool[Array, ""] | None = None,
    ) -> "Info":
        """Info for one draw `theta` (d,): failed if `failed` or not finite; NaN where
        `log_evidence` or `effective_sample_size` is not estimated.
        """
        unknown = jnp.full((), jnp.nan, theta.dtype)
        broken = ~jnp.all(jnp.isfinite(theta))
        return Info(
            broken if failed is None else broken | failed,
            unknown if log_evidence is None else log_evidence,
            unknown if effective_sample_size is None else effective_sample_size,
        )


class ExpansionWarning(UserWarning):
    """Draws given a `Response` that may be far from its posterior."""


class AbstractSampler(eqx.Module, Serializable):
    """Draws from (an approximation of) p(theta | h).

    `temperature` counts the evidence 1 / temperature times: below 1 the posterior is narrower and
    exploration less; 1 is Bayes' rule. It is a number of the compiled programs, not a constant of
    them, so that one program serves all temperatures.
    """

    # Share of proposals, below which draws of responses were found to be off by a third or more.
    poor_share: ClassVar[float] = 0.4

    prior: eqx.AbstractVar[AbstractPrior]
    temperature: eqx.AbstractVar[Float[Array, ""] | float]

    def validate(self) -> None:
        super().validate()
        checked_temperature(self.temperature)

    @property
    def num_proposals(self) -> int | None:
        """From how many weighted by the likelihood each draw is chosen; None without weights."""
        return None

    def __repr__(self) -> str:
        schedule = getattr(self, "schedule", None)
        steps = {} if schedule is None else {"steps": schedule.num_stages}
        return describe(self, self.prior, **steps, **settings(self))

    @abc.abstractmethod
    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Info]:
        """One draw at temperature 1, unchecked: for use inside compiled programs.

        Args:
            key: Of the random numbers.
            evidence: What the task has shown so far.

        Returns:
            Parameters (d,) and how the draw went.
        """

    def tempered_draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Info]:
        """One draw from `key` and `evidence` at this sampler's temperature, unchecked."""
        return self.draw(key, evidence.temper(self.temperature))

    def at_temperature(self: Sampler, temperature: ArrayLike) -> Sampler:
        """The same sampler at another positive `temperature`; nothing is compiled anew.

        Raises:
            ValueError: If the temperature is not a positive number.
        """
        changed = copy.copy(self)
        new = checked_temperature(temperature)
        traced = isinstance(self.temperature, Array)  # unless a sampler of one's own has it static
        object.__setattr__(changed, "temperature", new if traced else float(new))
        return changed

    def sample(
        self, key: Key[Array, ""], evidence: object, *, throw: bool = True
    ) -> Float[Array, " d"]:
        """One draw (d,).

        Args:
            key: a JAX random key.
            evidence: what this task has shown; of as many parameters as the prior has.
            throw: whether a numerical failure raises; if not, a draw that failed is NaN.

        Raises:
            ValueError: if the evidence is none, or of another number of parameters.
            RuntimeError: if the draw failed, unless throw=False.
        """
        theta, info = _draw(self, random_key(key), self._checked(evidence))
        return self._checked_draws(theta, info, throw)

    def sample_many(
        self, key: Key[Array, ""], evidence: object, num_samples: int, *, throw: bool = True
    ) -> tuple[Float[Array, "n d"], Info]:
        """Independent draws (num_samples, d), and how each of them went.

        Args:
            key: a JAX random key.
            evidence: what this task has shown; of as many parameters as the prior has.
            num_samples: how many.
            throw: whether a numerical failure raises; if not, the draws that failed are NaN.

        Raises:
            ValueError: as of `sample`, or if the number is not a positive integer.
            RuntimeError: if a draw failed, unless throw=False.
        """
        evidence = self._checked(evidence)
        num_samples = positive_int("num_samples", num_samples)
        thetas, info = _draw_many(self, random_key(key), evidence, num_samples)
        if isinstance(evidence, ResponseEvidence) and not is_traced(thetas):
            self._warn_if_poor(info)
        return self._checked_draws(thetas, info, throw), info

    def _warn_if_poor(self, info: Info) -> None:
        """Warn where draws of a response rest on an expansion that weights correct too little."""
        most = self.num_proposals
        share = float(np.median(info.effective_sample_size)) / (most or 1)
        if (
            most is not None and not share < self.poor_share
        ):  # NaN of closed forms that need no weights
            return
        quality = "no weights correct" if most is None else f"weights leave {share:.0%} of"
        warnings.warn(
            f"`{type(self).__name__}`: {quality} the draws of an expansion of the response, which "
            "is poor here; use Exact with a Gaussian or mixture prior, or TwistedSMC with more "
            "particles, and compare",
            ExpansionWarning,
            stacklevel=3,
        )

    def _checked(self, evidence: object) -> AbstractEvidence:
        if not isinstance(evidence, AbstractEvidence):
            raise ValueError(
                f"`evidence`: expected evidence, got {type(evidence).__name__}; make it by "
                "`likelihood.observe(features, rewards)`"
            )
        if evidence.dim != self.prior.dim:
            raise ValueError(
                f"`evidence`: expected {self.prior.dim} parameters as in the prior, "
                f"got {evidence.dim}; use features with {self.prior.dim} columns"
            )
        return evidence

    def _checked_draws(self, theta: Array, info: Info, throw: bool) -> Array:
        if not throw:
            return jnp.where(info.failed[..., None], jnp.nan, theta)
        name = type(self).__name__
        return eqx.error_if(
            theta,
            jnp.any(info.failed),
            f"`{name}`: a draw is not finite or its approximation was not found. Likely causes: "
            "features or rewards of extreme scale (rescale them); a prior fitted to other data; "
            "float32 at its limit (set jax_enable_x64). throw=False returns NaN for such draws.",
        )


def checked_temperature(temperature: ArrayLike) -> Float[Array, ""]:
    """The temperature as a positive number, to be traced."""
    return positive("temperature", temperature, "1 is Bayes' rule")


@eqx.filter_jit
def _draw(
    sampler: AbstractSampler, key: Key[Array, ""], evidence: AbstractEvidence
) -> tuple[Float[Array, " d"], Info]:
    return sampler.tempered_draw(key, evidence)


@eqx.filter_jit
def _draw_many(
    sampler: AbstractSampler, key: Key[Array, ""], evidence: AbstractEvidence, num_samples: int
) -> tuple[Float[Array, "n d"], Info]:
    keys = jax.random.split(key, num_samples)
    at_once = AT_ONCE.get(jax.default_backend(), AT_ONCE["gpu"])
    return jax.lax.map(lambda k: sampler.tempered_draw(k, evidence), keys, batch_size=at_once)


# ---- shared by samplers that run a reverse process


def chosen_schedule(
    prior: DiffusionPrior, steps: int | None, default: int, spread: Callable[[int], Schedule]
) -> Schedule:
    """`steps` stages: of the prior's own grid if it has one, all of them by default; otherwise
    `default` stages by default, spread as `spread` says.
    """
    steps = None if steps is None else positive_int("steps", steps)
    if prior.has_own_grid:
        return prior.schedule if steps is None else prior.schedule.stride(steps)
    return spread(default if steps is None else steps)


def to_unit(prior: DiffusionPrior, evidence: AbstractEvidence) -> AbstractEvidence:
    """The evidence as a function of z, where theta = offset + scale z."""
    return evidence.reparameterize(prior.offset, prior.scale)


def from_unit(prior: DiffusionPrior, z: Float[Array, " d"]) -> Float[Array, " d"]:
    """Theta = offset + scale z."""
    return prior.offset + prior.scale @ z


def first_belief(local: AbstractEvidence) -> Gaussian:
    """What likelihoods are first expanded under: the Laplace posterior under N(0, I)."""
    standard = Gaussian.standard(local.dim)
    return standard if local.quadratic else local.condition(standard)[0]


def chain_noise(key: Key[Array, ""], process: ReverseProcess, dim: int) -> tuple[Array, Array]:
    """All the normal numbers of one chain at once: for its start, and for each stage."""
    num_stages = process.residual.shape[0]
    noise = jax.random.normal(unrolled(key), (num_stages + 1, dim), process.residual.dtype)
    return noise[0], noise[1:]


def draw_from(gaussian: Gaussian, noise: Float[Array, " d"]) -> Float[Array, " d"]:
    """The draw that standard normal `noise` stands for."""
    return gaussian.mean + cholesky(gaussian.cov) @ noise
