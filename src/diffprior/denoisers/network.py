"""Learned denoisers: a base with a correction, that of 0.2.0 files, and the paper's regressors."""

import dataclasses
import functools
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from ..files.base import Serializable
from ..gaussian import Gaussian
from ..linalg import Spectral, cholesky, eigh
from ..mixture import Conditioned, GaussianMixture, gaussian_mean, mixture_moments, pick
from ..schedule import Schedule, Stages
from .base import AbstractDenoiser, derivative_moments, isotropic_evidence

LOG_PRECISION = (-7.0, 9.0)  # the evidence that a network is trained on
MIN_SNR = 1e-6  # precision of a noisy sample below which it says nothing
MAX_INPUT = 3.0  # lengths that inputs and output are bounded by, in units of sqrt(d)
MAX_MOVE = 2.0
MAX_OUTPUT = 3.0
SPREAD_AT = tuple(range(-7, 10, 2))  # log precisions that the spread is tabulated at
DERIVATIVE_UP_TO = 8  # parameters whose covariance under a Gaussian base is the mean's derivative


class Correction(eqx.Module, Serializable):
    """F(x, y, r, P): residual layers of SiLU on a first layer with a matrix for each kind of input.

    x = (I + P)^-1 q is the mean under a unit Gaussian, y = (I + P)^(1/2) (m - x) how far the base's
    mean m is from it, r the responsibilities of the base's components, and the evidence's precision
    P enters as the triangles of log P and P (I + P)^-1. Each matrix has the scale of its own input;
    in one matrix the d (d + 1) features of P would drown x. Inputs and output are bounded, without
    which a chain can run away. What is known of a task, if the network takes it, has a matrix too;
    `given` folds it into the bias, and leaves a matrix without rows.
    """

    weights_mean: Float[Array, "d width"]
    weights_move: Float[Array, "d width"]
    weights_component: Float[Array, "k width"]
    weights_precision: Float[Array, "features width"]
    bias_in: Float[Array, " width"]
    weights_hidden: Float[Array, "depth width width"]
    bias_hidden: Float[Array, "depth width"]
    weights_out: Float[Array, "width d"]
    bias_out: Float[Array, " d"]
    weights_attributes: Float[Array, "a width"] | None = None

    @staticmethod
    def initialize(
        rng: np.random.Generator,
        dim: int,
        num_components: int,
        *,
        width: int,
        depth: int,
        num_attributes: int = 0,
    ) -> "Correction":
        """Random weights, and F = 0: the base alone."""

        def normal(scale: float, *shape: int) -> Array:
            weights = scale * rng.standard_normal(shape)
            return jax.device_put(weights.astype(np.float32))

        def zeros(*shape: int) -> Array:
            return jax.device_put(np.zeros(shape, np.float32))

        return Correction(
            normal(dim**-0.5, dim, width),
            normal(dim**-0.5, dim, width),
            normal(1.0, num_components, width),
            normal((2 * dim) ** -0.5, dim * (dim + 1), width),
            zeros(width),
            normal(width**-0.5, depth - 1, width, width),
            zeros(depth - 1, width),
            zeros(width, dim),
            zeros(dim),
            normal(num_attributes**-0.5, num_attributes, width) if num_attributes else None,
        )

    def given(self, attributes: Float[Array, " a"]) -> "Correction":
        """The network of a task with these attributes, standardized."""
        if self.weights_attributes is None or not len(self.weights_attributes):
            return self
        parts = (self.bias_in + self.attributes_bias(attributes), self.weights_attributes[:0])
        return eqx.tree_at(lambda net: (net.bias_in, net.weights_attributes), self, parts)

    def attributes_bias(self, attributes: Float[Array, " a"]) -> Float[Array, " width"]:
        """The first layer's response to what is known of a task, standardized."""
        assert self.weights_attributes is not None
        return bounded(attributes, MAX_INPUT) @ self.weights_attributes

    def evidence_bias(self, precision: Spectral) -> Float[Array, " width"]:
        """The first layer's response to the precision of the evidence."""
        return evidence_features(precision) @ self.weights_precision + self.bias_in

    def __call__(
        self,
        x: Float[Array, " d"],
        y: Float[Array, " d"],
        responsibilities: Float[Array, " k"],
        evidence_bias: Float[Array, " width"],
    ) -> Float[Array, " d"]:
        """The correction in units of (I + P)^(-1/2)."""
        inputs = (responsibilities, bounded(x, MAX_INPUT), bounded(y, MAX_MOVE))
        weights = (self.weights_component, self.weights_mean, self.weights_move)
        first = evidence_bias + jnp.concatenate(inputs) @ jnp.concatenate(weights)
        out = residual_layers(self, first)
        longest = MAX_OUTPUT * out.shape[0] ** 0.5
        return out * jnp.minimum(1.0, longest * jax.lax.rsqrt(jnp.sum(out**2) + 1e-12))

    def shrunk(self, factor: float) -> "Correction":
        """The correction times a factor."""
        leaves = (np.asarray(leaf) for leaf in (self.weights_out, self.bias_out))
        changed = tuple(jax.device_put((factor * leaf).astype(leaf.dtype)) for leaf in leaves)
        return eqx.tree_at(lambda net: (net.weights_out, net.bias_out), self, changed)


