"""Small symmetric matrices: Cholesky, triangular solves, eigenvalues, for one matrix at a time.

Callers `vmap`. JAX's own batched factorizations are slow for small matrices on a CPU, and several
of them in one compiled loop can deadlock. So matrices up to `MAX_UNROLLED` are
factorized in plain array operations, which `vmap` turns into operations on whole batches, and
larger ones by LAPACK, some at a time; accelerators use JAX's batched routines for those.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap, sequential_vmap
from jaxtyping import Array, Float

MAX_UNROLLED = 8  # largest dimension factorized in plain array operations
MAX_INLINE = 150_000  # operations below which LAPACK's batches are not shared out among threads
MAX_UNTHREADED = 512  # numbers on the right of a triangular solve that BLAS starts no threads for
MAX_TERMWISE = 3  # largest dimension of products that are sums of terms, computed with their users
MANY = 32  # matrices on the host, beyond which they are solved side by side

Arrays = TypeVar("Arrays")  # an array, or a tree of arrays

if TYPE_CHECKING:
    AnyArray: TypeAlias = Any  # NumPy or JAX: known where a value is made, not to a type checker
else:
    AnyArray = Array | np.ndarray | np.generic  # the last for what NumPy returns for no axes


def numpy_of(array: AnyArray) -> ModuleType:
    """NumPy or jax.numpy, as the array is."""
    return np if isinstance(array, np.ndarray) else jnp


class Spectral(eqx.Module):
    """A symmetric matrix V diag(values) V', kept as its eigenvectors (columns) and eigenvalues."""

    vectors: Float[Array, "d d"]
    values: Float[Array, " d"]

    def apply(self, function: Callable[[Array], Array]) -> Float[Array, "d d"]:
        """The matrix function V diag(function(values)) V'."""
        values = function(self.values)
        if values.shape[0] <= MAX_TERMWISE:
            terms = zip(self.vectors.T, values, strict=True)
            return _total([value * v[:, None] * v[None, :] for v, value in terms])
        return jnp.einsum("ij,j,kj->ik", self.vectors, values, self.vectors)

    def matrix(self) -> Float[Array, "d d"]:
        """The matrix itself."""
        return self.apply(lambda values: values)

    def rotate(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """Coordinates of `x` in the eigenbasis, V' x."""
        return times(self.vectors.T, x)

    def unrotate(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """Back from the eigenbasis, V x."""
        return times(self.vectors, x)

    def nonnegative(self) -> "Spectral":
        """The matrix with eigenvalues that rounding made negative set to zero."""
        return Spectral(self.vectors, jnp.maximum(self.values, 0.0))

    def shifted(self, scalar: Float[Array, ""]) -> "Spectral":
        """The matrix plus `scalar` times the identity."""
        return Spectral(self.vectors, self.values + scalar)


def times(matrix: Float[Array, "n d"], x: Float[Array, " d"]) -> Float[Array, " n"]:
    """The product of a matrix and a vector."""
    if x.shape[0] <= MAX_TERMWISE:
        return _total([matrix[:, j] * x[j] for j in range(x.shape[0])])
    return matrix @ x


def times_each(
    matrix: Float[AnyArray, "*#k n d"], x: Float[AnyArray, "*#k d"]
) -> Float[AnyArray, "... n"]:
    """Products of matrices and vectors, which in NumPy may have leading axes."""
    return matrix @ x if matrix.ndim == 2 and x.ndim == 1 else (matrix @ x[..., None])[..., 0]


def _total(terms: list[Array]) -> Array:
    return functools.reduce(jnp.add, terms)


def diagonal(matrix: Float[Array, "d d"]) -> Float[Array, " d"]:
    """As `jnp.diagonal`, by a slice instead of a gather."""
    return matrix.reshape(-1)[:: matrix.shape[0] + 1]


def symmetrize(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """The symmetric part of a square matrix."""
    return 0.5 * (matrix + matrix.T)


@functools.cache
def one_at_a_time(function: Callable[..., Arrays]) -> Callable[..., Arrays]:
    """The function of arrays that `vmap`, on a CPU, calls in a loop: for what LAPACK does, and for
    what is fastest while all that it works on is in the cache.
    """
    in_a_loop = sequential_vmap(function)
    return lambda *args: jax.lax.platform_dependent(*args, cpu=in_a_loop, default=function)


@functools.cache
def _some_at_a_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of matrices with any leading axes that `vmap`, on a CPU, calls for some of them
    at a time.

    What JAX shares out among the threads of its pool waits for them in one of these threads, and
    two that wait at once may be all there are. So no call is given enough work to be shared out.
    """

    @custom_vmap
    def in_blocks(*stacks: Array) -> Any:
        count = stacks[0].shape[0]
        size = min(count, _at_once(stacks))
        whole = count - count % size
        blocks = [s[:whole].reshape(-1, size, *s.shape[1:]) for s in stacks]
        parts = [jax.lax.map(lambda block: function(*block), blocks)]
        parts[0] = jax.tree.map(lambda a: a.reshape(whole, *a.shape[2:]), parts[0])
        if whole < count:
            parts.append(function(*(s[whole:] for s in stacks)))
        return jax.tree.map(lambda *a: jnp.concatenate(a), *parts)

    @in_blocks.def_vmap
    def _(size: int, batched: list[bool], *stacks: Array) -> Any:
        every = _with_axis(size, batched, stacks)
        found = in_blocks(*(s.reshape(-1, *s.shape[2:]) for s in every))
        found = jax.tree.map(lambda a: a.reshape(size, -1, *a.shape[1:]), found)
        return found, jax.tree.map(lambda _: True, found)

    one = custom_vmap(function)

    @one.def_vmap
    def _(size: int, batched: list[bool], *args: Array) -> Any:
        found = in_blocks(*_with_axis(size, batched, args))
        return found, jax.tree.map(lambda _: True, found)

    return lambda *args: jax.lax.platform_dependent(*args, cpu=one, default=function)


def _with_axis(size: int, batched: list[bool], args: tuple[Array, ...]) -> list[Array]:
    """All arguments with a leading axis, those that have none repeated."""
    pairs = zip(args, batched, strict=True)
    return [a if own else jnp.broadcast_to(a, (size, *a.shape)) for a, own in pairs]


def _at_once(stacks: tuple[Array, ...]) -> int:
    """Matrices of which LAPACK's work is not shared out."""
    d = stacks[0].shape[1]
    return max(1, MAX_INLINE // (d**2 * max(d // 2, stacks[-1].shape[-1])))


def cholesky(matrix: Float[AnyArray, "*k d d"]) -> Float[AnyArray, "*k d d"]:
    """Lower Cholesky factor; a pivot lost to rounding is replaced by a tiny positive one.

    So a positive semi-definite matrix gets a finite factor whose product is the matrix to rounding.
    NumPy arrays, which may have leading axes, raise `LinAlgError` instead.
    """
    if isinstance(matrix, np.ndarray):
        return np.linalg.cholesky(matrix)
    if matrix.shape[0] <= MAX_UNROLLED:
        finfo = jnp.finfo(matrix.dtype)
        tiny = finfo.eps * diagonal(matrix) + finfo.tiny / finfo.eps
        return _cholesky_columns(matrix, tiny)
    return _some_at_a_time(_cholesky)(matrix)


def bounded_factor(
    matrix: Float[Array, "d d"], lowest: Float[Array, " d"], highest: Float[Array, " d"]
) -> Float[Array, "d d"]:
    """A factor A, with A A' the symmetric `matrix` made positive definite.

    Up to `MAX_UNROLLED` dimensions the diagonal is clipped to its bounds and the pivots from below;
    beyond, the eigenvalues are clipped. A positive definite matrix within the bounds is factorized
    as it is.
    """
    d = matrix.shape[0]
    if d > MAX_UNROLLED:
        bound = jnp.sqrt(highest)
        spectral = eigh(matrix / (bound[:, None] * bound[None, :]))
        values = jnp.clip(spectral.values, jnp.min(lowest / highest), 1.0)
        return bound[:, None] * spectral.vectors * jnp.sqrt(values)[None, :]
    diagonal = jnp.diagonal(matrix)
    clipped = matrix + jnp.diag(jnp.clip(diagonal, lowest, highest) - diagonal)
    return _cholesky_columns(clipped, lowest)


def _cholesky_columns(
    matrix: Float[Array, "d d"], floor: Float[Array, " d"]
) -> Float[Array, "d d"]:
    """Cholesky by columns, where no pivot falls below `floor` and no entry breaks the inequality of
    Cauchy and Schwarz: for a positive definite matrix, nothing but Cholesky.
    """
    rest, columns = matrix, []
    for j in range(matrix.shape[0]):
        left = jnp.maximum(diagonal(rest), floor[j:])
        limit = jnp.sqrt(left[1:])
        below = jnp.clip(rest[1:, 0] * jax.lax.rsqrt(left[0]), -limit, limit)
        columns.append(jnp.pad(jnp.concatenate([jnp.sqrt(left[:1]), below]), (j, 0)))
        rest = rest[1:, 1:] - below[:, None] * below[None, :]
    return jnp.stack(columns, axis=1)


def _cholesky(matrix: Float[Array, "*k d d"]) -> Float[Array, "*k d d"]:
    """Cholesky with a little added to the diagonal; with more where that is not enough."""
    finfo = jnp.finfo(matrix.dtype)
    dim = matrix.shape[-1]
    identity = jnp.broadcast_to(jnp.eye(dim, dtype=matrix.dtype), matrix.shape)
    diagonal = jnp.diagonal(matrix, axis1=-2, axis2=-1)[..., None]
    tiny = finfo.tiny / finfo.eps
    first = jnp.linalg.cholesky(matrix + identity * (finfo.eps * diagonal + tiny))
    largest = jnp.max(diagonal, axis=-2, keepdims=True)
    more = 8 * dim * finfo.eps * diagonal + largest * finfo.eps + tiny
    found = jnp.all(jnp.isfinite(first), axis=(-2, -1), keepdims=True)
    return jax.lax.cond(
        jnp.all(found),
        lambda: first,
        lambda: jnp.where(found, first, jnp.linalg.cholesky(matrix + identity * more)),
    )


def solve_lower(
    tril: Float[AnyArray, "*#k d d"], rhs: Float[AnyArray, "*#k d m"]
) -> Float[AnyArray, "... d m"]:
    """Solve L X = rhs for a lower triangular L; NumPy arrays may have leading axes."""
    if isinstance(tril, np.ndarray):
        many = tril.size > MANY * tril.shape[-1] ** 2
        return _substitute_side_by_side(tril, rhs) if many else np.linalg.solve(tril, rhs)
    if tril.shape[0] <= MAX_UNROLLED:
        return _substitute_rows(tril, rhs)
    return _some_at_a_time(lapack_solve_lower)(tril, rhs)


def _substitute_rows(tril: Float[Array, "d d"], rhs: Float[Array, "d m"]) -> Float[Array, "d m"]:
    rest, rows = rhs, []
    for i in range(tril.shape[0]):
        row = rest[0] / tril[i, i]
        rows.append(row)
        rest = rest[1:] - tril[i + 1 :, i, None] * row[None, :]
    return jnp.stack(rows)


def _substitute_side_by_side(tril: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """In NumPy, a row of all matrices at a time, where LAPACK would be called for each."""
    leading = np.broadcast_shapes(tril.shape[:-2], rhs.shape[:-2])
    solved = np.empty((*leading, *rhs.shape[-2:]), np.result_type(tril, rhs))
    for i in range(tril.shape[-1]):
        known = np.matmul(tril[..., i : i + 1, :i], solved[..., :i, :])[..., 0, :]
        solved[..., i, :] = (rhs[..., i, :] - known) / tril[..., i, i, None]
    return solved


def lapack_solve_lower(
    tril: Float[Array, "*k d d"], rhs: Float[Array, "*k d m"]
) -> Float[Array, "*k d m"]:
    """As `solve_lower`, of matrices with any leading axes, for a caller who knows they are few.

    Some columns at a time: BLAS's own threads, which more would start, wait for a core while JAX's
    have them all, a thousand times as long as the solve takes.
    """
    size = max(1, MAX_UNTHREADED // tril.shape[-1])
    columns = [rhs[..., first : first + size] for first in range(0, rhs.shape[-1], size)]
    solved = [jax.lax.linalg.triangular_solve(tril, c, left_side=True, lower=True) for c in columns]
    return jnp.concatenate(solved, axis=-1)


def solve_half(
    matrix: Float[Array, "d d"], rhs: Float[Array, "d m"]
) -> tuple[Float[Array, "d m"], Float[Array, ""]]:
    """L^-1 rhs and log det L L', where L L' is a matrix whose eigenvalues are 1 or more.

    Up to `MAX_UNROLLED` dimensions one elimination of both at once, several times as fast for many
    matrices as a factorization and a solve. Its pivots are 1 or more as well, but for rounding.
    """
    if matrix.shape[0] > MAX_UNROLLED:
        return _some_at_a_time(_solve_half)(matrix, rhs)
    rest, rows, log_det = jnp.concatenate([matrix, rhs], axis=1), [], jnp.zeros((), matrix.dtype)
    for left in range(matrix.shape[0], 0, -1):
        pivot = jnp.maximum(rest[0, 0], 1.0)
        row = rest[0] * jax.lax.rsqrt(pivot)
        rows.append(row[left:])
        log_det = log_det + jnp.log(pivot)
        rest = rest[1:, 1:] - row[1:left, None] * row[None, 1:]
    return jnp.stack(rows), log_det


def _solve_half(
    matrix: Float[Array, "*k d d"], rhs: Float[Array, "*k d m"]
) -> tuple[Float[Array, "*k d m"], Float[Array, "*k"]]:
    tril = _cholesky(matrix)
    log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(tril, axis1=-2, axis2=-1)), axis=-1)
    return lapack_solve_lower(tril, rhs), log_det


def log_det_from_tril(tril: Float[AnyArray, "*k d d"]) -> Float[AnyArray, "*k"]:
    """Log det(L L'); NumPy arrays may have leading axes."""
    xp = numpy_of(tril)
    return 2.0 * xp.sum(xp.log(xp.diagonal(tril, axis1=-2, axis2=-1)), -1)


def eigh(matrix: Float[Array, "d d"]) -> Spectral:
    """Eigenvalues (in no particular order) and eigenvectors of a symmetric matrix."""
    d = matrix.shape[0]
    if d == 1:
        return Spectral(jnp.ones_like(matrix), matrix[0])
    if d <= MAX_UNROLLED:
        return _jacobi(matrix)
    return Spectral(*one_at_a_time(_eigh)(matrix))


def _eigh(matrix: Float[Array, "d d"]) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
    values, vectors = jnp.linalg.eigh(matrix)
    return vectors, values


def _jacobi(matrix: Float[Array, "d d"]) -> Spectral:
    """Cyclic Jacobi rotations, disjoint pairs at once, in Brent and Luk's round-robin order."""
    d = matrix.shape[0]
    even = d + d % 2  # an odd dimension gets a decoupled row and column of zeros
    a = jnp.pad(matrix, (0, even - d))
    v = jnp.eye(even, dtype=matrix.dtype)[:d]
    if d == 2:
        a, v = _rotate_pairs(a, v)
        return Spectral(v, diagonal(a))
    order = jnp.array(_round_robin(even))

    def step(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        a, v = _rotate_pairs(*state)
        return a[order][:, order], v[:, order]

    sweeps = 6 if matrix.dtype == jnp.float32 else 8
    a, v = jax.lax.fori_loop(0, sweeps * (even - 1), step, (a, v))
    # after whole sweeps every row is back where it started, so the padding is the last one
    return Spectral(v[:, :d], diagonal(a)[:d])


def _rotate_pairs(
    a: Float[Array, "n n"], v: Float[Array, "d n"]
) -> tuple[Float[Array, "n n"], Float[Array, "d n"]]:
    """Zero the entries (0, 1), (2, 3), ... of a symmetric matrix by plane rotations."""
    n = a.shape[0]
    flat = a.reshape(-1)
    p, q, r = (flat[start :: 2 * (n + 1)] for start in (0, n + 1, 1))
    gap, twice = q - p, 2.0 * r
    radius = jnp.abs(gap) + jnp.sqrt(gap**2 + twice**2)
    tan = jnp.where(gap < 0, -1.0, 1.0) * twice / jnp.where(radius > 0, radius, 1.0)
    cos = jax.lax.rsqrt(1.0 + tan**2)
    sin = tan * cos

    def rotate_columns(m: Float[Array, "k n"]) -> Float[Array, "k n"]:
        left, right = m[:, 0::2], m[:, 1::2]
        pair = (cos[None] * left - sin[None] * right, sin[None] * left + cos[None] * right)
        return jnp.stack(pair, axis=2).reshape(m.shape)

    return rotate_columns(rotate_columns(a).T), rotate_columns(v)


def _round_robin(n: int) -> list[int]:
    """Where each row comes from in the next step, so that in n - 1 steps all pairs have met."""
    top, bottom = list(range(0, n, 2)), list(range(1, n, 2))
    next_top = [top[0], bottom[0], *top[1:-1]]
    next_bottom = [*bottom[1:], top[-1]]
    return [row for pair in zip(next_top, next_bottom, strict=True) for row in pair]
