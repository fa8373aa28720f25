"""What is odd about samples is said by name; what is not odd is not."""

import jax
import numpy as np
import pytest

import diffprior as dp
from diffprior.priors.screening import screen_samples

RNG = np.random.default_rng(0)
SAMPLES = RNG.standard_normal((300, 2))


def notes(samples: np.ndarray) -> str:
    """All warnings in one text; each is raised as such."""
    with pytest.warns(dp.FitWarning, match="^`samples`: "):
        found = screen_samples(samples)
    return "; ".join(found)


@pytest.mark.parametrize("rows", [[17], [3, 250, 299]])
def test_rows_far_from_the_others_are_named(rows: list[int]) -> None:
    samples = SAMPLES.copy()
    samples[rows, 1] = 1e6
    text = notes(samples)
    assert f"rows {rows} (counted from 0)" in text and "parameters [1]" in text
    assert "drop or repair" in text and "1e+06 standard deviations" in text


def test_many_rows_are_not_all_listed() -> None:
    samples = np.random.default_rng(1).standard_normal((1000, 1))
    samples[100:112] = 1e9
    assert "rows [100, 101, 102, 103, 104] and 7 more" in notes(samples)


@pytest.mark.parametrize(
    "samples",
    [
        SAMPLES,
        SAMPLES * 1e-18,
        np.where(RNG.random((300, 1)) < 0.1, 50.0, 0.0) + SAMPLES,  # a small far mode
        RNG.standard_t(3, (300, 2)),
        np.where(RNG.random((300, 2)) < 0.1, 1.0, 0.0) + 1e-3 * SAMPLES,  # rare events
        SAMPLES * np.array([1.0, 1e-9]),
    ],
    ids=["normal", "tiny", "modes", "heavy-tails", "rare", "units"],
)
def test_ordinary_samples_pass_without_a_word(samples: np.ndarray) -> None:
    assert screen_samples(samples) == ()


@pytest.mark.float32
def test_a_spread_that_the_precision_cannot_hold_is_said() -> None:
    double = jax.config.read("jax_enable_x64")
    about = 1e8 if not double else 1e17
    samples = np.concatenate([SAMPLES, about + 64 * SAMPLES[:, :1] ** 2 * (8 if double else 1)], 1)
    text = notes(samples)
    assert "parameters [2] vary too little about a large value" in text
    assert ("double" if double else "single") + " precision" in text
    assert "subtract a constant" in text and ("jax_enable_x64" in text) != double
    if double:
        assert screen_samples(SAMPLES + 1e8) == ()


@pytest.mark.float32
def test_variances_beyond_the_precision_are_said() -> None:
    tiny = 1e-25 if not jax.config.read("jax_enable_x64") else 1e-160
    assert "variances of parameters [0, 1] are beyond" in notes(SAMPLES * tiny)
