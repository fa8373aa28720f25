"""What the stages of a chain know of a task before they have seen their noisy samples.

A step of a chain for one decision is a few small products, so that calling them costs more than
they do. All that does not depend on s_t is therefore computed for all stages at once, and what is
left of a step is put into as few products as there can be.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..linalg import Spectral
from ..mixture import MIN_SNR, GaussianMixture, gaussian_mean, pick
from ..schedule import Stages
from .correction import Correction, fading


class ComponentPlan(NamedTuple):
    """Components given a task's evidence, as in `GaussianMixture.posterior_at`."""

    log_weights: Float[Array, "*t k"]
    centers: Float[Array, "*t k d"]  # shifts that leave the means where they are
    gains: Float[Array, "*t k d"]  # variances given the noisy sample
    curvatures: Float[Array, "*t k d"]  # of minus the log weight in the shift
    stds: Float[Array, "*t k d"]  # of the random part of the step


class CorrectionPlan(NamedTuple):
    """Of a correction: x = offset + inverse (shift_scale s_t), y = root (m - x), and what the
    network adds to the mean, back F."""

    offset: Float[Array, "*t d"]
    inverse: Float[Array, "*t d d"]
    root: Float[Array, "*t d d"]
    back: Float[Array, "*t d d"]
    bias: Float[Array, "*t width"]


class Plan(NamedTuple):
    """Both, stacked over the stages; no correction where there is none."""

    components: ComponentPlan
    correction: CorrectionPlan | None


def component_plan(
    components: GaussianMixture, stage: Stages, ratio: Float[Array, " d"]
) -> ComponentPlan:
    """Of one stage; variances are `ratio` times what they would be."""
    snr = jnp.maximum(stage.snr, MIN_SNR)
    left = 1.0 + snr * components.variances
    gains = components.variances / left
    rotated = jnp.einsum("ki,kij->kj", components.means, components.vectors)
    return ComponentPlan(
        components.log_weights - 0.5 * jnp.sum(jnp.log(left), axis=1),
        snr * rotated,
        gains,
        0.5 / (snr * left),
        jnp.sqrt(stage.beta_tilde + stage.weight_clean**2 * ratio[None] * gains),
    )


def correction_plan(
    correction: Correction, precision: Spectral, shift: Float[Array, " d"]
) -> CorrectionPlan:
    """Of one stage, whose evidence has this precision, and this shift without its noisy sample."""
    return CorrectionPlan(
        gaussian_mean(precision, shift),
        precision.apply(lambda p: 1.0 / (1.0 + p)),
        precision.apply(lambda p: jnp.sqrt(1.0 + p)),
        precision.apply(fading),
        correction.evidence_bias(precision.vectors, precision.values),
    )


def planned_step(
    components: GaussianMixture,
    correction: Correction | None,
    plan: Plan,
    stage: Stages,
    s_t: Float[Array, " d"],
    noise: Float[Array, " d"],
    uniform: Float[Array, ""],
) -> Float[Array, " d"]:
    """A draw of s_{t-1}: of a component by its responsibility, then of what it holds s_0 to be,
    moved as the mean is corrected."""
    own = plan.components
    noisy_shift = stage.shift_scale * s_t
    responsibilities, moved = _given(components, own, noisy_shift)
    index = pick(responsibilities, uniform[None])[0]
    random = stage.weight_clean * moved[index] + own.stds[index] * noise
    clean = components.means[index]
    if correction is not None and plan.correction is not None:
        mean = _mean(components, responsibilities, moved)
        clean = clean + _correct(correction, plan.correction, noisy_shift, responsibilities, mean)
    drawn = _times(components.vectors[index], random)
    return stage.weight_clean * clean + stage.weight_noisy * s_t + drawn


def planned_mean(
    components: GaussianMixture,
    correction: Correction | None,
    plan: Plan,
    stage: Stages,
    s_t: Float[Array, " d"],
) -> Float[Array, " d"]:
    """E[s_0 | s_t]."""
    noisy_shift = stage.shift_scale * s_t
    responsibilities, moved = _given(components, plan.components, noisy_shift)
    mean = _mean(components, responsibilities, moved)
    if correction is None or plan.correction is None:
        return mean
    return mean + _correct(correction, plan.correction, noisy_shift, responsibilities, mean)


def _given(
    components: GaussianMixture, plan: ComponentPlan, noisy_shift: Float[Array, " d"]
) -> tuple[Float[Array, " k"], Float[Array, "k d"]]:
    """Responsibilities given a noisy sample too, and how far it moves each mean, in the eigenbasis
    of its component."""
    rotated = jnp.sum(components.vectors * noisy_shift[None, :, None], axis=1)
    away = rotated - plan.centers
    log_weights = plan.log_weights - jnp.sum(plan.curvatures * away**2, axis=1)
    return jax.nn.softmax(log_weights), plan.gains * away


def _mean(
    components: GaussianMixture, responsibilities: Float[Array, " k"], moved: Float[Array, "k d"]
) -> Float[Array, " d"]:
    """E[s_0] under the components."""
    means = components.means + jnp.sum(components.vectors * moved[:, None, :], axis=2)
    return jnp.sum(responsibilities[:, None] * means, axis=0)


def _correct(
    correction: Correction,
    plan: CorrectionPlan,
    noisy_shift: Float[Array, " d"],
    responsibilities: Float[Array, " k"],
    mean: Float[Array, " d"],
) -> Float[Array, " d"]:
    """What the network adds to the mean."""
    x = plan.offset + _times(plan.inverse, noisy_shift)
    y = _times(plan.root, mean - x)
    f = correction(x, y, responsibilities, plan.bias)
    return _times(plan.back, f)


def _times(matrix: Float[Array, "d d"], vector: Float[Array, " d"]) -> Float[Array, " d"]:
    """A product so small that it is best computed with what stands around it."""
    return jnp.sum(matrix * vector[None], axis=1)
