"""Arguments checked at the public boundary; optional libraries; one-line representations.

A message names the argument, what was expected, what came and the fix.
"""

import dataclasses
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

MAX_EIGENVALUES = 256  # parameters up to which eigenvalues take no noticeable time
FLOATS: dict[object, np.dtype] = {True: np.dtype(np.float64), False: np.dtype(np.float32)}
SURELY_FINITE = 1e37  # a sum of squares below which every number is finite in any precision
Size = int | str  # an exact length, or a name for a length that is free


def is_traced(*values: object) -> bool:
    """Whether any value is inside a transformation, where numbers are not known."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def on_device(numbers: np.ndarray | Array) -> Array:
    """Host numbers as a JAX array, floats in the default precision, without compiling anything."""
    if isinstance(numbers, Array):
        return numbers
    array = np.asarray(numbers)
    array = array.astype(default_float(), copy=False) if array.dtype.kind == "f" else array
    placed: Array = jax.device_put(array)
    return placed


def in_default_precision(numbers: np.ndarray | Array) -> np.ndarray | Array:
    """Host numbers in the precision that JAX works in, still on the host."""
    if isinstance(numbers, Array):
        return numbers
    return numbers.astype(default_float(), copy=False)


def real_array(
    name: str, value: ArrayLike, shape: tuple[Size, ...], fix: str = "check its shape"
) -> Float[Array, "..."]:
    """`value` as a floating-point JAX array of the given shape; finite where that can be seen."""
    return on_device(real_numbers(name, value, shape, fix))


def real_numbers(
    name: str, value: ArrayLike, shape: tuple[Size, ...], fix: str = "check its shape"
) -> np.ndarray | Array:
    """`value` as checked numbers: a NumPy array, or a tracer where it is being traced."""
    if isinstance(value, jax.core.Tracer):
        _check_shape(name, value.shape, shape, fix)
        _check_real(name, value, fix)
        return value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(float)
    array = value if type(value) is np.ndarray else _as_array(name, value, fix)
    _check_real(name, array, fix)
    _check_shape(name, array.shape, shape, fix)
    ordinary = array.dtype.char in "fd"
    if ordinary and np.vdot(array, array) < SURELY_FINITE:  # faster than a test of each number
        return array
    with np.errstate(over="ignore"):
        if not ordinary:  # longdouble is not known to JAX
            array = array.astype(np.float64)
        finite = np.isfinite(array.astype(default_float(), copy=False))
    if not finite.all():
        raise ValueError(
            f"`{name}`: expected finite numbers, got {np.sum(~finite)} NaN, infinite or beyond "
            f"{default_float().name}; drop, repair or rescale those entries"
        )
    return array


def _as_array(name: str, value: ArrayLike, fix: str) -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray) and np.any(np.ma.getmaskarray(value)):
        count = int(np.sum(np.ma.getmaskarray(value)))
        raise ValueError(
            f"`{name}`: expected numbers everywhere, got {count} masked; fill or drop those entries"
        )
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"`{name}`: expected an array, got a ragged nest; {fix}") from error


def _check_real(name: str, array: np.ndarray | Array, fix: str) -> None:
    if array.dtype.kind in "fiubV":  # V: floats that NumPy does not know, such as bfloat16
        return
    entries = np.asarray(array).ravel() if array.dtype.kind in "OU" else ()
    found = next((entry for entry in entries if not isinstance(entry, float | int)), None)
    if isinstance(found, str):
        encode = ", or encode it with dp.Encoder" if array.ndim else ""
        got = f"text such as {str(found)!r:.40}; convert it to float{encode}"
    elif found is None and any(entry is None for entry in entries):
        got = f"None; {fix}"
    elif found is None:
        got = f"dtype {array.dtype}; convert it to float"
    else:
        got = f"{type(found).__name__}; {fix}"
    raise ValueError(f"`{name}`: expected real numbers, got {got}")


def kind_of(value: object) -> str:
    """The name of a value of the wrong kind in a message."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def default_float() -> np.dtype:
    """The precision that JAX works in: as `jax.dtypes.canonicalize_dtype(float)`, but faster."""
    return FLOATS[jax.config.jax_enable_x64]  # type: ignore[attr-defined]


def _check_shape(name: str, got: tuple[int, ...], expected: tuple[Size, ...], fix: str) -> None:
    fits = len(got) == len(expected)
    for length, size in zip(got, expected, strict=False):  # a loop, since it is faster than all()
        fits = fits and (length == size or isinstance(size, str))
    if not fits:
        wanted = ", ".join(map(str, expected)) + ("," if len(expected) == 1 else "")
        raise ValueError(f"`{name}`: expected shape ({wanted}), got {tuple(got)}; {fix}")


def positive(
    name: str, value: ArrayLike, fix: str = "pass a number above zero"
) -> Float[Array, ""]:
    """`value` as a positive scalar, large enough that compiled programs do not take it for 0."""
    scalar = real_numbers(name, value, (), "pass a single number")
    smallest = np.finfo(default_float()).tiny
    if not is_traced(scalar) and not scalar >= smallest:
        wanted = f" of at least {smallest:g}" if scalar > 0 else ""
        raise ValueError(
            f"`{name}`: expected a positive number{wanted}, got {float(scalar):g}; {fix}"
        )
    return on_device(scalar)


def positive_int(name: str, value: object, fix: str = "pass a whole number of at least 1") -> int:
    """`value` as a positive integer."""
    return _integer(name, value, 1, "a positive integer", fix)


