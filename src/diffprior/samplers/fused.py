"""Many draws for one history, with a block of chains kept on a GPU's chip through all stages.

XLA writes the hidden layers of every chain to memory at every stage, and reads them again. Here a
kernel (Pallas, compiled by Triton) keeps them on chip: all that a stage needs to know of the shared
history is tabulated first. The draws are those of `EvidenceDPS` and of `FewPasses` in two passes,
for the same random numbers.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from ..priors.correction import (
    LOG_PRECISION,
    LONGEST_INPUT,
    LONGEST_MOVE,
    LONGEST_OUTPUT,
)

BLOCK, WARPS = 128, 8  # chains that a program of the kernel follows, and its groups of threads
ABSENT = -1e30  # log weight of what pads the components to a power of two
SPLIT = {  # products on tensor cores as sums of three of fewer bits, nearly as good as float32
    "tf32": jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3,
    "bf16": jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3,
}


class Given(NamedTuple):
    """A task's evidence in its eigenbasis, and the components given it; in double precision."""

    vectors: Float[np.ndarray, "d d"]
    values: Float[np.ndarray, " d"]
    shift: Float[np.ndarray, " d"]
    log_weights: Float[np.ndarray, " k"]
    means: Float[np.ndarray, "k d"]
    covs: Float[np.ndarray, "k d d"]


class Stage(NamedTuple):
    """What chains do at a stage: n = scale s_t is the shift of their own evidence, of precision
    V diag(noise) V', and s_{t-1} = clean s_0 + noisy s_t, and `factors` of each component times
    standard normal numbers."""

    noise: Float[np.ndarray, " d"]
    scale: float
    clean: float
    noisy: float
    factors: Float[np.ndarray, "k d d"]


def tabulate(given: Given, stage: Stage) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel reads at a stage: rows of numbers of each component, and numbers of all."""
    d, k = given.means.shape[1], len(given.log_weights)
    noise = (given.vectors * stage.noise) @ given.vectors.T
    left = np.eye(d) + given.covs @ noise
    gain = np.linalg.solve(left, given.covs)
    tilt = np.linalg.inv(noise + noise @ given.covs @ noise)
    log_weights = given.log_weights - 0.5 * np.linalg.slogdet(left)[1]
    rows = [log_weights[:, None], given.means @ noise, given.means]
    rows += [matrix.reshape(k, d * d) for matrix in (tilt, gain, stage.factors)]
    p = given.values + stage.noise
    fade = np.minimum(1.0, np.exp(LOG_PRECISION[1]) / np.maximum(p, 1.0))
    matrices = [1.0 / (1.0 + p), np.sqrt(1.0 + p), np.sqrt(fade / (1.0 + p))]
    x, root, back = ((given.vectors * values) @ given.vectors.T for values in matrices)
    numbers = [[stage.scale, stage.clean, stage.noisy], x @ given.shift]
    numbers += [matrix.reshape(-1) for matrix in (x, root, back)]
    return _padded(np.concatenate(rows, axis=1).T), np.concatenate(numbers)


def _padded(rows: Float[np.ndarray, "rows k"]) -> Float[np.ndarray, "rows size"]:
    """Components to a power of two, those added of no weight."""
    more = _size(rows.shape[1]) - rows.shape[1]
    fill = np.zeros((rows.shape[0], more))
    fill[0] = ABSENT
    return np.concatenate([rows, fill], axis=1)


def _size(count: int) -> int:
    return max(16, 2 ** int(np.ceil(np.log2(count))))


class Layers(NamedTuple):
    """A correction as the kernel reads it."""

    mean: Float[Array, "d width"]
    move: Float[Array, "d width"]
    component: Float[Array, "size width"]
    hidden: Float[Array, "layers width width"]
    bias_hidden: Float[Array, "layers width"]
    out: Float[Array, "d width"]
    bias_out: Float[Array, " d"]
    sums: Float[Array, "size size"]  # ones on and above the diagonal, for cumulative sums

    @staticmethod
    def of(correction: Any) -> "Layers":
        """Those of a `Correction`, with inputs of no component where the table is padded."""
        size = _size(correction.weights_component.shape[0])
        more = size - correction.weights_component.shape[0]
        component = jnp.pad(correction.weights_component, ((0, more), (0, 0)))
        return Layers(
            correction.weights_mean,
            correction.weights_move,
            component,
            correction.weights_hidden,
            correction.bias_hidden,
            correction.weights_out.T,
            correction.bias_out,
            jnp.asarray(np.triu(np.ones((size, size))), component.dtype),
        )


class Tables(NamedTuple):
    """All stages, the noisiest first."""

    components: Float[Array, "t rows size"]
    numbers: Float[Array, "t numbers"]
    bias: Float[Array, "t width"]


@functools.partial(jax.jit, static_argnames=("split", "interpret"))
def follow(
    tables: Tables,
    layers: Layers,
    start: Float[Array, "d n"],
    noises: Float[Array, "t d n"],
    uniforms: Float[Array, "t n"],
    *,
    split: str,
    interpret: bool = False,
) -> Float[Array, "d n"]:
    """Every chain through all stages; n must be a multiple of `BLOCK`. `split` says how products
    are made of shorter ones; in interpret mode they are as the device makes them."""
    (d, n), block = start.shape, BLOCK
    precision = jax.lax.Precision.HIGHEST if interpret else SPLIT[split]
    num_stages = tables.bias.shape[0]

    def whole(array: Array) -> pl.BlockSpec:
        return pl.BlockSpec(array.shape, lambda i: (0,) * array.ndim)

    chains = pl.BlockSpec((d, block), lambda i: (0, i))
    specs = [*map(whole, tables), *map(whole, layers), chains]
    specs += [pl.BlockSpec((num_stages, d, block), lambda i: (0, 0, i))]
    specs += [pl.BlockSpec((num_stages, block), lambda i: (0, i))]
    return pl.pallas_call(
        functools.partial(_kernel, precision),
        grid=(n // block,),
        in_specs=specs,
        out_specs=chains,
        out_shape=jax.ShapeDtypeStruct(start.shape, start.dtype),
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=WARPS),
    )(*tables, *layers, start, noises, uniforms)


def _kernel(precision: Any, *refs: Any) -> None:
    components, numbers, bias = refs[:3]
    layers, (start, noises, uniforms, out) = Layers(*refs[3:11]), refs[11:]
    d = start.shape[0]

    def stage(t: Array, s: tuple[Array, ...]) -> tuple[Array, ...]:
        scale, clean, noisy = (numbers[t, i] for i in range(3))
        n = [scale * s_i for s_i in s]
        law = _law(components, t, n)
        mean = [jnp.sum(law.shares * m, axis=1) for m in law.means]
        chosen = _chosen(law.shares, uniforms[t, :], layers.sums[:, :], precision)
        pick = lambda row: jnp.sum(jnp.where(chosen, row, 0.0), axis=1)  # noqa: E731
        s_0 = [pick(m) for m in law.means]
        random = _random(components, pick, t, [noises[t, j, :] for j in range(d)])
        first = _dot(law.shares, layers.component[:, :], precision)  # what follows needs no law
        moved = _moved(numbers, bias, layers, t, (n, mean, first), precision)
        return tuple(clean * (s_0[i] + moved[i]) + noisy * s[i] + random[i] for i in range(d))

    first = tuple(start[i, :] for i in range(d))
    for i, row in enumerate(jax.lax.fori_loop(0, noises.shape[0], stage, first)):
        out[i, :] = row


def _random(components: Any, pick: Any, t: Array, noise: list[Array]) -> list[Array]:
    """Standard normal numbers times the chosen component's factor."""
    d = len(noise)
    first = 1 + 2 * d + 2 * d * d
    factor = lambda i, j: pick(components[t, first + i * d + j, :][None, :])  # noqa: E731
    return [sum(factor(i, j) * noise[j] for j in range(d)) for i in range(d)]