def residual_layers(
    net: "Correction | NetworkDenoiser", first: Float[Array, " width"]
) -> Float[Array, " d"]:
    """All that follows the linear part of the first layer."""
    h = jax.nn.silu(first)
    for weights, bias in zip(net.weights_hidden, net.bias_hidden, strict=True):
        h = h + jax.nn.silu(h @ weights + bias)
    return h @ net.weights_out + net.bias_out


def evidence_features(precision: Spectral) -> Float[Array, " features"]:
    """Upper triangles of -log P / 4 and P (I + P)^-1, in the range that networks are trained on."""
    low, high = LOG_PRECISION
    logs = jnp.log(jnp.clip(precision.values, float(np.exp(low)), float(np.exp(high))))
    columns = jnp.stack([-0.25 * logs, jax.nn.sigmoid(logs)])
    matrices = jnp.einsum("ij,fj,kj->fik", precision.vectors, columns, precision.vectors)
    rows, others = np.triu_indices(precision.vectors.shape[0])
    return matrices[:, rows, others].reshape(-1)


def correction_scale(p: Float[Array, "..."]) -> Float[Array, "..."]:
    """(1 + p)^(-1/2), in which a correction is measured, less beyond the strongest evidence that it
    was trained on: there the likelihood alone decides.
    """
    strongest = float(np.exp(LOG_PRECISION[1]))
    return jnp.sqrt(jnp.minimum(1.0, strongest / jnp.maximum(p, 1.0)) / (1.0 + p))


def bounded(x: Float[Array, " d"], longest: float) -> Float[Array, " d"]:
    """X where it is short; never longer than `longest` sqrt(d)."""
    return x * jax.lax.rsqrt(1.0 + jnp.sum(x**2) / (longest**2 * x.shape[0]))


class CorrectionPlan(NamedTuple):
    """Of a correction under one precision P + snr I: x = offset + inverse q of a noisy sample's
    shift q, y = root (m - x), and the move of the mean, back F.
    """

    offset: Float[Array, "*t d"]
    inverse: Float[Array, "*t d d"]
    root: Float[Array, "*t d d"]
    back: Float[Array, "*t d d"]
    bias: Float[Array, "*t width"]

    @staticmethod
    def of(
        correction: Correction, precision: Spectral, shift: Float[Array, " d"]
    ) -> "CorrectionPlan":
        """For evidence of this precision, and this shift without its noisy sample."""
        return CorrectionPlan(
            gaussian_mean(precision, shift),
            precision.apply(lambda p: 1.0 / (1.0 + p)),
            precision.apply(lambda p: jnp.sqrt(1.0 + p)),
            precision.apply(correction_scale),
            correction.evidence_bias(precision),
        )

    def move(
        self,
        correction: Correction,
        noisy_shift: Float[Array, " d"],
        responsibilities: Float[Array, " k"],
        mean: Float[Array, " d"],
    ) -> Float[Array, " d"]:
        """How far the correction moves the mean of the base."""
        x = self.offset + small_product(self.inverse, noisy_shift)
        y = small_product(self.root, mean - x)
        return small_product(self.back, correction(x, y, responsibilities, self.bias))


