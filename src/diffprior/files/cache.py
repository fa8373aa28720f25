"""Results and compiled programs saved in files, so that a rerun computes only what is missing."""

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import jax
import numpy as np

from ..checks import default_float
from .base import Serializable, load


def keep_compiled(folder: str | os.PathLike[str]) -> None:
    """Store every program that JAX compiles from now on in a folder, and look for them there.

    This is JAX's own persistent cache, set to store small programs too. Call it before the first
    decision. Whoever can write to the folder can change what is run.

    Args:
        folder: Where to store them; created with the first program.

    Raises:
        ValueError: If it is no path, or a file.
    """
    if not isinstance(folder, str | os.PathLike) or not str(folder) or Path(folder).is_file():
        raise ValueError(
            f"`folder`: expected the path of a folder, got {folder!r}; "
            'pass one such as "~/.cache/diffprior", expanded'
        )
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


PACKAGE = Path(__file__).parents[1]
Saved = TypeVar("Saved", bound=Serializable)


@dataclass(frozen=True)
class SavedArrays(Serializable):
    """Arrays by name."""

    arrays: dict[str, np.ndarray]


@dataclass(frozen=True)
class Checkpoints:
    """Results in a folder, one file each; a file that cannot be read counts as missing."""

    folder: Path

    def get(self, name: str, settings: Mapping[str, object], compute: Callable[[], Saved]) -> Saved:
        """Load the result of an earlier run, or compute and save it."""
        path = result_path(self.folder, name, settings, ".dprior")
        try:
            return cast(Saved, load(path))
        except (ValueError, OSError):
            result = compute()
        self.folder.mkdir(parents=True, exist_ok=True)
        result.save(path)
        return result


def result_path(folder: Path, name: str, settings: Mapping[str, object], ending: str) -> Path:
    """Return the file of a result: its name, and a digest of all that could change it.

    That is its settings, the source files of this package, the version of JAX, the device and the
    precision: changed code never shows old numbers.
    """
    about = {
        "name": name,
        "settings": settings,
        "source": source_digest(PACKAGE),
        "jax": jax.__version__,
        "device": jax.default_backend(),
        "precision": 8 * default_float().itemsize,
    }
    words = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    return folder / f"{words}-{key}{ending}"


def array_digest(array: np.ndarray) -> str:
    """Hexadecimal digits that identify an array of numbers."""
    numbers = np.ascontiguousarray(array, np.float64)
    return hashlib.sha256(repr(numbers.shape).encode() + numbers.tobytes()).hexdigest()


@functools.cache
def source_digest(package: Path) -> str:
    """Hexadecimal digits that identify the source files of a package."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(content)} ".encode() + content)
    return digest.hexdigest()