class _Law(NamedTuple):
    shares: Float[Array, "b k"]
    means: list[Float[Array, "b k"]]


def _law(components: Any, t: Array, n: list[Array]) -> _Law:
    """The mixture given each chain's own evidence of shift n."""
    d = len(n)
    row = lambda index: components[t, index, :][None, :]  # noqa: E731
    away = [n[i][:, None] - row(1 + i) for i in range(d)]
    tilt, gain = 1 + 2 * d, 1 + 2 * d + d * d
    squares = sum(away[i] * away[j] * row(tilt + i * d + j) for i in range(d) for j in range(d))
    logs = row(0) - 0.5 * squares
    weights = jnp.exp(logs - jnp.max(logs, axis=1)[:, None])
    means = [
        row(1 + d + i) + sum(row(gain + i * d + j) * away[j] for j in range(d)) for i in range(d)
    ]
    return _Law(weights / jnp.sum(weights, axis=1)[:, None], means)


def _moved(
    numbers: Any, bias: Any, layers: Layers, t: Array, chain: Any, precision: Any
) -> list[Float[Array, " b"]]:
    """How far the correction moves the mean."""
    n, mean, first = chain
    d = len(n)
    at = lambda which, i, j: numbers[t, 3 + d + which * d * d + i * d + j]  # noqa: E731
    x = [numbers[t, 3 + i] + sum(at(0, i, j) * n[j] for j in range(d)) for i in range(d)]
    y = [sum(at(1, i, j) * (mean[j] - x[j]) for j in range(d)) for i in range(d)]
    first = first + bias[t, :][None, :]
    for inputs, weights, longest in (
        (x, layers.mean, LONGEST_INPUT),
        (y, layers.move, LONGEST_MOVE),
    ):
        short = jax.lax.rsqrt(1.0 + sum(v * v for v in inputs) / (longest**2 * d))
        for i in range(d):
            first = first + (inputs[i] * short)[:, None] * weights[i, :][None, :]
    h = jax.nn.silu(first)
    for layer in range(layers.hidden.shape[0]):
        more = _dot(h, layers.hidden[layer, :, :], precision)
        h = h + jax.nn.silu(more + layers.bias_hidden[layer, :][None, :])
    f = [jnp.sum(h * layers.out[i, :][None, :], axis=1) + layers.bias_out[i] for i in range(d)]
    longest = LONGEST_OUTPUT * d**0.5
    short = jnp.minimum(1.0, longest * jax.lax.rsqrt(sum(v * v for v in f) + 1e-12))
    return [sum(at(2, i, j) * f[j] * short for j in range(d)) for i in range(d)]


def _chosen(shares: Array, uniform: Array, sums: Array, precision: Any) -> Array:
    """Which component each chain takes, by its number from [0, 1)."""
    cumulative = _dot(shares, sums, precision)
    place = uniform * jnp.max(cumulative, axis=1)
    index = jnp.sum(cumulative <= place[:, None], axis=1, dtype=jnp.int32)
    return jax.lax.broadcasted_iota(jnp.int32, shares.shape, 1) == index[:, None]


def _dot(a: Array, b: Array, precision: Any) -> Array:
    return jax.lax.dot(a, b, precision=precision, preferred_element_type=a.dtype)
