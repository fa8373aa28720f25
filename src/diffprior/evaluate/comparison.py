"""Priors side by side on tasks that they have not seen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ..evidence.base import AbstractLikelihood
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from ..reporting.tables import Table, plus_minus, standard_error
from .estimates import LogEvidence, estimate_log_evidence
from .tasks import as_tasks


@dataclass(frozen=True)
class Comparison:
    """Log evidence of the same tasks under several priors.

    Args:
        log_evidence: Of every prior, by name.
        baseline: The prior that the others are compared with.
        num_observations: Rows of each task (n,).
    """

    log_evidence: dict[str, LogEvidence]
    baseline: str
    num_observations: np.ndarray

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the priors, in the order given."""
        return tuple(self.log_evidence)

    @property
    def best(self) -> str:
        """The prior with the highest mean log evidence."""
        return max(self.names, key=lambda name: self.log_evidence[name].mean)

    def difference(self, name: str, other: str | None = None) -> tuple[float, float]:
        """Mean of log p(h) under one prior minus that under another, and its standard error.

        Args:
            name: A prior.
            other: Another; by default the baseline.

        Returns:
            The mean difference, in nats a task, and its standard error over the tasks, which are
            the same for both: paired. Errors of estimating are part of it.
        """
        differences = self._differences(name, other)
        return float(np.mean(differences)), standard_error(differences)

    def by_length(self) -> list[tuple[int, int, dict[str, tuple[float, float]]]]:
        """Differences from the baseline in tasks of similar length.

        Returns:
            For each third of the tasks, short to long: least and most rows of a task, and the mean
            difference of every prior with its standard error.
        """
        order = np.argsort(self.num_observations, kind="stable")
        found = []
        for some in np.array_split(order, min(3, len(order))):
            sizes = self.num_observations[some]
            rows = {name: self._differences(name)[some] for name in self.names}
            table = {name: (float(np.mean(d)), standard_error(d)) for name, d in rows.items()}
            found.append((int(sizes.min()), int(sizes.max()), table))
        return found

    def to_dict(self) -> dict[str, Any]:
        """The table as plain numbers.

        Returns:
            A dictionary that JSON can hold.
        """
        return {
            "num_tasks": len(self.num_observations),
            "baseline": self.baseline,
            "priors": {name: self._plain(name) for name in self.names},
        }

    def __str__(self) -> str:
        """A table, one row for each prior."""
        rows = [
            (
                name,
                plus_minus(found.mean, found.standard_error),
                "" if name == self.baseline else plus_minus(*self.difference(name)),
                str(found.failed),
            )
            for name, found in self.log_evidence.items()
        ]
        columns = ("prior", "log evidence a task", f"over {self.baseline}", "failed")
        return f"{len(self.num_observations)} tasks\n{Table(columns, rows)}"

    def _differences(self, name: str, other: str | None = None) -> Float[np.ndarray, " n"]:
        return self._of(name).values - self._of(other or self.baseline).values

    def _of(self, name: str) -> LogEvidence:
        if name not in self.log_evidence:
            listed = ", ".join(map(repr, self.names))
            raise ValueError(f"`name`: expected one of {listed}, got {name!r}; pick one of those")
        return self.log_evidence[name]

    def _plain(self, name: str) -> dict[str, Any]:
        found, (difference, error) = self._of(name), self.difference(name)
        return {
            "log_evidence": found.mean,
            "standard_error": found.standard_error,
            "estimation_error": found.estimation_error,
            "difference": difference,
            "difference_standard_error": error,
            "failed": found.failed,
        }


def compare(
    priors: Any,
    tasks: Any,
    likelihood: AbstractLikelihood | None = None,
    *,
    samples: Any = None,
    baseline: str | None = None,
    num_estimates: int = 8,
    seed: int = 0,
) -> Comparison:
    """Compare priors by the log evidence of tasks that none of them has seen.

    Args:
        priors: Priors by name, in a dictionary.
        tasks: `Tasks` or `Logs`; tasks, not rows, must be held out of what the priors saw.
        likelihood: How rewards arise; needed with logs, by default the tasks' own.
        samples: Parameters of past tasks (n, d). With them, "Gaussian" and "mixture, K chosen", the
            number of components chosen by held-out samples, are added to the table: where a
            mixture does as well as a learned prior, it is enough, and faster.
        baseline: The prior to compare the others with; by default the first of the table.
        num_estimates: Independent estimates of each number, where it has no closed form.
        seed: Of the estimates.

    Returns:
        The numbers of every prior, and paired differences with their standard errors.

    Raises:
        ValueError: If priors are not by name or none, or the baseline is none of them.
    """
    if not isinstance(priors, Mapping):
        raise ValueError(
            f"`priors`: expected priors by name, got {type(priors).__name__}; "
            'pass a dictionary such as {"learned": prior}'
        )
    tasks = as_tasks(tasks, likelihood)
    everyone: dict[str, Any] = {**_baselines(samples, seed), **priors}
    baseline = baseline or next(iter(everyone), None)
    if baseline not in everyone:
        listed = ", ".join(map(repr, everyone)) or "at least one prior"
        raise ValueError(f"`baseline`: expected {listed}, got {baseline!r}; name one of the priors")
    found = {
        name: estimate_log_evidence(prior, tasks, num_estimates=num_estimates, seed=seed)
        for name, prior in everyone.items()
    }
    return Comparison(found, baseline, tasks.num_observations)


def _baselines(samples: Any, seed: int) -> dict[str, Any]:
    if samples is None:
        return {}
    mixture = MixturePrior.fit(samples, seed=seed)
    return {"Gaussian": GaussianPrior.fit(samples), "mixture, K chosen": mixture}
