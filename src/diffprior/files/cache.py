"""Results saved in files, so that a rerun computes only what is missing or has changed."""

import dataclasses
import functools
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from .atomic import write_atomic
from .base import Serializable
from .base import load as load_any

PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class SavedArrays(Serializable):
    """Arrays by name."""

    arrays: dict[str, np.ndarray]


Result = TypeVar("Result")
Kept = TypeVar("Kept", bound=Serializable)


class Entry(NamedTuple):
    """A result: how long it took when it was computed, and whether that was in an earlier run."""

    name: str
    seconds: float
    reused: bool


class ResultCache:
    """Results in a folder, by name and settings, and by all that could change them.

    The key of a result has its settings, the precision, the device, the version of JAX and a digest
    of the source files of this package: changed code never shows old numbers. A file that cannot be
    read counts as missing.

    Args:
        folder: Where the files are; it is created when needed.
        fresh: Compute again what earlier runs have saved.
    """

    def __init__(self, folder: str | Path, *, fresh: bool = False) -> None:
        self.folder = Path(folder)
        self.entries: list[Entry] = []
        self._fresh = fresh
        self._seen: set[Path] = set()
        self._adopted: set[Path] = set()
        self._only_look = False

    def numbers(
        self,
        kind: type[Result],
        name: str,
        settings: Mapping[str, Any],
        compute: Callable[[], Result],
    ) -> Result:
        """A flat dataclass of plain numbers and lists, saved as JSON."""

        def load(path: Path) -> tuple[Result, float]:
            found = json.loads(path.read_text(encoding="utf-8"))
            return kind(**found["result"]), found["seconds"]

        def save(path: Path, result: Result, seconds: float) -> None:
            content = dataclasses.asdict(result)  # type: ignore[call-overload]
            write_atomic(path, json.dumps({"name": name, "seconds": seconds, "result": content}))

        return self._get(name, settings, ".json", compute, load, save)

    def arrays(
        self,
        name: str,
        settings: Mapping[str, Any],
        compute: Callable[[], dict[str, np.ndarray]],
    ) -> dict[str, np.ndarray]:
        """Arrays by name."""
        settings = {"arrays": True, **settings}
        kept = self.object(name, settings, lambda: SavedArrays(compute()))
        return kept.arrays

    def object(self, name: str, settings: Mapping[str, Any], compute: Callable[[], Kept]) -> Kept:
        """An object with a file format, such as a prior."""

        def load(path: Path) -> tuple[Kept, float]:
            seconds = float(path.with_suffix(".seconds").read_text(encoding="utf-8"))
            return load_any(path), seconds

        def save(path: Path, result: Kept, seconds: float) -> None:
            write_atomic(path.with_suffix(".seconds"), repr(seconds))
            result.save(path)

        return self._get(name, settings, ".kept", compute, load, save)

    def holds(self, part: Callable[[], Any]) -> bool:
        """Whether all results that a function asks this cache for are saved; none is computed."""
        entries, self._only_look = list(self.entries), True
        try:
            part()
        except _MissingError:
            return False
        finally:
            self.entries, self._only_look = entries, False
        return True

    def adopt(self, files: Mapping[str, bytes]) -> None:
        """Save results of the cache of another process, as computed in this run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            path = self.folder / name
            if path not in self._seen or not path.is_file():
                write_atomic(path, content)
            self._seen.add(path)
            self._adopted.add(path)

    def move(self, folder: str | Path) -> None:
        """Go on in another folder, with what is there."""
        self.folder, self.entries, self._fresh = Path(folder), [], False
        self._seen, self._adopted = set(), set()

    def files(self, pattern: str = "*") -> dict[str, bytes]:
        """The files of saved results that may be used, by name."""
        return {
            path.name: path.read_bytes()
            for path in sorted(self.folder.glob(pattern))
            if not self._fresh or {path, path.with_suffix(".kept")} & self._seen
        }

    def _get(
        self,
        name: str,
        settings: Mapping[str, Any],
        ending: str,
        compute: Callable[[], Result],
        load: Callable[[Path], tuple[Result, float]],
        save: Callable[[Path, Result, float], None],
    ) -> Result:
        path = self._path(name, settings, ending)
        found = self._load(path, load)
        if found is None:
            if self._only_look:
                raise _MissingError(name)
            begin = time.perf_counter()
            result = compute()
            seconds = time.perf_counter() - begin
            self.folder.mkdir(parents=True, exist_ok=True)
            save(path, result, seconds)
            self.entries.append(Entry(name, seconds, False))
            return result
        self.entries.append(Entry(name, found[1], path not in self._adopted))
        return found[0]

    def _load(
        self, path: Path, load: Callable[[Path], tuple[Result, float]]
    ) -> tuple[Result, float] | None:
        usable = path.is_file() and not (self._fresh and path not in self._seen)
        if not self._only_look:
            self._seen.add(path)
        if not usable:
            return None
        try:
            return load(path)
        except (ValueError, KeyError, TypeError, OSError):
            return None

    def _path(self, name: str, settings: Mapping[str, Any], ending: str) -> Path:
        words = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()
        about = {"name": name, "settings": settings, **_circumstances()}
        key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
        return self.folder / f"{words}-{key}{ending}"


class _MissingError(Exception):
    """A result is not saved."""


def array_digest(array: np.ndarray) -> str:
    """Hexadecimal digits that identify an array of numbers."""
    numbers = np.ascontiguousarray(array, np.float64)
    return hashlib.sha256(repr(numbers.shape).encode() + numbers.tobytes()).hexdigest()


@functools.cache
def source_digest(package: Path = PACKAGE) -> str:
    """Hexadecimal digits that identify the source files of a package."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _circumstances() -> dict[str, Any]:
    """All that may change a result, besides its settings."""
    return {
        "source": source_digest(PACKAGE),
        "jax": jax.__version__,
        "device": jax.default_backend(),
        "precision": 64 if jax.config.read("jax_enable_x64") else 32,
    }
