"""What experiments come to: regret, posteriors, and which agent is ahead beyond chance."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import sem

CHANCE = 2.0  # standard errors that a difference must exceed
REFERENCE = "Exact"  # knows the true prior, and so competes with nobody


@dataclass(frozen=True)
class Regret:
    """Regret of one agent, Eq. (9), over runs: after the last round, and after every round."""

    mean: float
    standard_error: float
    final: list[float]  # of every run
    curve: list[float]
    curve_error: list[float]
    seconds: float
    compile_seconds: float
    failures: int


@dataclass(frozen=True)
class PosteriorError:
    """Earth mover's distance from the true posterior over its floor, by size; 90 % coverage."""

    ratio: list[float]
    ratio_error: list[float]
    coverage: float
    coverage_error: float


@dataclass(frozen=True)
class AgentResult:
    """One agent on one problem; `tempered` by temperature, for Thompson sampling."""

    regret: Regret
    tempered: dict[str, Regret] = field(default_factory=dict)
    posterior: PosteriorError | None = None


@dataclass(frozen=True)
class ProblemResult:
    """All agents on one problem, and the sizes of histories that posteriors were judged after."""

    name: str
    sizes: tuple[int, ...]
    agents: dict[str, AgentResult]

    def regret(self, agent: str, temperature: str = "1") -> Regret:
        """Regret of an agent at a temperature."""
        found = self.agents[agent]
        return found.regret if temperature == "1" else found.tempered[temperature]

    def saved(self, agent: str, rival: str, temperature: str = "1") -> tuple[float, float]:
        """Regret that an agent saves over a rival at one temperature, and its standard error."""
        ours, theirs = (self.regret(name, temperature).final for name in (agent, rival))
        return paired(theirs, ours)

    @property
    def lowest(self) -> str:
        """The competitor of the lowest mean regret, of those that have played the most runs."""
        most = max(len(self.agents[name].regret.final) for name in self.competitors)
        whole = [n for n in self.competitors if len(self.agents[n].regret.final) == most]
        return min(whole, key=lambda name: self.agents[name].regret.mean)

    @property
    def winner(self) -> str | None:
        """The lowest competitor, if it is ahead of every other beyond chance; or nobody."""
        best = self.lowest
        others = [name for name in self.competitors if name != best]
        ahead = all(beyond_chance(*self.saved(best, name)) for name in others)
        return best if others and ahead else None

    @property
    def competitors(self) -> list[str]:
        """Agents that one can have: all but the reference, unless there is no other."""
        return [name for name in self.agents if name != REFERENCE] or list(self.agents)


def paired(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Mean of first - second over the runs that both have played, and its standard error."""
    count = min(len(first), len(second))
    difference = np.subtract(first[:count], second[:count])
    return float(difference.mean()), float(sem(difference)) if count > 1 else float("nan")


def beyond_chance(gain: float, error: float) -> bool:
    """Whether a gain is more than two standard errors; of one run nothing is known."""
    return gain > CHANCE * error
