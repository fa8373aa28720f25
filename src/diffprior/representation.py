"""One line that says what an object is: its kind and size, not its numbers."""

import dataclasses
from typing import Any

import jax
import numpy as np


def describe(instance: Any, *parts: Any, **named: Any) -> str:
    """`Kind(part, name=value)`; numbers in few digits, and what is being traced as `?`."""
    shown = [*map(_shown, parts), *(f"{name}={_shown(value)}" for name, value in named.items())]
    return f"{type(instance).__name__}({', '.join(shown)})"


def settings(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass that are single numbers or words."""
    fields = {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}
    return {
        name: value
        for name, value in fields.items()
        if isinstance(value, bool | int | float | str)
        or (isinstance(value, jax.Array | np.ndarray) and value.ndim == 0)
    }


def _shown(value: Any) -> str:
    if isinstance(value, jax.core.Tracer):
        return "?"
    if isinstance(value, jax.Array | np.ndarray | float):
        return f"{float(value):.4g}" if np.ndim(value) == 0 else f"shape {np.shape(value)}"
    return str(value) if isinstance(value, str) else repr(value)
