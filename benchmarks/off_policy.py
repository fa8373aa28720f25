"""Off-policy estimates from logs whose truth is known: how often the truth is within two errors.

python -m benchmarks.off_policy [--logs 20] [--tasks 40] [--rounds 15]

The service, and a `Bandit` for each task, decide with a learned prior among ten actions. Targets
are that prior itself, a somewhat different one that might come next, and a cold one. The truth is
the mean of the true reward over the target's probabilities, in the states of all logs.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

import diffprior as dp
from diffprior.evaluate import LoggedDecisions, OffPolicy, off_policy
from diffprior.evaluate.off_policy import _probabilities
from diffprior.service.engine import Engine
from diffprior.service.export import export
from diffprior.service.metrics import Metrics
from diffprior.service.requests import Decide, Reward
from diffprior.service.settings import Settings
from diffprior.service.store import Database

DIM, ACTIONS, MAX_DRAWS = 4, 10, 1024
MEANS = np.array([[1.0, 0.0, 0.5, 0.0], [-0.5, 1.0, 0.0, 0.5], [0.0, -1.0, 0.5, 0.5]])
LEARNED = dp.MixturePrior([0.5, 0.3, 0.2], MEANS, np.tile(0.2 * np.eye(DIM), (3, 1, 1)))
TARGETS = {
    "itself": LEARNED,
    "next": dp.MixturePrior([0.3, 0.4, 0.3], MEANS + 0.2, np.tile(0.3 * np.eye(DIM), (3, 1, 1))),
    "cold": dp.GaussianPrior(np.zeros(DIM), np.eye(DIM)),
}
LIKELIHOODS = {"linear": dp.Linear(1.0), "logistic": dp.Logistic()}


class World:
    """True parameters of tasks, and the actions and rewards of their rounds."""

    def __init__(self, likelihood: str, num_tasks: int, num_rounds: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        which = self.rng.choice(3, num_tasks, p=[0.5, 0.3, 0.2])
        thetas = MEANS[which] + np.sqrt(0.2) * self.rng.standard_normal((num_tasks, DIM))
        shape = (num_tasks, num_rounds, ACTIONS, DIM)
        self.features = self.rng.standard_normal(shape) / np.sqrt(2)
        eta = np.einsum("trkd,td->trk", self.features, thetas)
        self.linear = likelihood == "linear"
        self.means = eta if self.linear else 1 / (1 + np.exp(-eta))
        noise = self.rng.standard_normal(shape[:3])
        uniform = self.rng.random(shape[:3])
        self.rewards = eta + noise if self.linear else (uniform < self.means).astype(float)


def log_of_service(world: World, likelihood: str, folder: str) -> LoggedDecisions:
    """The exported log of a service with these tasks."""
    database = Database(f"{folder}/{likelihood}.sqlite")
    engine = Engine(database, metrics=Metrics())
    options = {"noise_std": 1.0} if world.linear else {}
    about = {"likelihood": likelihood, "likelihood_options": options}
    engine.catalog.put("m", Settings(**about, propensity_draws=MAX_DRAWS), LEARNED, 1.0)
    engine.start()
    engine.prepare()
    for i in range(world.features.shape[1]):
        futures = [
            engine.submit(Decide("m", f"{t:06d}", world.features[t, i], decision_id=f"{t}-{i}"))
            for t in range(len(world.features))
        ]
        replies = [future.result() for future in futures]
        for t, reply in enumerate(replies):
            value = float(world.rewards[t, i, reply["action"]])
            futures[t] = engine.submit(Reward(f"{t}-{i}", value))
        for future in futures:
            future.result()
    engine.close()
    path = Path(folder) / f"{likelihood}.parquet"
    export(database, "m", "parquet", path)
    database.close()
    return LoggedDecisions.read(path)


def log_of_bandits(world: World, likelihood: str) -> LoggedDecisions:
    """The log of a bandit for each task."""
    num_tasks, num_rounds = world.features.shape[:2]
    actions, shares = np.zeros((num_tasks, num_rounds), int), np.zeros((num_tasks, num_rounds))
    for t in range(num_tasks):
        bandit = dp.Bandit(LEARNED, LIKELIHOODS[likelihood], seed=t)
        for i, features in enumerate(world.features[t]):
            decision = bandit.decide(features, propensity_draws=MAX_DRAWS)
            actions[t, i], shares[t, i] = decision.action, decision.propensity
            bandit.update(features[actions[t, i]], world.rewards[t, i, actions[t, i]])
    rows = np.take_along_axis(world.rewards, actions[:, :, None], axis=2)
    return LoggedDecisions.from_arrays(
        np.repeat([f"{t:06d}" for t in range(num_tasks)], num_rounds),
        world.features.reshape(-1, ACTIONS, DIM),
        actions.ravel(),
        rows.ravel(),
        shares.ravel(),
    )


def tasks_of(decisions: LoggedDecisions, first: int, last: int) -> LoggedDecisions:
    """The decisions of some tasks."""
    rows = (decisions.tasks >= first) & (decisions.tasks < last)
    fields = {name: getattr(decisions, name)[rows] for name in decisions.__dataclass_fields__}
    return LoggedDecisions(**fields)


def evaluated(
    name: str, decisions: LoggedDecisions, world: World, likelihood: str, num_logs: int
) -> None:
    """Print, for each target, how often the truth is within two errors."""
    rounds = world.features.shape[1]
    means = world.means.reshape(-1, ACTIONS)
    size = len(world.features) // num_logs
    for target, prior in TARGETS.items():
        agent = dp.ThompsonSampling(dp.best_sampler(prior), LIKELIHOODS[likelihood])
        pi, _, _ = _probabilities(agent, decisions, np.arange(len(decisions)), 64, 1)
        truth = float(np.mean(np.sum(pi * means, axis=1)))
        logs = [tasks_of(decisions, i * size, (i + 1) * size) for i in range(num_logs)]
        found = [
            off_policy(prior, own, LIKELIHOODS[likelihood], seed=i) for i, own in enumerate(logs)
        ]
        sure = [each for each in found if each.problem is None]
        print(
            f"{name} {likelihood} {target}: {size * rounds} decisions per log, truth {truth:.3f}, "
            f"cannot tell {num_logs - len(sure)} of {num_logs}; mean weight "
            f"{np.mean([f.mean_weight.value for f in found]):.3f}, effective size "
            f"{np.median([f.effective_sample_size for f in found]):.0f}; "
            + "; ".join(_within(estimate, sure, truth) for estimate in ("ips", "snips", "dr")),
            flush=True,
        )


def _within(estimate: str, found: list[OffPolicy], truth: float) -> str:
    """How many estimates are within two errors of the truth, and their mean."""
    each = [getattr(one, estimate) for one in found]
    inside = sum(abs(e.value - truth) <= 2 * e.standard_error for e in each)
    mean = np.mean([e.value for e in each]) if each else float("nan")
    return f"{estimate} {inside}/{len(each)} (mean {mean:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=40, help="of a log")
    parser.add_argument("--likelihood", choices=LIKELIHOODS, action="append")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    for likelihood in options.likelihood or LIKELIHOODS:
        world = World(likelihood, options.logs * options.tasks, options.rounds, 0)
        with tempfile.TemporaryDirectory() as folder:
            decisions = log_of_service(world, likelihood, folder)
        evaluated("service", decisions, world, likelihood, options.logs)
        decisions = log_of_bandits(world, likelihood)
        evaluated("bandit", decisions, world, likelihood, options.logs)


if __name__ == "__main__":
    main()
