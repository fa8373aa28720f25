"""The report as one page: tables, and pictures drawn by Matplotlib, all in one file."""

import base64
import html
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..extras import require
from ..files.atomic import write_whole

COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee")
MOST_PAIRS = 3  # pairs of parameters shown

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Prior learned from logs</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.15rem; margin-top: 2.2rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }}
th, td {{ padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #ddd; }}
td {{ white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
tr.chosen {{ background: #eef6ee; font-weight: 600; }}
.scroll {{ overflow-x: auto; }} img {{ max-width: 100%; height: auto; }}
.answer {{ font-size: 1.1rem; padding: .8rem 1rem; background: #eef3f8;
  border-left: 4px solid #4477aa; }}
.warning {{ padding: .5rem 1rem; background: #fdf3e3; border-left: 4px solid #cc8822;
  margin: .5rem 0; }}
.small {{ color: #555; font-size: .9rem; }}
</style></head><body>
<h1>Does a learned prior pay on these tasks?</h1>
{body}
</body></html>
"""


Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # columns and rows of text


def write_page(report: Any, families: Table, regrets: Table | None, path: Path) -> None:
    """Write the page of a `LearningReport`, whose tables come with it."""
    require("plot", "matplotlib")
    write_whole(path, PAGE.format(body="\n".join(_sections(report, families, regrets))))


def _sections(report: Any, families: Table, regrets: Table | None) -> list[str]:
    warnings = [f'<p class="warning">{html.escape(text)}</p>' for text in report.warnings]
    parts = [
        f'<p class="answer">{html.escape(_capital(report.sentence))}.</p>',
        f"<p>{html.escape(_about(report))}</p>",
        *warnings,
        "<h2>Families side by side</h2>",
        f"<p class='small'>Mean log evidence in nats of {report.num_report_tasks} tasks that "
        "nothing was learned from; differences to the Gaussian with paired standard errors.</p>",
        _table(*families, chosen=report.chosen),
        _picture("Gain over the Gaussian by length of history", lambda: _by_length(report)),
        "<h2>What the logs can say</h2>",
        f"<p>One task tells about theta, by direction and from 0 to 1: "
        f"{' '.join(f'{value:.2f}' for value in report.reliability[:12])}. No prior at all could "
        f"gain more than {report.certificate:.3f} nats a task on the tasks learned from. Structure "
        "narrower than what one task's rows can tell is not known from these logs.</p>",
    ]
    if report.pictures is not None:
        parts.append(
            _picture("Draws of the priors, and one draw given each task", lambda: _priors(report))
        )
        if report.pictures.places is not None and report.coverage is not None:
            parts += [
                "<h2>Calibration</h2>",
                f"<p>90 % predictive intervals cover {100 * report.coverage:.1f} % of the next "
                "rewards. Where they fell in their predictive distributions; flat is right:</p>",
                _picture("Next rewards in their predictive distributions", lambda: _places(report)),
            ]
    if regrets is not None:
        parts += [
            "<h2>Expected regret</h2>",
            f"<p class='small'>Thompson sampling over {report.simulation.num_rounds} rounds in "
            f"{report.simulation.num_runs} tasks drawn from the posterior of those held out, with "
            "actions from the logs; compare priors at equal temperatures only.</p>",
            _table(*regrets, chosen=report.chosen),
            f"<p>Recommended temperature: {report.simulation.recommended_temperature:g}.</p>",
        ]
    return parts


def _about(report: Any) -> str:
    least, median, most = report.rows_a_task
    text = (
        f"{report.num_tasks:,} tasks, {report.num_rows:,} rows ({least:g} to {most:g} a task, "
        f"median {median:g}), {len(report.feature_names)} features, {report.likelihood} rewards."
    )
    if report.noise_std is not None:
        text += f" Noise {report.noise_std:.4g}, {report.noise_from}."
    return text


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], chosen: str) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = ""
    for row in rows:
        mark = ' class="chosen"' if row[0] == chosen else ""
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        body += f"<tr{mark}>{cells}</tr>\n"
    return f'<div class="scroll"><table><tr>{head}</tr>\n{body}</table></div>'


def _picture(title: str, draw: Callable[[], Any]) -> str:
    import matplotlib

    with matplotlib.rc_context({"backend": "agg", "font.size": 10, "axes.spines.top": False,
                                "axes.spines.right": False}):  # fmt: skip
        figure = draw()
        if figure is None:
            return ""
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight")
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<p><img alt="{html.escape(title)}" src="data:image/png;base64,{data}"></p>'


def _new(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(rows, columns, squeeze=False)


def _by_length(report: Any) -> Any:
    families = [f for f in report.families if f.name != "Gaussian" and f.by_length]
    if not families or len(report.length_names) < 2:
        return None
    figure, axes = _new(1, 1, 7.0, 3.0)
    axis = axes[0, 0]
    width = 0.8 / len(families)
    for i, family in enumerate(families):
        places = np.arange(len(family.by_length)) + (i - 0.5 * (len(families) - 1)) * width
        axis.bar(
            places,
            [gain.mean for gain in family.by_length],
            width,
            yerr=[gain.error for gain in family.by_length],
            label=family.name,
            color=COLORS[i % len(COLORS)],
            error_kw={"elinewidth": 1},
        )
    axis.axhline(0.0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(report.length_names)))
    axis.set_xticklabels([f"{name} rows" for name in report.length_names])
    axis.set_ylabel("nats a task over the Gaussian")
    axis.legend(frameon=False)
    return figure


def _priors(report: Any) -> Any:
    pictures = report.pictures
    assert pictures is not None
    panels = {**pictures.draws, "a draw given each task": pictures.estimates}
    dim = pictures.estimates.shape[1]
    pairs = [(0, 0)] if dim == 1 else [(i, i + 1) for i in range(0, dim - 1, 2)][:MOST_PAIRS]
    figure, axes = _new(len(pairs), len(panels), 3.0 * len(panels), 3.0 * len(pairs))
    for row, (i, j) in zip(axes, pairs, strict=True):
        everything = np.concatenate(list(panels.values()))
        low, high = np.quantile(everything, [0.001, 0.999], axis=0)
        for axis, (name, draws), color in zip(row, panels.items(), COLORS * 3, strict=False):
            if dim == 1:
                axis.hist(draws[:, 0], 60, range=(low[0], high[0]), color=color)
            else:
                axis.scatter(draws[:, i], draws[:, j], s=2, alpha=0.4, linewidths=0, color=color)
                axis.set_xlim(low[i], high[i])
                axis.set_ylim(low[j], high[j])
                axis.set_ylabel(report.feature_names[j])
            axis.set_xlabel(report.feature_names[i])
            axis.set_title(name, fontsize=10)
    figure.tight_layout()
    return figure


def _places(report: Any) -> Any:
    assert report.pictures is not None and report.pictures.places is not None
    places = report.pictures.places
    figure, axes = _new(1, 1, 6.0, 2.6)
    axis = axes[0, 0]
    expected = len(places) / 20
    spread = 2 * np.sqrt(expected)
    axis.hist(places, 20, range=(0, 1), color=COLORS[0], edgecolor="white")
    axis.axhspan(expected - spread, expected + spread, color="black", alpha=0.12, linewidth=0)
    axis.axhline(expected, color="black", linewidth=0.8)
    axis.set_xlabel("probability of a smaller reward")
    axis.set_ylabel("next rows")
    return figure
