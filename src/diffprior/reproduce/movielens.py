"""MovieLens 1M, Section 6.3: movies are tasks, users are actions."""

from pathlib import Path

import numpy as np

from ..files.cache import ResultCache
from ..problems.movielens import factorize, load_ratings
from .data import Data

PAPER_NOISE = 0.75  # of ratings


def movielens_data(
    cache: ResultCache,
    folder: str | Path | None = None,
    *,
    noise_std: float | None = PAPER_NOISE,
    seed: int = 0,
    download: bool = False,
) -> Data:
    """Movies as parameters and users as actions; without `noise_std` that of the ratings."""

    def compute() -> dict[str, np.ndarray]:
        factors = factorize(load_ratings(folder, download=download), seed=seed)
        return {
            "movies": factors.movies,
            "users": factors.users,
            "noise_std": np.array(factors.noise_std),
        }

    found = cache.arrays("factors, movielens", {"seed": seed}, compute)
    movies, users, estimated = found["movies"], found["users"], float(found["noise_std"])
    noise = estimated if noise_std is None else noise_std
    facts = {
        "movies": f"{len(movies):,}, all of them training samples",
        "users": f"{len(users):,}",
        "noise of linear rewards": f"{noise:.3f}; residuals of the ratings have {estimated:.3f}",
    }
    introduction = _INTRODUCTION.format(noise=noise, estimated=estimated)
    return Data("movielens", "MovieLens 1M", introduction, movies, users, noise, facts)


_INTRODUCTION = (
    "A random movie of MovieLens 1M is to be recommended to one of ten random users each round. "
    "Ratings less their mean are completed at rank 5; movies are the parameters of past tasks, and "
    "users the features of actions. Linear rewards have noise of standard deviation {noise:.2f}: "
    "the paper states 0.75, while our residuals have {estimated:.2f} (`--noise estimated` takes "
    "that)."
)
