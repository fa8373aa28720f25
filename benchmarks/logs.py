"""Priors from logs: every figure beside its target.

`python -m diffprior.bench.logs --json figures.json` runs all cells; `--list` prints their labels,
and `--only` takes some of them, so that they can be spread over processes or machines.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from .logs_cells import Cell, Figure
from .logs_decisions import adaptive_gap, regret, survivors_unnoticed
from .logs_gaps import clusters_gap, distilled_loss, evidence_gap, noise_error, spread_error
from .logs_scale import million, seconds, streamed

KINDS: dict[str, Callable[[Cell], Figure]] = {
    "gap": evidence_gap,
    "logistic": evidence_gap,
    "spread": spread_error,
    "noise": noise_error,
    "clusters": clusters_gap,
    "distilled": distilled_loss,
    "regret": regret,
    "adaptive": adaptive_gap,
    "survivors": survivors_unnoticed,
    "seconds": seconds,
    "million": million,
    "streamed": streamed,
}
ONCE = ("seconds", "million", "streamed")  # what is timed runs with one seed
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
    ("spread", "swirl", 1000, 5, 0.05),
    ("noise", "swirl", 1000, 2, 0.06),
    ("noise", "swirl", 1000, 5, 0.03),
    ("noise", "swirl", 1000, 20, 0.015),
    ("clusters", "d8", 2000, 10, 0.15),
    ("clusters", "d8", 2000, 40, 0.12),
    ("distilled", "d8", 2000, 10, 0.02),
    ("distilled", "d8", 2000, 40, 0.02),
    ("regret", "corners", 1000, 20, 12.8),
    ("regret", "corners", 1000, 5, 14.8),
    ("regret", "corners", 8000, 5, 13.0),
    ("regret", "cross", 1000, 20, 16.8),
    ("adaptive", "thompson", 1000, 10, 0.010),
    ("adaptive", "greedy", 1000, 10, 0.010),
    ("adaptive", "stopped", 1000, 10, 0.010),
    ("survivors", "uniform", 1000, 10, 0.0),
    ("survivors", "thompson", 1000, 10, 0.0),
    ("seconds", "gaussian-d2", 1000, 10, 0.2),
    ("seconds", "mixture-d2", 1000, 10, 5.0),
    ("seconds", "diffusion-d2", 1000, 10, 40.0),
    ("seconds", "diffusion-d8", 1000, 10, 180.0),
    ("million", "d10", 1_000_000, 20, 2.0),
    ("streamed", "d10", 50_000, 20, 1.0),
)


def cells(wanted: Sequence[str], seeds: Sequence[int]) -> Iterator[Cell]:
    """The cells whose label contains one of `wanted`, or all."""
    for kind, name, num_tasks, mean_rows, target in CASES:
        for seed in seeds[:1] if kind in ONCE else seeds:
            cell = Cell(kind, name, num_tasks, float(mean_rows), target, seed)
            if not wanted or any(part in cell.label for part in wanted):
                yield cell


def run_cell(cell: Cell) -> Figure:
    """One cell, in a process of its own."""
    return KINDS[cell.kind](cell)


def main() -> None:
    """Run the cells, several at a time, and print figures as they come."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="cells whose label contains one")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--list", action="store_true", help="print labels and run nothing")
    options = parser.parse_args()
    chosen = list(cells(options.only, options.seeds))
    if options.list:
        print("\n".join(cell.label for cell in chosen))
        return
    figures: list[Figure] = []
    context = get_context("spawn")
    with ProcessPoolExecutor(options.jobs, context, max_tasks_per_child=1) as pool:
        for future in as_completed([pool.submit(run_cell, cell) for cell in chosen]):
            figure = future.result()
            figures.append(figure)
            print(figure, flush=True)
            if options.json is not None:
                rows = [{**asdict(f), "reached": f.reached} for f in figures]
                options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
