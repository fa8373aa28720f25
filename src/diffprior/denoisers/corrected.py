"""A denoiser that is exact for a mixture, and corrects it by a network.

A chain for one decision takes small steps, so that calling a product costs more than computing it.
All that does not depend on s_t is therefore computed for all stages at once (`plan`), and what is
left of a step is put into as few products as there can be.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from ..files.base import Serializable
from ..gaussian import Gaussian
from ..linalg import Spectral, cholesky, eigh
from ..mixture import MIN_SNR, Conditioned, GaussianMixture, gaussian_mean, pick
from ..schedule import Schedule, Stages
from ..threefry import unrolled
from .base import AbstractDenoiser, derivative_moments, isotropic_evidence

LOG_PRECISION = (-7.0, 9.0)  # the evidence that a network is trained on
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
    which a chain can run away.
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

    @staticmethod
    @eqx.filter_jit
    def initialize(
        key: Key[Array, ""], dim: int, num_components: int, *, width: int, depth: int
    ) -> "Correction":
        """Random weights, and F = 0: the base alone."""
        keys = jax.random.split(unrolled(key), 5)

        def normal(index: int, *shape: int, scale: float) -> Array:
            return scale * jax.random.normal(keys[index], shape, jnp.float32)

        return Correction(
            normal(0, dim, width, scale=dim**-0.5),
            normal(1, dim, width, scale=dim**-0.5),
            normal(2, num_components, width, scale=1.0),
            normal(3, dim * (dim + 1), width, scale=(2 * dim) ** -0.5),
            jnp.zeros(width, jnp.float32),
            normal(4, depth - 1, width, width, scale=width**-0.5),
            jnp.zeros((depth - 1, width), jnp.float32),
            jnp.zeros((width, dim), jnp.float32),
            jnp.zeros(dim, jnp.float32),
        )

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
        h = jax.nn.silu(evidence_bias + jnp.concatenate(inputs) @ jnp.concatenate(weights))
        for weights, bias in zip(self.weights_hidden, self.bias_hidden, strict=True):
            h = h + jax.nn.silu(h @ weights + bias)
        out = h @ self.weights_out + self.bias_out
        longest = MAX_OUTPUT * out.shape[0] ** 0.5
        return out * jnp.minimum(1.0, longest * jax.lax.rsqrt(jnp.sum(out**2) + 1e-12))

    def shrunk(self, factor: float) -> "Correction":
        """The correction times a factor."""
        leaves = (np.asarray(leaf) for leaf in (self.weights_out, self.bias_out))
        changed = tuple(jax.device_put((factor * leaf).astype(leaf.dtype)) for leaf in leaves)
        return eqx.tree_at(lambda net: (net.weights_out, net.bias_out), self, changed)


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


class ComponentPlan(NamedTuple):
    """Components given a task's evidence at one stage, as in `GaussianMixture.posterior_at`."""

    log_weights: Float[Array, "*t k"]
    centers: Float[Array, "*t k d"]  # shifts that leave the means where they are
    gains: Float[Array, "*t k d"]  # variances given the noisy sample
    curvatures: Float[Array, "*t k d"]  # of minus the log weight in the shift
    stds: Float[Array, "*t k d"]  # of the random part of the step

    @staticmethod
    def of(
        components: GaussianMixture, stage: Stages, ratio: Float[Array, " d"]
    ) -> "ComponentPlan":
        """Variances are `ratio` times those of the components."""
        snr = jnp.maximum(stage.snr, MIN_SNR)
        left = 1.0 + snr * components.variances
        gains = jnp.asarray(components.variances) / left
        rotated = jnp.einsum("ki,kij->kj", components.means, components.vectors)
        return ComponentPlan(
            jnp.asarray(components.log_weights) - 0.5 * jnp.sum(jnp.log(left), axis=1),
            snr * rotated,
            gains,
            0.5 / (snr * left),
            jnp.sqrt(stage.beta_tilde + stage.weight_clean**2 * ratio[None] * gains),
        )

    def given(
        self, components: GaussianMixture, noisy_shift: Float[Array, " d"]
    ) -> tuple[Float[Array, " k"], Float[Array, "k d"]]:
        """Responsibilities given a noisy sample, and how far it moves each mean, in the eigenbasis
        of its component.
        """
        rotated = jnp.sum(components.vectors * noisy_shift[None, :, None], axis=1)
        away = rotated - self.centers
        log_weights = self.log_weights - jnp.sum(self.curvatures * away**2, axis=1)
        return jax.nn.softmax(log_weights), self.gains * away


class CorrectionPlan(NamedTuple):
    """Of a correction at one stage: x = offset + inverse (shift_scale s_t), y = root (m - x), and
    the move of the mean, back F.
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


class Prepared(NamedTuple):
    """A task's evidence as this denoiser wants it, for all stages of a chain."""

    precision: Spectral
    shift: Float[Array, " d"]
    components: GaussianMixture


