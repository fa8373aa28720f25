"""The synthetic experiments of Section 6.2 and Appendix C.1: six priors in the plane."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..evidence.families import Logistic
from ..problems.synthetic import SYNTHETIC, synthetic
from .agents import NUM_ATOMS, USUAL, Materials
from .output import save_figure, write_report
from .parts import Parts
from .plots import regret_figure
from .report import Block, Figure, Heading, Text, plain
from .study import Effort, Study
from .verdicts import (
    difference_table,
    posterior_table,
    regret_table,
    temperature_table,
    time_table,
    verdict,
)

PER_FIGURE = 3
NUM_SHOWN = 2000  # samples of a prior in a picture
SHOWN = {"paper": "the paper's preset", "default": "default prior"}


def synthetic_experiment(
    out: Path,
    parts: Parts,
    *,
    names: tuple[str, ...] = SYNTHETIC,
    agents: tuple[str, ...] = USUAL,
    effort: Effort | None = None,
    logistic: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Run what is missing, draw the figures, write the report, and return the numbers."""
    effort = effort or Effort()
    likelihood = Logistic() if logistic else None
    studies = [
        Study(name, synthetic(name, likelihood), parts, effort=effort, names=agents, seed=seed)
        for name in names
    ]
    parts.watch.plan(sum(study.num_parts() for study in studies))
    results = [study.run() for study in studies]
    panels = [
        _panel(study.materials, result) for study, result in zip(studies, results, strict=True)
    ]
    rewards = "logistic" if logistic else "linear"
    figures = [
        save_figure(
            out,
            f"synthetic-{rewards}-{1 + i // PER_FIGURE}",
            regret_figure,
            panels[i : i + PER_FIGURE],
        )
        for i in range(0, len(panels), PER_FIGURE)
    ]
    settings = _settings(effort, rewards, agents, seed)
    write_report(
        out, f"Synthetic problems, {rewards} rewards", _blocks(results, figures), settings, parts
    )
    summary = "regret\n" + plain(regret_table(results))
    return {
        "experiment": "synthetic",
        "settings": settings,
        "problems": results,
        "summary": summary,
    }


def _panel(materials: Materials, result: dict[str, Any]) -> dict[str, Any]:
    """What the figure shows of one problem."""
    key = jax.random.key(materials.seed + 1)
    learned = {
        title: np.asarray(materials.prior(name).sample(key, NUM_SHOWN))
        for name, title in SHOWN.items()
        if materials.has(name)
    }
    curves = {
        name: {"mean": agent["regret_curve"], "se": agent["standard_error_curve"]}
        for name, agent in result["agents"].items()
    }
    true = materials.samples[:NUM_SHOWN]
    return {"name": result["name"], "true": true, "learned": learned, "curves": curves}


def _blocks(results: list[dict[str, Any]], figures: list[bytes]) -> list[Block]:
    """The report, but for its end."""
    blocks: list[Block] = [Text(_INTRODUCTION)]
    blocks += [Figure(png, _CAPTION) for png in figures]
    blocks += [Heading("Regret"), regret_table(results), difference_table(results), Text(_EXACT)]
    blocks += [Heading("What it says")]
    blocks += [Text(" ".join(sentences)) for sentences in map(verdict, results) if sentences]
    blocks += [Heading("Posteriors and regret"), Text(_POSTERIORS)]
    blocks += [posterior_table(result) for result in results]
    blocks += [Heading("Temperatures"), Text(_TEMPERATURES)]
    blocks += [temperature_table(result) for result in results]
    return [*blocks, Heading("Cost"), time_table(results)]


def _settings(effort: Effort, rewards: str, agents: tuple[str, ...], seed: int) -> dict[str, str]:
    return {
        "rewards": rewards,
        "runs": str(effort.num_runs),
        "rounds": str(effort.num_rounds),
        "runs at other temperatures": str(effort.temperature_runs),
        "training samples": str(effort.num_samples),
        "tasks for posteriors": f"{effort.num_tasks} of each size, {effort.num_draws} draws",
        "agents": ", ".join(agents),
        "seed": str(seed),
    }


_INTRODUCTION = (
    "Contextual bandits with 100 actions in the unit ball of the plane and noise of standard "
    "deviation 1 (linear rewards), whose parameters come from six priors. Every agent but TS, "
    "LinUCB and EpsilonGreedy has learned its prior from the same samples of past tasks, and all "
    "of them meet the same tasks and the same noise."
)
_CAPTION = (
    "Above: samples of the true prior (blue) and of learned ones (red). Below: regret, with bands "
    "of one standard error."
)
_EXACT = (
    "Exact draws from the true posterior: in closed form on cross with linear rewards, elsewhere "
    f"under {NUM_ATOMS:,} fresh samples of the true prior (fewer for logistic rewards). DiffTS is "
    "the paper's preset to the letter; DiffTS fitted, EvidenceDPS and TwistedSMC share one prior "
    "of the default kind."
)
_POSTERIORS = (
    "Regret does not tell a good posterior from a narrow one. These tables put the distance from "
    "the true posterior, the coverage of its intervals, and regret side by side."
)
_TEMPERATURES = (
    "Compare priors within a column. Where a lower temperature helps every agent alike, what looks "
    "like a better method at temperature 1 may only explore less."
)
