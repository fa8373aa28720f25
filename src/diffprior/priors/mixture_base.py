"""A Gaussian mixture in unit coordinates as the base of a denoiser: exact under Gaussian evidence.

Under evidence of precision P and shift q a component N(mu, S) stays one: its covariance becomes
C = (S^-1 + P)^-1, its mean mu + C (q - P mu), and its weight grows by the evidence it explains.
Evidence of a task stays while that of a noisy sample, snr I, changes from stage to stage. So
components are conditioned on the task's once, one factorization each, and kept by their
eigenvectors, in which what a stage adds is diagonal.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..files.base import Serializable
from ..linalg import Spectral, eigh, lapack_eigh, solve_half
from ..schedule import Stages
from .base import pick
from .components import Components

SMALLEST_SNR = 1e-6  # precision of a noisy sample below which it says nothing


class Mixed(NamedTuple):
    """Components given everything: how likely each is, and where it holds s_0 to be."""

    responsibilities: Float[Array, " k"]
    means: Float[Array, "k d"]

    @property
    def mean(self) -> Float[Array, " d"]:
        """E[s_0]."""
        return self.responsibilities @ self.means

    def cov(self, covs: Float[Array, "k d d"]) -> Float[Array, "d d"]:
        """Cov[s_0]: that within components, and the spread of their means."""
        away = self.means - self.mean[None]
        within = jnp.einsum("k,kij->ij", self.responsibilities, covs)
        return within + (away * self.responsibilities[:, None]).T @ away


class Conditioned(eqx.Module):
    """Components given a task's evidence, their covariances kept as eigenvectors and variances."""

    log_weights: Float[Array, " k"]
    means: Float[Array, "k d"]
    vectors: Float[Array, "k d d"]
    variances: Float[Array, "k d"]

    def given(self, snr: Float[Array, ""], noisy_shift: Float[Array, " d"]) -> Mixed:
        """The mixture given a noisy sample too, of precision snr I and this shift."""
        snr = jnp.maximum(snr, SMALLEST_SNR)
        left = 1.0 + snr * self.variances
        away = noisy_shift[None] - snr * self.means
        rotated = jnp.einsum("ki,kij->kj", away, self.vectors)
        moved = jnp.einsum("kij,kj->ki", self.vectors, self.variances / left * rotated)
        terms = jnp.log(left) + rotated**2 / (snr * left)
        log_weights = self.log_weights - 0.5 * jnp.sum(terms, axis=1)
        return Mixed(jax.nn.softmax(log_weights), self.means + moved)

    def covs(self, snr: Float[Array, ""]) -> Float[Array, "k d d"]:
        """The covariance of each component given a noisy sample too."""
        scaled = self.vectors * self._variances(snr)[:, None, :]
        return jnp.einsum("kij,klj->kil", scaled, self.vectors)

    def step(
        self, index: Array, stage: Stages, ratio: Float[Array, " d"], noise: Float[Array, " d"]
    ) -> Float[Array, " d"]:
        """The part of a reverse step that is random, if s_0 is of component `index`: what noise
        stands for under the covariance weight_clean^2 C + beta_tilde I, where the variances of C
        are `ratio` times what they would be."""
        variances = ratio * self._variances(stage.snr)[index]
        stds = jnp.sqrt(stage.beta_tilde + stage.weight_clean**2 * variances)
        return self.vectors[index] @ (stds * noise)

    def _variances(self, snr: Float[Array, ""]) -> Float[Array, "k d"]:
        return self.variances / (1.0 + jnp.maximum(snr, SMALLEST_SNR) * self.variances)


class Conditional(NamedTuple):
    """A Gaussian mixture to draw from, its covariances kept by a factor each."""

    responsibilities: Float[Array, " k"]
    means: Float[Array, "k d"]
    factors: Float[Array, "k d d"]

    def draw(self, noise: Float[Array, " d"], uniform: Float[Array, ""]) -> Float[Array, " d"]:
        """The draw that a uniform number, for the component, and standard normal ones stand for."""
        index = pick(self.responsibilities, uniform[None])[0]
        return self.means[index] + self.factors[index] @ noise


