"""A look at the samples that a prior is to be fitted to: what is odd about them is said."""

import warnings

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .report import FitWarning
from .whitening import constant_columns

FAR = 20.0  # standard deviations of the other rows
NAMED = 5  # rows or parameters that a message lists


def screen_samples(samples: Float[np.ndarray, "n d"]) -> tuple[str, ...]:
    """Warnings, also raised as such: samples that are too few, repeated, constant, of deficient
    rank, dominated by a few rows, or beyond the precision that draws are made in."""
    found = [*_repeated(samples), *_degenerate(samples), *_outlying(samples), *_too_fine(samples)]
    for message in found:
        warnings.warn(f"`samples`: {message}", FitWarning, stacklevel=4)
    return tuple(found)


def _repeated(samples: Float[np.ndarray, "n d"]) -> list[str]:
    n, found = len(samples), []
    if n < 200:
        found.append(f"{n} samples are few; below 200 a Gaussian prior often does as well")
    distinct = len(np.unique(samples, axis=0))
    if distinct < 0.9 * n:
        found.append(f"only {distinct} of {n} samples are distinct; repeated tasks are counted so")
    return found


def _degenerate(samples: Float[np.ndarray, "n d"]) -> list[str]:
    constant, found = constant_columns(samples), []
    if np.any(constant):
        listed = np.flatnonzero(constant).tolist()
        found.append(f"parameters {listed} are constant; the prior keeps them so")
    varying = samples[:, ~constant]
    if varying.shape[1]:
        standard = (varying - varying.mean(axis=0)) / varying.std(axis=0)
        singular = np.linalg.svd(standard, compute_uv=False)
        rank = int(np.sum(singular > 1e-6 * singular[0]))
        if rank < varying.shape[1]:
            found.append(f"the varying parameters have rank {rank} of {varying.shape[1]}")
    return found


def _outlying(samples: Float[np.ndarray, "n d"]) -> list[str]:
    """A few rows, at most a fiftieth, that hold more than half of a parameter's variance."""
    most = max(3, len(samples) // 50)
    distance = np.abs(samples - np.median(samples, axis=0))
    near = np.sort(distance, axis=0)[:-most]
    spread = np.sqrt(np.mean(near**2, axis=0))
    far = (distance > FAR * spread) & (spread > 0)
    share = np.sum(np.where(far, distance, 0.0) ** 2, axis=0)
    far &= share > 0.5 * np.sum(distance**2, axis=0)
    rows, columns = (np.flatnonzero(np.any(far, axis=axis)) for axis in (1, 0))
    if not len(rows):
        return []
    largest = np.max(np.where(far, distance / np.where(spread > 0, spread, 1.0), 0.0))
    return [
        f"rows {_listed(rows)} (counted from 0) lie up to {largest:.2g} standard deviations of the "
        f"others away in parameters {_listed(columns)} and make most of their variance; drop or "
        "repair them unless tasks like these will come again"
    ]


def _too_fine(samples: Float[np.ndarray, "n d"]) -> list[str]:
    """Parameters whose variation is lost in the precision that draws are made in."""
    finfo = jnp.finfo(jnp.result_type(float))
    stds, size = samples.std(axis=0), np.max(np.abs(samples), axis=0)
    varies = ~constant_columns(samples)
    lost = varies & (stds < 100 * float(finfo.eps) * size)
    smallest, largest = float(finfo.tiny) ** 0.5, float(finfo.max) ** 0.5
    beyond = varies & ((stds < 4 * smallest) | (stds > largest / 4))
    name = "single" if finfo.bits == 32 else "double"
    fix = " or set jax_enable_x64" if finfo.bits == 32 else ""
    found = []
    if np.any(lost):
        found.append(
            f"parameters {_listed(np.flatnonzero(lost))} vary too little about a large value for "
            f"{name} precision to hold (by {np.min(stds[lost]):.2g} about "
            f"{np.max(size[lost]):.2g}); subtract a constant from them{fix}"
        )
    if np.any(beyond):
        found.append(
            f"the variances of parameters {_listed(np.flatnonzero(beyond))} are beyond {name} "
            f"precision; change their units{fix}"
        )
    return found


def _listed(numbers: np.ndarray) -> str:
    more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
    return f"{numbers[:NAMED].tolist()}{more}"
