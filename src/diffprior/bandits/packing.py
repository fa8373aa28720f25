"""Priors, samplers, likelihoods and evidence as plain data: a JSON tree and named arrays.

Reading looks classes up by name among those already defined, and fills their fields with numbers;
nothing in a file is ever run or imported.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..checks import on_device
from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..priors.base import AbstractPrior
from ..priors.denoisers import AbstractDenoiser
from ..priors.diffusion import Metadata
from ..priors.report import FitReport, StageLoss
from ..samplers.base import AbstractSampler
from ..schedule import Schedule

ROOTS = (AbstractPrior, AbstractDenoiser, AbstractEvidence, AbstractLikelihood, AbstractSampler)
RECORDS = (Schedule, Metadata, FitReport, StageLoss)


def pack(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """`value` as JSON; its arrays are put into `arrays` under names that begin with `path`."""
    if isinstance(value, jax.Array | np.ndarray):
        array = _finite(path, np.asarray(value))
        if array.ndim == 0:
            return {"number": array.item(), "dtype": array.dtype.name}
        arrays[path] = array
        return {"array": path}
    if dataclasses.is_dataclass(value) and _name(type(value)) in _classes():
        fields = [field.name for field in dataclasses.fields(value)]
        packed = {name: pack(getattr(value, name), f"{path}.{name}", arrays) for name in fields}
        return {"class": _name(type(value)), "fields": packed}
    if isinstance(value, tuple):
        return {"tuple": [pack(item, f"{path}.{i}", arrays) for i, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"`save`: expected numbers, arrays and classes of diffprior, got {type(value).__name__} "
        f"at {path}; keep such an object elsewhere"
    )


def unpack(node: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The value that `pack` took apart."""
    if not isinstance(node, dict):
        return node
    if "array" in node:
        return _in_default_precision(arrays[node["array"]])
    if "number" in node:
        return _in_default_precision(np.asarray(node["number"], node["dtype"]))
    if "tuple" in node:
        return tuple(unpack(item, arrays) for item in node["tuple"])
    return _build(node["class"], {k: unpack(v, arrays) for k, v in node["fields"].items()})


def _build(name: str, fields: dict[str, Any]) -> Any:
    """An instance with these fields; a module is filled rather than initialised, as JAX does."""
    name, fields = _upgraded(name, fields)
    classes = _classes()
    if name not in classes:
        raise ValueError(
            f"`path`: the file speaks of a class {name!r} that is not defined here; import the "
            "module that defines it, or upgrade diffprior"
        )
    kind = classes[name]
    if set(fields) != {field.name for field in dataclasses.fields(kind)}:
        raise ValueError(f"`path`: the file does not fit this version's {name}; save it anew")
    if not issubclass(kind, eqx.Module):
        return kind(**fields)
    instance = object.__new__(kind)
    for key, value in fields.items():
        object.__setattr__(instance, key, value)
    return instance


def _upgraded(name: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A class and its fields as they are called now, of a file that version 0.1.0 wrote."""
    if isinstance(fields.get("temperature"), float):
        fields = fields | {"temperature": _in_default_precision(np.asarray(fields["temperature"]))}
    if name == "Aside":
        return "Metadata", fields
    if name == "DiffusionPrior" and "about" in fields:
        return name, {("metadata" if k == "about" else k): v for k, v in fields.items()}
    if name == "ClosedFormDenoiser" and isinstance(fields.get("prior"), AbstractPrior):
        dim = fields["prior"].dim  # it was kept in unit coordinates
        unit = {"offset": on_device(np.zeros(dim)), "inverse_scale": on_device(np.eye(dim))}
        return "PriorDenoiser", fields | unit
    return name, fields


def _classes() -> dict[str, Any]:
    """Classes that may be read, by name."""
    found: dict[str, Any] = {_name(kind): kind for kind in RECORDS}
    left: list[type] = list(ROOTS)
    while left:
        kind = left.pop()
        found.setdefault(_name(kind), kind)
        left.extend(kind.__subclasses__())
    return found


def _name(kind: type) -> str:
    own = kind.__module__.split(".")[0] == __name__.split(".")[0]
    return kind.__qualname__ if own else f"{kind.__module__}.{kind.__qualname__}"


def _finite(path: str, array: np.ndarray) -> np.ndarray:
    """Minus infinity, the log of a zero weight, as the lowest number; NaN is refused."""
    if array.dtype.kind != "f" or np.all(np.isfinite(array)):
        return array
    if np.any(np.isnan(array) | (array == np.inf)):
        raise ValueError(f"`save`: expected finite numbers, got NaN or infinity in {path}")
    return np.maximum(array, np.finfo(array.dtype).min)


def _in_default_precision(array: np.ndarray) -> Any:
    floating = array.dtype.kind == "f"
    return on_device(array.astype(jnp.result_type(float)) if floating else array)
