"""Many small symmetric matrices at once, in float64, with the batch as the last axis.

A symmetric matrix is kept as its lower triangle, row by row. NumPy loops over the rows and columns
and works on whole batches, which for small matrices is several times faster than LAPACK one by one,
and needs neither compilation nor the precision that JAX was set to.
"""

import functools

import numpy as np
from jaxtyping import Float, Int

WRITTEN_OUT = 16  # largest dimension factorized by loops over rows and columns
TINY = 1e-300


@functools.lru_cache(maxsize=32)
def places(dim: int) -> Int[np.ndarray, "d d"]:
    """Where each entry of a symmetric matrix is in its lower triangle."""
    rows, columns = np.tril_indices(dim)
    index = np.zeros((dim, dim), np.int64)
    index[rows, columns] = index[columns, rows] = np.arange(len(rows))
    return index


def congruence(factor: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "p p"]:
    """The matrix that takes the triangle of P to that of factor' P factor."""
    dim = len(factor)
    rows, columns = np.tril_indices(dim)
    outer = factor[rows][:, :, None] * factor[columns][:, None, :]  # basis element, then the result
    both = outer + np.swapaxes(outer, 1, 2)
    both[rows == columns] *= 0.5
    return both[:, rows, columns].T


def applied_to(vector: Float[np.ndarray, " d"]) -> Float[np.ndarray, "d p"]:
    """The matrix that takes the triangle of P to P vector."""
    dim = len(vector)
    index = places(dim)
    made = np.zeros((dim, dim * (dim + 1) // 2))
    for i in range(dim):
        made[i, index[i]] = vector
    return made


def inverse_factor(
    triangles: Float[np.ndarray, "p n"],
) -> tuple[Float[np.ndarray, "d d n"], Float[np.ndarray, " n"]]:
    """W with W A W' = I, lower triangular, and log det A, of positive definite matrices A."""
    dim = int((np.sqrt(8 * len(triangles) + 1) - 1) / 2)
    full = triangles[places(dim)]
    if dim > WRITTEN_OUT:
        return _lapack(full)
    tril = _cholesky(full)
    diagonal = tril[np.arange(dim), np.arange(dim)]
    return _inverse(tril, diagonal), 2.0 * np.log(diagonal).sum(axis=0)


def _cholesky(full: Float[np.ndarray, "d d n"]) -> Float[np.ndarray, "d d n"]:
    dim = len(full)
    tril = np.zeros_like(full)
    for j in range(dim):
        known = np.einsum("ikn,kn->in", tril[j:, :j], tril[j, :j])
        column = full[j:, j] - known
        tril[j:, j] = column / np.sqrt(np.maximum(column[0], TINY))
    return tril


def _inverse(
    tril: Float[np.ndarray, "d d n"], diagonal: Float[np.ndarray, "d n"]
) -> Float[np.ndarray, "d d n"]:
    inverse = np.zeros_like(tril)
    for i in range(len(tril)):
        inverse[i, i] = 1.0 / diagonal[i]
        for j in range(i):
            known = np.einsum("kn,kn->n", tril[i, j:i], inverse[j:i, j])
            inverse[i, j] = -known * inverse[i, i]
    return inverse


def _lapack(
    full: Float[np.ndarray, "d d n"],
) -> tuple[Float[np.ndarray, "d d n"], Float[np.ndarray, " n"]]:
    tril = np.linalg.cholesky(np.moveaxis(full, -1, 0))
    log_det = 2.0 * np.log(np.diagonal(tril, axis1=1, axis2=2)).sum(axis=1)
    return np.ascontiguousarray(np.moveaxis(np.linalg.inv(tril), 0, -1)), log_det


def gram(inverse: Float[np.ndarray, "d d *n"]) -> Float[np.ndarray, "p *n"]:
    """Triangles of W' W: the inverses, from `inverse_factor`."""
    rows, columns = np.tril_indices(len(inverse))
    pairs = zip(rows, columns, strict=True)
    return np.stack([np.einsum("k...,k...->...", inverse[i:, i], inverse[i:, j]) for i, j in pairs])


def symmetric(triangle: Float[np.ndarray, " p"]) -> Float[np.ndarray, "d d"]:
    """A symmetric matrix from its lower triangle."""
    dim = int((np.sqrt(8 * len(triangle) + 1) - 1) / 2)
    return triangle[places(dim)]


def lower(matrix: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """A lower factor of a positive semi-definite matrix, a little added where it is singular."""
    scale = np.sqrt(np.maximum(np.diagonal(matrix), TINY))
    correlation = matrix / np.outer(scale, scale)
    for ridge in (0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6):
        try:
            tril = np.linalg.cholesky(correlation + ridge * np.eye(len(matrix)))
            return scale[:, None] * tril
        except np.linalg.LinAlgError:
            continue
    raise ValueError(
        "`cov`: expected a covariance matrix, got one that is not positive; check the features"
    )
