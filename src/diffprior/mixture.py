"""The Gaussian mixture: exact under Gaussian evidence, in JAX or in NumPy.

Under evidence exp(-x' P x / 2 + q' x) a component N(mu, S) stays Gaussian: its covariance becomes
C = (S^-1 + P)^-1, its mean mu + C (q - P mu), and its weight grows by the evidence it explains. In
a chain the evidence of a task stays while that of a noisy sample, snr I, changes from stage to
stage. So a mixture is conditioned on the task once, one factorization per component, and stored by
eigenvectors, in which what a stage adds is diagonal.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import DTypeLike

from .checks import on_device
from .files.base import Serializable
from .linalg import AnyArray, Spectral, eigh, numpy_of, solve_half, times

COMPARE_UP_TO = 128  # weights that are searched faster all at once than by bisection
ADD_UP_TO = 32  # weights whose cumulative sums are faster computed each on its own


def mixture_moments(
    weights: Float[AnyArray, " k"],
    means: Float[AnyArray, "k d"],
    covs: Float[AnyArray, "k d d"] | None = None,
) -> tuple[Float[AnyArray, " d"], Float[AnyArray, "d d"]]:
    """Mean and covariance: that within components, if they have any, and the spread of means."""
    mean = weights @ means
    away = means - mean[None]
    spread = (away * weights[:, None]).T @ away
    if covs is None:
        return mean, spread
    return mean, numpy_of(weights).einsum("k,kij->ij", weights, covs) + spread


class Conditioned(NamedTuple):
    """A mixture given all evidence, with factors of the covariances."""

    responsibilities: Float[Array, " k"]
    means: Float[Array, "k d"]
    covs: Float[Array, "k d d"]
    factors: Float[Array, "k d d"]

    @staticmethod
    def single(
        mean: Float[Array, " d"], cov: Float[Array, "d d"], factor: Float[Array, "d d"]
    ) -> "Conditioned":
        """One Gaussian."""
        return Conditioned(jnp.ones(1, mean.dtype), mean[None], cov[None], factor[None])

    @property
    def mean(self) -> Float[Array, " d"]:
        """The mean of the mixture."""
        return self.responsibilities @ self.means

    @property
    def cov(self) -> Float[Array, "d d"]:
        """The covariance of the mixture."""
        return mixture_moments(*self[:3])[1]

    def draw(self, noise: Float[Array, " d"], uniform: Float[Array, ""]) -> Float[Array, " d"]:
        """The draw that a uniform number, for the component, and standard normal ones determine."""
        index = pick(self.responsibilities, uniform[None])[0]
        return self.means[index] + self.factors[index] @ noise


class Factored(NamedTuple):
    """A mixture under evidence of one precision P, for any shift."""

    precision: Float[Array, "d d"]
    covs: Float[Array, "k d d"]
    pulled: Float[Array, "k d"]  # P mu
    log_dets: Float[Array, " k"]  # of I + S P
    factors: Float[Array, "k d d"] | None  # of the covariances; needed to draw only

    def given(
        self, prior: "GaussianMixture", center: Float[Array, " d"]
    ) -> tuple[Float[Array, " k"], Float[Array, "k d"]]:
        """Log weights (up to a constant) and means under the shift (I + P) center.

        All is relative to `center`, the mean that a unit Gaussian would have: there the terms that
        grow with the evidence cancel before they are computed.
        """
        away = prior.means - center[None]
        gradient = center[None] - (self.pulled - (self.precision @ center)[None])
        moved = jax.vmap(times)(self.covs, gradient)
        explained = jnp.sum(away * (center[None] + gradient) + gradient * moved, axis=1)
        return prior.log_weights + 0.5 * (explained - self.log_dets), prior.means + moved


class GaussianMixture(eqx.Module, Serializable):
    """sum_k exp(log_weights_k) N(means_k, V_k diag(variances_k) V_k'), of JAX or NumPy arrays.

    Where components are few factors wider than noise that they share, `noise` and `loadings` say
    so: with g noises, the first k / g covariances are noise_0 + loadings_k loadings_k', and so on.
    """

    former_kinds: ClassVar[tuple[str, ...]] = ("MixtureBase",)

    log_weights: Float[AnyArray, " k"]
    means: Float[AnyArray, "k d"]
    vectors: Float[AnyArray, "k d d"]  # eigenvectors of the covariances, as columns
    variances: Float[AnyArray, "k d"]  # eigenvalues, positive
    noise: Float[AnyArray, "g d d"] | None = None
    loadings: Float[AnyArray, "k d r"] | None = None

    @staticmethod
    def from_covs(
        weights: Float[np.ndarray, " k"],
        means: Float[np.ndarray, "k d"],
        covs: Float[np.ndarray, "k d d"],
        min_variance: float = 0.0,
    ) -> "GaussianMixture":
        """A mixture of NumPy arrays from covariance matrices."""
        variances, vectors = np.linalg.eigh(covs)
        smallest = np.maximum(min_variance, np.finfo(covs.dtype).eps * variances[:, -1:])
        variances = np.maximum(variances, smallest.astype(covs.dtype))
        with np.errstate(divide="ignore"):
            log_weights = np.log(weights).astype(covs.dtype)
        return GaussianMixture(log_weights, np.asarray(means, covs.dtype), vectors, variances)

    @staticmethod
    def single(mean: Float[np.ndarray, " d"], cov: Float[np.ndarray, "d d"]) -> "GaussianMixture":
        """One Gaussian."""
        return GaussianMixture.from_covs(np.ones(1), mean[None], cov[None])

    @staticmethod
    def average(
        mixtures: "Sequence[GaussianMixture]", shares: Sequence[float]
    ) -> "GaussianMixture":
        """The mixture whose density is an average of others'."""
        pairs = zip(mixtures, shares, strict=True)
        log_weights = [one.log_weights + np.log(share) for one, share in pairs]
        names = ["means", "vectors", "variances"]
        shapes = [() if a is None else a.shape for a in (one.loadings for one in mixtures)]
        if shapes[0] and len(set(shapes)) == 1:
            names += ["noise", "loadings"]
        parts = (np.concatenate([getattr(one, name) for one in mixtures]) for name in names)
        return GaussianMixture(np.concatenate(log_weights), *parts)

    def select(self, which: slice | np.ndarray) -> "GaussianMixture":
        """Some of the components, with their weights as they are."""
        noise, loadings = self.noise, self.loadings
        some = jax.tree.map(lambda leaf: leaf[which], self.without_factors())
        if noise is None or loadings is None or len(noise) > 1:
            return some
        return some.with_factors(noise, loadings[which])

    def with_factors(
        self, noise: Float[AnyArray, "g d d"] | None, loadings: Float[AnyArray, "k d r"] | None
    ) -> "GaussianMixture":
        """The same mixture, of which it is known that its covariances are made up of these."""
        return dataclasses.replace(self, noise=noise, loadings=loadings)

    def without_factors(self) -> "GaussianMixture":
        """The same mixture, of which nothing is known but its covariances."""
        return self.with_factors(None, None)

    def on_device(self, dtype: DTypeLike | None = None) -> "GaussianMixture":
        """The mixture of JAX arrays."""
        if dtype is not None:
            return jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf, dtype)), self)
        return jax.tree.map(lambda leaf: on_device(np.asarray(leaf)), self)

    @staticmethod
    def standard(log_weights: Float[np.ndarray, " k"], dim: int) -> "GaussianMixture":
        """N(0, I) as every component, of NumPy arrays."""
        k = len(log_weights)
        vectors = np.tile(np.eye(dim), (k, 1, 1))
        return GaussianMixture(log_weights, np.zeros((k, dim)), vectors, np.ones((k, dim)))

    def standard_like(self) -> "GaussianMixture":
        """N(0, I) in arrays of the same shape: the other components weigh nothing."""
        others = np.where(np.arange(self.num_components) == 0, 0.0, -1e9)
        return GaussianMixture.standard(others, self.dim).on_device(self.means.dtype)

    @property
    def num_components(self) -> int:
        """Number of components K."""
        return self.means.shape[0]

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.means.shape[1]

    @property
    def weights(self) -> Float[AnyArray, " k"]:
        """Probability of each component."""
        return numpy_of(self.log_weights).exp(self.log_weights)

    @property
    def factors(self) -> Float[AnyArray, "k d d"]:
        """F_k, with covariances F_k F_k'."""
        return self.vectors * numpy_of(self.variances).sqrt(self.variances)[:, None, :]

    @property
    def covs(self) -> Float[AnyArray, "k d d"]:
        """Covariances of the components."""
        scaled = self.vectors * self.variances[:, None, :]
        return numpy_of(scaled).einsum("kij,klj->kil", scaled, self.vectors)

    def moments(self) -> tuple[Float[AnyArray, " d"], Float[AnyArray, "d d"]]:
        """Mean and covariance of the mixture."""
        return mixture_moments(self.weights, self.means, self.covs)

    def transform(
        self, offset: Float[np.ndarray, " d"], scale: Float[np.ndarray, "d d"]
    ) -> "GaussianMixture":
        """The distribution of offset + scale x."""
        parts = (self.log_weights, self.means, self.factors)
        log_weights, means, factors = (np.asarray(part, np.float64) for part in parts)
        half = scale @ factors
        covs = half @ np.swapaxes(half, 1, 2)
        moved = GaussianMixture.from_covs(np.exp(log_weights), offset + means @ scale.T, covs)
        if self.noise is None or self.loadings is None:
            return moved
        noise, loadings = (np.asarray(part, np.float64) for part in (self.noise, self.loadings))
        return moved.with_factors(scale @ noise @ scale.T, scale @ loadings)

    def log_joint(self, x: Float[AnyArray, "n d"]) -> Float[AnyArray, "n k"]:
        """Log w_k N(x; mean_k, cov_k) of each point and component."""
        xp = numpy_of(self.means)
        whitening = self.vectors / xp.sqrt(self.variances)[:, None, :]
        z = xp.einsum("nki,kij->nkj", x[:, None] - self.means[None], whitening)
        constant = xp.sum(xp.log(2 * np.pi * self.variances), axis=1)[None]
        return self.log_weights[None] - 0.5 * (xp.sum(z**2, axis=2) + constant)

    def log_density(self, x: Float[AnyArray, "n d"]) -> Float[AnyArray, " n"]:
        """Log p(x) of each point."""
        joint, xp = self.log_joint(x), numpy_of(self.means)
        top = xp.max(joint, axis=1)
        return top + xp.log(xp.sum(xp.exp(joint - top[:, None]), axis=1))

    def draw(self, rng: np.random.Generator, num_draws: int) -> Float[np.ndarray, "n d"]:
        """Independent draws, of a mixture of NumPy arrays."""
        weights = np.asarray(self.weights, np.float64)
        which = rng.choice(len(weights), size=num_draws, p=weights / weights.sum())
        noise = rng.standard_normal((num_draws, self.dim))
        return self.means[which] + np.einsum("nij,nj->ni", self.factors[which], noise)

    def factor(self, precision: Float[Array, "d d"]) -> Factored:
        """The mixture under evidence of this precision.

        With S = F F', one factorization of I + F' P F per component.
        """
        identity = jnp.eye(precision.shape[0], dtype=precision.dtype)

        def one(half: Float[Array, "d d"]) -> tuple[Array, Array, Array]:
            rest, log_det = solve_half(identity + half.T @ precision @ half, half.T)
            return rest.T @ rest, log_det, rest.T

        covs, log_dets, factors = jax.vmap(one)(self.factors)
        return Factored(precision, covs, self.means @ precision, log_dets, factors)

    def posterior(self, precision: Spectral, shift: Float[Array, " d"]) -> Conditioned:
        """The mixture under evidence of this precision and shift."""
        factored = self.factor(precision.matrix())
        log_weights, means = factored.given(self, gaussian_mean(precision, shift))
        assert factored.factors is not None
        return Conditioned(jax.nn.softmax(log_weights), means, factored.covs, factored.factors)

    def condition(self, precision: Spectral, shift: Float[Array, " d"]) -> "GaussianMixture":
        """The mixture given the evidence of a task, for all stages of a chain."""
        factored = self.factor(precision.matrix())
        log_weights, means = factored.given(self, gaussian_mean(precision, shift))
        spectral = jax.vmap(eigh)(factored.covs)
        variances = jnp.maximum(spectral.values, 0.0)
        return GaussianMixture(log_weights, means, spectral.vectors, variances)


