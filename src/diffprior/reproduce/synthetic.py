"""The synthetic experiments of Section 6.2 and Appendix C.1: six priors in the plane."""

from pathlib import Path
from typing import Any

from ..evidence.families import Logistic
from ..problems.synthetic import SYNTHETIC, synthetic
from .agents import USUAL
from .output import save_figure, write_report
from .parts import Parts
from .plots import regret_figure
from .report import Figure, Text, plain
from .study import Effort, Study
from .verdicts import CAPTION, regret_table, study_sections

PER_FIGURE = 3


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
    panels = [study.panel(result) for study, result in zip(studies, results, strict=True)]
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
    settings = {"rewards": rewards, **effort.settings(), "agents": ", ".join(agents)}
    settings["seed"] = str(seed)
    pictures = [Figure(png, CAPTION) for png in figures]
    blocks = [Text(_INTRODUCTION), *pictures, *study_sections(results)]
    write_report(out, f"Synthetic problems, {rewards} rewards", blocks, settings, parts)
    summary = "regret\n" + plain(regret_table(results))
    return {
        "experiment": "synthetic",
        "settings": settings,
        "problems": results,
        "summary": summary,
    }


_INTRODUCTION = (
    "Contextual bandits with 100 actions in the unit ball of the plane, and noise of standard "
    "deviation 1 where rewards are linear. Parameters come from the priors in blue. Every agent "
    "but TS, LinUCB and EpsilonGreedy has learned its prior from the same samples of past tasks, "
    "and all of them meet the same new tasks and the same noise."
)