def whole_number(name: str, value: object, fix: str = "pass a whole number, or 0") -> int:
    """`value` as an integer that is not negative."""
    return _integer(name, value, 0, "a whole number", fix)


def _integer(name: str, value: object, least: int, wanted: str, fix: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"`{name}`: expected {wanted}, got {value!r}; {fix}")
    return int(value)


def choice(name: str, value: str, options: tuple[str, ...]) -> str:
    """`value` as one of `options`."""
    if value not in options:
        listed = ", ".join(map(repr, options))
        raise ValueError(f"`{name}`: expected one of {listed}, got {value!r}; pick one of those")
    return value


def random_key(key: object) -> Key[Array, ""]:
    """`key` as one random key of JAX, of the new or the old style."""
    if (
        isinstance(key, Array)
        and key.shape == ()
        and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    ):
        return key
    if isinstance(key, Array) and key.shape == (2,) and key.dtype == jnp.uint32:
        return jax.random.wrap_key_data(key)
    shown = f"shape {key.shape}" if isinstance(key, Array) else repr(key)
    number = key if isinstance(key, int) and key >= 0 else 0
    raise ValueError(
        f"`key`: expected a random key of JAX, got {shown:.60}; pass jax.random.key({number})"
    )


def covariance(name: str, value: ArrayLike, shape: tuple[Size, ...]) -> Float[Array, "*n d d"]:
    """`value` as one or more symmetric positive definite matrices."""
    cov = real_array(name, value, shape, "pass a square matrix, one row for each parameter")
    if is_traced(cov):
        return cov
    matrices = np.asarray(cov, dtype=np.float64)
    scale = np.max(np.abs(matrices), initial=0.0)
    if not np.allclose(matrices, np.swapaxes(matrices, -1, -2), rtol=1e-5, atol=1e-6 * scale):
        raise ValueError(
            f"`{name}`: expected a symmetric matrix, got one that is not; use (C+C')/2"
        )
    smallest = _smallest_scaled_eigenvalue(matrices)
    if not smallest > 10 * np.finfo(np.float64 if cov.dtype == jnp.float64 else np.float32).eps:
        raise ValueError(
            f"`{name}`: expected a positive definite matrix, got one whose smallest eigenvalue is "
            f"{smallest:.2g} of the variances; add a small multiple of the identity"
        )
    return cov


def _smallest_scaled_eigenvalue(matrices: np.ndarray) -> float:
    """Smallest eigenvalue of the correlation matrices, so that units do not matter."""
    variances = np.diagonal(matrices, axis1=-2, axis2=-1)
    if not np.all(variances > 0):
        return float(np.min(variances))
    stds = np.sqrt(variances)
    with np.errstate(over="ignore"):
        correlations = matrices / stds[..., :, None] / stds[..., None, :]
    if not np.all(np.isfinite(correlations)):
        return -np.inf
    return float(np.min(np.linalg.eigvalsh(correlations)))


def plausible_covariance(name: str, value: ArrayLike) -> None:
    """Reject matrices that are no rounded covariance: asymmetric, or clearly negative."""
    matrices = np.asarray(value, dtype=np.float64)
    scale = np.max(np.abs(matrices), initial=0.0)
    if not np.allclose(matrices, np.swapaxes(matrices, -1, -2), rtol=1e-3, atol=1e-3 * scale):
        raise ValueError(f"`{name}`: expected a symmetric matrix, got one that is not")
    variances = np.diagonal(matrices, axis1=-2, axis2=-1)
    stds = np.sqrt(np.maximum(variances, 0.0))
    bound = stds[..., :, None] * stds[..., None, :]
    smallest = np.min(variances, initial=0.0)
    possible = smallest >= -1e-6 * scale and np.all(np.abs(matrices) <= bound + 1e-3 * scale)
    if matrices.shape[-1] <= MAX_EIGENVALUES:
        smallest = np.min(np.linalg.eigvalsh(matrices), initial=smallest)
    if not possible or smallest < -1e-3 * scale:
        raise ValueError(
            f"`{name}`: expected no negative eigenvalue, got {smallest:.2g}; "
            "no covariance or precision has one"
        )


def require(extra: str, *modules: str) -> None:
    """Check that the modules of an extra are installed."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ImportError(
            f"`{extra}`: expected {', '.join(missing)} to be installed, found nothing; "
            f"`pip install 'diffprior[{extra}]'` installs it"
        )


def describe(instance: object, *parts: object, **named: object) -> str:
    """`Class(part, name=value)`; numbers in few digits, tracers as `?`."""
    shown = [*map(_shown, parts), *(f"{name}={_shown(value)}" for name, value in named.items())]
    return f"{type(instance).__name__}({', '.join(shown)})"


def settings(instance: object) -> dict[str, object]:
    """The fields of a dataclass that are single numbers or words."""
    fields = {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}  # type: ignore[arg-type]
    return {
        name: value
        for name, value in fields.items()
        if isinstance(value, bool | int | float | str)
        or (isinstance(value, jax.Array | np.ndarray) and value.ndim == 0)
    }


def _shown(value: object) -> str:
    if isinstance(value, jax.core.Tracer):
        return "?"
    if isinstance(value, jax.Array | np.ndarray | float):
        return f"{float(value):.4g}" if np.ndim(value) == 0 else f"shape {np.shape(value)}"
    return str(value) if isinstance(value, str) else repr(value)
