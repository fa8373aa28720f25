"""The past tasks themselves as a prior: exact under any likelihood, by reweighting."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from ..checks import describe, positive_int, random_key, real_array
from ..evidence.base import AbstractEvidence
from ..files.base import require_finite
from ..fitting.samples import checked_samples
from ..gaussian import Gaussian
from ..mixture import log_normalize, mixture_moments, pick
from .base import AbstractClosedFormPrior, centered, probabilities


class EmpiricalPrior(AbstractClosedFormPrior):
    """Point masses at `atoms`, of equal weight unless `weights` says otherwise.

    Args:
        atoms: Parameters of past tasks (n, d).
        weights: Of each atom (n,); equal by default.
    """

    atoms: Float[Array, "n d"]
    log_weights: Float[Array, " n"]

    def __init__(self, atoms: ArrayLike, weights: ArrayLike | None = None) -> None:
        self.atoms = real_array("atoms", atoms, ("n", "d"), "one row of parameters per past task")
        n = self.atoms.shape[0]
        if 0 in self.atoms.shape:
            raise ValueError(
                f"`atoms`: expected at least one row, got shape {self.atoms.shape}; "
                "pass the parameters of past tasks"
            )
        weights = np.ones(n) if weights is None else weights
        shares = probabilities(weights, n, "pass one for each atom")
        self.log_weights = jnp.log(shares).astype(self.atoms.dtype)

    @staticmethod
    def fit(samples: ArrayLike) -> "EmpiricalPrior":
        """The samples as they are.

        Args:
            samples: Parameters of past tasks (n, d).
        """
        return EmpiricalPrior(checked_samples(samples, at_least=1))

    def validate(self) -> None:
        require_finite({"atoms": self.atoms})
        weights = np.exp(np.asarray(self.log_weights, np.float64))
        if 0 in self.atoms.shape or not abs(weights.sum() - 1) < 1e-3:
            raise ValueError("`log_weights`: expected logarithms of probabilities, got others")

    @property
    def dim(self) -> int:
        return self.atoms.shape[1]

    def __repr__(self) -> str:
        return describe(self, dim=self.dim, num_atoms=len(self.atoms))

    @eqx.filter_jit
    def moments(self) -> Gaussian:
        return Gaussian(*mixture_moments(jnp.exp(self.log_weights), self.atoms))

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        num_samples = positive_int("num_samples", num_samples)
        uniforms = jax.random.uniform(random_key(key), (num_samples,), self.log_weights.dtype)
        return self.atoms[pick(jnp.exp(self.log_weights), uniforms)]

    @eqx.filter_jit
    def posterior(self, evidence: AbstractEvidence) -> tuple["EmpiricalPrior", Float[Array, ""]]:
        """The atoms reweighted by their likelihood, exactly; and log p(h).

        Args:
            evidence: What the task has shown so far.
        """
        origin, local, at_origin = centered(evidence, jnp.exp(self.log_weights) @ self.atoms)
        log_likelihood = jax.vmap(local.log_likelihood)(self.atoms - origin[None])
        weights, log_evidence = log_normalize(self.log_weights + log_likelihood)
        posterior = eqx.tree_at(lambda p: p.log_weights, self, jnp.log(weights))
        return posterior, log_evidence + at_origin
