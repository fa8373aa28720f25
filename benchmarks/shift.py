"""Learned priors in tasks unlike those learned from, against a cold start: N(0, s I), s chosen.

`python -m benchmarks.shift [WORLD ...] [--data FOLDER]`

A prior is learned from half of the tasks and used in the others, as they are and made unlike: each
parameter moved by 1, 2 or 4 standard deviations, up or down, or all parameters rotated about zero.
Or it is learned from the tasks with the smallest value of an attribute, and used in those with the
largest. Parameters are posterior draws given all rows of a task, under what was learned without its
hedge; rewards are simulated, and regret is that of Thompson sampling among rows of the logs. Tasks
come in waves; "adapted" priors have their hedge reweighted by the tasks of earlier waves.
"""

import argparse
import copy
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

import diffprior as dp
from diffprior.learning.adapt import closed_form
from diffprior.learning.scoring import Family, cold_start, task_log_evidence
from diffprior.learning.search import first_tasks
from diffprior.logs.statistics import folds
from diffprior.reporting.tables import Table, plus_minus, standard_error
from experiments.real_tasks import DATA_SETS

from .harness import as_numbers, write_json
from .learning import logs_of

KINDS = ("as they are", "1 std", "2 std", "4 std", "rotated")
NUM_TASKS, NUM_ACTIONS, WAVE = 300, 10, 10
WORLDS = {"few rows": (8.0, 2, 1.0), "ratings": (38.0, 7, 0.4), "many rows": (60.0, 4, 1.0)}
REAL = ("radon", "Hsb82", "Chem97", "InstEval")
TAILS = {"radon": "log_uranium", "Hsb82": "meanses", "nlschools": "GS", "movielens": "z19"}
TAIL = 0.3  # share of the tasks, those with the largest value

Played = list[dp.Logs]  # of earlier waves


@dataclass(frozen=True)
class Shifted:
    """Mean regrets of a cold start, a prior, the same adapted, and without its hedge, in one world.

    `ratio` and `adapted` are regrets over the cold start's, and `nats` what the prior gains over it
    per task, each with its standard error.
    """

    world: str
    kind: str
    regrets: list[float]
    ratio: tuple[float, float]
    adapted: tuple[float, float]
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

    def adapted(played: Played) -> Family:
        return closed_form(model.adapt(joined(played)).prior) if played else hedged

    rules: list[Callable[[Played], Family]] = [lambda _, one=one: one for one in families]
    for kind in kinds:
        moved = thetas @ rotation.T if kind == "rotated" else thetas
        if kind.endswith("std"):
            moved = thetas + float(kind.split()[0]) * step
        logs, noise = copy.copy(some), noise_std * rng.standard_normal(some.num_rows)
        logs.rewards = np.sum(some.features * moved[some.row_tasks], axis=1) + noise
        cold, own, alone, better = (
            regret(rule, logs, moved, noise_std, num_rounds, seed) for rule in (*rules, adapted)
        )
        nats = [task_log_evidence(one, logs, model.likelihood) for one in families]
        gains = [
            (float(v.mean()), standard_error(v)) for v in (nats[1] - nats[0], nats[1] - nats[2])
        ]
        means = [float(values.mean()) for values in (cold, own, better, alone)]
        found.append(Shifted(world, kind, means, ratio(own, cold), ratio(better, cold), *gains))
    return found


def ratio(own: Float[np.ndarray, " t"], cold: Float[np.ndarray, " t"]) -> tuple[float, float]:
    """Of mean regrets, with its standard error."""
    found = float(own.mean() / cold.mean())
    return found, standard_error(own - found * cold) / float(cold.mean())


def joined(played: Played) -> dp.Logs:
    """Logs of all tasks of some waves."""
    tasks = np.concatenate([logs.labels[logs.row_tasks] for logs in played])
    features, rewards = (
        np.concatenate([getattr(logs, name) for logs in played]) for name in ("features", "rewards")
    )
    known = None
    if played[0].attributes is not None:
        known = np.concatenate([logs.attributes for logs in played])
    return dp.Logs(tasks, features, rewards, attributes=known, check_features=False)


