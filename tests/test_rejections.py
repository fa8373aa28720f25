"""Wrong arguments of the public interface: messages name argument, expectation, value and fix."""

import re
from collections.abc import Callable

import jax
import numpy as np
import pytest

import diffprior as dp

KEY = jax.random.key(0)
EYE, ONES, NAN = np.eye(2), np.ones((3, 2)), np.full((3, 2), np.nan)
HUGE = np.array([[0, 0], [10, 0], [10, 1.0]])  # times 1e307, sums overflow
COVS = np.stack([EYE, EYE])


def gaussian() -> dp.GaussianPrior:
    return dp.GaussianPrior(np.zeros(2), EYE)


def linear() -> dp.LinearEvidence:
    return dp.Linear(1.0).observe(dim=2)


# What is called, the argument at fault, part of what is expected, part of what came.
REJECTED: dict[str, tuple[Callable[[], object], str, str, str]] = {
    "noise negative": (lambda: dp.Linear(-1), "noise_std", "positive", "-1"),
    "noise zero": (lambda: dp.Identity(0.0), "noise_std", "positive", "0"),
    "noise nan": (lambda: dp.Linear(np.nan), "noise_std", "finite", "NaN"),
    "noise vector": (lambda: dp.Linear([1.0, 2.0]), "noise_std", "shape ()", "(2,)"),
    "noise words": (lambda: dp.Linear("loud"), "noise_std", "real numbers", "'loud'"),
    "update with an action": (
        lambda: dp.Bandit(gaussian(), dp.Linear(1.0)).update(1, 1.0),
        "features",
        "shape (2,)",
        "()",
    ),
    "observe nothing": (lambda: dp.Linear(1.0).observe(), "observe", "dim=", "neither"),
    "observe no rewards": (lambda: dp.Linear(1.0).observe(ONES), "rewards", "array", "None"),
    "observe no features": (
        lambda: dp.Linear(1.0).observe(rewards=[1.0]),
        "features",
        "array",
        "None",
    ),
    "observe a vector": (
        lambda: dp.Logistic().observe([1.0, 2.0], [1]),
        "features",
        "(N, d)",
        "(2,)",
    ),
    "observe no columns": (
        lambda: dp.Linear(1.0).observe(np.ones((3, 0)), np.ones(3)),
        "features",
        "(N, d)",
        "(3, 0)",
    ),
    "observe another dim": (
        lambda: dp.Linear(1.0).observe(ONES, np.ones(3), dim=4),
        "features",
        "(N, 4)",
        "(3, 2)",
    ),
    "observe dim zero": (lambda: dp.Poisson().observe(dim=0), "dim", "positive integer", "0"),
    "empty dim negative": (lambda: dp.Logistic().empty(-5), "dim", "positive integer", "-5"),
    "empty dim zero": (lambda: dp.Linear(1.0).empty(0), "dim", "positive integer", "0"),
    "cosine floor": (lambda: dp.Schedule.cosine(floor=2.0), "floor", "in (0, 1)", "2.0"),
    "features nan": (lambda: dp.Linear(1).observe(NAN, np.ones(3)), "features", "finite", "6 NaN"),
    "features ragged": (
        lambda: dp.Linear(1.0).observe([[1.0], [1.0, 2.0]], [1, 2]),
        "features",
        "array",
        "ragged",
    ),
    "rewards too few": (lambda: dp.Linear(1.0).observe(ONES, [1.0]), "rewards", "(3,)", "(1,)"),
    "rewards infinite": (
        lambda: dp.Linear(1.0).observe(ONES, [1, 2, np.inf]),
        "rewards",
        "finite",
        "1 NaN",
    ),
    "clicks": (lambda: dp.Logistic().observe(ONES, [0, 1, 2]), "rewards", "0 or 1", "2"),
    "counts": (lambda: dp.Poisson().observe(ONES, [0, 1, -1]), "rewards", "counts", "-1"),
    "half counts": (lambda: dp.Poisson().observe(ONES, [0, 1, 0.5]), "rewards", "counts", "0.5"),
    "weights negative": (
        lambda: dp.Linear(1.0).observe(ONES, np.ones(3), weights=[1, -2, 1]),
        "weights",
        "no negative",
        "-2",
    ),
    "weights too few": (
        lambda: dp.Linear(1.0).observe(ONES, np.ones(3), weights=[1]),
        "weights",
        "(3,)",
        "(1,)",
    ),
    "append a batch": (lambda: linear().append(np.ones((1, 2)), 1), "phi", "(2,)", "(1, 2)"),
    "append two rewards": (lambda: linear().append(np.ones(2), [1, 1]), "y", "shape ()", "(2,)"),
    "extend other columns": (
        lambda: linear().extend(np.ones((1, 3)), [1]),
        "features",
        "(n, 2)",
        "(1, 3)",
    ),
    "temperature": (lambda: linear().temper(0.0), "temperature", "positive", "0"),
    "mean of two axes": (lambda: dp.GaussianPrior(EYE, EYE), "mean", "(d,)", "(2, 2)"),
    "cov of other size": (lambda: dp.GaussianPrior([0.0], EYE), "cov", "(1, 1)", "(2, 2)"),
    "cov singular": (
        lambda: dp.GaussianPrior([0, 0], np.ones((2, 2))),
        "cov",
        "positive definite",
        "0",
    ),
    "covs negative": (
        lambda: dp.MixturePrior([1, 1], EYE, -COVS),
        "covs",
        "positive definite",
        "-1",
    ),
    "mixture weights": (
        lambda: dp.MixturePrior([1, -1], EYE, COVS),
        "weights",
        "non-negative",
        "-1",
    ),
    "mixture weights zero": (
        lambda: dp.MixturePrior([0, 0], EYE, COVS),
        "weights",
        "not all zero",
        "0",
    ),
    "atoms none": (lambda: dp.EmpiricalPrior(np.zeros((0, 2))), "atoms", "one row", "(0, 2)"),
    "atom weights": (lambda: dp.EmpiricalPrior(EYE, [1, -1]), "weights", "non-negative", "-1"),
    "samples none": (lambda: dp.GaussianPrior.fit(np.zeros((0, 2))), "samples", "row", "(0, 2)"),
    "samples nan": (lambda: dp.EmpiricalPrior.fit(NAN), "samples", "finite", "6 NaN"),
    "samples too few": (lambda: dp.MixturePrior.fit(EYE, 3), "samples", "3 rows", "2"),
    "samples a vector": (lambda: dp.GaussianPrior.fit(np.ones(3)), "samples", "(n, d)", "(3,)"),
    "samples ragged": (lambda: dp.GaussianPrior.fit([[1], [1, 2]]), "samples", "array", "ragged"),
    "samples constant": (lambda: dp.MixturePrior.fit(ONES), "samples", "vary", "constant"),
    "samples degenerate": (lambda: dp.GaussianPrior.fit(ONES), "samples", "", ""),
    "samples huge": (lambda: dp.GaussianPrior.fit(1e307 * HUGE), "samples", "finite", "1e+308"),
    "temperature tiny": (
        lambda: dp.Exact(gaussian(), temperature=5e-321),
        "temperature",
        "at least",
        "e-321",
    ),
    "components": (lambda: dp.MixturePrior.fit(EYE, 0), "num_components", "positive", "0"),
    "denoise precision": (
        lambda: gaussian().denoise(np.eye(3), np.zeros(3)),
        "precision",
        "(2, 2)",
        "(3, 3)",
    ),
    "denoise shift": (lambda: gaussian().denoise(EYE, np.zeros(3)), "shift", "(2,)", "(3,)"),
    "sample none": (lambda: gaussian().sample(KEY, 0), "num_samples", "positive integer", "0"),
    "sampler temperature": (
        lambda: dp.Exact(gaussian(), temperature=-1.0),
        "temperature",
        "positive",
        "-1",
    ),
    "sampler draws": (
        lambda: dp.Exact(gaussian()).sample_many(KEY, linear(), 0),
        "num_samples",
        "positive",
        "0",
    ),
    "stages": (lambda: dp.Schedule.cosine(0), "num_stages", "positive integer", "0"),
    "alpha": (lambda: dp.Schedule.constant(10, alpha=1.5), "alpha", "(0, 1)", "1.5"),
    "log snr": (lambda: dp.Schedule.log_snr(10, -1.0, 1.0), "highest", "more than", "-1"),
    "stride": (lambda: dp.Schedule.cosine(10).stride(11), "steps", "at most", "11"),
    "alpha_bar start": (lambda: dp.Schedule((0.5, 0.1)), "alpha_bar", "(1, ", "0.5"),
    "alpha_bar rising": (lambda: dp.Schedule((1.0, 0.5, 0.6)), "alpha_bar", "decreasing", "0.6"),
    "alpha_bar zero": (lambda: dp.Schedule((1.0, 0.0)), "alpha_bar", "positive", "0.0"),
}


