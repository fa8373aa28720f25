"""One file format for everything kept: safetensors, with a versioned JSON header. Never code."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

VERSION = 1


def write_file(
    path: str | Path, kind: str, header: dict[str, Any], arrays: dict[str, np.ndarray]
) -> None:
    """Write header and arrays to `path`, whole or not at all."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"`path`: expected an existing folder, found none at {path.parent}; create it first"
        )
    about = {
        "kind": kind,
        "version": VERSION,
        "shapes": {name: list(array.shape) for name, array in arrays.items()},
        **header,
    }
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    data = save(contiguous, metadata={"diffprior": json.dumps(about)})
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    """The mask of permissions that new files get, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_file(path: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a file of this kind; anything else is refused with the reason."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"`path`: expected a file, found none at {path}; check the name")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise ValueError(
            f"`path`: {path} is not a complete safetensors file ({error}); it is truncated, "
            "damaged or of another program; copy it again or save it anew"
        ) from error
    about = _header(path, metadata)
    if about.get("kind") != kind:
        raise ValueError(
            f"`path`: expected a file of {kind}, got one of {about.get('kind')!r}; "
            "load it with the class that saved it"
        )
    if about.get("version") != VERSION:
        raise ValueError(
            f"`path`: expected format version {VERSION}, got {about.get('version')!r}; "
            "upgrade diffprior to read it"
        )
    _check_arrays(path, about, arrays)
    return about, arrays


def _header(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    try:
        about = json.loads(metadata["diffprior"])
    except (KeyError, ValueError, RecursionError) as error:
        raise ValueError(
            f"`path`: {path} has no diffprior header; it was written by another program"
        ) from error
    if not isinstance(about, dict):
        raise ValueError(f"`path`: {path} has a damaged header; save it anew")
    return about


def _check_arrays(path: Path, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    if shapes != about.get("shapes"):
        raise ValueError(
            f"`path`: the arrays in {path} are not those its header lists; it was altered; "
            "save it anew"
        )
    broken = [name for name, array in arrays.items() if not np.all(np.isfinite(array))]
    if broken:
        raise ValueError(f"`path`: {path} holds numbers that are not finite in {broken}")
