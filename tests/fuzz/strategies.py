"""Values as strangers pass them: mostly what is asked for, now and then anything at all.

Accepted values have few shapes, so that few programs are compiled.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# A short run is part of the tests; `make fuzz` asks for many more.
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "8"))
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
    database=None,
)

DIM = 2
EXTREME = (0.0, -0.0, 1e-320, 1e-30, 1e6, -1e6, 1e12, 1e20, 1e38, -1e39, 1e150, 1e200, 1e308)
BROKEN = (np.nan, np.inf, -np.inf)
odd_objects = st.sampled_from(
    [
        None,
        True,
        "three",
        b"3",
        3j,
        object(),
        [],
        {},
        [[1.0], [1.0, 2.0]],
        np.nan,
        -1,
        0,
        2**63,
        1.5,
    ]
    + [np.longdouble(3), np.ma.masked, np.datetime64("2020-01-01"), range(3), print]
)
usual = st.floats(-3, 3, width=32)
numbers = st.one_of(usual, usual, usual, st.sampled_from(EXTREME))
any_numbers = st.one_of(numbers, numbers, st.sampled_from(BROKEN))
DTYPES = ("f8", "f8", "f8", "f4", "i8", "b1", "O", "c16", "U8", "g", "f2")


@st.composite
def arrays(
    draw: Callable[[Any], Any], *shape: int, elements: Any = any_numbers, odd: bool = True
) -> Any:
    """Mostly an array of this shape; else of another shape, type, container or no array at all."""
    kind = draw(st.integers(0, 11)) if odd else 0
    if kind == 11:
        return draw(odd_objects)
    if kind == 10:
        shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    size = int(np.prod(shape))
    values = np.array(draw(st.lists(elements, min_size=size, max_size=size)), float).reshape(shape)
    if kind == 9:
        return np.ma.masked_array(values, mask=draw(st.booleans()))
    if kind == 8:
        return values.tolist()
    if kind == 7:
        with np.errstate(all="ignore"):
            return values.astype(draw(st.sampled_from(DTYPES)))
    return values


def either(*good: Any) -> Any:
    """One of these mostly, or anything."""
    return st.one_of(st.sampled_from(good), st.sampled_from(good), odd_objects)


def finite(tree: Any) -> bool:
    """Whether every number in a tree of arrays is finite."""
    import jax

    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return all(np.all(np.isfinite(leaf)) for leaf in leaves if leaf.dtype.kind == "f")


REJECTED = (ValueError, TypeError)  # documented of every public call


def attempt(call: Callable[[], Any], also: tuple[type[Exception], ...] = ()) -> Any:
    """Result of a call, or the documented error that it raises, which has a message."""
    try:
        return call()
    except (*REJECTED, *also) as error:
        assert str(error)
        return error
