"""Input validation: what passes, and messages that name the argument, the value and the fix."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import diffprior as dp
from diffprior import checks


@pytest.mark.parametrize(
    "value", [[1, 2], (1.0, 2.0), np.arange(1, 3), jnp.arange(1, 3), [True, 2]]
)
def test_numbers_of_all_kinds_become_floats(value: object) -> None:
    array = checks.real_array("x", value, ("n",))
    assert isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jnp.floating)
    assert_array_equal(array, [1.0, 2.0])


def test_tracers_pass_with_their_shape_checked() -> None:
    traced = jax.jit(lambda x: checks.real_array("x", x, (2,)))
    assert_array_equal(traced(jnp.array([1.0, jnp.nan])), [1.0, np.nan])
    assert_array_equal(traced(jnp.array([1, 2])), [1.0, 2.0])
    with pytest.raises(ValueError, match=r"`x`: expected shape \(2,\), got \(3,\)"):
        traced(jnp.zeros(3))


@pytest.mark.parametrize(
    ("shape", "got"), [(("n", 3), "(2,)"), ((), "(2,)"), ((3,), "(2,)"), (("n", "d"), "(2,)")]
)
def test_shape(shape: tuple, got: str) -> None:
    with pytest.raises(ValueError) as caught:
        checks.real_array("x", [1.0, 2.0], shape, "do that")
    wanted = str(shape).replace("'", "")
    assert str(caught.value) == f"`x`: expected shape {wanted}, got {got}; do that"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0, np.nan], "`x`: expected finite numbers, got 1 NaN, infinite or beyond float"),
        ([np.inf, -np.inf], "`x`: expected finite numbers, got 2 NaN, infinite or beyond float"),
        (["a", "b"], "`x`: expected real numbers, got text such as 'a'; convert it to float"),
        ([1j, 2j], "`x`: expected real numbers, got dtype complex128; convert it to float"),
        ([None, 1.0], "`x`: expected real numbers, got None; check its shape"),
        (np.ones(2, object), "`x`: expected real numbers, got dtype object; convert it to float"),
        ([[1.0], [2.0, 3.0]], "`x`: expected an array, got a ragged nest; "),
    ],
)
def test_values(value: list | np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        checks.real_array("x", value, ("n",))


@pytest.mark.float32
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble, ">f8"])
def test_numbers_of_any_size_pass_if_they_are_finite(dtype: Any) -> None:
    """Also where their squares are not."""
    largest = min(float(np.finfo(np.dtype(dtype).newbyteorder("=")).max), 3e38)
    for value in (0.0, 1.0, -largest, largest):
        given = np.array([value, 1.0], dtype)
        np.testing.assert_allclose(checks.real_array("x", given, (2,)), given.astype(float), 1e-6)
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="^`x`: expected finite numbers, got 1 NaN"):
            checks.real_array("x", np.array([value, 1.0], dtype), (2,))


@pytest.mark.float32
def test_a_number_beyond_the_precision_is_rejected() -> None:
    beyond = np.array([1.0, 1e39])
    if checks.default_float() == np.float64:
        assert_array_equal(checks.real_array("x", beyond, (2,)), beyond)
        return
    with pytest.raises(ValueError, match="got 1 NaN, infinite or beyond float32"):
        checks.real_array("x", beyond, (2,))


@pytest.mark.float32
@pytest.mark.parametrize("value", [0, -1.5, 1e-320, np.nan, np.inf, "1", None, [1.0]])
def test_positive(value: object) -> None:
    assert checks.positive("x", 2) == 2.0
    with pytest.raises(ValueError, match=r"^`x`: expected .+, got .+; .+"):
        checks.positive("x", value)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", None])
def test_positive_int(value: object) -> None:
    assert checks.positive_int("x", np.int64(2)) == 2
    with pytest.raises(ValueError, match=r"^`x`: expected a positive integer, got .+; .+"):
        checks.positive_int("x", value)


def test_choice() -> None:
    assert checks.choice("x", "a", ("a", "b")) == "a"
    with pytest.raises(ValueError, match=r"^`x`: expected one of 'a', 'b', got 'c'; pick one"):
        checks.choice("x", "c", ("a", "b"))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[1.0, 0.0], [0.5, 1.0]], "expected a symmetric matrix, got .*; use"),
        ([[1.0, 1.0], [1.0, 1.0]], "expected a positive definite matrix, got .* 0 .*; add a small"),
        (
            [[1.0, 2.0], [2.0, 1.0]],
            "expected a positive definite matrix, got .* -1 .*; add a small",
        ),
        ([[0.0, 0.0], [0.0, 1.0]], "expected a positive definite matrix, got .* 0 .*; add a small"),
        (np.eye(3), r"expected shape \(2, 2\), got \(3, 3\); pass a square matrix"),
    ],
)
def test_covariance(matrix: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^`x`: {message}"):
        checks.covariance("x", matrix, (2, 2))


@pytest.mark.parametrize("units", [[1e-8, 1e-8], [1e-6, 1e6], [1e8, 1.0]])
def test_units_do_not_make_a_covariance_singular(units: list) -> None:
    cov = np.outer(units, units) * np.array([[1.0, 0.5], [0.5, 1.0]])
    assert_array_equal(checks.covariance("x", cov, (2, 2)), cov)


def test_one_bad_covariance_among_many() -> None:
    covs = np.stack([np.eye(2), np.ones((2, 2)), np.eye(2)])
    with pytest.raises(ValueError, match="positive definite"):
        checks.covariance("covs", covs, (3, 2, 2))


def test_longdouble_is_taken_in_double_precision() -> None:
    numbers = checks.real_numbers("x", np.array([1.0, 2.0], np.longdouble), ("n",))
    assert isinstance(numbers, np.ndarray) and numbers.dtype == np.float64
    with pytest.raises(ValueError, match="`x`: expected finite numbers, got 1 NaN, infinite or"):
        checks.real_numbers("x", np.array([1.0, np.finfo(np.longdouble).max]), ("n",))


def test_masked_entries_are_rejected_and_masks_without_any_are_not() -> None:
    masked = np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, True])
    with pytest.raises(ValueError, match="`x`: expected numbers everywhere, got 2 masked; fill or"):
        checks.real_numbers("x", masked, ("n",))
    assert_array_equal(checks.real_numbers("x", masked[:1], ("n",)), [1.0])


@pytest.mark.parametrize("folder", [None, 3, "", __file__])
def test_no_folder_is_rejected(folder: object) -> None:
    before = jax.config.jax_compilation_cache_dir
    with pytest.raises(ValueError, match="^`folder`: expected the path of a folder, got"):
        dp.keep_compiled(folder)
    assert jax.config.jax_compilation_cache_dir == before


def test_missing_libraries_are_named_with_their_extra() -> None:
    checks.require("plot", "json")
    with pytest.raises(
        ImportError, match=r"expected nothere to be.*pip install 'diffprior\[plot]'"
    ):
        checks.require("plot", "json", "nothere")
