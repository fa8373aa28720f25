"""Experiments small enough for a test: nothing is really learned."""

from pathlib import Path

import pytest

import diffprior as dp
from diffprior.schedule import Schedule
from experiments.agents import LearnedPriors
from experiments.experiment import Effort
from experiments.results import Results


@pytest.fixture
def effort() -> Effort:
    return Effort(
        num_runs=4,
        num_rounds=6,
        temperatures=(0.5,),
        temperature_runs=4,
        num_samples=300,
        sizes=(5,),
        num_tasks=4,
        num_draws=19,
        coverage_tasks=4,
        coverage_draws=19,
    )


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "out")


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str, Schedule | None]]:
    """Diffusion priors and mixtures are one Gaussian; the list is of what was asked for:
    label, number of samples, preset and schedule."""
    asked: list[tuple[str, int, str, Schedule | None]] = []

    def diffusion(
        priors: LearnedPriors, preset: str, schedule: Schedule | None = None
    ) -> dp.GaussianPrior:
        asked.append((priors.label, len(priors.samples), preset, schedule))
        return dp.GaussianPrior.fit(priors.samples)

    def mixture(priors: LearnedPriors, num_components: int | None) -> dp.GaussianPrior:
        return dp.GaussianPrior.fit(priors.samples)

    monkeypatch.setattr(LearnedPriors, "diffusion", diffusion)
    monkeypatch.setattr(LearnedPriors, "mixture", mixture)
    return asked
