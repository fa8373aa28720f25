"""Shared by the experiments: their command line, cached results, figures and the page of each."""

import dataclasses
import inspect
import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_origin

import jax
import numpy as np
import typer

import diffprior as dp
from diffprior.cli.options import Json, Seed, check_output, friendly_errors, say, say_table
from diffprior.files.atomic import write_atomic
from diffprior.files.base import Serializable
from diffprior.files.cache import Checkpoints, SavedArrays, result_path, source_digest
from diffprior.reporting.figures import render
from diffprior.reporting.page import Block, Callout, Code, Heading, Picture, SideBySide, page
from diffprior.reporting.tables import Table

__all__ = ["Agents", "Folder", "Json", "Problems", "Quick", "Results", "Runs", "Seed", "command"]

REPORT = "report.html"
Result = TypeVar("Result")
Saved = TypeVar("Saved", bound=Serializable)

Quick = Annotated[bool, typer.Option("--quick", help="A small version of everything.")]
Runs = Annotated[int | None, typer.Option(min=1, help="Runs of each agent; 512 unless quick.")]
Folder = Annotated[Path | None, typer.Option("--data", help="Folder of the data's official files.")]
Problems = Annotated[list[str] | None, typer.Option("--problem", help="One; repeat for more.")]
Agents = Annotated[
    list[str] | None, typer.Option("--agent", help="Such as TS or EvidenceDPS; repeat for more.")
]
_Out = Annotated[Path, typer.Option(help="Folder for figures, report and cached results.")]
_Fresh = Annotated[bool, typer.Option("--fresh", help="Compute cached results again.")]


@dataclass
class Results:
    """The folder of an experiment: results are cached there, apart for every version of the code,
    so that a rerun computes only what is missing or has changed.
    """

    out: Path
    summary: Sequence[Table] = field(default=(), init=False)  # for a terminal, once reported

    @property
    def cache(self) -> Path:
        return self.out / "cache" / source_digest(Path(__file__).parent)[:8]

    def numbers(
        self,
        kind: type[Result],
        name: str,
        settings: Mapping[str, Any],
        compute: Callable[[], Result],
    ) -> Result:
        """A flat dataclass of plain numbers and lists, cached as JSON."""
        path = result_path(self.cache, name, settings, ".json")
        if not path.is_file():
            content = dataclasses.asdict(compute())  # type: ignore[call-overload]
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(content))
        return kind(**json.loads(path.read_text(encoding="utf-8")))

    def saved(self, name: str, settings: Mapping[str, Any], compute: Callable[[], Saved]) -> Saved:
        """An object with a file format, such as a prior."""
        return Checkpoints(self.cache).get(name, settings, compute)

    def arrays(
        self, name: str, settings: Mapping[str, Any], compute: Callable[[], dict[str, np.ndarray]]
    ) -> dict[str, np.ndarray]:
        return self.saved(name, {"arrays": True, **settings}, lambda: SavedArrays(compute())).arrays

    def picture(self, name: str, caption: str, draw: Callable[[], Any]) -> Picture:
        """Draw a figure to NAME.png and NAME.pdf, and for the report's two looks."""
        self.out.mkdir(parents=True, exist_ok=True)
        light, dark = render(draw, "png"), render(draw, "png", dark=True)
        (self.out / f"{name}.png").write_bytes(light)
        (self.out / f"{name}.pdf").write_bytes(render(draw, "pdf"))
        return Picture(light, dark, caption)

    def report(
        self,
        title: str,
        verdict: Callout,
        blocks: Sequence[Block],
        settings: Mapping[str, str],
        summary: Sequence[Table],
    ) -> None:
        """Write the report, with settings and machine at its end."""
        self.out.mkdir(parents=True, exist_ok=True)
        tables = [
            Table((), list(settings.items()), "Settings.", words=True),
            Table((), list(machine().items()), "Computed with.", words=True),
        ]
        shown = [*blocks, Heading("Settings and machine"), SideBySide(tables)]
        write_atomic(self.out / REPORT, page(title, verdict, shown, Code(_COMMANDS)))
        self.summary = summary


_COMMANDS = """\
# parameters of your own past tasks, a row each, columns with names:
diffprior fit tasks.csv -o tasks.dprior

# and decide in a new task, in Python:
import diffprior as dp
bandit = dp.Bandit(dp.DiffusionPrior.load("tasks.dprior"), dp.Linear(noise_std=1.0))
decision = bandit.decide(features)                   # features: (K, d), one row for each action
bandit.update(features[decision.action], reward)"""


def machine() -> dict[str, str]:
    """Facts about the machine and the software, by name; nothing about whose they are."""
    device = jax.devices()[0]
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8", errors="replace") if listing.is_file() else ""
    models = [line.partition(":")[2].strip() for line in lines.splitlines() if "model name" in line]
    return {
        "processor": f"{[*models, platform.processor() or 'unknown'][0]}, {os.cpu_count()} cores",
        "system": f"{platform.system()}, {platform.machine()}",
        "device": f"{device.platform}, {device.device_kind}",
        "precision": "double" if jax.config.read("jax_enable_x64") else "single",
        "Python": platform.python_version(),
        "JAX": jax.__version__,
        "diffprior": dp.__version__,
    }


def command(experiment: Callable[..., dict[str, Any]]) -> Callable[..., None]:
    """The command line of an experiment: run it, print its tables, and say where the report is.

    Its annotated parameters are options, beside those that all experiments share.
    """
    name = Path(inspect.getfile(experiment)).stem

    def main(out: Path, json_file: Path | None, fresh: bool, **options: Any) -> None:
        with friendly_errors():
            missing = [name for name in ("matplotlib", "ot") if find_spec(name) is None]
            if missing:
                raise ImportError(
                    f"`experiments`: expected {' and '.join(missing)} to be installed, got none; "
                    "run `pip install --group experiments`"
                )
            if json_file is not None:
                check_output("json", json_file)
            results = Results(out)
            if fresh:
                shutil.rmtree(results.cache, ignore_errors=True)
            found = experiment(results, **options)
            if json_file is not None:
                content = json.dumps(found, indent=1, default=dataclasses.asdict)
                write_atomic(json_file, content)
                say(f"wrote {json_file}")
            for table in results.summary:
                say_table(table)
            say(f"the report is {out / REPORT}")

    def option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
        keyword = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, keyword, annotation=annotation, default=default)

    own = inspect.signature(experiment).parameters.values()
    options = [p for p in own if get_origin(p.annotation) is Annotated]
    options += [option("out", _Out, Path("results") / name), option("json_file", Json, None)]
    options.append(option("fresh", _Fresh, False))
    main.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    main.__annotations__ = {p.name: p.annotation for p in options}
    main.__doc__ = experiment.__doc__
    return main
