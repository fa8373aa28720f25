"""Priors from logs against the truth: gaps of held-out evidence, noise, regret, time and memory.

`python -m diffprior.bench.logs --json figures.json` prints each figure beside its target.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from .logs_scale import Cell, Figure, million, rows_of, streamed

Law = Callable[[np.random.Generator, int], np.ndarray]
JUDGED = 2000  # new tasks that a gap is over
TRUTH_DRAWS = 40_000


def law_of(name: str) -> Law:
    """Parameters by the name of their law."""
    if name == "gauss":
        return lambda rng, n: rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], n)
    if name == "blobs":
        return lambda rng, n: (
            1.5 * rng.choice([-1.0, 1.0], (n, 1)) + 0.3 * rng.standard_normal((n, 2))
        )
    import jax

    from ..problems.synthetic import synthetic

    problem = synthetic(name)
    return lambda rng, n: np.asarray(
        problem.sample_parameters(jax.random.key(int(rng.integers(2**31))), n), np.float64
    )


def evidence_gap(cell: Cell) -> Figure:
    """Mean log evidence of new tasks below that of the true law, and the prior's spread."""
    from ..evidence.families import Linear, Logistic
    from ..learning.diagnostics import log_likelihoods
    from ..learning.families import Family
    from ..learning.judge import task_log_evidence
    from ..learning.ladder import learn
    from ..logs.logs import Logs
    from ..priors.from_tasks.components import Components
    from ..priors.from_tasks.data import block_order, blocks_of

    logistic = cell.kind == "logistic"
    rng = np.random.default_rng([cell.seed, 14])
    law = law_of(cell.name)
    logs = Logs(*rows_of(rng, law(rng, cell.num_tasks), cell.mean_rows, logistic))
    count = JUDGED // 2 if logistic else JUDGED
    new = Logs(*rows_of(rng, law(rng, count), cell.mean_rows, logistic))
    begin = time.perf_counter()
    likelihood: Any = Logistic() if logistic else Linear()
    learned = learn(logs, likelihood, up_to="mixture", simulate=False, progress=False)
    seconds = time.perf_counter() - begin
    exact: Any = Logistic() if logistic else Linear(noise_std=1.0)
    points = law(rng, TRUTH_DRAWS // (5 if logistic else 1))
    logs_p = []
    for block in blocks_of(new, exact):
        values = log_likelihoods(block, points)
        top = values.max(axis=1)
        logs_p.append(top + np.log(np.mean(np.exp(values - top[:, None]), axis=1)))
    truth = np.empty(count)
    truth[block_order(new)] = np.concatenate(logs_p)
    prior: Any = learned.prior
    parts = Components(*(np.asarray(a, float) for a in (prior.weights, prior.means, prior.covs)))
    ours = task_log_evidence(Family("ours", prior, parts), new, learned.likelihood)
    gap = truth - ours
    std = np.sqrt(np.diagonal(parts.moments()[1])) / points.std(axis=0)
    notes = {
        "error": round(float(gap.std() / np.sqrt(count)), 4),
        "chosen": learned.report.chosen.replace(" ", "-"),
        "std": np.round(std, 2).tolist(),
        "seconds": round(seconds, 1),
    }
    if not logistic:
        notes["noise"] = round(float(learned.likelihood.noise_std), 4)  # type: ignore[attr-defined]
    return Figure(cell, float(gap.mean()), notes)


def noise_error(cell: Cell) -> Figure:
    """Relative error of the estimated noise."""
    from ..logs.logs import Logs
    from ..priors.from_tasks.noise import estimate_noise

    rng = np.random.default_rng([cell.seed, 13])
    logs = Logs(*rows_of(rng, law_of(cell.name)(rng, cell.num_tasks), cell.mean_rows))
    found = estimate_noise(logs.statistics())
    return Figure(cell, abs(found.noise_std - 1.0), {"how": found.how})


def clusters_gap(cell: Cell) -> Figure:
    """Five Gaussian clusters in eight dimensions, noise 0.5, features N(0, I / d)."""
    from ..evidence.families import Linear
    from ..logs.logs import Logs
    from ..priors.from_tasks.components import Components
    from ..priors.from_tasks.data import blocks_of, resolve
    from ..priors.from_tasks.em import log_evidences
    from ..priors.from_tasks.search import search_mixture

    rng = np.random.default_rng([cell.seed, 8])
    d = 8
    centres = 1.5 * rng.standard_normal((5, d))
    halves = 0.5 * rng.standard_normal((5, d, d)) / np.sqrt(d)

    def logs_of(n: int) -> Logs:
        which = rng.integers(5, size=n)
        noise = rng.standard_normal((n, d))
        thetas = centres[which] + np.einsum("nij,nj->ni", halves[which], noise)
        tasks = np.repeat(np.arange(n), rng.geometric(1 / cell.mean_rows, n))
        x = rng.standard_normal((len(tasks), d)) / np.sqrt(d)
        y = np.sum(x * thetas[tasks], axis=1) + 0.5 * rng.standard_normal(len(tasks))
        return Logs(tasks, x, y)

    logs, new = logs_of(cell.num_tasks), logs_of(JUDGED)
    begin = time.perf_counter()
    likelihood, _ = resolve(logs, Linear())
    found = search_mixture(logs, likelihood)
    seconds = time.perf_counter() - begin
    truth = Components(np.full(5, 0.2), centres, halves @ np.swapaxes(halves, 1, 2))
    exact = log_evidences(blocks_of(new, Linear(noise_std=0.5)), truth)
    ours = log_evidences(blocks_of(new, likelihood), found.components)
    gaussian = log_evidences(blocks_of(new, likelihood), found.gaussian)
    notes = {
        "gaussian": round(float((exact - gaussian).mean()), 3),
        "chosen": found.candidates[found.best or 0].name.replace(" ", "-"),
        "seconds": round(seconds, 1),
    }
    return Figure(cell, float((exact - ours).mean()), notes)


def regret(cell: Cell) -> Figure:
    """Thompson sampling over 200 rounds with the learned prior, in tasks of the true law."""
    from ..bandits.simulate import simulate
    from ..evidence.families import Linear
    from ..learning.ladder import learn
    from ..logs.logs import Logs
    from ..problems.synthetic import synthetic
    from ..samplers.choose import best_sampler

    rng = np.random.default_rng([cell.seed, 11])
    logs = Logs(*rows_of(rng, law_of(cell.name)(rng, cell.num_tasks), cell.mean_rows))
    learned = learn(logs, Linear(), up_to="mixture", simulate=False, progress=False)
    agents = {
        "ours": best_sampler(learned.prior),
        "Gaussian": best_sampler(learned.families["Gaussian"]),
    }
    result = simulate(
        synthetic(cell.name), agents, num_runs=192, num_rounds=200, seed=cell.seed, progress=False
    )
    notes = {
        "error": round(float(result.standard_error("ours")[-1]), 2),
        "gaussian": round(float(result.mean("Gaussian")[-1]), 1),
        "chosen": learned.report.chosen.replace(" ", "-"),
    }
    return Figure(cell, float(result.mean("ours")[-1]), notes)


KINDS: dict[str, Callable[[Cell], Figure]] = {
    "gap": evidence_gap,
    "logistic": evidence_gap,
    "noise": noise_error,
    "clusters": clusters_gap,
    "regret": regret,
    "million": million,
    "streamed": streamed,
}
CASES: tuple[tuple[str, str, int, float, float], ...] = (
    ("gap", "gauss", 1000, 5, 0.010),
    ("gap", "gauss", 1000, 20, 0.010),
    ("gap", "blobs", 1000, 5, 0.015),
    ("gap", "corners", 1000, 5, 0.020),
    ("gap", "corners", 1000, 20, 0.045),
    ("gap", "H", 1000, 5, 0.030),
    ("gap", "H", 1000, 20, 0.035),
    ("gap", "swirl", 1000, 5, 0.020),
    ("gap", "swirl", 1000, 20, 0.035),
    ("gap", "cross", 1000, 5, 0.015),
    ("gap", "cross", 1000, 20, 0.055),
    ("gap", "rays", 1000, 5, 0.030),
    ("gap", "rays", 1000, 20, 0.040),
    ("gap", "triangles", 1000, 5, 0.020),
    ("gap", "triangles", 1000, 20, 0.025),
    ("gap", "cross", 8000, 20, 0.015),
    ("gap", "swirl", 8000, 20, 0.015),
    ("gap", "corners", 8000, 20, 0.015),
    ("logistic", "corners", 600, 20, 0.020),
    ("logistic", "corners", 600, 80, 0.035),
    ("logistic", "swirl", 600, 20, 0.025),
    ("logistic", "swirl", 600, 80, 0.030),
    ("clusters", "d8", 2000, 10, 0.15),
    ("clusters", "d8", 2000, 40, 0.12),
    ("regret", "corners", 1000, 20, 12.8),
    ("regret", "corners", 1000, 5, 14.8),
    ("regret", "corners", 8000, 5, 13.0),
    ("regret", "cross", 1000, 20, 16.8),
    ("noise", "swirl", 1000, 2, 0.06),
    ("noise", "swirl", 1000, 5, 0.03),
    ("noise", "swirl", 1000, 20, 0.015),
    ("million", "d10", 1_000_000, 20, 2.0),
    ("streamed", "d10", 50_000, 20, 1.0),
)


def cells(wanted: str, seeds: int) -> Iterator[Cell]:
    """The cells whose label contains `wanted`; what is timed runs once."""
    for kind, name, num_tasks, mean_rows, target in CASES:
        for seed in range(1 if kind in ("million", "streamed") else seeds):
            cell = Cell(kind, name, num_tasks, mean_rows, target, seed)
            if wanted in cell.label:
                yield cell


def run_cell(cell: Cell) -> Figure:
    """One cell, in a process of its own."""
    return KINDS[cell.kind](cell)


def main() -> None:
    """Run the cells, several at a time, and print figures as they come."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cells whose label contains this")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    figures: list[Figure] = []
    context = get_context("spawn")
    with ProcessPoolExecutor(options.jobs, context, max_tasks_per_child=1) as pool:
        futures = [pool.submit(run_cell, cell) for cell in cells(options.only, options.seeds)]
        for future in as_completed(futures):
            figure = future.result()
            figures.append(figure)
            print(figure, flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps([asdict(f) for f in figures], indent=1))


if __name__ == "__main__":
    main()