class Stage(NamedTuple):
    """All that is known of a stage before its noisy sample. Components are in their eigenbases."""

    shift_scale: Float[Array, "*t"]
    precision: Float[Array, "*t d"]  # of task and noisy sample, along the task's eigenvectors
    log_weights: Float[Array, "*t k"]
    centers: Float[Array, "*t k d"]  # shifts that leave the means where they are
    gains: Float[Array, "*t k d"]  # variances given the noisy sample
    curvatures: Float[Array, "*t k d"]  # of minus the log weight in the shift
    stds: Float[Array, "*t k d"]  # of the random part of the step
    correction: CorrectionPlan | None


class Given(NamedTuple):
    """A task's evidence, and the base given it."""

    precision: Spectral
    shift: Float[Array, " d"]
    components: GaussianMixture


class CorrectedDenoiser(AbstractDenoiser):
    """E[s_0] = m + (I + P)^(-1/2) F: the mean m of a mixture under the evidence, and a correction.

    Without a base it is that of a unit Gaussian, m = (I + P)^-1 q; without a correction the mixture
    is the prior. The covariance is the base's, sum_k r_k (C_k + (m_k - m)(m_k - m)'): positive by
    construction, and no derivative of the network. A Gaussian base knows less than its correction:
    there it is (I + P)^-1 times how far held-out samples were from the corrected mean, tabulated
    by the precision along each direction, and with few parameters, where that costs little, the
    derivative of the mean in q.
    """

    file_version: ClassVar[int] = 2

    base: GaussianMixture | None
    correction: Correction | None
    spread: Float[Array, " s"] | None
    size: int = eqx.field(static=True)
    negligible_correction: bool = eqx.field(static=True, default=True)
    given: Given | None = None  # of a chain, never of a file

    @classmethod
    def upgrade(cls, fields: dict[str, object], version: int) -> dict[str, object]:
        """Version 1 had another name for `negligible_correction`."""
        names = {"mostly_base": "negligible_correction"}
        return {names.get(name, name): value for name, value in fields.items()}

    @property
    def dim(self) -> int:
        return self.size

    @property
    def takes_attributes(self) -> bool:
        return self.correction is not None and self.correction.weights_attributes is not None

    def with_attributes(self, attributes: Float[Array, " a"]) -> "CorrectedDenoiser":
        if self.correction is None:
            return self
        return dataclasses.replace(self, correction=self.correction.given(attributes))

    @property
    def draws_components(self) -> bool:
        """Whether a reverse step draws a component and moves by its covariance."""
        return self.base is not None or self.size > DERIVATIVE_UP_TO or self.correction is None

    def condition(
        self, precision: Float[Array, "d d"], shift: Float[Array, " d"]
    ) -> "CorrectedDenoiser":
        """One factorization of each component for all stages."""
        given = self._given(eigh(precision).nonnegative(), shift)
        return dataclasses.replace(self, given=given)

    def _given(self, precision: Spectral, shift: Float[Array, " d"]) -> Given:
        if self.base is not None:
            return Given(precision, shift, self.base.condition(precision, shift))
        mean = gaussian_mean(precision, shift)
        variances = 1.0 / (1.0 + precision.values)
        parts = (jnp.zeros(1, shift.dtype), mean[None], precision.vectors[None], variances[None])
        return Given(precision, shift, GaussianMixture(*parts))

    def _known(self, dtype: jnp.dtype | None = None) -> Given:
        """The task's evidence, if there is any."""
        if self.given is not None:
            return self.given
        arrays = jax.tree.leaves((self.base, self.correction, self.spread))
        zeros = jnp.zeros(self.size, arrays[0].dtype if arrays else dtype)
        dtype = zeros.dtype
        precision = Spectral(jnp.eye(self.size, dtype=dtype), zeros)
        if self.base is not None:
            return Given(precision, zeros, self.base)
        return self._given(precision, zeros)

    def _ratio(self, precisions: Float[Array, " d"]) -> Float[Array, " d"]:
        """The variance along each direction over that under a unit Gaussian prior."""
        if self.spread is None:
            return jnp.ones_like(precisions)
        at = jnp.asarray(SPREAD_AT, precisions.dtype)
        logs = jnp.log(jnp.maximum(precisions, float(np.exp(LOG_PRECISION[0]))))
        return jnp.interp(logs, at, self.spread)

    def closed_form(self) -> GaussianMixture | None:
        """The mixture that this is the denoiser of, if nothing corrects it."""
        if self.correction is not None or self.base is not None:
            return self.base if self.correction is None else None
        return GaussianMixture.single(np.zeros(self.size), np.eye(self.size))

    def stages(self, schedule: Schedule) -> Stage:
        given = self._known()
        return jax.vmap(lambda stage: self._stage(given, stage))(schedule.stages(given.shift.dtype))

    def _stage(self, given: Given, stage: Stages) -> Stage:
        components, precision = given.components, given.precision.shifted(stage.snr)
        snr = jnp.maximum(stage.snr, MIN_SNR)
        left = 1.0 + snr * components.variances
        gains = jnp.asarray(components.variances) / left
        rotated = jnp.einsum("ki,kij->kj", components.means, components.vectors)
        ratio = self._ratio(precision.values)
        plan = None
        if self.correction is not None:
            plan = CorrectionPlan.of(self.correction, precision, given.shift)
        return Stage(
            stage.shift_scale,
            precision.values,
            jnp.asarray(components.log_weights) - 0.5 * jnp.sum(jnp.log(left), axis=1),
            snr * rotated,
            gains,
            0.5 / (snr * left),
            jnp.sqrt(stage.beta_tilde + stage.weight_clean**2 * ratio[None] * gains),
            plan,
        )

    def _at(
        self, components: GaussianMixture, stage: Stage, noisy_shift: Float[Array, " d"]
    ) -> tuple[Float[Array, " k"], Float[Array, "k d"], Float[Array, " d"], Float[Array, " d"]]:
        """Responsibilities and moves of the components, the mean of the base and its correction."""
        rotated = jnp.einsum("kij,i->kj", components.vectors, noisy_shift)
        away = rotated - stage.centers
        log_weights = stage.log_weights - jnp.sum(stage.curvatures * away**2, axis=1)
        responsibilities, moved = jax.nn.softmax(log_weights), stage.gains * away
        means = components.means + jnp.einsum("kij,kj->ki", components.vectors, moved)
        mean = jnp.sum(responsibilities[:, None] * means, axis=0)
        if self.correction is None or stage.correction is None:
            return responsibilities, moved, mean, jnp.zeros_like(mean)
        move = stage.correction.move(self.correction, noisy_shift, responsibilities, mean)
        return responsibilities, moved, mean, move

    def mean_at(self, stage: Stage, s_t: Float[Array, " d"]) -> Float[Array, " d"]:
        components = self._known(s_t.dtype).components
        _, _, mean, move = self._at(components, stage, stage.shift_scale * s_t)
        return mean + move

    def denoise_at(self, stage: Stage, s_t: Float[Array, " d"]) -> Gaussian:
        given, noisy_shift = self._known(s_t.dtype), stage.shift_scale * s_t
        precision, components = Spectral(given.precision.vectors, stage.precision), given.components
        if not self.draws_components:

            def mean_of(shift: Float[Array, " d"]) -> Float[Array, " d"]:
                _, _, mean, move = self._at(components, stage, shift)
                return mean + move

            return derivative_moments(mean_of, precision, noisy_shift)
        weights, moved, mean, move = self._at(components, stage, noisy_shift)
        if self.base is None:
            return Gaussian(mean + move, self._spread_cov(precision))
        means = components.means + jnp.einsum("kij,kj->ki", components.vectors, moved)
        within = dataclasses.replace(components, variances=stage.gains).covs
        return Gaussian(mean + move, mixture_moments(weights, means, within)[1])

    def moments(self) -> Gaussian:
        """At a stage of nothing but noise."""
        if self.given is None:
            return super().moments()
        zeros = jnp.zeros_like(self.given.shift)
        return self.denoise_at(
            self._stage(self.given, Stages(*(zeros[0] for _ in range(6)))), zeros
        )

    def step_at(
        self,
        stage_inputs: Stage,
        stage: Stages,
        s_t: Float[Array, " d"],
        noise: Float[Array, " d"],
        uniform: Float[Array, ""],
    ) -> Float[Array, " d"]:
        """By default a draw of a component, moved as the mean is corrected."""
        if not self.draws_components:
            return super().step_at(stage_inputs, stage, s_t, noise, uniform)
        components = self._known(s_t.dtype).components
        responsibilities, moved, _, move = self._at(
            components, stage_inputs, stage_inputs.shift_scale * s_t
        )
        index = pick(responsibilities, uniform[None])[0]
        random = stage.weight_clean * moved[index] + stage_inputs.stds[index] * noise
        clean = components.means[index] + move
        drawn = small_product(components.vectors[index], random)
        return stage.weight_clean * clean + stage.weight_noisy * s_t + drawn

    def denoise(self, precision: Spectral, shift: Float[Array, " d"]) -> Gaussian:
        precision = precision.nonnegative()
        if self.base is not None:
            mixed = self.posterior(precision, shift)
            return Gaussian(mixed.mean, mixed.cov)
        if self.draws_components:
            mean = self._corrected_gaussian(precision, shift)
            return Gaussian(mean, self._spread_cov(precision))
        mean_of = functools.partial(self._corrected_gaussian, precision)
        return derivative_moments(mean_of, precision, shift)

    @property
    def is_mixture(self) -> bool:
        """Whether `posterior` knows the shape of what is left open, not just its moments."""
        return self.base is not None or self.correction is None

    def posterior(self, precision: Spectral, shift: Float[Array, " d"]) -> Conditioned:
        """The distribution of s_0 under exp(-s' precision s / 2 + shift' s): the mixture given
        the evidence, moved as its mean is corrected; a Gaussian where there is no mixture.
        """
        precision = precision.nonnegative()
        if self.base is None:
            one = self.denoise(precision, shift)
            return Conditioned.single(one.mean, one.cov, cholesky(one.cov))
        mixed = self.base.posterior(precision, shift)
        move = self._move(precision, shift, mixed.responsibilities, mixed.mean)
        return mixed._replace(means=mixed.means + move[None])

    def _move(
        self, precision: Spectral, shift: Array, responsibilities: Array, mean: Array
    ) -> Float[Array, " d"]:
        """How far the correction moves the mean of the base under this evidence."""
        if self.correction is None:
            return jnp.zeros_like(mean)
        plan = CorrectionPlan.of(self.correction, precision, shift)
        return plan.move(self.correction, jnp.zeros_like(shift), responsibilities, mean)

    def _corrected_gaussian(
        self, precision: Spectral, shift: Float[Array, " d"]
    ) -> Float[Array, " d"]:
        mean = gaussian_mean(precision, shift)
        return mean + self._move(precision, shift, jnp.ones(1, mean.dtype), mean)

    def _spread_cov(self, precision: Spectral) -> Float[Array, "d d"]:
        """The covariance under a Gaussian base, where it is no derivative."""
        return precision.apply(lambda p: self._ratio(p) / (1.0 + p))


