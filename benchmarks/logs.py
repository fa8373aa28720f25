"""Priors learned from logs: every figure beside its target.

`python -m benchmarks.logs --json FILE` runs all cells; `--list` prints their labels, and `--only`
takes some of them, so that they can be spread over processes or machines. Seconds are measured by
`benchmarks.learning`.
"""

import argparse
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import numpy as np

import diffprior as dp

from .distributions import unit_ball
from .harness import write_json

NUM_SCORED = 2000  # new tasks that a gap is over
TRUTH_DRAWS = 40_000
OFFERED = 10  # actions per round of the policies that collect
PRIOR_VARIANCE = 4.0  # of those policies
LONGEST = 200  # rows of a task
STOPPED_LONGER = 1.6  # makes up for the tasks that are given up


@dataclass(frozen=True)
class Cell:
    """One case at one data seed: what to run, and the figure to reach at most."""

    kind: str
    name: str
    num_tasks: int
    mean_rows: float
    target: float
    seed: int

    @property
    def label(self) -> str:
        """As in the table."""
        return f"{self.kind} {self.name} {self.num_tasks} x {self.mean_rows:g} seed {self.seed}"


@dataclass(frozen=True)
class Figure:
    """Result of a cell."""

    cell: Cell
    value: float
    notes: dict[str, Any]

    @property
    def reached(self) -> bool:
        """Whether the figure is at most its target."""
        return self.value <= self.cell.target

    def __str__(self) -> str:
        """The figure beside its target."""
        mark = "ok" if self.reached else "MISS"
        notes = " ".join(f"{name}={value}" for name, value in self.notes.items())
        return f"{self.cell.label}: {self.value:.4f} (target {self.cell.target:g}) {mark} {notes}"


def rows_of(
    rng: np.random.Generator, thetas: np.ndarray, mean_rows: float, logistic: bool = False
) -> dp.Logs:
    """Geometric numbers of rows, features uniform in the unit ball, noise 1 or binary rewards."""
    n, d = thetas.shape
    tasks = np.repeat(np.arange(n), rng.geometric(1 / mean_rows, n))
    x = unit_ball(rng, (len(tasks),), d)
    eta = np.sum(x * thetas[tasks], axis=1)
    if logistic:
        return dp.Logs(tasks, x, (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float))
    return dp.Logs(tasks, x, eta + rng.standard_normal(len(eta)))


def parameters_of(name: str, rng: np.random.Generator, count: int) -> np.ndarray:
    """Parameters (n, 2) of the distribution called gauss, blobs or one of the paper's six."""
    if name == "gauss":
        return rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], count)
    if name == "blobs":
        centers = 1.5 * rng.choice([-1.0, 1.0], (count, 1))
        return centers + 0.3 * rng.standard_normal((count, 2))
    key = jax.random.key(int(rng.integers(2**31)))
    return np.asarray(dp.synthetic(name).sample_parameters(key, count), np.float64)


class Clusters:
    """Five Gaussian clusters in eight dimensions, noise 0.5, features N(0, I / d)."""

    noise_std = 0.5

    def __init__(self, seed: int) -> None:
        self.rng, self.dim = np.random.default_rng([seed, 8]), 8
        self.centers = 1.5 * self.rng.standard_normal((5, self.dim))
        self.halves = 0.5 * self.rng.standard_normal((5, self.dim, self.dim)) / np.sqrt(self.dim)
        covs = self.halves @ np.swapaxes(self.halves, 1, 2)
        self.truth = dp.MixturePrior(np.full(5, 0.2), self.centers, covs)

    def logs(self, num_tasks: int, mean_rows: float) -> dp.Logs:
        """Rows of new tasks, geometric in number."""
        rng = self.rng
        which = rng.integers(5, size=num_tasks)
        noise = rng.standard_normal((num_tasks, self.dim))
        thetas = self.centers[which] + np.einsum("nij,nj->ni", self.halves[which], noise)
        tasks = np.repeat(np.arange(num_tasks), rng.geometric(1 / mean_rows, num_tasks))
        x = rng.standard_normal((len(tasks), self.dim)) / np.sqrt(self.dim)
        y = np.sum(x * thetas[tasks], axis=1) + self.noise_std * rng.standard_normal(len(tasks))
        return dp.Logs(tasks, x, y)


def learn(logs: dp.Logs, likelihood: dp.AbstractLikelihood) -> dp.Model:
    """Learn a closed form quietly."""
    return dp.learn(logs, likelihood, quick=True, progress=False)


def log_evidence(learned: dp.Model, new: dp.Logs) -> np.ndarray:
    """log p(h) of every new task under the prior that was chosen."""
    return dp.evaluate.log_evidence(learned.prior, new, learned.likelihood)


