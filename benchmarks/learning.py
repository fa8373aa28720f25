"""Seconds and evidence of `learn`, beside the truth: `python -m benchmarks.learning`.

Run one case per process, `--section ratings`: what is compiled is part of the cost. With `--quick`,
closed forms only.
"""

import functools
import time

import numpy as np

import diffprior as dp

from .harness import Bench, Measurement, command

NUM_NEW_TASKS = 300
KINDS = (0.5, 0.3, 0.2)  # how often tasks are of each kind
CASES = {  # tasks, rows per task, parameters, spread of parameters, link
    "ratings": (650, 38.0, 7, 0.4, "linear"),
    "clicks": (414, 39.0, 8, 0.6, "logistic"),
    "wide": (650, 60.0, 23, 0.3, "linear"),
}


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


def measure(case: tuple[int, float, int, float, str], bench: Bench) -> list[Measurement]:
    """Seconds of `learn` by phase, and nats per new task of what it found and of the truth."""
    likelihood = dp.Linear() if case[-1] == "linear" else dp.Logistic()
    logs = logs_of(np.random.default_rng(1), *case)
    new = logs_of(np.random.default_rng(2), NUM_NEW_TASKS, *case[1:])
    begin = time.perf_counter()
    model = dp.learn(logs, likelihood, quick=bench.quick, progress=False)
    about = {"seconds": time.perf_counter() - begin, **model.report.seconds}
    rows = [Measurement(f"learn: {model.report.chosen}", about)]
    for name, prior in {**model.families, "truth": truth(*case[2:4])}.items():
        if name != "diffusion":
            found = dp.evaluate.log_evidence(prior, new, model.likelihood)
            rows.append(Measurement(name, {"nats per new task": float(np.mean(found))}))
    return rows


SECTIONS = {name: functools.partial(measure, case) for name, case in CASES.items()}

if __name__ == "__main__":
    command(SECTIONS)
