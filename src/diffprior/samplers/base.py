"""The contract of a sampler: one draw is written per sampler, the rest is here."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from ..checks import positive, positive_int
from ..evidence.base import AbstractEvidence
from ..priors.base import AbstractPrior

AT_ONCE = {"cpu": 2**10, "gpu": 2**18}  # draws whose chains run side by side, to bound the memory


class Info(eqx.Module):
    """How a draw went. A leading axis runs over draws where there are many."""

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
        """Info for one draw: failed if told so or not finite, NaN for what is not estimated."""
        unknown = jnp.full((), jnp.nan, theta.dtype)
        broken = ~jnp.all(jnp.isfinite(theta))
        return Info(
            broken if failed is None else broken | failed,
            unknown if log_evidence is None else log_evidence,
            unknown if effective_sample_size is None else effective_sample_size,
        )


class AbstractSampler(eqx.Module):
    """Draws from (an approximation of) p(theta | h).

    `temperature` counts the evidence 1 / temperature times: below 1 the posterior is narrower and
    exploration less; 1 is Bayes' rule.
    """

    prior: eqx.AbstractVar[AbstractPrior]
    temperature: eqx.AbstractVar[float]

    @abc.abstractmethod
    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Info]:
        """One draw at temperature 1, unchecked: for use inside compiled programs."""

    def tempered_draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Info]:
        """One draw at this sampler's temperature, unchecked."""
        if self.temperature == 1:
            return self.draw(key, evidence)
        return self.draw(key, evidence.temper(self.temperature))

    def sample(
        self, key: Key[Array, ""], evidence: AbstractEvidence, *, throw: bool = True
    ) -> Float[Array, " d"]:
        """One draw (d,). A numerical failure raises, or with throw=False returns NaN."""
        self._check(evidence)
        theta, info = _draw(self, key, evidence)
        return self._failing(theta, info) if throw else _nan_where_failed(theta, info)

    def sample_many(
        self,
        key: Key[Array, ""],
        evidence: AbstractEvidence,
        num_samples: int,
        *,
        throw: bool = True,
    ) -> tuple[Float[Array, "n d"], Info]:
        """Independent draws (num_samples, d) and how each of them went."""
        self._check(evidence)
        num_samples = positive_int("num_samples", num_samples)
        thetas, info = _draw_many(self, key, evidence, num_samples)
        return (self._failing(thetas, info) if throw else thetas), info

    def _check(self, evidence: AbstractEvidence) -> None:
        if evidence.dim != self.prior.dim:
            raise ValueError(
                f"`evidence`: expected {self.prior.dim} parameters as in the prior, "
                f"got {evidence.dim}; use features with {self.prior.dim} columns"
            )

    def _failing(self, theta: Array, info: Info) -> Array:
        name = type(self).__name__
        return eqx.error_if(
            theta,
            jnp.any(info.failed),
            f"`{name}`: a draw is not finite or its approximation was not found. Likely causes: "
            "features or rewards of extreme scale (rescale them); a prior fitted to other data; "
            "float32 at its limit (set jax_enable_x64). throw=False returns the draws as they are.",
        )


def checked_temperature(temperature: float) -> float:
    """The temperature as a positive number."""
    return float(positive("temperature", temperature, "1 is Bayes' rule"))


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


def _nan_where_failed(theta: Float[Array, " d"], info: Info) -> Float[Array, " d"]:
    return jnp.where(info.failed, jnp.nan, theta)