def evidence_gap(cell: Cell) -> Figure:
    """Mean log evidence of new tasks below that of the true distribution."""
    logistic = cell.kind == "logistic"
    rng, draw = np.random.default_rng([cell.seed, 14]), functools.partial(parameters_of, cell.name)
    logs = rows_of(rng, draw(rng, cell.num_tasks), cell.mean_rows, logistic)
    new = rows_of(rng, draw(rng, NUM_SCORED // (2 if logistic else 1)), cell.mean_rows, logistic)
    begin = time.perf_counter()
    learned = learn(logs, dp.Logistic() if logistic else dp.Linear())
    seconds = time.perf_counter() - begin
    points = draw(rng, TRUTH_DRAWS // (5 if logistic else 1))
    exact = dp.Logistic() if logistic else dp.Linear(noise_std=1.0)
    truth = dp.evaluate.log_evidence(dp.EmpiricalPrior(points), new, exact)
    gap = truth - log_evidence(learned, new)
    cov = np.asarray(learned.prior.moments().cov, float)
    ratios = np.sqrt(np.diagonal(cov)) / points.std(axis=0)
    notes = {
        "error": _error(gap),
        "chosen": learned.report.chosen.replace(" ", "-"),
        "std": np.round(ratios, 2).tolist(),
        "seconds": round(seconds, 1),
    }
    return Figure(cell, float(gap.mean()), notes)


def clusters_gap(cell: Cell) -> Figure:
    """The gap of the mixture on five clusters in eight dimensions."""
    world = Clusters(cell.seed)
    logs, new = world.logs(cell.num_tasks, cell.mean_rows), world.logs(NUM_SCORED, cell.mean_rows)
    learned = learn(logs, dp.Linear())
    exact = dp.evaluate.log_evidence(world.truth, new, dp.Linear(noise_std=world.noise_std))
    gap = exact - log_evidence(learned, new)
    return Figure(cell, float(gap.mean()), {"chosen": learned.report.chosen.replace(" ", "-")})


def regret(cell: Cell) -> Figure:
    """Regret of Thompson sampling over 200 rounds with the learned prior, in new tasks."""
    rng = np.random.default_rng([cell.seed, 11])
    logs = rows_of(rng, parameters_of(cell.name, rng, cell.num_tasks), cell.mean_rows)
    learned = learn(logs, dp.Linear())
    agents = {
        "ours": dp.best_sampler(learned.prior),
        "Gaussian": dp.best_sampler(learned.families["Gaussian"]),
    }
    problem = dp.synthetic(cell.name)
    result = dp.simulate(problem, agents, 192, 200, seed=cell.seed, progress=False)
    notes = {
        "error": round(float(result.standard_error("ours")[-1]), 2),
        "gaussian": round(float(result.mean("Gaussian")[-1]), 1),
        "chosen": learned.report.chosen.replace(" ", "-"),
    }
    return Figure(cell, float(result.mean("ours")[-1]), notes)


def adaptive_gap(cell: Cell) -> Figure:
    """How much larger the gap is from a policy's logs than from uniform ones of the same tasks."""
    rng = np.random.default_rng([cell.seed, 15])
    thetas = parameters_of("swirl", rng, cell.num_tasks)
    new = rows_of(rng, parameters_of("swirl", rng, NUM_SCORED), cell.mean_rows)
    found = {}
    for policy in ("uniform", cell.name):
        own = np.random.default_rng([cell.seed, 16])
        logs = collected(own, thetas, policy, cell.mean_rows)
        found[policy] = log_evidence(learn(logs, dp.Linear()), new)
    lost = found["uniform"] - found[cell.name]
    notes = {"error": _error(lost), "rows": round(logs.num_rows / logs.num_tasks, 1)}
    return Figure(cell, float(lost.mean()), notes)


def collected(
    rng: np.random.Generator, thetas: np.ndarray, policy: str, mean_rows: float
) -> dp.Logs:
    """Logs as a policy would have collected them, ten actions offered per round.

    "uniform" takes any, "greedy" the best by the posterior mean under a wide Gaussian, "thompson"
    by a draw; "stopped" is "thompson" that gives a task up once its mean reward is low, and goes
    on longer with the others, so that there are as many rows.
    """
    n, d = thetas.shape
    mean_rows *= STOPPED_LONGER if policy == "stopped" else 1.0
    lengths = np.minimum(rng.geometric(1 / mean_rows, n), LONGEST)
    precision, shift = np.tile(np.eye(d) / PRIOR_VARIANCE, (n, 1, 1)), np.zeros((n, d))
    total, rows = np.zeros(n), []
    for count in range(LONGEST):
        own = np.flatnonzero(lengths > count)
        if policy == "stopped" and count >= 3:
            lengths[own[total[own] < 0.3 * count]] = count
            own = own[lengths[own] > count]
        if len(own) == 0:
            break
        offered = unit_ball(rng, (len(own), OFFERED), d)
        belief = _belief(rng, precision[own], shift[own], policy)
        values = np.einsum("nkd,nd->nk", offered, belief)
        x = offered[np.arange(len(own)), np.argmax(values, axis=1)]
        y = np.sum(x * thetas[own], axis=1) + rng.standard_normal(len(own))
        precision[own] += x[:, :, None] * x[:, None, :]
        shift[own] += x * y[:, None]
        total[own] += y
        rows.append((own, x, y))
    tasks, x, y = (np.concatenate([row[i] for row in rows]) for i in range(3))
    order = np.argsort(tasks, kind="stable")
    return dp.Logs(tasks[order], x[order], y[order])


def _belief(
    rng: np.random.Generator, precision: np.ndarray, shift: np.ndarray, policy: str
) -> np.ndarray:
    """Parameters that the policy acts upon; zeros leave the first action, which is any."""
    if policy == "uniform":
        return np.zeros_like(shift)
    cov = np.linalg.inv(precision)
    mean = np.einsum("nij,nj->ni", cov, shift)
    if policy == "greedy":
        return mean
    return mean + np.einsum("nij,nj->ni", np.linalg.cholesky(cov), rng.standard_normal(shift.shape))


def _error(values: np.ndarray) -> float:
    """Standard error of the mean."""
    return round(float(values.std() / np.sqrt(len(values))), 4)


KINDS: dict[str, Callable[[Cell], Figure]] = {
    "gap": evidence_gap,
    "logistic": evidence_gap,
    "clusters": clusters_gap,
    "regret": regret,
    "adaptive": adaptive_gap,
}
# Kind, name, tasks, and by rows per task the figure to reach.
CASES: tuple[tuple[str, str, int, dict[int, float]], ...] = (
    ("gap", "gauss", 1000, {5: 0.010, 20: 0.010}),
    ("gap", "blobs", 1000, {5: 0.015}),
    ("gap", "corners", 1000, {5: 0.020, 20: 0.045}),
    ("gap", "H", 1000, {5: 0.030, 20: 0.035}),
    ("gap", "swirl", 1000, {5: 0.020, 20: 0.035}),
    ("gap", "cross", 1000, {5: 0.015, 20: 0.055}),
    ("gap", "rays", 1000, {5: 0.030, 20: 0.040}),
    ("gap", "triangles", 1000, {5: 0.020, 20: 0.025}),
    ("gap", "cross", 8000, {20: 0.015}),
    ("gap", "swirl", 8000, {20: 0.015}),
    ("gap", "corners", 8000, {20: 0.015}),
    ("logistic", "corners", 600, {20: 0.020, 80: 0.035}),
    ("logistic", "swirl", 600, {20: 0.025, 80: 0.030}),
    ("clusters", "d8", 2000, {10: 0.15, 40: 0.12}),
    ("regret", "corners", 1000, {20: 12.8, 5: 14.8}),
    ("regret", "corners", 8000, {5: 13.0}),
    ("regret", "cross", 1000, {20: 16.8}),
    ("adaptive", "thompson", 1000, {10: 0.010}),
    ("adaptive", "greedy", 1000, {10: 0.010}),
    ("adaptive", "stopped", 1000, {10: 0.010}),
)


def cells(wanted: Sequence[str], seeds: Sequence[int]) -> Iterator[Cell]:
    """The cells whose label contains one of `wanted`, or all."""
    for kind, name, num_tasks, targets in CASES:
        for (mean_rows, target), seed in itertools.product(targets.items(), seeds):
            cell = Cell(kind, name, num_tasks, float(mean_rows), target, seed)
            if not wanted or any(part in cell.label for part in wanted):
                yield cell


def run_cell(cell: Cell) -> Figure:
    """One cell, in a process of its own."""
    return KINDS[cell.kind](cell)


def main() -> None:
    """Run the cells, several at a time, and print figures as they come."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], help="cells whose label contains one")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--list", action="store_true", help="print labels and run nothing")
    options = parser.parse_args()
    chosen = list(cells(options.only, options.seeds))
    if options.list:
        print("\n".join(cell.label for cell in chosen))
        return
    figures: list[Figure] = []
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        for future in as_completed([pool.submit(run_cell, cell) for cell in chosen]):
            figures.append(future.result())
            print(figures[-1], flush=True)
    write_json(options.json, [{**dataclasses.asdict(f), "reached": f.reached} for f in figures])


if __name__ == "__main__":
    main()
