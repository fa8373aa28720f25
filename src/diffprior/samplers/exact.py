"""Exact posterior sampling under a closed-form prior: TS, TunedTS and MixTS."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ..evidence.base import AbstractEvidence
from ..priors.base import AbstractClosedFormPrior
from .base import AbstractSampler, Info, checked_temperature


class Exact(AbstractSampler):
    """Draws from the closed-form posterior: exact for linear evidence.

    For generalised linear models each Gaussian is conditioned by Laplace's approximation, and the
    components of a mixture are weighted by its log evidence; an empirical prior stays exact.

    Args:
        prior: A closed form.
        temperature: Counts the evidence 1 / temperature times; 1 is Bayes' rule.
    """

    prior: AbstractClosedFormPrior
    temperature: Float[Array, ""]

    def __init__(self, prior: AbstractClosedFormPrior, *, temperature: Any = 1.0) -> None:
        if not isinstance(prior, AbstractClosedFormPrior):
            raise ValueError(
                f"`prior`: expected a closed-form prior, got {type(prior).__name__}; "
                "use EvidenceDPS, LaplaceDPS or TwistedSMC for a learned one"
            )
        self.prior = prior
        self.temperature = checked_temperature(temperature)

    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Info]:
        """One exact draw, and log p(h)."""
        posterior, log_evidence = self.prior.posterior(evidence)
        theta = posterior.sample(key, 1)[0]
        return theta, Info.of(theta, log_evidence, failed=~jnp.isfinite(log_evidence))
