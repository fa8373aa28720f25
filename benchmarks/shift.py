"""Learned priors in tasks unlike those learned from, against a cold start: N(0, s I), s chosen.

`python -m benchmarks.shift [WORLD ...] [--data FOLDER]`

A prior is learned from half of the tasks and used in the others, as they are and made unlike: each
parameter moved by 1, 2 or 4 standard deviations, up or down, or all parameters rotated about zero.
Parameters are posterior draws given all rows of a task, under what was learned without its hedge;
rewards are simulated, and regret is that of Thompson sampling among rows of the logs. `shifts` does
the same for any logs of linear rewards; tasks that differ already need no more than "as they are".
"""

import argparse
import copy
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

import diffprior as dp
from diffprior.fitting.attributes import Regression
from diffprior.learning.scoring import Family, cold_start, first_tasks, prior_of, task_log_evidence
from diffprior.logs.statistics import folds
from diffprior.mixture import GaussianMixture
from diffprior.reporting.tables import Table, plus_minus, standard_error
from experiments.real_tasks import DATA_SETS

from .harness import as_numbers, write_json
from .learning import logs_of

KINDS = ("as they are", "1 std", "2 std", "4 std", "rotated")
NUM_TASKS, NUM_ACTIONS = 300, 10
WORLDS = {"few rows": (8.0, 2, 1.0), "ratings": (38.0, 7, 0.4), "many rows": (60.0, 4, 1.0)}
REAL = ("radon", "Hsb82", "Chem97", "InstEval")


@dataclass(frozen=True)
class Shifted:
    """Mean regrets of the cold start, the prior and the prior without its hedge, in one world.

    `ratio` is that of the prior's regret to the cold start's, `nats` what it gains over it per
    task, both with standard errors, and `hedge` the nats that the hedge gains.
    """

    world: str
    kind: str
    regrets: list[float]
    ratio: tuple[float, float]
    nats: tuple[float, float]
    hedge: tuple[float, float]


def shifts(
    world: str,
    seen: dp.Logs,
    others: dp.Logs,
    *,
    kinds: Sequence[str] = KINDS,
    num_rounds: int = 100,
    seed: int = 0,
) -> list[Shifted]:
    """Learn from the tasks seen, and use the prior in others, made unlike in several ways."""
    model = dp.learn(seen, dp.Linear(), seed=seed, quick=True, progress=False)
    assert model.report is not None
    assert isinstance(model.likelihood, dp.Linear)
    some, noise_std = first_tasks(others, NUM_TASKS), float(model.likelihood.noise_std or 1.0)
    assert isinstance(some, dp.Logs)
    hedged, bare = closed_form(model.prior), closed_form(model.families[model.report.chosen])
    families, found = (cold_start(seen, model.likelihood), hedged, bare), []
    thetas = bare.posterior_draws(some, model.likelihood, seed)[0]
    stds = np.sqrt(np.diagonal(np.asarray(model.families["Gaussian"].moments().cov, float)))
    rng = np.random.default_rng([seed, zlib.crc32(world.encode())])
    step = rng.choice([-1.0, 1.0], some.dim) * stds
    rotation = np.linalg.qr(rng.standard_normal((some.dim, some.dim)))[0]
    for kind in kinds:
        moved = thetas @ rotation.T if kind == "rotated" else thetas
        if kind.endswith("std"):
            moved = thetas + float(kind.split()[0]) * step
        logs, noise = copy.copy(some), noise_std * rng.standard_normal(some.num_rows)
        logs.rewards = np.sum(some.features * moved[some.row_tasks], axis=1) + noise
        cold, own, alone = (
            regret(one, logs, moved, noise_std, num_rounds, seed) for one in families
        )
        nats = [task_log_evidence(one, logs, model.likelihood) for one in families]
        ratio = float(own.mean() / cold.mean())
        error = standard_error(own - ratio * cold) / float(cold.mean())
        gains = [
            (float(v.mean()), standard_error(v)) for v in (nats[1] - nats[0], nats[1] - nats[2])
        ]
        means = [float(values.mean()) for values in (cold, own, alone)]
        found.append(Shifted(world, kind, means, (ratio, error), *gains))
    return found


