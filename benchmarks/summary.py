"""One table of a run: each figure beside its rival, the machine's limit, and what it was before."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from diffprior.files.atomic import write_whole
from diffprior.reporting.tables import Table

from .section import Measurement, as_numbers

LAST_RUN = "last.json"  # in the folder of the report
PEER = "bayesianbandits"
Sections = Mapping[str, list[Measurement]]


@dataclass(frozen=True)
class Headline:
    """The quantity that stands for the cases of a section.

    Attributes:
        quantity: Its name.
        rival: The quantity of the rival in the same row, if there is one.
        limit: The quantity that says how far the figure is from the machine's limit.
        more_is_better: Whether a larger figure is a better one.
    """

    quantity: str
    rival: str = ""
    limit: str = ""
    more_is_better: bool = False


HEADLINES = {
    "runs": Headline("seconds", rival="NumPy TS, s", limit="over arithmetic limit"),
    "decisions": Headline("median, ms"),
    "updates": Headline("median, ms"),
    "pieces": Headline("microseconds"),
    "logistic": Headline("median, ms"),
    "first-decision": Headline("seconds"),
    "draws": Headline("draws a second", limit="over arithmetic limit", more_is_better=True),
    "fit": Headline("seconds", rival="100 regressors, s"),
}


def summary(sections: Sections, before: Sections) -> Table:
    """A row for each case that has a headline, in the order of the sections."""
    rows = [
        [name, m.case, *_cells(m, headline, sections[name], _same_case(before, name, m.case))]
        for name, headline in HEADLINES.items()
        if name in sections
        for m in sections[name]
        if headline.quantity in m.quantities
    ]
    columns = ("", "case", "figure", "", "rival", "over rival", "over limit", "last run", "change")
    return Table(columns, rows, "All sections; below 1 is better than the rival")


def _cells(
    measured: Measurement,
    headline: Headline,
    section: list[Measurement],
    before: Measurement | None,
) -> Iterator[str]:
    figure = _number(measured, headline.quantity)
    yield _shown(figure)
    yield headline.quantity
    rival = _number(measured, headline.rival) or _peer(measured, headline, section)
    yield _shown(rival)
    yield _shown(figure / rival if figure and rival else None)
    yield _shown(_number(measured, headline.limit))
    last = None if before is None else _number(before, headline.quantity)
    yield _shown(last)
    yield _change(figure, last, headline.more_is_better)


def _peer(measured: Measurement, headline: Headline, section: list[Measurement]) -> float | None:
    """The same quantity of the peer with as many parameters, where it is a case of its own."""
    peers = {m.case.rpartition("d = ")[2]: m for m in section if m.case.startswith(PEER)}
    dim = measured.case.rpartition("d = ")[2] if "d = " in measured.case else "2"
    if measured.case.startswith(PEER) or dim not in peers:
        return None
    return _number(peers[dim], headline.quantity)


def _same_case(before: Sections, name: str, case: str) -> Measurement | None:
    return next((m for m in before.get(name, []) if m.case == case), None)


def _number(measured: Measurement, name: str) -> float | None:
    value = measured.quantities.get(name)
    return value if isinstance(value, int | float) else None


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _change(figure: float | None, last: float | None, more_is_better: bool) -> str:
    """By how much, and whether that is better; a tenth is noise."""
    if not figure or not last:
        return ""
    change = figure / last - 1.0
    if abs(change) < 0.1:
        return "same"
    better = (change > 0) == more_is_better
    return f"{change:+.0%} ({'better' if better else 'worse'})"


def read_last_run(folder: Path) -> Sections:
    """What the run before this one measured; nothing if there was none."""
    path = folder / LAST_RUN
    if not path.is_file():
        return {}
    kept = json.loads(path.read_text(encoding="utf-8"))
    return {name: [Measurement(**row) for row in rows] for name, rows in kept.items()}


def keep_run(folder: Path, sections: Sections) -> None:
    """Keep the run for the next; sections that it did not measure stay."""
    kept = {**read_last_run(folder), **sections}
    numbers = {name: as_numbers(rows) for name, rows in kept.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / LAST_RUN, json.dumps(numbers, indent=1))
