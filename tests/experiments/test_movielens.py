"""Completion of ratings against planted matrices and regressions done one at a time."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from experiments.movielens import (
    Ratings,
    balance,
    factorize,
    load_ratings,
    parse_movies,
    parse_ratings,
    regress,
)

Array = NDArray[np.float64]


def planted(
    num_users: int, num_movies: int, rank: int, noise_std: float, share: float
) -> tuple[Array, Ratings]:
    """A matrix of low rank, and noisy ratings of a random share of its entries."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((num_users, rank)) @ rng.standard_normal((rank, num_movies))
    users, movies = np.nonzero(rng.random(matrix.shape) < share)
    noise = noise_std * rng.standard_normal(len(users))
    return matrix, Ratings(users, movies, matrix[users, movies] + noise)


def test_lines_become_numbered_ratings() -> None:
    lines = b"10::7::5::978300760\n10::3000::1::978302109\n2::7::3::978301968\n"
    ratings = parse_ratings(lines)
    assert ratings.users.tolist() == [1, 1, 0]
    assert ratings.movies.tolist() == [0, 1, 0]
    assert ratings.values.tolist() == [5.0, 1.0, 3.0]


def test_lines_become_attributes_of_movies_by_number() -> None:
    lines = "1::Caf\xe9 (1995)::Drama\n7::Old (Later) (1965)::Comedy|Drama\n9::B (1980)::War\n"
    catalog = parse_movies(lines.encode("latin-1"), np.array([7, 1]))
    assert catalog.names == ("Comedy", "Drama", "War", "year", "year squared", "year cubed")
    expected = [[1, 1, 0, -1, 1, -1 / 3], [0, 1, 0, 1, 1, 1 / 3]]
    np.testing.assert_allclose(catalog.attributes, expected)


def test_planted_matrix_is_recovered_where_nothing_was_rated() -> None:
    matrix, ratings = planted(80, 60, rank=2, noise_std=0.0, share=0.5)
    # Taking off the mean of the ratings adds one to the rank.
    factors = factorize(ratings, rank=3, ridge=1e-9, num_sweeps=300)
    completed = factors.users @ factors.movies.T + np.mean(ratings.values)
    np.testing.assert_allclose(completed, matrix, atol=1e-5)
    assert factors.noise_std < 1e-5


def test_regressions_are_those_of_lstsq() -> None:
    _, ratings = planted(20, 15, rank=3, noise_std=1.0, share=0.6)
    values = ratings.values.copy()
    values[::7] = 0.0  # a rating that equals the mean is still a rating
    features, ridge = np.random.default_rng(1).standard_normal((15, 4)), 0.3
    rows = regress(sparse.csr_array((values, (ratings.users, ratings.movies))), features, ridge)
    for user in range(20):
        mine = ratings.users == user
        design = np.concatenate([features[ratings.movies[mine]], np.sqrt(ridge) * np.eye(4)])
        target = np.concatenate([values[mine], np.zeros(4)])
        np.testing.assert_allclose(rows[user], np.linalg.lstsq(design, target)[0], atol=1e-11)


def test_balance_keeps_the_product_and_evens_the_factors() -> None:
    rng = np.random.default_rng(2)
    users, movies = 5 * rng.standard_normal((30, 3)), 0.1 * rng.standard_normal((20, 3))
    even_users, even_movies = balance(users, movies)
    np.testing.assert_allclose(even_users @ even_movies.T, users @ movies.T, atol=1e-12)
    singular = np.linalg.svd(users @ movies.T, compute_uv=False)[:3]
    for factor in (even_users, even_movies):
        np.testing.assert_allclose(factor.T @ factor, np.diag(singular), atol=1e-10)


def objective(ratings: Ratings, users: Array, movies: Array, ridge: float) -> float:
    centered = ratings.values - np.mean(ratings.values)
    predicted = (users @ movies.T)[ratings.users, ratings.movies]
    penalty = ridge * (np.sum(users**2) + np.sum(movies**2))
    return float(np.sum((centered - predicted) ** 2) + penalty)


def test_result_minimizes_the_penalized_squares() -> None:
    _, ratings = planted(40, 30, rank=2, noise_std=0.5, share=0.6)
    users, movies, _ = factorize(ratings, rank=2, ridge=0.7, num_sweeps=300)
    rng, least = np.random.default_rng(3), objective(ratings, users, movies, 0.7)
    for _ in range(20):
        nudge = 1e-3 * rng.standard_normal(users.shape), 1e-3 * rng.standard_normal(movies.shape)
        assert objective(ratings, users + nudge[0], movies + nudge[1], 0.7) > least
    other = factorize(ratings, rank=2, ridge=0.7, num_sweeps=300, seed=1)
    np.testing.assert_allclose(other.users @ other.movies.T, users @ movies.T, atol=1e-6)


def test_noise_is_the_planted_one() -> None:
    _, ratings = planted(300, 200, rank=2, noise_std=0.5, share=0.4)
    noise_std = factorize(ratings, rank=3, ridge=1e-3).noise_std
    standard_error = 0.5 / np.sqrt(2 * len(ratings.values))
    assert abs(noise_std - 0.5) < 5 * standard_error


def test_more_parameters_than_ratings_raise() -> None:
    _, ratings = planted(10, 8, rank=1, noise_std=0.1, share=0.5)
    with pytest.raises(ValueError, match="`rank`: expected fewer parameters than the"):
        factorize(ratings, rank=5)


def test_other_files_of_the_name_raise(tmp_path: Path) -> None:
    (tmp_path / "ml-1m").mkdir()
    (tmp_path / "ml-1m" / "ml-1m.zip").write_bytes(b"other")
    with pytest.raises(ValueError, match="ml-1m.zip with SHA-256 a6898adb"):
        load_ratings(tmp_path)


def test_missing_data_names_the_official_address(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="https://files.grouplens.org/.*ml-1m.zip"):
        load_ratings(tmp_path)