def gaussian_mean(precision: Spectral, shift: Float[Array, " d"]) -> Float[Array, " d"]:
    """(I + P)^-1 q: the mean under a unit Gaussian prior."""
    return precision.unrotate(precision.rotate(shift) / (1.0 + precision.values))


def pick(
    weights: Float[AnyArray, "*#k k"], uniforms: Float[AnyArray, "*#k n"]
) -> Int[AnyArray, "*k n"]:
    """Indices by inverting the distribution function of the weights at numbers from [0, 1); NumPy
    arrays may have leading axes.
    """
    if isinstance(weights, np.ndarray):
        return _pick_on_host(weights, uniforms)
    numbers = jnp.arange(weights.shape[0], dtype=jnp.int32)
    cumulative = _cumulative(weights)
    places = uniforms * cumulative[-1]
    if len(numbers) <= COMPARE_UP_TO:
        passed = cumulative[None, :] <= places[:, None]
        chosen = jnp.sum(passed, axis=1, dtype=jnp.int32)
    else:
        chosen = jnp.searchsorted(cumulative, places, side="right").astype(jnp.int32)
    last = jnp.max(jnp.where(weights > 0, numbers, 0))  # rounding must not pick a weight of zero
    return jnp.minimum(chosen, last)


def _pick_on_host(weights: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    cumulative = np.cumsum(weights, axis=-1)
    places = uniforms * cumulative[..., -1:]
    chosen = np.sum(cumulative[..., None, :] <= places[..., None], axis=-1)
    last = np.max(np.where(weights > 0, np.arange(weights.shape[-1]), 0), axis=-1, keepdims=True)
    return np.minimum(chosen, last)


def _cumulative(weights: Float[Array, " k"]) -> Float[Array, " k"]:
    """As `jnp.cumsum`; of few weights in one step instead of many."""
    count = weights.shape[0]
    if count > ADD_UP_TO:
        return jnp.cumsum(weights)
    before = np.tri(count, dtype=bool)
    return jnp.sum(jnp.where(before, weights[None, :], 0.0), axis=1)


def log_normalize(
    log_weights: Float[AnyArray, "*n k"],
) -> tuple[Float[AnyArray, "*n k"], Float[AnyArray, "*n"]]:
    """Weights that sum to one, from their logarithms, and the log of what they summed to."""
    xp = numpy_of(log_weights)
    largest = xp.max(log_weights, axis=-1, keepdims=True)
    largest = xp.where(xp.isfinite(largest), largest, 0.0)
    weights = xp.exp(log_weights - largest)
    total = xp.sum(weights, axis=-1, keepdims=True)
    return weights / total, (largest + xp.log(total))[..., 0]