def closed_form(prior: dp.AbstractPrior) -> Family:
    """A Gaussian or a mixture, given attributes or not, as `learn` scores it."""
    if isinstance(prior, dp.ConditionalPrior):
        coefficients, center = (np.asarray(a, float) for a in (prior.coefficients, prior.center))
        zero = np.zeros(prior.dim)
        known = Regression(center, coefficients, zero, np.diag(zero), 0 * coefficients)
        return Family("own", prior, closed_form(prior.residual).components, known)
    if isinstance(prior, dp.GaussianPrior):
        prior = dp.MixturePrior([1.0], prior.mean[None], prior.cov[None])
    assert isinstance(prior, dp.MixturePrior)
    arrays = (np.asarray(a, np.float64) for a in (prior.weights, prior.means, prior.covs))
    components = GaussianMixture.from_covs(*arrays)
    return Family("own", prior_of(components), components)


def regret(
    prior: Family,
    logs: dp.Logs,
    thetas: Float[np.ndarray, "t d"],
    noise_std: float,
    num_rounds: int,
    seed: int,
) -> Float[np.ndarray, " t"]:
    """Regret of Thompson sampling in every task, whose actions and noise are the same for all."""
    assert prior.components is not None
    offsets, tasks = prior.offsets(logs), np.arange(len(thetas))
    means = np.tile(prior.components.means, (len(thetas), 1, 1))
    means = means if offsets is None else means + offsets[:, None]
    covs = np.tile(prior.components.covs, (len(thetas), 1, 1, 1))
    log_weights = np.tile(prior.components.log_weights, (len(thetas), 1))
    world, own = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2])
    total, actions = np.zeros(len(thetas)), np.unique(logs.features, axis=0)
    for _ in range(num_rounds):
        offered = actions[world.integers(0, len(actions), (len(thetas), NUM_ACTIONS))]
        edges = np.cumsum(np.exp(log_weights - log_weights.max(axis=1, keepdims=True)), axis=1)
        chosen = np.sum(own.random((len(thetas), 1)) * edges[:, -1:] > edges[:, :-1], axis=1)
        values, vectors = np.linalg.eigh(covs[tasks, chosen])
        z = np.sqrt(np.maximum(values, 0.0)) * own.standard_normal(thetas.shape)
        draws = means[tasks, chosen] + np.einsum("tij,tj->ti", vectors, z)
        rewards = np.einsum("tad,td->ta", offered, thetas)
        best = np.argmax(np.einsum("tad,td->ta", offered, draws), axis=1)
        x, earned = offered[tasks, best], rewards[tasks, best]
        total += rewards.max(axis=1) - earned
        along = np.einsum("tkij,tj->tki", covs, x)
        spread = np.einsum("tki,ti->tk", along, x) + noise_std**2
        seen = earned + noise_std * world.standard_normal(len(thetas))
        miss = seen[:, None] - np.einsum("tki,ti->tk", means, x)
        log_weights -= 0.5 * (np.log(spread) + miss**2 / spread)
        means += along * (miss / spread)[:, :, None]
        covs -= along[:, :, :, None] * (along / spread[:, :, None])[:, :, None]
    return total


def table(found: Sequence[Shifted]) -> Table:
    """One row for each shift; `kept` is of the regret that the prior saves without its hedge."""
    rows = []
    for one in found:
        cold, hedged, bare = one.regrets
        kept = f"{(cold - hedged) / (cold - bare):.2f}" if one.kind == KINDS[0] else ""
        figures = (f"{cold:.1f}", plus_minus(*one.ratio), f"{bare / cold:.2f}", kept)
        nats = (plus_minus(*one.nats, signed=True), plus_minus(*one.hedge, signed=True))
        rows.append((one.world, one.kind, *figures, *nats))
    columns = ("tasks", "shift", "cold regret", "ratio", "unhedged", "kept", "nats", "of the hedge")
    return Table(columns, rows)


def main() -> None:
    """Measure simulated worlds, and real ones whose data are in a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "worlds", nargs="*", default=list(WORLDS), help="by default those simulated"
    )
    parser.add_argument("--data", type=Path, help=f"folder with data of {', '.join(REAL)}")
    parser.add_argument("--json", type=Path)
    options, found = parser.parse_args(), []
    for name in [*options.worlds, *(REAL if options.data else ())]:
        if name in WORLDS:
            logs = logs_of(np.random.default_rng(1), 1000, *WORLDS[name], "linear")
        else:
            of = next(one for one in DATA_SETS if one.name == name)
            logs = next(of.turns(options.data, 0)).seen
        half = folds(logs.hashes, 2, salt=7) == 0
        found += shifts(name, logs.select(half), logs.select(~half))
        print(table([one for one in found if one.world == name]), flush=True)
    write_json(options.json, as_numbers(found))


if __name__ == "__main__":
    main()
