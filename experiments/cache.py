"""Results saved in files, so that a rerun computes only what is missing or has changed."""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from diffprior.files.atomic import write_atomic
from diffprior.files.base import Serializable
from diffprior.files.base import load as load_any
from diffprior.files.cache import SavedArrays, result_path

Result = TypeVar("Result")
Saved = TypeVar("Saved", bound=Serializable)


class Entry(NamedTuple):
    """A result: how long it took when it was computed, and whether that was in an earlier run."""

    name: str
    seconds: float
    reused: bool


class ResultCache:
    """Results in a folder, by `result_path`: changed code never shows old numbers.

    A file that cannot be read counts as missing.

    Args:
        folder: Where the files are; it is created when needed.
        fresh: Compute again what earlier runs have saved.
    """

    def __init__(self, folder: str | Path, *, fresh: bool = False) -> None:
        self.folder = Path(folder)
        self.entries: list[Entry] = []
        self._fresh = fresh
        self._seen: set[Path] = set()

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
        saved = self.object(name, settings, lambda: SavedArrays(compute()))
        return saved.arrays

    def object(self, name: str, settings: Mapping[str, Any], compute: Callable[[], Saved]) -> Saved:
        """An object with a file format, such as a prior."""

        def load(path: Path) -> tuple[Saved, float]:
            seconds = float(path.with_suffix(".seconds").read_text(encoding="utf-8"))
            return load_any(path), seconds

        def save(path: Path, result: Saved, seconds: float) -> None:
            write_atomic(path.with_suffix(".seconds"), repr(seconds))
            result.save(path)

        return self._get(name, settings, ".dprior", compute, load, save)

    def _get(
        self,
        name: str,
        settings: Mapping[str, Any],
        ending: str,
        compute: Callable[[], Result],
        load: Callable[[Path], tuple[Result, float]],
        save: Callable[[Path, Result, float], None],
    ) -> Result:
        path = result_path(self.folder, name, settings, ending)
        found = self._load(path, load)
        if found is None:
            begin = time.perf_counter()
            result = compute()
            seconds = time.perf_counter() - begin
            self.folder.mkdir(parents=True, exist_ok=True)
            save(path, result, seconds)
            self.entries.append(Entry(name, seconds, False))
            return result
        self.entries.append(Entry(name, found[1], True))
        return found[0]

    def _load(
        self, path: Path, load: Callable[[Path], tuple[Result, float]]
    ) -> tuple[Result, float] | None:
        usable = path.is_file() and not (self._fresh and path not in self._seen)
        self._seen.add(path)
        if not usable:
            return None
        try:
            return load(path)
        except (ValueError, KeyError, TypeError, OSError):
            return None
