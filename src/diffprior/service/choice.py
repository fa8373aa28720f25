"""From draws to a decision, on the host: which action, how often it would be chosen again."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from ..bandits.requests import propensity


@dataclass(frozen=True)
class Chosen:
    """Actions, best first; the one taken, its propensity, and its linear predictor in each draw."""

    ranking: Int[np.ndarray, " k"]
    taken: int
    propensity: float | None
    propensity_se: float | None
    predictors: Float[np.ndarray, " m"]


def choose(
    features: Float[np.ndarray, "k d"],
    mask: Bool[np.ndarray, " k"] | None,
    top_k: int | None,
    taken: int | None,
    theta: Float[np.ndarray, " d"],
    others: Float[np.ndarray, "m d"],
    shuffle: np.random.Generator | None,
) -> Chosen:
    """Thompson sampling with one draw: Algorithm 3, line 4.

    Args:
        features: One row for each action.
        mask: Which actions are allowed; all if None.
        top_k: How many actions the caller shows; one if None.
        taken: The action that the caller has taken, in shadow mode.
        theta: The draw that decides.
        others: Independent draws, for the propensity.
        shuffle: Orders the actions at random instead, where the draw has failed.
    """
    dtype = theta.dtype
    local = features.astype(dtype)
    index = local @ theta if shuffle is None else shuffle.random(len(features)).astype(dtype)
    ranking = _best_first(index, mask)[: top_k or 1]
    taken = int(ranking[0]) if taken is None else taken
    row = local[taken]
    predictors = others @ row if len(others) else (theta @ row)[None]
    if shuffle is not None:
        share = (top_k or 1) / int(np.sum(mask) if mask is not None else len(features))
        return Chosen(ranking, taken, share, 0.0, predictors)
    if not len(others):
        return Chosen(ranking, taken, None, None, predictors)
    hits = _count_hits(local @ others.T, mask, top_k or 1, taken)
    shares, errors = propensity(np.asarray([[hits]]), len(others))
    return Chosen(ranking, taken, float(shares[0, 0]), float(errors[0, 0]), predictors)


def _best_first(
    index: Float[np.ndarray, " k"], mask: Bool[np.ndarray, " k"] | None
) -> Int[np.ndarray, " k"]:
    allowed = index if mask is None else np.where(mask, index, -np.inf)
    return np.argsort(-allowed, kind="stable")


def _count_hits(
    index: Float[np.ndarray, "k m"], mask: Bool[np.ndarray, " k"] | None, top_k: int, taken: int
) -> int:
    """In how many columns `taken` is among the best `top_k`; ties go to the earlier action."""
    allowed = index if mask is None else np.where(mask[:, None], index, -np.inf)
    own = allowed[taken]
    above = np.sum(allowed > own[None], axis=0) + np.sum(allowed[:taken] == own[None], axis=0)
    return int(np.sum((above < top_k) & np.isfinite(own)))
