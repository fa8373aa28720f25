"""What a base leaves to be learned: one network for all Gaussian evidence."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..files.base import Serializable
from ..threefry import written_out

LOG_PRECISION = (-7.0, 9.0)  # the evidence that a network is trained on
LONGEST_INPUT = 3.0  # lengths that inputs and output are bounded by, in units of sqrt(d)
LONGEST_MOVE = 2.0
LONGEST_OUTPUT = 3.0


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
    def initialize(
        key: Key[Array, ""], dim: int, num_components: int, *, width: int, depth: int
    ) -> "Correction":
        """Random weights, and F = 0: the base alone."""
        return _initial(key, dim, num_components, width, depth)

    def evidence_bias(
        self, vectors: Float[Array, "d d"], precisions: Float[Array, " d"]
    ) -> Float[Array, " width"]:
        """What the precision V diag(precisions) V' of the evidence adds to the first layer."""
        low, high = LOG_PRECISION
        logs = jnp.log(jnp.clip(precisions, float(np.exp(low)), float(np.exp(high))))
        columns = jnp.stack([-0.25 * logs, jax.nn.sigmoid(logs)])
        matrices = jnp.einsum("ij,fj,kj->fik", vectors, columns, vectors)
        rows, others = np.triu_indices(vectors.shape[0])
        return matrices[:, rows, others].reshape(-1) @ self.weights_precision + self.bias_in

    def __call__(
        self,
        x: Float[Array, " d"],
        y: Float[Array, " d"],
        responsibilities: Float[Array, " k"],
        evidence_bias: Float[Array, " width"],
    ) -> Float[Array, " d"]:
        """The correction in units of (I + P)^(-1/2)."""
        inputs = (responsibilities, bounded(x, LONGEST_INPUT), bounded(y, LONGEST_MOVE))
        weights = (self.weights_component, self.weights_mean, self.weights_move)
        h = jax.nn.silu(evidence_bias + jnp.concatenate(inputs) @ jnp.concatenate(weights))
        for weights, bias in zip(self.weights_hidden, self.bias_hidden, strict=True):
            h = h + jax.nn.silu(h @ weights + bias)
        out = h @ self.weights_out + self.bias_out
        longest = LONGEST_OUTPUT * out.shape[0] ** 0.5
        return out * jnp.minimum(1.0, longest * jax.lax.rsqrt(jnp.sum(out**2) + 1e-12))

    def shrunk(self, factor: float) -> "Correction":
        """The same correction, so many times as long."""
        changed = (self.weights_out * factor, self.bias_out * factor)
        return eqx.tree_at(lambda net: (net.weights_out, net.bias_out), self, changed)


def fading(p: Float[Array, " d"]) -> Float[Array, " d"]:
    """(1 + p)^(-1/2), in which a correction is measured, less beyond the strongest evidence that it
    was trained on: there the likelihood alone decides."""
    strongest = float(np.exp(LOG_PRECISION[1]))
    return jnp.sqrt(jnp.minimum(1.0, strongest / jnp.maximum(p, 1.0)) / (1.0 + p))


def bounded(x: Float[Array, " d"], longest: float) -> Float[Array, " d"]:
    """x where it is short; never longer than `longest` sqrt(d)."""
    return x * jax.lax.rsqrt(1.0 + jnp.sum(x**2) / (longest**2 * x.shape[0]))


@eqx.filter_jit
def _initial(
    key: Key[Array, ""], dim: int, num_components: int, width: int, depth: int
) -> Correction:
    keys = jax.random.split(written_out(key), 5)

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
