"""The linear posterior in exact rational arithmetic, where floating-point oracles give out."""

from fractions import Fraction

from numpy.typing import ArrayLike, NDArray

Matrix = list[list[Fraction]]


def exact(array: NDArray) -> Matrix:
    """A floating-point matrix, or vector as one column, without rounding."""
    rows = array if array.ndim == 2 else array[:, None]
    return [[Fraction(float(x)) for x in row] for row in rows]


def transpose(a: Matrix) -> Matrix:
    """The transposed matrix."""
    return [list(column) for column in zip(*a, strict=True)]


def times(a: Matrix, b: Matrix) -> Matrix:
    """The matrix product."""
    columns = transpose(b)
    return [[sum(map(Fraction.__mul__, row, c), Fraction(0)) for c in columns] for row in a]


def plus(a: Matrix, b: Matrix, factor: Fraction = Fraction(1)) -> Matrix:
    """a + factor b."""
    pairs = zip(a, b, strict=True)
    return [[x + factor * y for x, y in zip(r, s, strict=True)] for r, s in pairs]


def inverse(a: Matrix) -> Matrix:
    """The inverse of a positive definite matrix, by Gauss and Jordan."""
    n = len(a)
    rows = [row + [Fraction(int(i == j)) for j in range(n)] for i, row in enumerate(a)]
    for k in range(n):
        rows[k] = [x / rows[k][k] for x in rows[k]]
        for i in range(n):
            if i != k:
                rows[i] = [x - rows[i][k] * y for x, y in zip(rows[i], rows[k], strict=True)]
    return [row[n:] for row in rows]


def linear_posterior_error(
    mean: NDArray,
    prior: tuple[NDArray, NDArray],
    rows: tuple[NDArray, NDArray],
    variance: ArrayLike,
) -> float:
    """How far `mean` is from that of Eq. (3), in posterior standard deviations."""
    weight = 1 / Fraction(float(variance))
    features, prior_precision = exact(rows[0]), inverse(exact(prior[1]))
    back = transpose(features)
    precision = plus(prior_precision, times(back, features), weight)
    shift = plus(times(prior_precision, exact(prior[0])), times(back, exact(rows[1])), weight)
    error = plus(exact(mean), times(inverse(precision), shift), Fraction(-1))
    return float(times(transpose(error), times(precision, error))[0][0]) ** 0.5
