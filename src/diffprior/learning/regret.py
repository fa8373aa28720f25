"""Simulated regret of learned priors: Thompson sampling in tasks like those held out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..bandits.simulate import simulate
from ..evidence.base import AbstractLikelihood
from ..evidence.linear import Linear
from ..files.base import Serializable
from ..logs.logs import Logs
from ..problems.rows import RowProblem
from ..samplers.choose import best_sampler
from .scoring import Family

TEMPERATURES = (1.0, 0.5, 0.25)
MAX_ACTIONS = 4000  # rows of the logs that serve as actions
ACTIONS_PER_ROUND = 10


@dataclass(frozen=True)
class Regret(Serializable):
    """Expected regret of one family at one temperature, and its standard error.

    `over_gaussian` is the paired difference to the Gaussian at the same temperature.
    """

    family: str
    temperature: float
    mean: float
    error: float
    over_gaussian: float
    over_gaussian_error: float


@dataclass(frozen=True)
class Simulation(Serializable):
    """Regrets of all families at equal temperatures, and what follows for the chosen one."""

    regrets: tuple[Regret, ...]
    num_rounds: int
    num_runs: int
    recommended_temperature: float


def simulate_regret(
    families: Sequence[Family],
    basis: Family,
    chosen_name: str,
    logs: Logs,
    likelihood: AbstractLikelihood,
    seed: int = 0,
    advance: Callable[[float], None] = lambda share: None,
) -> Simulation:
    """Simulate Thompson sampling with each prior in tasks like those held out.

    Parameters are draws given each held-out task under the chosen prior, actions are rows of the
    logs, ten different ones each round. The temperature recommended for the chosen family is the
    highest whose regret is within a standard error of its least. `advance` is called with the share
    of the work that was done.
    """
    linear = isinstance(likelihood, Linear)
    num_runs, num_rounds = (64, 200) if linear else (32, 100)
    copies = -(-256 // max(logs.num_tasks, 1))
    parts = basis.block_draws(logs, likelihood, seed, 31, count=copies)
    thetas = np.concatenate([part.reshape(-1, logs.dim) for part in parts])
    actions = _actions(logs, seed)
    problem = RowProblem(
        thetas, actions, likelihood, num_actions=min(ACTIONS_PER_ROUND, len(actions))
    )
    priors, regrets = {f.name: f.prior for f in families}, []
    for temperature in TEMPERATURES:
        agents = {name: best_sampler(prior, temperature) for name, prior in priors.items()}
        result = simulate(
            problem, agents, num_runs=num_runs, num_rounds=num_rounds, seed=seed,
            progress=False, throw=False,
        )  # fmt: skip
        for name in priors:
            difference = result.paired_difference(name, "Gaussian")
            figures = (result.mean(name), result.standard_error(name), *difference)
            regrets.append(Regret(name, temperature, *(float(figure[-1]) for figure in figures)))
        advance(1 / len(TEMPERATURES))
    own = [regret for regret in regrets if regret.family == chosen_name]
    least = min(own, key=lambda regret: regret.mean)
    recommended = max(r.temperature for r in own if r.mean <= least.mean + least.error)
    return Simulation(tuple(regrets), num_rounds, num_runs, recommended)


def _actions(logs: Logs, seed: int) -> np.ndarray:
    unique = np.unique(logs.features, axis=0)
    if len(unique) <= MAX_ACTIONS:
        return unique
    chosen = np.random.default_rng(seed).choice(len(unique), MAX_ACTIONS, replace=False)
    return unique[np.sort(chosen)]
