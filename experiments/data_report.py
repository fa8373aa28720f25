"""The report of an experiment on data: tables with a line each, and the paper's figure."""

from pathlib import Path

import numpy as np

from diffprior.reporting.page import Block, Columns, Heading, Text
from diffprior.reporting.tables import Table, plus_minus

from .agents import SAMPLED, agents_table
from .data_results import DataResult, LogEvidenceNumbers, RewardsResult
from .embedding import method
from .figures import Clouds, data_figure
from .next_steps import next_steps
from .report import picture
from .results import beyond_chance, paired
from .tables import (
    claims_table,
    cost_table,
    equal_temperature_table,
    findings_table,
    regret_table,
    temperature_table,
)

GAUSSIAN = "Gaussian"
TITLES = {"paper": "diffusion, the paper's preset", "default": "diffusion, default"}


def data_blocks(
    out: Path, name: str, introduction: str, result: DataResult, planes: dict[str, np.ndarray]
) -> list[Block]:
    """All that the report says."""
    clouds = [
        Clouds(f"{method()}, {title}", planes["true"], planes[prior])
        for prior, title in SAMPLED.items()
    ]
    wholes = [rewards.whole for rewards in result.rewards]
    agents = tuple(dict.fromkeys(agent for r in result.problems for agent in r.agents))
    return [
        Text(introduction),
        Heading("What it says"),
        Text(_HELD_OUT),
        findings_table(result.problems),
        claims_table(result.problems),
        picture(out, name, _CAPTION, lambda: data_figure(clouds, wholes)),
        Heading("Log evidence of tasks held out"),
        Text(_LOG_EVIDENCE),
        Columns([log_evidence_table(rewards) for rewards in result.rewards]),
        Heading("Regret, and the agents"),
        Columns([regret_table(result.problems), agents_table(agents)]),
        *next_steps(),
        Heading("Temperatures"),
        equal_temperature_table(result.problems),
        Columns([temperature_table(problem) for problem in result.problems]),
        Heading("Samples of the priors, and cost"),
        Columns([distances_table(result), cost_table(result.problems)]),
    ]


def log_evidence_table(rewards: RewardsResult) -> Table:
    """Mean log evidence of every prior, and how much more it is than that of the Gaussian."""
    found = rewards.log_evidence
    sizes = list(found[GAUSSIAN])
    rows: list[list[str]] = []
    marked = set()
    for name, by_size in found.items():
        cells = []
        for j, size in enumerate(sizes):
            gain = paired(by_size[size].values, found[GAUSSIAN][size].values)
            if name != GAUSSIAN and beyond_chance(*gain):
                marked.add((len(rows), 2 + 2 * j))
            more = "" if name == GAUSSIAN else plus_minus(*gain, signed=True)
            cells += [_with_estimation(by_size[size]), more]
        rows.append([TITLES.get(name, name), *cells])
    columns = [c for size in sizes for c in (f"log p(h), N = {size}", "over Gaussian")]
    caption = (
        f"{rewards.name}: mean log evidence per task after N random actions with its standard "
        "error over tasks (in brackets, what estimating adds); the difference from the Gaussian, "
        "paired over tasks, bold beyond chance."
    )
    return Table(("prior", *columns), rows, caption, frozenset(marked))


def distances_table(result: DataResult) -> Table:
    """How far samples of each prior are from parameters that were held out."""
    rows = [
        [TITLES.get(name, name), plus_minus(row.ratio, row.standard_error)]
        for name, row in result.distances.items()
    ]
    floor = next(iter(result.distances.values())).floor
    caption = (
        "Earth mover's distance of samples of a prior from parameters held out, over that of as "
        f"many parameters not held out, {floor:.3f}: 1 is as good as the parameters themselves."
    )
    return Table(("prior", "distance over floor"), rows, caption)


def _with_estimation(numbers: LogEvidenceNumbers) -> str:
    text = plus_minus(numbers.mean, numbers.standard_error)
    return f"{text} ({numbers.estimation_error:.3f})" if numbers.estimation_error else text


_HELD_OUT = (
    "Held out means that the priors were learned from four tasks in five and that the agents act "
    "on the others, which is what a user will meet."
)
_CAPTION = (
    "Samples of the true prior (blue) and of learned ones (red), on one plane; regret by round on "
    "all tasks, with bands of one standard error."
)
_LOG_EVIDENCE = (
    "How well a prior explains tasks that it has not seen asks nothing of exploration. It is exact "
    "for linear rewards under Gaussian and mixture, and estimated otherwise. The paper's preset is "
    "left out: each of its stages has a network of its own, whose errors are unrelated, so that "
    "estimates vary by more than what the priors differ in."
)