class Stage(NamedTuple):
    """Isotropic evidence of a stage, and what it adds to the first layer."""

    snr: Float[Array, "..."]
    shift_scale: Float[Array, "..."]
    bias: Float[Array, "..."]


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

    @classmethod
    def upgrade(cls, fields: dict[str, Any], version: int) -> dict[str, Any]:
        """Version 1 had another name for `negligible_correction`."""
        names = {"mostly_base": "negligible_correction"}
        return {names.get(name, name): value for name, value in fields.items()}

    @property
    def dim(self) -> int:
        return self.size

    @property
    def draws_components(self) -> bool:
        """Whether a reverse step draws a component and moves by its covariance."""
        return self.base is not None or self.size > DERIVATIVE_UP_TO or self.correction is None

    def prepare(self, precision: Float[Array, "d d"], shift: Float[Array, " d"]) -> Prepared:
        """The components given a task's evidence: one factorization each for all stages."""
        spectral = eigh(precision).nonnegative()
        return Prepared(spectral, shift, self._condition(spectral, shift))

    def _condition(self, precision: Spectral, shift: Float[Array, " d"]) -> GaussianMixture:
        if self.base is not None:
            return self.base.condition(precision, shift)
        mean = gaussian_mean(precision, shift)
        variances = 1.0 / (1.0 + precision.values)
        no_weight = jnp.zeros(1, shift.dtype)
        return GaussianMixture(no_weight, mean[None], precision.vectors[None], variances[None])

    def _ratio(self, precisions: Float[Array, " d"]) -> Float[Array, " d"]:
        """The variance along each direction over that under a unit Gaussian prior."""
        if self.spread is None:
            return jnp.ones_like(precisions)
        at = jnp.asarray(SPREAD_AT, precisions.dtype)
        logs = jnp.log(jnp.maximum(precisions, float(np.exp(LOG_PRECISION[0]))))
        return jnp.interp(logs, at, self.spread)

    def denoise_with(
        self, prepared: Prepared, snr: Float[Array, ""], noisy_shift: Float[Array, " d"]
    ) -> Gaussian:
        precision = prepared.precision.shifted(snr)
        mixed = prepared.components.posterior_at(snr, noisy_shift)
        return self._moments(precision, prepared.shift + noisy_shift, mixed, self._bias(precision))

    def closed_form(self) -> GaussianMixture | None:
        """The mixture that this is the denoiser of, if nothing corrects it."""
        return None if self.correction is not None else self._alone(jnp.result_type(float))

    def plan(self, prepared: Prepared, stages: Stages) -> PyTree:
        """All of each stage that does not depend on its noisy sample."""
        if not self.draws_components:
            return super().plan(prepared, stages)

        def one(stage: Stages) -> tuple[ComponentPlan, CorrectionPlan | None]:
            precision = prepared.precision.shifted(stage.snr)
            ratio = self._ratio(precision.values)
            components = ComponentPlan.of(prepared.components, stage, ratio)
            if self.correction is None:
                return components, None
            return components, CorrectionPlan.of(self.correction, precision, prepared.shift)

        return jax.vmap(one)(stages)

    def step(
        self,
        prepared: Prepared,
        plan: PyTree,
        stage: Stages,
        s_t: Float[Array, " d"],
        noise: Float[Array, " d"],
        uniform: Float[Array, ""],
    ) -> Float[Array, " d"]:
        if not self.draws_components:
            return super().step(prepared, plan, stage, s_t, noise, uniform)
        components, (own, correction_plan) = prepared.components, plan
        noisy_shift = stage.shift_scale * s_t
        responsibilities, moved = own.given(components, noisy_shift)
        index = pick(responsibilities, uniform[None])[0]
        random = stage.weight_clean * moved[index] + own.stds[index] * noise
        mean = _mixture_mean(components, responsibilities, moved)
        move = self._move(correction_plan, noisy_shift, responsibilities, mean)
        clean = components.means[index] + move
        drawn = _times(components.vectors[index], random)
        return stage.weight_clean * clean + stage.weight_noisy * s_t + drawn

    def planned_mean(
        self, prepared: Prepared, plan: PyTree, stage: Stages, s_t: Float[Array, " d"]
    ) -> Float[Array, " d"]:
        """E[s_0 | s_t] under a task's evidence."""
        noisy_shift = stage.shift_scale * s_t
        own, correction_plan = plan
        responsibilities, moved = own.given(prepared.components, noisy_shift)
        mean = _mixture_mean(prepared.components, responsibilities, moved)
        return mean + self._move(correction_plan, noisy_shift, responsibilities, mean)

    def _move(
        self, plan: CorrectionPlan | None, noisy_shift: Array, responsibilities: Array, mean: Array
    ) -> Float[Array, " d"]:
        """The correction of the mean."""
        if plan is None or self.correction is None:
            return jnp.zeros_like(mean)
        x = plan.offset + _times(plan.inverse, noisy_shift)
        y = _times(plan.root, mean - x)
        return _times(plan.back, self.correction(x, y, responsibilities, plan.bias))

    def step_at(
        self,
        stage_inputs: Stage,
        stage: Stages,
        s_t: Float[Array, " d"],
        noise: Float[Array, " d"],
        uniform: Float[Array, ""],
    ) -> Float[Array, " d"]:
        if not self.draws_components:
            return super().step_at(stage_inputs, stage, s_t, noise, uniform)
        mixed, precision, shift = self._at(stage_inputs, s_t)
        corrected = self._corrected(precision, shift, mixed, stage_inputs.bias)
        index = pick(mixed.responsibilities, uniform[None])[0]
        clean = corrected + mixed.means[index] - mixed.mean
        components = self._alone(s_t.dtype)
        variances = self._ratio(precision.values) * components.variances_at(stage.snr)[index]
        stds = jnp.sqrt(stage.beta_tilde + stage.weight_clean**2 * variances)
        random = components.vectors[index] @ (stds * noise)
        return stage.weight_clean * clean + stage.weight_noisy * s_t + random

    def denoise(self, precision: Spectral, shift: Float[Array, " d"]) -> Gaussian:
        precision = precision.nonnegative()
        if self.base is None:
            mixed = _one(gaussian_mean(precision, shift))
        else:
            mixed = self.base.posterior(precision, shift)
        return self._moments(precision, shift, mixed, self._bias(precision))

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
        corrected = self._corrected(precision, shift, mixed, self._bias(precision))
        return mixed._replace(means=mixed.means + (corrected - mixed.mean)[None])

    def _moments(
        self, precision: Spectral, shift: Array, mixed: Conditioned, bias: Array
    ) -> Gaussian:
        """Mean and covariance of s_0 under this evidence, given the base under it."""

        def mean_of_one(shift: Float[Array, " d"]) -> Float[Array, " d"]:
            return self._corrected(precision, shift, _one(gaussian_mean(precision, shift)), bias)

        if not self.draws_components:
            return derivative_moments(mean_of_one, precision, shift)
        mean = self._corrected(precision, shift, mixed, bias)
        if self.base is not None:
            return Gaussian(mean, mixed.cov)
        return Gaussian(mean, precision.apply(lambda p: self._ratio(p) / (1.0 + p)))

    def stages(self, schedule: Schedule) -> Stage:
        """Isotropic evidence, and what it adds to the first layer."""
        arrays = jax.tree.leaves((self.base, self.correction, self.spread))
        dtype = arrays[0].dtype if arrays else jnp.result_type(float)
        stages = schedule.stages(dtype)
        identity, ones = jnp.eye(self.size, dtype=dtype), jnp.ones(self.size, dtype)
        bias = jax.vmap(lambda snr: self._bias(Spectral(identity, snr * ones)))(stages.snr)
        return Stage(stages.snr, stages.shift_scale, bias)

    def mean_at(self, stage: Stage, s_t: Float[Array, " d"]) -> Float[Array, " d"]:
        mixed, precision, shift = self._at(stage, s_t)
        return self._corrected(precision, shift, mixed, stage.bias)

    def denoise_at(self, stage: Stage, s_t: Float[Array, " d"]) -> Gaussian:
        mixed, precision, shift = self._at(stage, s_t)
        return self._moments(precision, shift, mixed, stage.bias)

    def _at(self, stage: Stage, s_t: Array) -> tuple[Conditioned, Spectral, Array]:
        precision, shift = isotropic_evidence(stage, s_t)
        return self._alone(s_t.dtype).posterior_at(stage.snr, shift), precision, shift

    def _alone(self, dtype: jnp.dtype) -> GaussianMixture:
        if self.base is not None:
            return self.base
        zeros, identity = jnp.zeros(self.size, dtype), jnp.eye(self.size, dtype=dtype)
        return self._condition(Spectral(identity, zeros), zeros)

    def _bias(self, precision: Spectral) -> Float[Array, " width"]:
        if self.correction is None:
            return jnp.zeros(0, precision.values.dtype)
        return self.correction.evidence_bias(precision)

    def _corrected(
        self, precision: Spectral, shift: Array, mixed: Conditioned, bias: Array
    ) -> Float[Array, " d"]:
        """The base's mean, corrected."""
        mean = mixed.mean
        if self.correction is None:
            return mean
        p = precision.values
        x = gaussian_mean(precision, shift)
        y = precision.unrotate(jnp.sqrt(1.0 + p) * precision.rotate(mean - x))
        f = self.correction(x, y, mixed.responsibilities, bias)
        return mean + precision.unrotate(correction_scale(p) * precision.rotate(f))


def _mixture_mean(
    components: GaussianMixture, responsibilities: Float[Array, " k"], moved: Float[Array, "k d"]
) -> Float[Array, " d"]:
    """E[s_0], where means are moved in the eigenbasis of each component."""
    means = components.means + jnp.sum(components.vectors * moved[:, None, :], axis=2)
    return jnp.sum(responsibilities[:, None] * means, axis=0)


def _times(matrix: Float[Array, "d d"], vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """A product so small that it is best fused with what surrounds it."""
    return jnp.sum(matrix * vector[None], axis=1)


def _one(mean: Float[Array, " d"]) -> Conditioned:
    none = jnp.zeros((mean.shape[0], mean.shape[0]), mean.dtype)
    return Conditioned.single(mean, none, none)
