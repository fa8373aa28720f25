"""Results of simulations: regret curves, standard errors, failures and times."""

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from ..reporting.figures import AbstractResult, plot_curves
from ..reporting.tables import Table, plus_minus

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclasses.dataclass(frozen=True, repr=False)
class SimulationResult(AbstractResult):
    """Cumulative regret, Eq. (9), of every agent in the same environments.

    `regret[agent]` and `actions[agent]` have shape (num_runs, num_rounds). `failures[agent]` counts
    decisions whose draw failed, and which were therefore random. `seconds` excludes compilation.

    Args:
        regret: Cumulative regret of each agent (runs, rounds).
        actions: What each agent did (runs, rounds).
        failures: Decisions of each agent whose draw failed, and which were therefore random.
        seconds: Time of each agent, without compilation.
        compile_seconds: Time of its compilation.
        seed: Of the simulation.
    """

    regret: dict[str, Float[np.ndarray, "runs rounds"]]
    actions: dict[str, Int[np.ndarray, "runs rounds"]]
    failures: dict[str, int]
    seconds: dict[str, float]
    compile_seconds: dict[str, float]
    seed: int

    @property
    def agents(self) -> tuple[str, ...]:
        """Names, in the order given."""
        return tuple(self.regret)

    @property
    def num_runs(self) -> int:
        """Independent runs of each agent."""
        return self._any().shape[0]

    @property
    def num_rounds(self) -> int:
        """Rounds n of each run."""
        return self._any().shape[1]

    def mean(self, agent: str) -> Float[np.ndarray, " rounds"]:
        """Mean cumulative regret of an `agent` after each round; the last entry is R(n)."""
        return self._of(agent).mean(axis=0)

    def standard_error(self, agent: str) -> Float[np.ndarray, " rounds"]:
        """Standard error of `mean` after each round, of an `agent`."""
        return _standard_error(self._of(agent))

    def paired_difference(
        self, agent: str, other: str
    ) -> tuple[Float[np.ndarray, " rounds"], Float[np.ndarray, " rounds"]]:
        """Mean of regret(`agent`) - regret(`other`) after each round, and its standard error.

        Both met the same environments, so this error is smaller than those of the two means.
        """
        difference = self._of(agent) - self._of(other)
        return difference.mean(axis=0), _standard_error(difference)

    def to_dict(self) -> dict[str, object]:
        """Curves, failures and times as plain numbers.

        Returns:
            A dictionary that JSON can hold.
        """
        return {
            "num_runs": self.num_runs,
            "num_rounds": self.num_rounds,
            "seed": self.seed,
            "agents": {agent: self._row(agent) for agent in self.agents},
        }

    def to_json(self) -> str:
        """`to_dict` as JSON.

        Returns:
            Text.
        """
        return json.dumps(self.to_dict())

    def to_dataframe(self) -> "pd.DataFrame":
        """A pandas DataFrame with one row for each agent and round; needs pandas.

        Returns:
            Columns agent, round, regret and standard_error.

        Raises:
            ImportError: If pandas is not installed.
        """
        import pandas as pd

        rounds = np.arange(1, self.num_rounds + 1)
        frames = [
            {
                "agent": agent,
                "round": rounds,
                "regret": self.mean(agent),
                "standard_error": self.standard_error(agent),
            }
            for agent in self.agents
        ]
        return pd.concat([pd.DataFrame(frame) for frame in frames], ignore_index=True)

    def table(self) -> Table:
        """R(n) of each agent with its standard error.

        Returns:
            A row for each agent.
        """
        rows = [
            (
                agent,
                plus_minus(self.mean(agent)[-1], self.standard_error(agent)[-1]),
                f"{self.seconds[agent]:.2f}",
                str(self.failures[agent]),
            )
            for agent in self.agents
        ]
        caption = f"regret after {self.num_rounds} rounds, {self.num_runs} runs"
        return Table(("agent", "regret", "seconds", "failed draws"), rows, caption)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot mean regret in `ax`, by default a new figure, with bands of two standard errors."""
        curves = {agent: (self.mean(agent), self.standard_error(agent)) for agent in self.agents}
        return plot_curves(ax, curves, "round", "regret")

    def _row(self, agent: str) -> dict[str, Any]:
        mean, error = self.mean(agent), self.standard_error(agent)
        return {
            "regret": float(mean[-1]),
            "standard_error": float(error[-1]),
            "regret_curve": mean.tolist(),
            "standard_error_curve": error.tolist(),
            "failures": self.failures[agent],
            "seconds": self.seconds[agent],
            "compile_seconds": self.compile_seconds[agent],
        }

    def _of(self, agent: str) -> Float[np.ndarray, "runs rounds"]:
        if agent not in self.regret:
            listed = ", ".join(map(repr, self.agents))
            raise ValueError(f"`agent`: expected one of {listed}, got {agent!r}; pick one of those")
        return self.regret[agent]

    def _any(self) -> Float[np.ndarray, "runs rounds"]:
        return next(iter(self.regret.values()))


def _standard_error(values: Float[np.ndarray, "runs rounds"]) -> Float[np.ndarray, " rounds"]:
    """Standard error of the mean over runs; NaN for a single run, which says nothing of it."""
    runs = len(values)
    return (
        values.std(axis=0, ddof=1) / np.sqrt(runs) if runs > 1 else np.full_like(values[0], np.nan)
    )
