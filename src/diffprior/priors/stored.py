"""Learned denoisers and reports as arrays and plain data, and back."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..schedule import Schedule
from .denoisers import AbstractDenoiser, NetworkDenoiser, StagewiseDenoiser
from .report import FitReport, StageLoss

PREFIX = "denoiser."


def denoiser_arrays(denoiser: AbstractDenoiser) -> dict[str, np.ndarray]:
    """The weights of a learned denoiser, by name, in single precision."""
    names = _array_fields(denoiser)
    return {f"{PREFIX}{n}": np.asarray(getattr(denoiser, n), np.float32) for n in names}


def denoiser_header(denoiser: AbstractDenoiser) -> dict[str, Any]:
    """What is to be known of a learned denoiser besides its weights."""
    return {
        "denoiser": type(denoiser).__name__,
        "isotropic": getattr(denoiser, "isotropic", False),
    }


def stored_denoiser(
    header: dict[str, Any], arrays: dict[str, np.ndarray], dim: int, schedule: Schedule
) -> AbstractDenoiser:
    """The denoiser that header and arrays describe; ValueError if they do not fit together."""
    skeleton = _skeleton(header, arrays, dim, schedule)
    names = _array_fields(skeleton)
    shapes = {f"{PREFIX}{n}": getattr(skeleton, n).shape for n in names}
    if {name: array.shape for name, array in arrays.items()} != shapes:
        raise ValueError("arrays of unexpected names or shapes")
    filled = eqx.tree_at(
        lambda d: [getattr(d, n) for n in names],
        skeleton,
        [jnp.asarray(arrays[f"{PREFIX}{n}"]) for n in names],
    )
    return in_default_precision(filled)


def stored_report(fields: dict[str, Any] | None) -> FitReport | None:
    """The report that `dataclasses.asdict` took apart."""
    if fields is None:
        return None
    return FitReport(
        num_samples=fields["num_samples"],
        num_held_out=fields["num_held_out"],
        seconds=fields["seconds"],
        losses=tuple(fields["losses"]),
        best=fields["best"],
        stages=tuple(StageLoss(**stage) for stage in fields["stages"]),
        warnings=tuple(fields["warnings"]),
    )


def in_default_precision(denoiser: AbstractDenoiser) -> AbstractDenoiser:
    """A denoiser in the precision that JAX computes in unless told otherwise."""
    dtype = jnp.result_type(float)
    return jax.tree.map(lambda leaf: leaf.astype(dtype), denoiser)


def _skeleton(
    header: dict[str, Any], arrays: dict[str, np.ndarray], dim: int, schedule: Schedule
) -> NetworkDenoiser | StagewiseDenoiser:
    """A denoiser of the kind and shape that the file says, of shapes instead of numbers."""
    kind, isotropic = header["denoiser"], header["isotropic"]
    key = jax.random.key(0)
    if kind == "StagewiseDenoiser":
        width = arrays["denoiser.bias_1"].shape[1]
        return eqx.filter_eval_shape(
            lambda: StagewiseDenoiser.initialise(key, dim, schedule, width=width)
        )
    if kind != "NetworkDenoiser" or not isinstance(isotropic, bool):
        raise ValueError(f"a denoiser of unknown kind {kind!r}")
    depth, width = arrays["denoiser.bias_hidden"].shape
    return eqx.filter_eval_shape(
        lambda: NetworkDenoiser.initialise(
            key, dim, width=width, depth=depth + 1, isotropic=isotropic
        )
    )


def _array_fields(denoiser: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(denoiser) if not f.metadata.get("static", False)]
