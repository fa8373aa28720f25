"""Many small symmetric matrices at once, in float64, with the batch as the last axis.

A symmetric matrix is stored as its lower triangle, row by row. NumPy loops over rows and columns
and works on whole batches, which for small matrices is several times faster than LAPACK one by one,
and needs neither compilation nor the precision that JAX was set to.
"""

import numpy as np
from jaxtyping import Float, Int

from ..logs.statistics import triangle_places

TINY = 1e-300


def symmetric(triangles: Float[np.ndarray, " p *n"]) -> Float[np.ndarray, "d d *n"]:
    """Symmetric matrices from their lower triangles."""
    dim = int((np.sqrt(8 * len(triangles) + 1) - 1) / 2)
    return np.asarray(triangles[triangle_places(dim)])


def diagonal_places(dim: int) -> Int[np.ndarray, " d"]:
    """Places of the diagonal in a triangle."""
    return np.cumsum(np.arange(dim) + 1) - 1


def congruence(factor: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "p p"]:
    """The matrix that takes the triangle of P to that of factor' P factor."""
    dim = len(factor)
    rows, columns = np.tril_indices(dim)
    outer = factor[rows][:, :, None] * factor[columns][:, None, :]  # basis element, then the result
    both = outer + np.swapaxes(outer, 1, 2)
    both[rows == columns] *= 0.5
    return np.asarray(both[:, rows, columns].T)


def inverse_factor(
    triangles: Float[np.ndarray, " p *n"],
) -> tuple[Float[np.ndarray, "d d *n"], Float[np.ndarray, " *n"]]:
    """W with W A W' = I, lower triangular, and log det A, of positive definite matrices A."""
    full = symmetric(triangles.reshape(len(triangles), -1))
    dim = len(full)
    tril, inverse = np.zeros_like(full), np.zeros_like(full)
    for i in range(dim):
        column = full[i:, i] - np.einsum("ikn,kn->in", tril[i:, :i], tril[i, :i])
        tril[i:, i] = column / np.sqrt(np.maximum(column[0], TINY))
        inverse[i, i] = 1.0 / tril[i, i]
        for j in range(i):
            known = np.einsum("kn,kn->n", tril[i, j:i], inverse[j:i, j])
            inverse[i, j] = -known * inverse[i, i]
    log_det = -2.0 * np.log(inverse[np.arange(dim), np.arange(dim)]).sum(axis=0)
    shape = triangles.shape[1:]
    return inverse.reshape(dim, dim, *shape), log_det.reshape(shape)


def gram(inverse: Float[np.ndarray, "d d *n"]) -> Float[np.ndarray, " p *n"]:
    """Triangles of W' W: the inverses, from `inverse_factor`."""
    rows, columns = np.tril_indices(len(inverse))
    pairs = zip(rows, columns, strict=True)
    return np.stack([np.einsum("k...,k...->...", inverse[i:, i], inverse[i:, j]) for i, j in pairs])
