"""Whether features can be told apart: an intercept, constant columns, collinear ones."""

import numpy as np
from jaxtyping import Float

INTERCEPT = "intercept"
SINGULAR = 1e-12  # smallest eigenvalue of the scaled Gram matrix, relative to the largest


def with_intercept(
    features: Float[np.ndarray, "n d"], names: tuple[str, ...]
) -> tuple[Float[np.ndarray, "n e"], tuple[str, ...]]:
    """Features with a column of ones before them."""
    return np.column_stack([np.ones(len(features)), features]), (INTERCEPT, *names)


def check_design(features: Float[np.ndarray, "n d"], names: tuple[str, ...]) -> None:
    """Refuse constant and collinear features, by name. One column of ones is an intercept."""
    if len(names) != features.shape[1]:
        raise ValueError(
            f"`feature_names`: expected {features.shape[1]} names, got {len(names)}; "
            "pass one for each column of `features`"
        )
    if len(features) > 1:
        check_varying(features.min(axis=0), features.max(axis=0), names)
    with np.errstate(over="ignore", invalid="ignore"):
        gram = features.T @ features
    if not np.all(np.isfinite(gram)):
        raise ValueError(
            f"`features`: expected numbers whose squares can be summed, got up to "
            f"{np.max(np.abs(features)):.3g}; rescale them"
        )
    check_gram(gram, names, len(features))


def check_varying(
    low: Float[np.ndarray, " d"], high: Float[np.ndarray, " d"], names: tuple[str, ...]
) -> None:
    """Refuse constant features, by name, from the least and greatest value of each."""
    both = zip(names, low, high, strict=True)
    wrong = [name for name, least, most in both if least == most and least != 1]
    if wrong:
        raise ValueError(
            f"`features`: expected features that vary, got constant {', '.join(wrong)}; "
            "drop them, and ask for intercept=True if a constant is wanted"
        )


def check_gram(gram: Float[np.ndarray, "d d"], names: tuple[str, ...], num_rows: int) -> None:
    """Refuse features whose matrix of summed products is singular, naming those involved."""
    lengths = np.sqrt(np.diagonal(gram))
    if not np.all(lengths > 0):
        zero = ", ".join(n for n, length in zip(names, lengths, strict=True) if not length > 0)
        raise ValueError(
            f"`features`: expected features that vary, got {zero}, always 0; drop them"
        )
    if num_rows < len(names):
        return
    values, vectors = np.linalg.eigh(gram / np.outer(lengths, lengths))
    if values[0] < SINGULAR * values[-1]:
        shares = np.abs(vectors[:, 0])
        involved = [n for n, share in zip(names, shares, strict=True) if share > 0.05]
        raise ValueError(
            f"`features`: expected independent features, got collinear {', '.join(involved)}; "
            "drop one of them (of one-hot columns beside an intercept, one is always too many)"
        )
