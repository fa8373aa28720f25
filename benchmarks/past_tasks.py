"""Gain of a learned prior on tasks that it has not seen, by the number of past tasks.

`python -m benchmarks.past_tasks mnist-16 --data FOLDER --past-tasks 100 1000 10000`

Priors are fitted to the first so many of a source's tasks, and scored on others by log evidence,
less that of a Gaussian prior fitted to the same tasks. A source is a distribution (clusters-16,
sheet-16, swirl) with actions from the unit ball, or MNIST embedded in D dimensions, mnist-D, with
digits as actions.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

import diffprior as dp

from .distributions import LIKELIHOODS, distribution, unit_ball
from .harness import write_json

HELD_OUT = 2000  # tasks that nothing is learned from
NUM_SCORED = 400  # tasks drawn from them
NUM_ACTIONS = 10_000  # of a source


class Source(NamedTuple):
    """Parameters of tasks, and feature vectors of actions."""

    parameters: Float[np.ndarray, "n d"]
    actions: Float[np.ndarray, "m d"]

    @staticmethod
    def of(name: str, num_tasks: int, seed: int = 0, folder: Path | None = None) -> "Source":
        """Tasks of a distribution, or of MNIST from the folder of its files."""
        kind, _, dim = name.partition("-")
        if kind == "mnist" and dim.isdecimal():
            from experiments.mnist import embed_digits, load_digits, one_against_rest

            embedding = embed_digits(*load_digits(folder), dim=int(dim), seed=seed)
            tasks = one_against_rest(embedding.features, embedding.labels, num_tasks, seed=seed)
            return Source(tasks, embedding.features[-NUM_ACTIONS:])
        tasks = distribution(name).sample(seed, num_tasks)
        actions = unit_ball(np.random.default_rng([seed, 3]), (NUM_ACTIONS,), tasks.shape[1])
        return Source(tasks, actions)


def gains(
    source: Source,
    num_past_tasks: int,
    num_observations: Sequence[int],
    likelihoods: Sequence[str] = ("linear",),
    seed: int = 0,
    num_scored: int = NUM_SCORED,
) -> Iterator[dict[str, Any]]:
    """Compare the priors on the last tasks of the source, at every number of observations."""
    past, held_out = source.parameters[:num_past_tasks], source.parameters[-HELD_OUT:]
    learned = dp.DiffusionPrior.fit(past, seed=seed, progress=False)
    mixture = dp.MixturePrior.fit(past, seed=seed)
    gaussian = dp.GaussianPrior.fit(past)
    priors = {"Gaussian": gaussian, "mixture, K chosen": mixture, "diffusion": learned}
    for likelihood in likelihoods:
        problem = dp.RowProblem(held_out, source.actions, LIKELIHOODS[likelihood]())
        for size in num_observations:
            tasks = dp.evaluate.simulate_tasks(
                problem, num_tasks=num_scored, num_observations=size, seed=seed
            )
            found = dp.evaluate.compare(priors, tasks, problem.likelihood, seed=seed)
            about = {"likelihood": likelihood, "past_tasks": num_past_tasks, "observations": size}
            yield {**about, "seed": seed, "chosen": str(learned.report.base), **found.to_dict()}
            print(about, f"\n{found}", flush=True)


def main() -> None:
    """Score priors of one source; print tables as they come."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", help="a distribution, or mnist-D")
    parser.add_argument("--data", type=Path, help="folder of MNIST's files")
    parser.add_argument("--likelihoods", nargs="+", choices=tuple(LIKELIHOODS), default=["linear"])
    parser.add_argument("--past-tasks", type=int, nargs="+", default=[100, 300, 1000, 3000])
    parser.add_argument("--observations", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        source = Source.of(options.source, max(options.past_tasks) + HELD_OUT, seed, options.data)
        for number in options.past_tasks:
            rows += gains(source, number, options.observations, options.likelihoods, seed)
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
