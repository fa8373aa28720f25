"""MovieLens 1M, Section 6.3: ratings completed at low rank; movies are tasks, users are actions.

`python -m experiments.movielens --data FOLDER`
"""

import io
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy import sparse

from diffprior.checks import positive, positive_int

from .data import Data, Measures, data_effort, run_data
from .datasets import data_file, read_data
from .results import Folder, Quick, Results, Runs, Seed, command

RATINGS, MOVIES = (
    data_file(
        "ml-1m",
        "https://files.grouplens.org/datasets/movielens/ml-1m.zip",
        "ml-1m.zip",
        name,
        member=f"ml-1m/{name}",
    )
    for name in ("ratings.dat", "movies.dat")
)
RIDGE = 1.0
NUM_SWEEPS = 50


class Ratings(NamedTuple):
    """Who rated what and how, each pair once; users and movies are numbered from zero."""

    users: Int[np.ndarray, " n"]
    movies: Int[np.ndarray, " n"]
    values: Float[np.ndarray, " n"]


class Catalog(NamedTuple):
    """Attributes of each movie: indicators of genres, and the year of release with its powers,
    in units of 15 years from 1980.
    """

    names: tuple[str, ...]
    attributes: Float[np.ndarray, "m a"]


class Factors(NamedTuple):
    """Embeddings whose inner products are the ratings less their mean, up to noise."""

    users: Float[np.ndarray, "i d"]
    movies: Float[np.ndarray, "j d"]
    noise_std: float


def load_ratings(folder: str | Path | None) -> Ratings:
    """The ratings of MovieLens 1M (Harper and Konstan, 2015): for research, not to be passed on."""
    return parse_ratings(read_data(RATINGS, folder))


def load_catalog(folder: str | Path | None) -> tuple[Ratings, Catalog]:
    """The ratings, and what is known of the movies that were rated."""
    data = read_data(RATINGS, folder)
    numbers = np.unique(_columns(data)[:, 1])
    return parse_ratings(data), parse_movies(read_data(MOVIES, folder), numbers)


def parse_ratings(data: bytes) -> Ratings:
    """Ratings from lines of the form user::movie::rating::time."""
    table = _columns(data)
    users, movies = (np.unique(table[:, i], return_inverse=True)[1] for i in (0, 1))
    return Ratings(users, movies, table[:, 2].astype(float))


def _columns(data: bytes) -> Int[np.ndarray, "n 3"]:
    lines = io.BytesIO(data.replace(b"::", b" "))
    return np.loadtxt(lines, dtype=np.int64, usecols=(0, 1, 2), ndmin=2)


def parse_movies(data: bytes, numbers: Int[np.ndarray, " m"]) -> Catalog:
    """Movies of these numbers from lines of the form movie::title (year)::genre|genre."""
    lines = (line.split("::") for line in data.decode("latin-1").splitlines())
    known = {int(movie): (int(title[-5:-1]), kinds.split("|")) for movie, title, kinds in lines}
    genres = sorted({genre for _, kinds in known.values() for genre in kinds})
    found = [known[number] for number in numbers.tolist()]
    has = np.array([[genre in kinds for genre in genres] for _, kinds in found], float)
    age = (np.array([year for year, _ in found]) - 1980) / 15
    attributes = np.column_stack([has, age, age**2, age**3 / 3])
    return Catalog((*genres, "year", "year squared", "year cubed"), attributes)