def regret(
    rule: Callable[[Played], Family],
    logs: dp.Logs,
    thetas: Float[np.ndarray, "t d"],
    noise_std: float,
    num_rounds: int,
    seed: int,
) -> Float[np.ndarray, " t"]:
    """Regret in every task, under a prior for each wave, given the waves before."""
    played, total = [], []
    order = np.random.default_rng([seed, 3]).permutation(len(thetas))
    for wave, first in enumerate(range(0, len(thetas), WAVE)):
        which = order[first : first + WAVE]
        some = logs.select(which)
        values, rows = play(rule(played), some, thetas[which], noise_std, num_rounds, [seed, wave])
        total.append(values)
        played.append(rows)
    return np.concatenate(total)


def play(
    prior: Family,
    logs: dp.Logs,
    thetas: Float[np.ndarray, "t d"],
    noise_std: float,
    num_rounds: int,
    seeds: Sequence[int],
) -> tuple[Float[np.ndarray, " t"], dp.Logs]:
    """Regret of Thompson sampling in every task, whose actions and noise are the same for all, and
    the rows that were played.
    """
    assert prior.components is not None
    offsets, tasks = prior.offsets(logs), np.arange(len(thetas))
    means = np.tile(prior.components.means, (len(thetas), 1, 1))
    means = means if offsets is None else means + offsets[:, None]
    covs = np.tile(prior.components.covs, (len(thetas), 1, 1, 1))
    log_weights = np.tile(prior.components.log_weights, (len(thetas), 1))
    world, own = np.random.default_rng([*seeds, 1]), np.random.default_rng([*seeds, 2])
    total, actions = np.zeros(len(thetas)), np.unique(logs.features, axis=0)
    rows = []
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
        rows.append((x, seen))
    features, observed = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    labels = np.tile(logs.labels, num_rounds)
    about = {"attributes": logs.attributes, "check_features": False}
    return total, dp.Logs(labels, features, observed, **about)


def table(found: Sequence[Shifted]) -> Table:
    """One row for each shift; `kept` is of the regret that the prior saves without its hedge."""
    rows = []
    for one in found:
        cold, hedged, adapted, bare = one.regrets
        saved = [f"{(cold - own) / (cold - bare):.2f}" for own in (hedged, adapted)]
        kept = saved if one.kind == KINDS[0] else ["", ""]
        ratios = (plus_minus(*one.ratio), plus_minus(*one.adapted), f"{bare / cold:.2f}")
        nats = (plus_minus(*one.nats, signed=True), plus_minus(*one.hedge, signed=True))
        rows.append((one.world, one.kind, f"{cold:.1f}", *ratios, *kept, *nats))
    columns = ("tasks", "shift", "cold regret", "ratio", "adapted", "unhedged")
    return Table((*columns, "kept", "kept, adapted", "nats", "of the hedge"), rows)


def halves(logs: dp.Logs) -> tuple[dp.Logs, dp.Logs]:
    """Two random halves of the tasks."""
    half = folds(logs.hashes, 2, salt=7) == 0
    return logs.select(half), logs.select(~half)


def tail(logs: dp.Logs, attribute: str) -> tuple[dp.Logs, dp.Logs]:
    """The tasks with the smaller values of an attribute, and those with the largest."""
    assert logs.attributes is not None
    values = logs.attributes[:, [name == attribute for name in logs.attribute_names].index(True)]
    late = np.nan_to_num(values, nan=-np.inf) >= np.nanquantile(values, 1 - TAIL)
    return logs.select(~late), logs.select(late)


def main() -> None:
    """Measure simulated worlds, and real ones whose data are in a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "worlds", nargs="*", default=list(WORLDS), help="by default those simulated"
    )
    parser.add_argument("--data", type=Path, help=f"folder with data of {', '.join(REAL)}")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    worlds = [
        (name, halves(logs_of(np.random.default_rng(1), 1000, *WORLDS[name], "linear")), KINDS)
        for name in options.worlds
    ]
    for of in DATA_SETS if options.data else ():
        if of.name in (*REAL, *TAILS):
            logs = next(of.turns(options.data, 0)).seen
            if of.name in REAL:
                worlds.append((of.name, halves(logs), KINDS))
            if of.name in TAILS:
                name = f"{of.name}, largest {TAILS[of.name]}"
                worlds.append((name, tail(logs, TAILS[of.name]), KINDS[:1]))
    found: list[Shifted] = []
    for name, parts, kinds in worlds:
        found += shifts(name, *parts, kinds=kinds)
        print(table([one for one in found if one.world == name]), flush=True)
    write_json(options.json, as_numbers(found))


if __name__ == "__main__":
    main()