class Factored(NamedTuple):
    """Components under evidence of one precision, for any shift."""

    precision: Float[Array, "d d"]
    covs: Float[Array, "k d d"]
    pulled: Float[Array, "k d"]  # P mu of each component
    log_dets: Float[Array, " k"]  # of I + S P

    def given(
        self, base: "MixtureBase", center: Float[Array, " d"]
    ) -> tuple[Float[Array, " k"], Float[Array, "k d"]]:
        """Log weights (up to a constant) and means under the shift (I + P) center.

        All is reckoned from `center`, the mean that a unit Gaussian would have: there the terms
        that grow with the evidence cancel before they are computed.
        """
        away = base.means - center[None]
        gradient = center[None] - (self.pulled - (self.precision @ center)[None])
        moved = jnp.einsum("kij,kj->ki", self.covs, gradient)
        explained = jnp.sum(away * (center[None] + gradient) + gradient * moved, axis=1)
        return base.log_weights + 0.5 * (explained - self.log_dets), base.means + moved


class MixtureBase(eqx.Module, Serializable):
    """sum_k weights_k N(means_k, V_k diag(variances_k) V_k'), in unit coordinates."""

    log_weights: Float[Array, " k"]
    means: Float[Array, "k d"]
    vectors: Float[Array, "k d d"]
    variances: Float[Array, "k d"]

    @staticmethod
    def of(components: Components) -> "MixtureBase":
        """The base of components that EM found."""
        log_weights, means, covs = (jnp.asarray(leaf, jnp.float32) for leaf in components)
        spectral = jax.vmap(lapack_eigh)(covs)
        variances = jnp.maximum(spectral.values, 1e-6)
        return MixtureBase(log_weights, means, spectral.vectors, variances)

    def of_one(self) -> "MixtureBase":
        """A unit Gaussian as a mixture of as many components, of which the others weigh nothing."""
        k, d = self.means.shape
        others = np.where(np.arange(k) == 0, 0.0, -1e9)
        arrays = (others, np.zeros((k, d)), np.tile(np.eye(d), (k, 1, 1)), np.ones((k, d)))
        return MixtureBase(*(jnp.asarray(array, jnp.float32) for array in arrays))

    @property
    def num_components(self) -> int:
        """K."""
        return self.means.shape[0]

    def alone(self) -> Conditioned:
        """The components as they are, given no evidence."""
        return Conditioned(self.log_weights, self.means, self.vectors, self.variances)

    def factor(self, precision: Float[Array, "d d"]) -> Factored:
        """One factorization per component: with S = L L', of I + L' P L."""
        return self._factor(precision)[0]

    def _factor(self, precision: Float[Array, "d d"]) -> tuple[Factored, Float[Array, "k d d"]]:
        """The same, and factors of the covariances."""
        identity = jnp.eye(precision.shape[0], dtype=precision.dtype)

        def one(vectors: Array, variances: Array) -> tuple[Array, Array, Array]:
            half = vectors * jnp.sqrt(variances)[None]
            rest, log_det = solve_half(identity + half.T @ precision @ half, half.T)
            return rest.T @ rest, log_det, rest.T

        covs, log_dets, factors = jax.vmap(one)(self.vectors, self.variances)
        return Factored(precision, covs, self.means @ precision, log_dets), factors

    def given(
        self, precision: Spectral, shift: Float[Array, " d"]
    ) -> tuple[Mixed, Float[Array, "k d d"]]:
        """The components under evidence of this precision and shift, and their covariances."""
        factored = self.factor(precision.matrix())
        log_weights, means = factored.given(self, gaussian_mean(precision, shift))
        return Mixed(jax.nn.softmax(log_weights), means), factored.covs

    def conditional(self, precision: Spectral, shift: Float[Array, " d"]) -> Conditional:
        """The mixture under evidence of this precision and shift, to draw from."""
        factored, factors = self._factor(precision.matrix())
        log_weights, means = factored.given(self, gaussian_mean(precision, shift))
        return Conditional(jax.nn.softmax(log_weights), means, factors)

    def condition(self, precision: Spectral, shift: Float[Array, " d"]) -> Conditioned:
        """The components given a task's evidence, for all stages of a chain."""
        factored = self.factor(precision.matrix())
        log_weights, means = factored.given(self, gaussian_mean(precision, shift))
        spectral = jax.vmap(eigh)(factored.covs)
        variances = jnp.maximum(spectral.values, 0.0)
        return Conditioned(log_weights, means, spectral.vectors, variances)


def gaussian_mean(precision: Spectral, shift: Float[Array, " d"]) -> Float[Array, " d"]:
    """(I + P)^-1 q: the mean under a unit Gaussian prior."""
    return precision.unrotate(precision.rotate(shift) / (1.0 + precision.values))