def small_product(matrix: Float[Array, "d d"], vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """A product so small that it is best fused with what surrounds it."""
    return jnp.sum(matrix * vector[None], axis=1)


class NetworkDenoiser(AbstractDenoiser):
    """The denoiser of 0.2.0 files, which is read, not trained.

    One network for all Gaussian evidence (or, if `isotropic`, for all isotropic evidence).
    The mean is that of a Gaussian prior plus a correction, x + (I + P)^(-1/2) F, x = (I + P)^-1 q.
    The network F sees x and P; see `Correction`.
    """

    weights_in: Float[Array, "inputs width"]
    bias_in: Float[Array, " width"]
    weights_hidden: Float[Array, "depth width width"]
    bias_hidden: Float[Array, "depth width"]
    weights_out: Float[Array, "width d"]
    bias_out: Float[Array, " d"]
    isotropic: bool = eqx.field(static=True)

    def validate(self) -> None:
        super().validate()
        num_features = 2 if self.isotropic else self.dim * (self.dim + 1)
        if self.weights_in.shape[0] != self.dim + num_features:
            raise ValueError(f"`weights_in`: expected {self.dim + num_features} inputs")

    @property
    def dim(self) -> int:
        return self.bias_out.shape[0]

    @property
    def general(self) -> bool:
        return not self.isotropic

    def denoise(self, precision: Spectral, shift: Float[Array, " d"]) -> Gaussian:
        if self.isotropic:
            raise ValueError(
                "`precision`: expected a stage of the reverse process, got general evidence; a "
                "prior of this kind denoises isotropic evidence only. Use TwistedSMC, "
                "LaplaceDPS or DPS with it"
            )
        return self._moments(precision.nonnegative(), shift)

    def denoise_at(self, stage: PyTree, s_t: Float[Array, " d"]) -> Gaussian:
        return self._moments(*isotropic_evidence(stage, s_t))

    def _moments(self, precision: Spectral, shift: Float[Array, " d"]) -> Gaussian:
        bias = self._evidence_bias(precision)

        def mean(shift: Float[Array, " d"]) -> Float[Array, " d"]:
            x = gaussian_mean(precision, shift)
            first = x @ self.weights_in[: self.dim] + bias
            f = precision.rotate(residual_layers(self, first))
            return x + precision.unrotate(correction_scale(precision.values) * f)

        return derivative_moments(mean, precision, shift)

    def _evidence_bias(self, precision: Spectral) -> Float[Array, " width"]:
        """The first layer's response to the precision of the evidence."""
        if self.isotropic:
            logs = jnp.clip(jnp.log(precision.values[0]), *LOG_PRECISION)
            features = jnp.stack([-0.25 * logs, jax.nn.sigmoid(logs)])
        else:
            features = evidence_features(precision)
        return features @ self.weights_in[self.dim :] + self.bias_in


class StagewiseDenoiser(AbstractDenoiser):
    """The paper's: one two-layer ReLU regressor of the noise for each stage of a grid (Eq. 15)."""

    weights_1: Float[Array, "t d width"]
    bias_1: Float[Array, "t width"]
    weights_2: Float[Array, "t width width"]
    bias_2: Float[Array, "t width"]
    weights_3: Float[Array, "t width d"]
    bias_3: Float[Array, "t d"]
    grid: Schedule = eqx.field(static=True)

    @staticmethod
    def initialize(
        key: Key[Array, ""], dim: int, grid: Schedule, *, width: int = 100
    ) -> "StagewiseDenoiser":
        """Random weights; the noise predicted at first is zero."""
        t = grid.num_stages
        first, second = jax.random.split(key)
        zeros = jnp.zeros((t, width), jnp.float32)
        return StagewiseDenoiser(
            jax.random.normal(first, (t, dim, width), jnp.float32) * (2 / dim) ** 0.5,
            zeros,
            jax.random.normal(second, (t, width, width), jnp.float32) * (2 / width) ** 0.5,
            zeros,
            jnp.zeros((t, width, dim), jnp.float32),
            jnp.zeros((t, dim), jnp.float32),
            grid,
        )

    def validate(self) -> None:
        super().validate()
        if self.weights_1.shape[0] != self.grid.num_stages:
            raise ValueError(f"`weights_1`: expected {self.grid.num_stages} regressors")

    @property
    def dim(self) -> int:
        return self.weights_1.shape[1]

    @property
    def general(self) -> bool:
        return False

    def denoise(self, precision: Spectral, shift: Float[Array, " d"]) -> Gaussian:
        raise ValueError(
            "`precision`: expected a stage of the prior's own grid, got general evidence; a prior "
            'fitted with preset="paper" denoises only that grid. Fit without the preset, or use '
            "LaplaceDPS, TwistedSMC or DPS"
        )

    def noise_at(self, s_t: Float[Array, " d"]) -> Float[Array, " d"]:
        """eps_t(s_t), where self is one stage of the stack."""
        h = jax.nn.relu(s_t @ self.weights_1 + self.bias_1)
        h = jax.nn.relu(h @ self.weights_2 + self.bias_2)
        return h @ self.weights_3 + self.bias_3

    def stages(self, schedule: Schedule) -> PyTree:
        alpha_bar = np.asarray(schedule.alpha_bar[:0:-1])
        own = self.grid.alpha_bar
        if not set(schedule.alpha_bar) <= set(own):
            raise ValueError(
                "`schedule`: expected stages of the prior's own grid, got others; "
                "take them with `prior.schedule.stride(steps)`"
            )
        index = np.asarray([own.index(a) for a in schedule.alpha_bar[:0:-1]]) - 1
        regressors = jax.tree.map(lambda leaf: leaf[index], eqx.filter(self, eqx.is_array))
        dtype = self.weights_1.dtype
        signal, noise = np.sqrt(alpha_bar), np.sqrt(1 - alpha_bar)
        return regressors, jnp.asarray(signal, dtype), jnp.asarray(noise, dtype)

    def mean_at(self, stage: PyTree, s_t: Float[Array, " d"]) -> Float[Array, " d"]:
        """E[s_0 | s_t] = (s_t - sqrt(1 - alpha_bar) eps_t(s_t)) / sqrt(alpha_bar)."""
        regressor, signal, noise = stage
        return (s_t - noise * regressor.noise_at(s_t)) / signal

    def step_at(
        self,
        stage_inputs: PyTree,
        stage: Stages,
        s_t: Float[Array, " d"],
        noise: Float[Array, " d"],
        uniform: Float[Array, ""],
    ) -> Float[Array, " d"]:
        """Eq. (5) with Sigma_t = beta_tilde I, to the letter."""
        mean = stage.weight_clean * self.mean_at(stage_inputs, s_t) + stage.weight_noisy * s_t
        return mean + jnp.sqrt(stage.beta_tilde) * noise

    def denoise_at(self, stage: PyTree, s_t: Float[Array, " d"]) -> Gaussian:
        """The covariance is the derivative of the mean: second-order Tweedie."""
        _, signal, noise = stage
        scale = signal / noise**2  # of the shift that s_t lends to s_0
        identity = jnp.eye(s_t.shape[0], dtype=s_t.dtype)
        precision = Spectral(identity, (signal / noise) ** 2 * jnp.ones_like(s_t))
        mean = lambda shift: self.mean_at(stage, shift / scale)  # noqa: E731
        return derivative_moments(mean, precision, scale * s_t)
