"""Finished parts of an experiment, kept in files so that a rerun does only what is missing."""

import abc
import hashlib
import importlib.metadata
import json
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ..files.atomic import write_whole
from ..files.base import Serialisable
from ..priors.diffusion import DiffusionPrior
from ..priors.report import FitWarning
from ..schedule import Schedule


class Part(NamedTuple):
    """A finished part: how long it took when it was run, and whether it was kept from before."""

    name: str
    seconds: float
    kept: bool


@dataclass(frozen=True)
class KeptArrays(Serialisable):
    """Arrays by name, what they are known by, and how long they took."""

    about: str
    seconds: float
    arrays: dict[str, np.ndarray]


class AbstractWatch(abc.ABC):
    """Is told how many parts there will be, and of each as it begins and ends."""

    @abc.abstractmethod
    def plan(self, count: int) -> None:
        """So many parts will follow."""

    @abc.abstractmethod
    def begin(self, name: str) -> None:
        """A part begins."""

    @abc.abstractmethod
    def end(self, part: Part) -> None:
        """A part has ended, or was there already."""


class Silent(AbstractWatch):
    """Says nothing."""

    def plan(self, count: int) -> None:
        """Nothing."""

    def begin(self, name: str) -> None:
        """Nothing."""

    def end(self, part: Part) -> None:
        """Nothing."""


class Parts:
    """Parts of an experiment in a folder, by name, settings, precision and package version.

    What was finished before is read again, or with `fresh` run anew. Numbers are kept as JSON,
    arrays and learned priors in safetensors files; a file that cannot be read counts as missing.
    """

    def __init__(
        self, folder: str | Path, *, fresh: bool = False, watch: AbstractWatch | None = None
    ) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.watch = watch or Silent()
        self.done: list[Part] = []
        self._fresh = fresh
        self._asked_for: set[Path] = set()

    def numbers(self, name: str, settings: dict[str, Any], run: Callable[[], Any]) -> Any:
        """What `run` returns, which must be plain numbers, lists and dictionaries."""
        about = _about(name, settings)
        path = self._path(about, ".json")

        def write(result: Any, seconds: float) -> None:
            write_whole(path, json.dumps({**about, "seconds": seconds, "result": result}))

        found = self._read(path, about)
        return self._kept_or_run(name, found, lambda: json.loads(json.dumps(run())), write)

    def arrays(
        self,
        name: str,
        settings: dict[str, Any],
        run: Callable[[], dict[str, np.ndarray]],
        *,
        shown: str | None = None,
    ) -> dict[str, np.ndarray]:
        """What `run` returns, which must be arrays by name; `shown` is what to call it."""
        about = _about(name, settings)
        path = self._path(about, ".arrays")

        def write(result: dict[str, np.ndarray], seconds: float) -> None:
            KeptArrays(json.dumps(about), seconds, result).save(path)

        return self._kept_or_run(shown or name, self._read_arrays(path, about), run, write)

    def prior(
        self,
        name: str,
        samples: np.ndarray,
        *,
        preset: str = "default",
        schedule: Schedule | None = None,
        seed: int = 0,
    ) -> DiffusionPrior:
        """The prior learned from these samples."""
        alpha_bar = None if schedule is None else list(schedule.alpha_bar)
        settings = {"preset": preset, "alpha_bar": alpha_bar, "seed": seed}
        path = self._path(_about("prior", {**settings, "samples": digest(samples)}), ".dprior")
        self.watch.begin(name)
        prior, kept = self._load(path), True
        if prior is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FitWarning)  # few samples may be the point
                learned = DiffusionPrior.fit(
                    samples, preset=preset, schedule=schedule, seed=seed, progress=False
                )
            learned.save(path)
            prior, kept = DiffusionPrior.load(path), False
        seconds = prior.report.seconds if prior.report else 0.0
        return self._end(Part(name, seconds, kept), prior)

    def _kept_or_run(
        self,
        name: str,
        found: tuple[Any, float] | None,
        run: Callable[[], Any],
        write: Callable[[Any, float], None],
    ) -> Any:
        """What was found with the seconds it took, or else what `run` returns, written down."""
        self.watch.begin(name)
        if found is not None:
            result, seconds = found
            return self._end(Part(name, seconds, True), result)
        begin = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - begin
        write(result, seconds)
        return self._end(Part(name, seconds, False), result)

    def _end(self, part: Part, result: Any) -> Any:
        self.done.append(part)
        self.watch.end(part)
        return result

    def _path(self, about: dict[str, Any], ending: str) -> Path:
        words = re.sub(r"[^A-Za-z0-9]+", "-", about["name"]).strip("-").lower()
        text = json.dumps(about, sort_keys=True)
        return self.folder / f"{words}-{hashlib.sha256(text.encode()).hexdigest()[:12]}{ending}"

    def _read(self, path: Path, about: dict[str, Any]) -> tuple[Any, float] | None:
        if not self._usable(path):
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            same = all(found[key] == about[key] for key in about)
            return (found["result"], found["seconds"]) if same else None
        except (ValueError, KeyError, AttributeError, TypeError):
            return None

    def _read_arrays(
        self, path: Path, about: dict[str, Any]
    ) -> tuple[dict[str, np.ndarray], float] | None:
        if not self._usable(path):
            return None
        try:
            found = KeptArrays.load(path)
        except ValueError:
            return None
        return (found.arrays, found.seconds) if found.about == json.dumps(about) else None

    def _load(self, path: Path) -> DiffusionPrior | None:
        if not self._usable(path):
            return None
        try:
            return DiffusionPrior.load(path)
        except ValueError:
            return None

    def _usable(self, path: Path) -> bool:
        """Whether a file is there that may be used; with `fresh`, one made by these parts."""
        usable = path.is_file() and not (self._fresh and path not in self._asked_for)
        self._asked_for.add(path)
        return usable


def package_version() -> str:
    """The version of the installed package."""
    try:
        return importlib.metadata.version("diffprior")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _about(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What a part is known by, as it reads back from JSON."""
    about = {
        "name": name,
        "settings": settings,
        "version": package_version(),
        "precision": 64 if jax.config.read("jax_enable_x64") else 32,
    }
    return json.loads(json.dumps(about))


def digest(samples: np.ndarray) -> str:
    """What tells an array from others."""
    array = np.ascontiguousarray(samples, np.float64)
    return hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()
