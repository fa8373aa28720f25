"""Seconds and evidence of `learn`, beside the truth: `python -m benchmarks.learning [CASE ...]`.

Run one case per process: what is compiled is part of the cost.
"""

import argparse
import json
import time

import numpy as np

import diffprior as dp

NUM_NEW_TASKS = 300


KINDS = (0.5, 0.3, 0.2)  # how often tasks are of each kind


def truth(dim: int, spread: float) -> dp.MixturePrior:
    """Parameters of tasks of three kinds, the same in all logs."""
    rng = np.random.default_rng(dim)
    centers, widths = rng.normal(size=(3, dim)) * spread, rng.uniform(0.3, 1.0, (3, dim)) * spread
    return dp.MixturePrior(KINDS, centers, widths[:, :, None] ** 2 * np.eye(dim))


def logs_of(
    rng: np.random.Generator, num_tasks: int, mean_rows: float, dim: int, spread: float, link: str
) -> dp.Logs:
    """Rows of tasks of three kinds, an intercept among their features; more rows for some tasks."""
    known = truth(dim, spread)
    centers, covs = np.asarray(known.means, float), np.asarray(known.covs, float)
    widths = np.sqrt(np.diagonal(covs, axis1=1, axis2=2))
    kinds = rng.choice(3, num_tasks, p=KINDS)
    thetas = centers[kinds] + widths[kinds] * rng.normal(size=(num_tasks, dim))
    counts = 2 + rng.geometric(1 / (mean_rows - 2), num_tasks)
    tasks = np.repeat(np.arange(num_tasks), counts)
    phi = np.column_stack([np.ones(len(tasks)), rng.normal(size=(len(tasks), dim - 1))])
    eta = np.einsum("nd,nd->n", phi, thetas[tasks])
    if link == "linear":
        rewards = eta + 0.9 * rng.normal(size=len(eta))
    else:
        rewards = (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)
    return dp.Logs(tasks, phi, rewards)


CASES = {  # tasks, rows per task, parameters, spread of parameters, link
    "ratings": (650, 38.0, 7, 0.4, "linear"),
    "clicks": (414, 39.0, 8, 0.6, "logistic"),
    "wide": (650, 60.0, 23, 0.3, "linear"),
}


def measure(name: str, quick: bool, families: list[str] | None) -> dict[str, object]:
    """Learn from the logs of one case, and score the prior on new tasks."""
    link = CASES[name][-1]
    likelihood = dp.Linear() if link == "linear" else dp.Logistic()
    logs = logs_of(np.random.default_rng(1), *CASES[name])
    new = logs_of(np.random.default_rng(2), NUM_NEW_TASKS, *CASES[name][1:])
    begin = time.perf_counter()
    learned = dp.learn(logs, likelihood, families=families, quick=quick, progress=False)
    seconds = time.perf_counter() - begin
    known = learned.likelihood
    values = {
        family: float(np.mean(dp.evaluate.log_evidence(prior, new, known)))
        for family, prior in {
            **learned.families,
            "chosen": learned.prior,
            "truth": truth(*CASES[name][2:4]),
        }.items()
        if family != "diffusion"
    }
    return {
        "case": name,
        "rows": logs.num_rows,
        "seconds": round(seconds, 1),
        "parts": {part: round(value, 1) for part, value in learned.report.seconds.items()},
        "chosen": learned.report.chosen,
        "sentence": learned.report.sentence,
        "nats per new task": {family: round(value, 3) for family, value in values.items()},
    }


def main() -> None:
    """Measure the cases that are named, by default all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--quick", action="store_true", help="closed forms only")
    parser.add_argument("--families", nargs="*", help="by default all")
    arguments = parser.parse_args()
    for name in arguments.cases:
        print(json.dumps(measure(name, arguments.quick, arguments.families)), flush=True)


if __name__ == "__main__":
    main()
