"""A denoiser that knows a mixture exactly, and what the mixture leaves by a network."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..gaussian import Gaussian
from ..linalg import Spectral, bounded_factor, cholesky, eigh, symmetrize
from ..mixture import Conditioned, GaussianMixture, gaussian_mean, pick
from ..schedule import Schedule, Stages
from .correction import LOG_PRECISION, Correction, fading
from .denoisers import LARGEST_VARIANCE, VARIANCE_RATIO, AbstractDenoiser
from .plans import Plan, component_plan, correction_plan, planned_step

SPREAD_AT = tuple(range(-7, 10, 2))  # log precisions that the spread is tabulated at
DERIVATIVE_UP_TO = 8  # parameters whose covariance under a Gaussian base is the mean's derivative


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

    base: GaussianMixture | None
    correction: Correction | None
    spread: Float[Array, " s"] | None
    size: int = eqx.field(static=True)
    mostly_base: bool = eqx.field(static=True, default=True)  # the correction adds little

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.size

    @property
    def general(self) -> bool:
        """Any Gaussian evidence."""
        return True

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
        """Mean and covariance of s_0 under a task's evidence and a noisy sample."""
        precision = prepared.precision.shifted(snr)
        shift = prepared.shift + noisy_shift
        if not self.draws_components:
            return self.denoise(precision, shift)
        mixed = prepared.components.posterior_at(snr, noisy_shift)
        mean = self._corrected(precision, shift, mixed, self._bias(precision))
        if self.base is None:
            return Gaussian(mean, self._gaussian_cov(precision))
        return Gaussian(mean, mixed.cov)

    def closed_form(self) -> GaussianMixture | None:
        """The mixture that this is the denoiser of, if nothing corrects it."""
        return None if self.correction is not None else self._alone(jnp.result_type(float))

    def _gaussian_cov(self, precision: Spectral) -> Float[Array, "d d"]:
        return precision.apply(lambda p: self._ratio(p) / (1.0 + p))

    def plan(self, prepared: Prepared, stages: Stages) -> Any:
        """All of each stage that does not depend on its noisy sample."""
        if not self.draws_components:
            return super().plan(prepared, stages)

        def one(stage: Stages) -> Plan:
            precision = prepared.precision.shifted(stage.snr)
            of_components = component_plan(
                prepared.components, stage, self._ratio(precision.values)
            )
            if self.correction is None:
                return Plan(of_components, None)
            return Plan(of_components, correction_plan(self.correction, precision, prepared.shift))

        return jax.vmap(one)(stages)

    def step(
        self,
        prepared: Prepared,
        plan: Any,
        stage: Stages,
        s_t: Float[Array, " d"],
        noise: Float[Array, " d"],
        uniform: Float[Array, ""],
    ) -> Float[Array, " d"]:
        """A draw of s_{t-1}: of a component by its responsibility, then of what it holds s_0 to be,
        moved as the mean is corrected."""
        if not self.draws_components:
            return super().step(prepared, plan, stage, s_t, noise, uniform)
        components = prepared.components
        return planned_step(components, self.correction, plan, stage, s_t, noise, uniform)

    def step_at(
        self,
        stage_inputs: Stage,
        stage: Stages,
        s_t: Float[Array, " d"],
        noise: Float[Array, " d"],
        uniform: Float[Array, ""],
    ) -> Float[Array, " d"]:
        """A draw of s_{t-1} given s_t alone, likewise."""
        if not self.draws_components:
            return super().step_at(stage_inputs, stage, s_t, noise, uniform)
        mixed, precision, shift = self._at(stage_inputs, s_t)
        corrected = self._corrected(precision, shift, mixed, stage_inputs.bias)
        components, ratio = self._alone(s_t.dtype), self._ratio(precision.values)
        return _moved(components, mixed, corrected, ratio, stage, s_t, noise, uniform)

    def denoise(self, precision: Spectral, shift: Float[Array, " d"]) -> Gaussian:
        """Mean and covariance of s_0 under exp(-s' precision s / 2 + shift' s)."""
        precision = precision.nonnegative()
        bias = self._bias(precision)
        if self.base is not None:
            mixed = self.base.posterior(precision, shift)
            return Gaussian(self._corrected(precision, shift, mixed, bias), mixed.cov)
        if self.draws_components:
            mean = self._corrected(precision, shift, _one(gaussian_mean(precision, shift)), bias)
            return Gaussian(mean, self._gaussian_cov(precision))
        return self._with_derivative(precision, shift, bias)

    @property
    def is_mixture(self) -> bool:
        """Whether `posterior` knows the shape of what is left open, not just its moments."""
        return self.base is not None or self.correction is None

    def posterior(self, precision: Spectral, shift: Float[Array, " d"]) -> Conditioned:
        """The distribution of s_0 under exp(-s' precision s / 2 + shift' s): the mixture given
        the evidence, moved as its mean is corrected; a Gaussian where there is no mixture."""
        precision = precision.nonnegative()
        if self.base is None:
            one = self.denoise(precision, shift)
            return Conditioned.single(one.mean, one.cov, cholesky(one.cov))
        mixed = self.base.posterior(precision, shift)
        corrected = self._corrected(precision, shift, mixed, self._bias(precision))
        return mixed._replace(means=mixed.means + (corrected - mixed.mean)[None])

    def _with_derivative(self, precision: Spectral, shift: Array, bias: Array) -> Gaussian:
        """The covariance is the derivative of the mean in the shift, symmetrized and bounded."""

        def mean(rotated: Float[Array, " d"]) -> Float[Array, " d"]:
            shift = precision.unrotate(rotated)
            x = _one(gaussian_mean(precision, shift))
            return precision.rotate(self._corrected(precision, shift, x, bias))

        value, push = jax.linearize(mean, precision.rotate(shift))
        derivative = jax.vmap(push)(jnp.eye(shift.shape[0], dtype=shift.dtype))
        variances = 1.0 / (1.0 + precision.values)
        stds = jnp.sqrt(variances)
        ratio = symmetrize(derivative) / (stds[:, None] * stds[None, :])
        lowest = jnp.full_like(stds, VARIANCE_RATIO)
        factor = bounded_factor(ratio, lowest, LARGEST_VARIANCE / variances)
        half = precision.vectors @ (stds[:, None] * factor)
        return Gaussian(precision.unrotate(value), half @ half.T)

    def stages(self, schedule: Schedule) -> Stage:
        """Isotropic evidence, and what it adds to the first layer."""
        arrays = jax.tree.leaves((self.base, self.correction, self.spread))
        dtype = arrays[0].dtype if arrays else jnp.result_type(float)
        stages = schedule.stages(dtype)
        identity, ones = jnp.eye(self.size, dtype=dtype), jnp.ones(self.size, dtype)
        bias = jax.vmap(lambda snr: self._bias(Spectral(identity, snr * ones)))(stages.snr)
        return Stage(stages.snr, stages.shift_scale, bias)

    def mean_at(self, stage: Stage, s_t: Float[Array, " d"]) -> Float[Array, " d"]:
        """E[s_0 | s_t]."""
        mixed, precision, shift = self._at(stage, s_t)
        return self._corrected(precision, shift, mixed, stage.bias)

    def denoise_at(self, stage: Stage, s_t: Float[Array, " d"]) -> Gaussian:
        """Mean and covariance of s_0 given s_t."""
        mixed, precision, shift = self._at(stage, s_t)
        if not self.draws_components:
            return self._with_derivative(precision, shift, stage.bias)
        mean = self._corrected(precision, shift, mixed, stage.bias)
        if self.base is None:
            return Gaussian(mean, self._gaussian_cov(precision))
        return Gaussian(mean, mixed.cov)

    def _at(self, stage: Stage, s_t: Array) -> tuple[Conditioned, Spectral, Array]:
        precision = Spectral(jnp.eye(self.size, dtype=s_t.dtype), stage.snr * jnp.ones_like(s_t))
        shift = stage.shift_scale * s_t
        return self._alone(s_t.dtype).posterior_at(stage.snr, shift), precision, shift

    def _alone(self, dtype: jnp.dtype) -> GaussianMixture:
        if self.base is not None:
            return self.base
        zeros, identity = jnp.zeros(self.size, dtype), jnp.eye(self.size, dtype=dtype)
        return self._condition(Spectral(identity, zeros), zeros)

    def _bias(self, precision: Spectral) -> Float[Array, " width"]:
        if self.correction is None:
            return jnp.zeros(0, precision.values.dtype)
        return self.correction.evidence_bias(precision.vectors, precision.values)

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
        return mean + precision.unrotate(fading(p) * precision.rotate(f))


def _moved(
    components: GaussianMixture,
    mixed: Conditioned,
    corrected: Float[Array, " d"],
    ratio: Float[Array, " d"],
    stage: Stages,
    s_t: Float[Array, " d"],
    noise: Float[Array, " d"],
    uniform: Float[Array, ""],
) -> Float[Array, " d"]:
    index = pick(mixed.responsibilities, uniform[None])[0]
    clean = corrected + mixed.means[index] - mixed.mean
    variances = ratio * components.variances_at(stage.snr)[index]
    stds = jnp.sqrt(stage.beta_tilde + stage.weight_clean**2 * variances)
    random = components.vectors[index] @ (stds * noise)
    return stage.weight_clean * clean + stage.weight_noisy * s_t + random


def _one(mean: Float[Array, " d"]) -> Conditioned:
    none = jnp.zeros((mean.shape[0], mean.shape[0]), mean.dtype)
    return Conditioned.single(mean, none, none)