def factorize(
    ratings: Ratings,
    rank: int = 5,
    *,
    ridge: float = RIDGE,
    num_sweeps: int = NUM_SWEEPS,
    seed: int = 0,
) -> Factors:
    """Complete the ratings less their mean by alternating least squares, users first.

    The noise is that of the residuals, with a degree of freedom off for every parameter.

    Deviation: Section 6.3 states neither penalty nor scale. A ridge of 1 is the prior N(0, I) of
    its baseline for noise of 1, and leaves both factors on one scale. The residuals of MovieLens 1M
    then have a standard deviation of 0.83, not 0.75.
    """
    rank, num_sweeps = positive_int("rank", rank), positive_int("num_sweeps", num_sweeps)
    centered = ratings.values - np.mean(ratings.values)
    by_user = sparse.csr_array((centered, (ratings.users, ratings.movies)))
    by_movie = by_user.T.tocsr()
    freedom = by_user.nnz - rank * (sum(by_user.shape) - rank)
    if freedom <= 0:
        raise ValueError(
            f"`rank`: expected fewer parameters than the {by_user.nnz} ratings, got rank {rank} "
            f"for shape {by_user.shape}; lower it"
        )
    movies = np.random.default_rng(seed).standard_normal((by_movie.shape[0], rank))
    for _ in range(num_sweeps):
        users = regress(by_user, movies, ridge)
        movies = regress(by_movie, users, ridge)
        users, movies = balance(users, movies)
    residuals = centered - np.sum(users[ratings.users] * movies[ratings.movies], axis=1)
    return Factors(users, movies, float(np.sqrt(np.sum(residuals**2) / freedom)))


def regress(
    ratings: sparse.csr_array, features: Float[np.ndarray, "m d"], ridge: ArrayLike
) -> Float[np.ndarray, "n d"]:
    """A ridge regression of each row's ratings on the features of what it rated, all at once.

    The penalty may be one for each feature.
    """
    rank = features.shape[1]
    rated = (np.ones_like(ratings.data), ratings.indices, ratings.indptr)
    squares = (features[:, :, None] * features[:, None, :]).reshape(-1, rank * rank)
    gram = (sparse.csr_array(rated, ratings.shape) @ squares).reshape(-1, rank, rank)
    shift = (ratings @ features)[:, :, None]
    return np.linalg.solve(gram + np.asarray(ridge) * np.eye(rank), shift)[:, :, 0]


def balance(
    users: Float[np.ndarray, "i d"], movies: Float[np.ndarray, "j d"]
) -> tuple[Float[np.ndarray, "i d"], Float[np.ndarray, "j d"]]:
    """The factors of the same product on principal axes, with equal sums of squares on each.

    Products leave scale and rotation open; of all choices this one has the least penalty, and
    alternating regressions would take long to reach it.
    """
    (q_users, r_users), (q_movies, r_movies) = np.linalg.qr(users), np.linalg.qr(movies)
    left, singular, right = np.linalg.svd(r_users @ r_movies.T)
    return q_users @ left * np.sqrt(singular), q_movies @ right.T * np.sqrt(singular)


PAPER_NOISE = 0.75  # of ratings


def movielens_data(
    results: Results,
    folder: str | Path | None,
    *,
    noise_std: float | None = PAPER_NOISE,
    seed: int = 0,
) -> Data:
    """Movies as parameters and users as actions; without `noise_std` that of the ratings."""

    def compute() -> dict[str, np.ndarray]:
        factors = factorize(load_ratings(folder), seed=seed)
        return {
            "movies": factors.movies,
            "users": factors.users,
            "noise_std": np.array(factors.noise_std),
        }

    found = results.arrays("factors, movielens", {"seed": seed}, compute)
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


def noise_of(text: str) -> float | None:
    """A standard deviation, or None where it is to be estimated."""
    if text == "estimated":
        return None
    try:
        number = float(text)
    except ValueError:
        raise ValueError(
            f"`noise`: expected a number or estimated, got {text!r}; pass one of those"
        ) from None
    return float(positive("noise", number, "pass a standard deviation"))


def run_movielens(
    results: Results,
    *,
    data: Folder = None,
    noise: Annotated[
        str, typer.Option(help="Of linear rewards, or `estimated` from the ratings.")
    ] = str(PAPER_NOISE),
    runs: Runs = None,
    quick: Quick = False,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Regret on MovieLens 1M, and the gain of a diffusion prior there (Section 6.3)."""
    found = movielens_data(results, data, noise_std=noise_of(noise), seed=seed)
    effort, measures = data_effort(runs, quick), Measures.of(quick)
    return run_data(results, found, effort=effort, measures=measures, seed=seed)


if __name__ == "__main__":
    typer.run(command(run_movielens))
