"""The term after Laplace's approximation, which says how far off it may be."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special


def next_terms(features: ArrayLike, mode: ArrayLike, cov: ArrayLike) -> NDArray[np.float64]:
    """Term that the next order of the expansion adds to the log evidence of a logistic model.

    With A = X cov X' and b the log partition, the expansion of the log integral of exp(-psi) at its
    mode (Tierney and Kadane, 1986) adds the three terms

        - 1/8 sum_i b4_i A_ii^2,  1/8 sum_ij b3_i b3_j A_ii A_ij A_jj,  1/12 sum_ij b3_i b3_j A_ij^3
    """
    features, cov = np.asarray(features), np.asarray(cov)
    mean = special.expit(features @ np.asarray(mode))
    variance = mean * (1 - mean)
    third = variance * (1 - 2 * mean)
    fourth = variance * (1 - 6 * variance)
    a = features @ cov @ features.T
    diagonal = np.diagonal(a)
    quartic = -np.sum(fourth * diagonal**2) / 8
    cubic = (third * diagonal) @ a @ (third * diagonal) / 8, third @ a**3 @ third / 12
    return np.array([quartic, *cubic])
