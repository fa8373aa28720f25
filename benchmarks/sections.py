"""The sections of the benchmark by name, and how they are run."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from diffprior.files.cache import ResultCache
from diffprior.progress import progress
from diffprior.reporting.page import Block, Heading, Text
from diffprior.reporting.tables import Table
from experiments.report import picture, write_report

from . import fitting, foundation, growth, judging, pieces, quality, serve, speed
from .section import Bench, Measurement, table
from .summary import Sections, keep_run, read_last_run, summary

SECTIONS: dict[str, Callable[[Bench], list[Measurement]]] = {
    "runs": speed.runs,
    "decisions": speed.decisions,
    "updates": pieces.updates,
    "pieces": pieces.pieces,
    "logistic": speed.logistic,
    "first-decision": speed.first_decision,
    "draws": speed.draws,
    "growth": growth.growth,
    "fit": fitting.fit,
    "foundation": foundation.foundation,
    "prior": quality.prior,
    "denoiser": quality.denoiser,
    "posterior": quality.posterior,
    "posterior-logistic": quality.posterior_logistic,
    "dimensions": quality.dimensions,
    "calibration": quality.calibration,
    "judging": judging.judging,
    "serve": serve.serve,
    "serve-store": serve.serve_store,
}
USUAL = (
    "runs",
    "decisions",
    "updates",
    "pieces",
    "logistic",
    "first-decision",
    "draws",
    "growth",
    "fit",
)


@dataclass(frozen=True)
class BenchResult:
    """Measurements by section, and those of the run before."""

    sections: dict[str, list[Measurement]]
    before: Sections = field(default_factory=dict)

    @property
    def summary(self) -> list[Table]:
        """A table for each section, and one of all."""
        each = [table(_title(name), found) for name, found in self.sections.items()]
        return [*each, summary(self.sections, self.before)]


def run_bench(
    out: Path, cache: ResultCache, *, names: tuple[str, ...] = USUAL, quick: bool = False
) -> BenchResult:
    """Measure, and write the report. Learned priors are kept for later runs, and the figures, for
    the next one to say what changed."""
    bench = Bench(cache, quick)
    found = {}
    with progress("", len(names)) as told:
        for name in names:
            told.describe(name)
            found[name] = SECTIONS[name](bench)
            told.advance()
    result = BenchResult(found, read_last_run(out))
    keep_run(out, found)
    *each, overview = result.summary
    blocks: list[Block] = [Text(_INTRODUCTION), overview]
    for name, shown in zip(found, each, strict=True):
        blocks += [Heading(name), shown]
        if name == "growth":
            draw = functools.partial(growth.growth_figure, found[name])
            blocks.append(picture(out, name, _GROWTH, draw))
    write_report(out, "Benchmarks", blocks, {"sections": ", ".join(names)}, cache)
    return result


def _title(name: str) -> str:
    return " ".join((SECTIONS[name].__doc__ or "").split())


_GROWTH = (
    "Microseconds a draw as one thing grows, on logarithmic axes; dashed, the growth over the last "
    "three sizes, and beside it its slope: 0 is free, 1 proportional."
)
_INTRODUCTION = (
    "What decisions, draws and priors cost and how good they are, on this machine; peers take "
    "turns with us, so that what else the machine does falls on all alike."
)
