"""Priors from logs against the truth: gaps of held-out evidence, spread and noise."""

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from .logs_cells import Cell, Clusters, Figure, law_of, rows_of

if TYPE_CHECKING:
    from diffprior.evidence.base import AbstractLikelihood
    from diffprior.learning.ladder import Learned
    from diffprior.logs.logs import Logs

JUDGED = 2000  # new tasks that a gap is over
TRUTH_DRAWS = 40_000


def evidence_gap(cell: Cell) -> Figure:
    """Mean log evidence of new tasks below that of the true law."""
    gap, points, learned, seconds = _learned_gap(cell)
    notes = {
        "error": round(float(gap.std() / np.sqrt(len(gap))), 4),
        "chosen": learned.report.chosen.replace(" ", "-"),
        "std": np.round(_spread(learned, points), 2).tolist(),
        "seconds": round(seconds, 1),
    }
    if cell.kind == "gap":
        notes["noise"] = round(float(learned.likelihood.noise_std), 4)  # type: ignore[attr-defined]
    return Figure(cell, float(gap.mean()), notes)


def spread_error(cell: Cell) -> Figure:
    """Standard deviations of the learned prior over the truth's: the largest deviation from 1."""
    _, points, learned, _ = _learned_gap(cell)
    ratios = _spread(learned, points)
    return Figure(cell, float(np.max(np.abs(ratios - 1))), {"std": np.round(ratios, 3).tolist()})


def _learned_gap(cell: Cell) -> tuple[np.ndarray, np.ndarray, "Learned", float]:
    """The gap of every new task, draws of the true law, what was learned, and in how long."""
    from diffprior.evidence.families import Linear, Logistic
    from diffprior.learning.ladder import learn
    from diffprior.logs.logs import Logs

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
    gap = true_log_evidence(new, exact, points) - learned_log_evidence(learned, new)
    return gap, points, learned, seconds


def true_log_evidence(
    new: "Logs", likelihood: "AbstractLikelihood", points: np.ndarray
) -> np.ndarray:
    """log p(h) of every task under a law that is given by many draws."""
    from diffprior.learning.diagnostics import log_likelihoods
    from diffprior.priors.from_tasks.data import block_order, blocks_of

    parts = []
    for block in blocks_of(new, likelihood):
        values = log_likelihoods(block, points)
        top = values.max(axis=1)
        parts.append(top + np.log(np.mean(np.exp(values - top[:, None]), axis=1)))
    truth = np.empty(new.num_tasks)
    truth[block_order(new)] = np.concatenate(parts)
    return truth


def learned_log_evidence(learned: "Learned", new: "Logs") -> np.ndarray:
    """log p(h) of every task under the prior that was chosen, hedge and all."""
    from diffprior.learning.families import Family
    from diffprior.learning.judge import task_log_evidence
    from diffprior.priors.from_tasks.components import Components

    prior: Any = learned.prior
    parts = Components(*(np.asarray(a, float) for a in (prior.weights, prior.means, prior.covs)))
    return task_log_evidence(Family("ours", prior, parts), new, learned.likelihood)


def _spread(learned: "Learned", points: np.ndarray) -> np.ndarray:
    cov = np.asarray(learned.prior.moments().cov, float)
    return np.sqrt(np.diagonal(cov)) / points.std(axis=0)


def noise_error(cell: Cell) -> Figure:
    """Relative error of the estimated noise."""
    from diffprior.logs.logs import Logs
    from diffprior.priors.from_tasks.noise import estimate_noise

    rng = np.random.default_rng([cell.seed, 13])
    logs = Logs(*rows_of(rng, law_of(cell.name)(rng, cell.num_tasks), cell.mean_rows))
    found = estimate_noise(logs.statistics())
    return Figure(cell, abs(found.noise_std - 1.0), {"how": found.how})


def clusters_gap(cell: Cell) -> Figure:
    """The gap of the mixture on five clusters in eight dimensions."""
    from diffprior.evidence.families import Linear
    from diffprior.priors.from_tasks.data import blocks_of, resolve
    from diffprior.priors.from_tasks.em import log_evidences
    from diffprior.priors.from_tasks.search import search_mixture

    world = Clusters(cell.seed)
    logs, new = world.logs(cell.num_tasks, cell.mean_rows), world.logs(JUDGED, cell.mean_rows)
    begin = time.perf_counter()
    likelihood, _ = resolve(logs, Linear())
    found = search_mixture(logs, likelihood)
    seconds = time.perf_counter() - begin
    exact = log_evidences(blocks_of(new, Linear(noise_std=world.noise_std)), world.truth)
    ours = log_evidences(blocks_of(new, likelihood), found.components)
    gaussian = log_evidences(blocks_of(new, likelihood), found.gaussian)
    notes = {
        "gaussian": round(float((exact - gaussian).mean()), 3),
        "chosen": found.candidates[found.best or 0].name.replace(" ", "-"),
        "seconds": round(seconds, 1),
    }
    return Figure(cell, float((exact - ours).mean()), notes)


def distilled_loss(cell: Cell) -> Figure:
    """How far the diffusion model is below the mixture on new tasks of those clusters."""
    from diffprior.evidence.families import Linear
    from diffprior.learning.families import Family
    from diffprior.learning.judge import task_log_evidence
    from diffprior.learning.ladder import learn

    world = Clusters(cell.seed)
    logs = world.logs(cell.num_tasks, cell.mean_rows)
    new = world.logs(JUDGED // 4, cell.mean_rows)
    learned = learn(logs, Linear(), simulate=False, progress=False)
    mixture, diffusion = list(learned.families)[-2:]
    below, network = (
        task_log_evidence(Family(name, learned.families[name], None), new, learned.likelihood)
        for name in (mixture, diffusion)
    )
    loss = below - network
    notes = {
        "error": round(float(loss.std() / np.sqrt(len(loss))), 4),
        "chosen": learned.report.chosen.replace(" ", "-"),
        "seconds": {name: round(value, 1) for name, value in learned.report.seconds.items()},
    }
    return Figure(cell, float(loss.mean()), notes)
