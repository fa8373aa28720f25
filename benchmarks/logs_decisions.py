"""Logs that policies collected, and decisions with what was learned from logs."""

import numpy as np

from .logs_cells import Cell, Figure, law_of, rows_of, unit_ball
from .logs_gaps import JUDGED, TRUTH_DRAWS, learned_log_evidence, true_log_evidence

OFFERED = 10  # actions a round
PRIOR_VARIANCE = 4.0  # of the policies that collect
LONGEST = 200  # rows of a task
STOPPED_LONGER = 1.6  # which makes up for the tasks that are given up


def adaptive_gap(cell: Cell) -> Figure:
    """How much larger the gap is from a policy's logs than from uniform ones of the same tasks."""
    from diffprior.evidence.families import Linear
    from diffprior.learning.ladder import learn
    from diffprior.logs.logs import Logs

    rng = np.random.default_rng([cell.seed, 15])
    law = law_of("swirl")
    thetas = law(rng, cell.num_tasks)
    new = Logs(*rows_of(rng, law(rng, JUDGED), cell.mean_rows))
    truth = true_log_evidence(new, Linear(noise_std=1.0), law(rng, TRUTH_DRAWS))
    gaps = {}
    for policy in ("uniform", cell.name):
        logs = Logs(*collected(np.random.default_rng([cell.seed, 16]), thetas, policy, cell))
        learned = learn(logs, Linear(), up_to="mixture", simulate=False, progress=False)
        gaps[policy] = truth - learned_log_evidence(learned, new)
    difference = gaps[cell.name] - gaps["uniform"]
    notes = {
        "error": round(float(difference.std() / np.sqrt(JUDGED)), 4),
        "uniform": round(float(gaps["uniform"].mean()), 4),
        "rows": round(logs.num_rows / logs.num_tasks, 1),
    }
    return Figure(cell, float(difference.mean()), notes)


def survivors_unnoticed(cell: Cell) -> Figure:
    """0 where logs of the better half of the tasks draw a warning of selection, else 1."""
    from diffprior.evidence.families import Linear
    from diffprior.learning.ladder import learn
    from diffprior.logs.logs import Logs

    rng = np.random.default_rng([cell.seed, 17])
    logs = Logs(*collected(rng, law_of("swirl")(rng, 2 * cell.num_tasks), cell.name, cell))
    means = np.bincount(logs.row_tasks, logs.rewards) / logs.counts
    told = {}
    for name, some in (("all", logs), ("survivors", logs.select(means > np.median(means)))):
        learned = learn(some, Linear(), up_to="gaussian", simulate=False, progress=False)
        told[name] = [text.split(":")[0] for text in learned.report.warnings]
    wrong = ("selection" not in told["survivors"]) + ("selection" in told["all"])
    return Figure(cell, float(wrong), told)


def collected(
    rng: np.random.Generator, thetas: np.ndarray, policy: str, cell: Cell
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tasks, features and rewards as a policy would have logged them, ten actions offered a round.

    "uniform" takes any, "greedy" the best by the posterior mean under a wide Gaussian, "thompson"
    by a draw; "stopped" is "thompson" that gives a task up once its mean reward is low, and goes
    on longer with the others, so that there are as many rows.
    """
    n, d = thetas.shape
    mean_rows = cell.mean_rows * (STOPPED_LONGER if policy == "stopped" else 1.0)
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
        offered = unit_ball(rng, len(own) * OFFERED, d).reshape(len(own), OFFERED, d)
        values = np.einsum("nkd,nd->nk", offered, _guess(rng, precision[own], shift[own], policy))
        x = offered[np.arange(len(own)), np.argmax(values, axis=1)]
        y = np.sum(x * thetas[own], axis=1) + rng.standard_normal(len(own))
        precision[own] += x[:, :, None] * x[:, None, :]
        shift[own] += x * y[:, None]
        total[own] += y
        rows.append((own, x, y))
    tasks, x, y = (np.concatenate([row[i] for row in rows]) for i in range(3))
    order = np.argsort(tasks, kind="stable")
    return tasks[order], x[order], y[order]


def _guess(
    rng: np.random.Generator, precision: np.ndarray, shift: np.ndarray, policy: str
) -> np.ndarray:
    """The parameters that the policy acts upon; zeros leave the first action, which is any."""
    if policy == "uniform":
        return np.zeros_like(shift)
    cov = np.linalg.inv(precision)
    mean = np.einsum("nij,nj->ni", cov, shift)
    if policy == "greedy":
        return mean
    return mean + np.einsum("nij,nj->ni", np.linalg.cholesky(cov), rng.standard_normal(shift.shape))


def regret(cell: Cell) -> Figure:
    """Thompson sampling over 200 rounds with the learned prior, in tasks of the true law."""
    from diffprior.bandits.simulate import simulate
    from diffprior.evidence.families import Linear
    from diffprior.learning.ladder import learn
    from diffprior.logs.logs import Logs
    from diffprior.problems.synthetic import synthetic
    from diffprior.samplers.choose import best_sampler

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
