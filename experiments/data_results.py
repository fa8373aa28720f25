"""What an experiment on data comes to."""

from dataclasses import dataclass

from .results import ProblemResult


@dataclass(frozen=True)
class LogEvidenceNumbers:
    """log p(h) of tasks held out under one prior, in nats; `values` task by task."""

    mean: float
    standard_error: float
    estimation_error: float
    shortfall: float
    failed: int
    values: list[float]


@dataclass(frozen=True)
class PriorDistance:
    """Earth mover's distance from parameters held out, over that of parameters seen (floor)."""

    ratio: float
    standard_error: float
    floor: float


@dataclass(frozen=True)
class RewardsResult:
    """One kind of rewards: regret on all tasks and on those held out; log evidence."""

    name: str
    whole: ProblemResult
    held_out: ProblemResult
    log_evidence: dict[str, dict[str, LogEvidenceNumbers]]  # by prior and size of history


@dataclass(frozen=True)
class DataResult:
    """All kinds of rewards on one data set, and the distances of its priors."""

    title: str
    settings: dict[str, str]
    rewards: tuple[RewardsResult, ...]
    distances: dict[str, PriorDistance]

    @property
    def problems(self) -> list[ProblemResult]:
        """Those of tasks held out, then those of all tasks."""
        return [r.held_out for r in self.rewards] + [r.whole for r in self.rewards]
