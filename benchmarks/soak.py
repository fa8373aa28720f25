"""Bandits under load for long: memory that must stay flat, and threads that must lose nothing.

python -m diffprior.bench.soak memory --minutes 60
python -m diffprior.bench.soak threads --seconds 60
"""

import dataclasses
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from diffprior.bandits.bandit import Bandit
from diffprior.evidence.families import Logistic, Poisson
from diffprior.evidence.linear import Linear, LinearEvidence
from diffprior.priors.diffusion import DiffusionPrior
from diffprior.priors.gaussian import GaussianPrior
from diffprior.priors.mixture import MixturePrior
from diffprior.samplers.evidence_dps import EvidenceDPS

DIM = 5
app = typer.Typer(add_completion=False, no_args_is_help=True)


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a process holds after some minutes of work."""

    minutes: float
    decisions: int
    rewards: int
    resident_mb: float
    memory_maps: int

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.minutes:6.1f} min  {self.decisions:9,} decisions  {self.rewards:9,} rewards  "
            f"{self.resident_mb:7.1f} MB  {self.memory_maps:6,} maps"
        )


def soak(minutes: float, readings: int = 12) -> Iterator[Reading]:
    """Decide and update with numbers of actions, decisions and draws that vary.

    Args:
        minutes: How long.
        readings: How often to say what the process holds.

    Yields:
        Readings at equal intervals; memory is read on Linux only, and zero elsewhere.
    """
    rng, bandits = np.random.default_rng(0), _bandits()
    begin, rewards, shown = time.monotonic(), 0, 0
    for bandit in itertools.cycle(bandits):
        features, draws = _request(rng)
        decision = bandit.decide(features, propensity_draws=draws)
        chosen = np.take_along_axis(features, decision.action[:, None, None], axis=1)[:, 0]
        bandit.update(chosen, rng.integers(0, 2, len(chosen)).astype(float))
        rewards += len(chosen)
        passed = (time.monotonic() - begin) / 60
        if passed * readings >= minutes * (shown + 1):
            shown += 1
            decisions = sum(b.num_decisions for b in bandits)
            yield Reading(passed, decisions, rewards, *_memory())
        if passed >= minutes:
            return


def share(bandit: Bandit, num_threads: int, seconds: float) -> tuple[float, bool]:
    """Decisions a second of threads that share a bandit, and whether every one was counted."""
    before, counts = bandit.num_decisions, [0] * num_threads
    begin = time.monotonic()

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        while time.monotonic() - begin < seconds:
            features = rng.standard_normal((20, DIM))
            bandit.update(features[bandit.decide(features).action], rng.integers(2))
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    passed, total = time.monotonic() - begin, sum(counts)
    evidence = bandit.evidence
    learned = float(evidence.count) if isinstance(evidence, LinearEvidence) else 0.0
    return total / passed, before + total == bandit.num_decisions == learned


@app.command()
def memory(minutes: Annotated[float, typer.Option(help="How long.")] = 60.0) -> None:
    """Decide and update with varying numbers; print memory and memory maps."""
    for reading in soak(minutes):
        typer.echo(str(reading))


@app.command()
def threads(seconds: Annotated[float, typer.Option(help="How long, each time.")] = 60.0) -> None:
    """Share bandits between one and eight threads; print decisions a second."""
    gaussian, *_, chain = _bandits()
    for bandit in (gaussian, chain):
        bandit.warm_up(20)
        for number in (1, 8):
            rate, whole = share(bandit, number, seconds)
            counted = "all counted" if whole else "SOME LOST"
            typer.echo(f"{bandit!r}, {number} threads: {rate:,.0f} a second, {counted}")


def _bandits() -> list[Bandit]:
    """One of every kind of program."""
    gaussian = GaussianPrior(np.zeros(DIM), np.eye(DIM))
    means = np.stack([np.ones(DIM), -np.ones(DIM)])
    mixture = MixturePrior(np.ones(2), means, np.stack([np.eye(DIM)] * 2))
    chain = EvidenceDPS(DiffusionPrior.from_prior(mixture), steps=5)
    return [
        Bandit(gaussian, Linear(1.0), seed=0),
        Bandit(mixture, Logistic(), seed=0, max_rows=256),
        Bandit(gaussian, Poisson(), seed=0, max_rows=256),
        Bandit(chain, Linear(1.0), seed=0),
    ]


def _request(rng: np.random.Generator) -> tuple[np.ndarray, int | None]:
    """Features of some decisions among some actions, and how many draws for propensities."""
    num_actions = int(rng.integers(1, 201))
    batch_size = int(rng.integers(1, 40)) if rng.random() < 0.25 else 1
    draws = int(rng.integers(1, 400)) if rng.random() < 0.2 else None
    return rng.uniform(-0.5, 0.5, (batch_size, num_actions, DIM)), draws


def _memory() -> tuple[float, int]:
    """Resident megabytes and memory maps of this process."""
    process = Path("/proc/self")
    if not process.is_dir():
        return 0.0, 0
    status = (process / "status").read_text(encoding="utf-8")
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return int(kilobytes) / 1024, len((process / "maps").read_text().splitlines())


if __name__ == "__main__":
    app()
