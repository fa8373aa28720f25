"""Off-policy estimates from logs whose truth is known: how often the truth is within two errors.

`python -m benchmarks.off_policy --section logistic`

The service, and a `Bandit` per task, decide with a learned prior among ten actions. Targets are
that prior itself, a somewhat different one that might come next, and a cold one. The truth is the
mean of the true reward over the target's probabilities, in the states of all logs.
"""

import tempfile
from pathlib import Path

import numpy as np

import diffprior as dp
from diffprior.evaluate import LoggedDecisions, OffPolicy
from diffprior.evaluate.replay import _estimates, _of_actions, _probabilities, _Replayed
from diffprior.service.engine import Engine
from diffprior.service.export import export
from diffprior.service.metrics import Metrics
from diffprior.service.requests import Decide, Reward
from diffprior.service.settings import Settings
from diffprior.service.store import Database

from .harness import Bench, Measurement, command

DIM, ACTIONS, MAX_DRAWS = 4, 10, 1024
LOGS, TASKS, ROUNDS = 20, 40, 15  # tasks and rounds of each log
QUICK_LOGS = 2
WEIGHTS = [0.5, 0.3, 0.2]
MEANS = np.array([[1.0, 0.0, 0.5, 0.0], [-0.5, 1.0, 0.0, 0.5], [0.0, -1.0, 0.5, 0.5]])
LEARNED = dp.MixturePrior(WEIGHTS, MEANS, np.tile(0.2 * np.eye(DIM), (3, 1, 1)))
TARGETS = {
    "itself": LEARNED,
    "next": dp.MixturePrior([0.3, 0.4, 0.3], MEANS + 0.2, np.tile(0.3 * np.eye(DIM), (3, 1, 1))),
    "cold": dp.GaussianPrior(np.zeros(DIM), np.eye(DIM)),
}


class World:
    """True parameters of tasks, and the actions and rewards of their rounds."""

    def __init__(self, likelihood: dp.AbstractLikelihood, num_logs: int, seed: int = 0) -> None:
        rng, num_tasks = np.random.default_rng(seed), num_logs * TASKS
        self.likelihood, self.num_logs = likelihood, num_logs
        which = rng.choice(len(WEIGHTS), num_tasks, p=WEIGHTS)
        thetas = MEANS[which] + np.sqrt(0.2) * rng.standard_normal((num_tasks, DIM))
        shape = (num_tasks, ROUNDS, ACTIONS, DIM)
        self.features = rng.standard_normal(shape) / np.sqrt(2)
        eta = np.einsum("trkd,td->trk", self.features, thetas)
        noise, uniform = rng.standard_normal(shape[:3]), rng.random(shape[:3])
        self.is_linear = isinstance(likelihood, dp.Linear)
        self.means = eta if self.is_linear else 1 / (1 + np.exp(-eta))
        self.rewards = eta + noise if self.is_linear else (uniform < self.means).astype(float)


def log_of_service(world: World) -> LoggedDecisions:
    """The exported log of a service with these tasks."""
    name, options = ("linear", {"noise_std": 1.0}) if world.is_linear else ("logistic", {})
    about = {"likelihood": name, "likelihood_options": options, "propensity_draws": MAX_DRAWS}
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"{folder}/log.sqlite")
        engine = Engine(database, metrics=Metrics())
        engine.catalog.put("m", Settings.model_validate(about), LEARNED, 1.0)
        engine.start()
        engine.prepare()
        for i in range(ROUNDS):
            offers = enumerate(world.features[:, i])
            asked = [Decide("m", f"{t:06d}", x, decision_id=f"{t}-{i}") for t, x in offers]
            taken = [future.result()["action"] for future in list(map(engine.submit, asked))]
            values = world.rewards[np.arange(len(taken)), i, taken].tolist()
            rewards = [Reward(f"{t}-{i}", value) for t, value in enumerate(values)]
            for future in list(map(engine.submit, rewards)):
                future.result()
        engine.close()
        path = Path(folder) / "log.parquet"
        export(database, "m", "parquet", path)
        database.close()
        return LoggedDecisions.read(path)


def log_of_bandits(world: World) -> LoggedDecisions:
    """The log of a bandit per task."""
    num_tasks = len(world.features)
    actions, shares = np.zeros((num_tasks, ROUNDS), int), np.zeros((num_tasks, ROUNDS))
    for t in range(num_tasks):
        bandit = dp.Bandit(LEARNED, world.likelihood, seed=t)
        for i, features in enumerate(world.features[t]):
            decision = bandit.decide(features, propensity_draws=MAX_DRAWS)
            actions[t, i], shares[t, i] = decision.action, decision.propensity
            bandit.update(features[actions[t, i]], world.rewards[t, i, actions[t, i]])
    rewards = np.take_along_axis(world.rewards, actions[:, :, None], axis=2)
    return LoggedDecisions.from_arrays(
        np.repeat([f"{t:06d}" for t in range(num_tasks)], ROUNDS),
        world.features.reshape(-1, ACTIONS, DIM),
        actions.ravel(),
        rewards.ravel(),
        shares.ravel(),
    )


def evaluated(who: str, decisions: LoggedDecisions, world: World) -> list[Measurement]:
    """How often the truth is within two errors, by target; all logs are replayed at once."""
    means, of_log = world.means.reshape(-1, ACTIONS), decisions.tasks // TASKS
    every, rows = np.arange(len(decisions)), []
    for target, prior in TARGETS.items():
        agent = dp.ThompsonSampling(dp.best_sampler(prior), world.likelihood)
        pi, _, _ = _probabilities(agent, decisions, every, 64, 1)
        truth = float(np.mean(np.sum(pi * means, axis=1)))
        taken, expected, beliefs, failed = _of_actions(agent, decisions, every, 64, 0)
        found = []
        for log in range(world.num_logs):
            own = np.flatnonzero(of_log == log)
            replayed = _Replayed(taken[own], expected[own], beliefs[own], failed)
            found.append(_estimates(decisions, own, replayed))
        rows.append(Measurement(f"{who}, {target}", _quantities(found, truth)))
    return rows


def _quantities(found: list[OffPolicy], truth: float) -> dict[str, float | str]:
    sure = [each for each in found if each.problem is None]
    quantities: dict[str, float | str] = {"truth": truth}
    for name in ("ips", "snips", "dr"):
        each = [getattr(one, name) for one in sure]
        inside = sum(abs(e.value - truth) <= 2 * e.standard_error for e in each)
        mean = np.mean([e.value for e in each]) if each else np.nan
        quantities |= {name: float(mean), f"{name} within": f"{inside}/{len(sure)}"}
    quantities["cannot tell"] = len(found) - len(sure)
    quantities["mean weight"] = float(np.mean([f.mean_weight.value for f in found]))
    quantities["effective size"] = float(np.median([f.effective_sample_size for f in found]))
    return quantities


def _section(likelihood: dp.AbstractLikelihood, bench: Bench) -> list[Measurement]:
    world = World(likelihood, QUICK_LOGS if bench.quick else LOGS)
    rows = evaluated("service", log_of_service(world), world)
    return rows + evaluated("bandits", log_of_bandits(world), world)


def linear(bench: Bench) -> list[Measurement]:
    """Linear rewards, 600 decisions in each of 20 logs; how many are near the truth."""
    return _section(dp.Linear(1.0), bench)


def logistic(bench: Bench) -> list[Measurement]:
    """Logistic rewards, 600 decisions in each of 20 logs; how many are near the truth."""
    return _section(dp.Logistic(), bench)


if __name__ == "__main__":
    command({"linear": linear, "logistic": logistic})