def test_messages() -> None:
    for name, (call, argument, expected, got) in REJECTED.items():
        pattern = rf"^`{argument}`: expected .*{re.escape(expected)}.*got .*{re.escape(got)}.*; .+"
        try:
            call()
        except ValueError as error:
            assert re.search(pattern, str(error), re.DOTALL), f"{name}: {error}"
        else:
            pytest.fail(f"{name}: nothing was raised")


def test_a_misspelled_name_is_answered_with_the_right_one() -> None:
    with pytest.raises(AttributeError, match="did you mean 'DiffusionPrior'"):
        _ = dp.Diffusionprior  # type: ignore[attr-defined]


def test_keys_are_checked() -> None:
    """By the package itself: the type checker of the tests, which would come first, is left out."""
    sample = dp.GaussianPrior.sample.__wrapped__  # type: ignore[attr-defined]
    draw = dp.Exact.sample_many.__wrapped__  # type: ignore[attr-defined]
    for key, shown in {7: "got 7; pass jax.random.key(7)", "a": "got 'a'", 0.5: "got 0.5"}.items():
        with pytest.raises(
            ValueError, match=re.escape(f"`key`: expected a random key of JAX, {shown}")
        ):
            sample(gaussian(), key, 3)
        with pytest.raises(ValueError, match=re.escape(shown)):
            draw(dp.Exact(gaussian()), key, linear(), 3)
    with pytest.raises(ValueError, match=r"got shape \(2,\)"):
        sample(gaussian(), jax.random.split(KEY), 3)
    old = sample(gaussian(), jax.random.PRNGKey(0), 3)
    np.testing.assert_array_equal(old, gaussian().sample(KEY, 3))
