"""The sections of the benchmark by name, and how they are run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..files.cache import ResultCache
from ..progress import progress
from ..reporting.page import Block, Heading, Text
from ..reporting.report import write_report
from ..reporting.tables import Table
from . import fitting, foundation, judging, quality, serve, speed
from .section import Bench, Measurement, table

SECTIONS: dict[str, Callable[[Bench], list[Measurement]]] = {
    "runs": speed.runs,
    "decisions": speed.decisions,
    "logistic": speed.logistic,
    "first-decision": speed.first_decision,
    "draws": speed.draws,
    "growth": speed.growth,
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
USUAL = ("runs", "decisions", "logistic", "first-decision", "draws", "fit")


@dataclass(frozen=True)
class BenchResult:
    """Measurements by section."""

    sections: dict[str, list[Measurement]]

    @property
    def summary(self) -> list[Table]:
        """A table for each section."""
        return [table(_title(name), found) for name, found in self.sections.items()]


def run_bench(
    out: Path, cache: ResultCache, *, names: tuple[str, ...] = USUAL, quick: bool = False
) -> BenchResult:
    """Measure, and write the report. Nothing but learned priors is kept from an earlier run."""
    bench = Bench(cache, quick)
    found = {}
    with progress("", len(names)) as told:
        for name in names:
            told.describe(name)
            found[name] = SECTIONS[name](bench)
            told.advance()
    result = BenchResult(found)
    blocks: list[Block] = [Text(_INTRODUCTION)]
    for name, shown in zip(found, result.summary, strict=True):
        blocks += [Heading(name), shown]
    write_report(out, "Benchmarks", blocks, {"sections": ", ".join(names)}, cache)
    return result


def _title(name: str) -> str:
    return " ".join((SECTIONS[name].__doc__ or "").split())


_INTRODUCTION = (
    "What decisions, draws and priors cost and how good they are, on this machine; peers take "
    "turns with us, so that what else the machine does falls on all alike."
)
