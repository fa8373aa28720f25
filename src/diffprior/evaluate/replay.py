"""Off-policy evaluation: the reward of a policy, from decisions that another policy logged."""

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..bandits.agents import AbstractAgent, LinUCB, ThompsonSampling, as_agent, dim_of
from ..bandits.decisions import (
    TASKS_PER_CALL,
    TaskPolicy,
    TaskRequest,
    all_values,
    host_mean,
    wins,
)
from ..bandits.panel import PanelDraws
from ..bandits.updates import Observations, State
from ..checks import default_float, positive_int
from ..evidence.base import AbstractLikelihood
from ..evidence.response import response_of
from ..executors import num_cores
from ..logs.decisions import LoggedChoices, LoggedDecisions
from ..priors.gaussian import GaussianPrior
from ..reporting.tables import Table, plus_minus

MIN_SIZE = 300  # effective decisions, below which errors are not to be trusted
MAX_DEVIATION = 2.0  # standard errors of the mean weight from 1


@dataclass(frozen=True)
class Estimate:
    """A mean reward and its standard error.

    Args:
        value: The mean reward of a decision.
        standard_error: Over tasks, whose decisions are not independent; over decisions where there
            is one task.
    """

    value: float
    standard_error: float


@dataclass(frozen=True)
class OffPolicy:
    """Estimates of what a policy would have earned on logged decisions.

    Args:
        logged: What the policy that took the decisions earned.
        ips: Inverse propensity score: the mean of w r with the weight w = pi(a) / p(a).
        snips: Self-normalized: the sum of w r over the sum of w.
        dr: Doubly robust: the mean of sum_a pi(a) q(a) + w (r - q(a)), with a reward model q.
        mean_weight: The mean of w, which is 1 if the log has every action that the policy takes and
            its propensities are right.
        effective_sample_size: (sum w)^2 / sum w^2, of the decisions.
        num_decisions: Decisions with a propensity.
        num_tasks: Tasks that they are of.
        num_left_out: Decisions without a propensity, which are evidence of their task alone.
        failed: Draws of the policy that failed; its action is then random, as in a `Bandit`.
    """

    logged: Estimate
    ips: Estimate
    snips: Estimate
    dr: Estimate
    mean_weight: Estimate
    effective_sample_size: float
    num_decisions: int
    num_tasks: int
    num_left_out: int
    failed: int

    @property
    def problem(self) -> str | None:
        """Why the log cannot tell what the policy would have earned; None if it can."""
        size, weight = self.effective_sample_size, self.mean_weight
        if size < MIN_SIZE:
            return f"its effective sample size is {size:.0f} decisions, of at least {MIN_SIZE}"
        if not abs(weight.value - 1.0) <= MAX_DEVIATION * weight.standard_error:
            return f"weights average {plus_minus(weight.value, weight.standard_error)} instead of 1"
        return None

    def to_dict(self) -> dict[str, object]:
        """The table as plain numbers.

        Returns:
            A dictionary that JSON can hold; `problem` is not None where the log cannot tell.
        """
        return asdict(self) | {"problem": self.problem}

    def __str__(self) -> str:
        """A table, one row for each estimate; without estimates if the log cannot tell."""
        names = {"the log itself": self.logged}
        if self.problem is None:
            names |= {"IPS": self.ips, "SNIPS": self.snips, "doubly robust": self.dr}
        rows = [(name, plus_minus(e.value, e.standard_error)) for name, e in names.items()]
        left = f", {self.num_left_out} more without a propensity" if self.num_left_out else ""
        weight = plus_minus(self.mean_weight.value, self.mean_weight.standard_error)
        warning = f"\nthis log cannot tell: {self.problem}" if self.problem else ""
        return (
            f"{self.num_decisions} decisions of {self.num_tasks} tasks{left}; effective sample "
            f"size {self.effective_sample_size:.0f}; mean weight {weight}\n"
            f"{Table(('', 'mean reward'), rows)}{warning}"
        )


def off_policy(
    policy: object,
    decisions: LoggedDecisions | LoggedChoices,
    likelihood: AbstractLikelihood | None = None,
    *,
    num_draws: int = 64,
    seed: int = 0,
) -> OffPolicy:
    """Estimate the mean reward of logged decisions, had this policy taken each of them.

    The policy decides with the evidence that the task had at that moment in the log: its
    decisions are evaluated, not what else it would have explored and learned. Its probabilities
    are shares of `num_draws` draws, which leaves IPS and DR unbiased.

    The reward model of DR is linear in the features, or generalized linear: the posterior mean of
    the task given the evidence of that moment and a Gaussian with the prior's mean and covariance.
    It has not seen the reward that it is corrected by.

    For choices among items the policy chooses with what all items had shown at that moment, and
    the reward model is the mean of its own draws.

    Args:
        policy: A prior, a sampler or an agent, as of `Bandit`; for choices, not an agent.
        decisions: The log with its propensities.
        likelihood: How rewards arise; None with an agent.
        num_draws: Draws for the policy's probabilities at each decision.
        seed: Of the draws.

    Returns:
        IPS, SNIPS and DR with standard errors, the mean weight and the effective sample size. If
        either says that the log cannot tell, `problem` is set, and estimates are not to be used.

    Raises:
        ValueError: Arguments do not fit each other, or no decision has a propensity.

    References:
        Swaminathan and Joachims (2015), The Self-Normalized Estimator for Counterfactual Learning;
        Dudik, Langford and Li (2011), Doubly Robust Policy Evaluation and Learning, Eq. (1).
    """
    agent = as_agent(policy, likelihood, None)
    known = np.flatnonzero(~np.isnan(decisions.propensities))
    dim = decisions.dim
    if response_of(agent.likelihood) is not None:
        raise ValueError(
            "`policy`: expected rewards linear in the parameters, got Response, whose rewards are "
            "not modeled here; compare policies by `simulate`"
        )
    if dim_of(agent) != dim:
        raise ValueError(
            f"`decisions`: expected {dim_of(agent)} features, as the policy has parameters, got "
            f"{dim}; use the features that it was learned from, or learn with intercept=False"
        )
    if not len(known):
        raise ValueError(
            "`decisions`: expected propensities, got none; export decisions that were taken with "
            "propensity_draws above 0"
        )
    agent.likelihood.check_rewards(decisions.rewards)
    num_draws = positive_int("num_draws", num_draws)
    if isinstance(decisions, LoggedChoices):
        found = _of_choices(agent, decisions, known, num_draws, seed)
    else:
        found = _of_actions(agent, decisions, known, num_draws, seed)
    return _estimates(decisions, known, found)


def _estimates(
    decisions: LoggedDecisions | LoggedChoices, known: Int[np.ndarray, " m"], found: "_Replayed"
) -> OffPolicy:
    """The estimators, from the policy's probabilities and the reward model's means."""
    taken, expected, means, failed = found
    rewards, weights = decisions.rewards[known], taken / decisions.propensities[known]
    robust = expected + weights * (rewards - means)
    tasks = decisions.tasks[known]
    ones = np.ones(len(known))
    squares = float(np.sum(weights**2))
    return OffPolicy(
        logged=_ratio(rewards, ones, tasks),
        mean_weight=_ratio(weights, ones, tasks),
        ips=_ratio(weights * rewards, ones, tasks),
        snips=_ratio(weights * rewards, weights, tasks),
        dr=_ratio(robust, ones, tasks),
        effective_sample_size=float(np.sum(weights)) ** 2 / squares if squares else 0.0,
        num_decisions=len(known),
        num_tasks=len(np.unique(tasks)),
        num_left_out=len(decisions) - len(known),
        failed=failed,
    )


def _ratio(
    values: Float[np.ndarray, " m"], weights: Float[np.ndarray, " m"], tasks: Int[np.ndarray, " m"]
) -> Estimate:
    """Sum of values over sum of weights, and its error by the delta method, clustered by task."""
    total = float(np.sum(weights))
    if total == 0:
        return Estimate(float("nan"), float("nan"))
    value = float(np.sum(values)) / total
    residuals = values - weights * value
    groups = np.unique(tasks, return_inverse=True)[1]
    sums = np.bincount(groups, residuals) if groups.max() else residuals
    n = len(sums)
    error = np.sqrt(n / (n - 1) * np.sum(sums**2)) / abs(total) if n > 1 else float("nan")
    return Estimate(value, float(error))


class _Replayed(NamedTuple):
    """Of each decision, the probability of the action taken, the mean reward that the reward model
    expects of the policy, and of the action taken; and how many draws failed.
    """

    taken: Float[np.ndarray, " m"]
    expected: Float[np.ndarray, " m"]
    means: Float[np.ndarray, " m"]
    failed: int

    @staticmethod
    def of(
        actions: Int[np.ndarray, " m"],
        shares: Float[np.ndarray, "m k"],
        means: Float[np.ndarray, "m k"],
        failed: int,
    ) -> "_Replayed":
        """From probabilities and mean rewards of all actions."""
        rows, expected = np.arange(len(actions)), np.sum(shares * means, axis=1)
        return _Replayed(shares[rows, actions], expected, means[rows, actions], failed)


def _of_actions(
    agent: AbstractAgent,
    decisions: LoggedDecisions,
    known: Int[np.ndarray, " m"],
    num_draws: int,
    seed: int,
) -> _Replayed:
    """What the policy would have done among the actions of each decision."""
    found = _probabilities(agent, decisions, known, num_draws, seed)
    return _Replayed.of(decisions.actions[known], *found)


def _of_choices(
    agent: AbstractAgent,
    choices: LoggedChoices,
    known: Int[np.ndarray, " m"],
    num_draws: int,
    seed: int,
) -> _Replayed:
    """What the policy would have done among the items of each choice, in the order of time."""
    if not isinstance(agent, ThompsonSampling):
        raise ValueError(
            f"`policy`: expected a prior or a sampler for choices among items, got "
            f"{type(agent).__name__}; evaluate its prior"
        )
    dim, mean = choices.contexts.shape[1], host_mean(agent.likelihood)
    draws = PanelDraws(agent, seed, num_draws, dim)
    states: dict[int, State] = {}
    times = np.zeros(len(choices.names), np.int64)
    thetas = np.empty((len(choices.names), num_draws, dim), default_float())

    def draw(items: Int[np.ndarray, " k"]) -> int:
        times[items] += 1
        rows = draws([states.get(i) for i in items.tolist()], np.stack([items, times[items]], 1))
        thetas[items] = rows.thetas
        return int((~np.isfinite(rows.thetas).all(axis=2)).sum())

    failed = draw(np.arange(len(choices.names)))
    order, seen = np.argsort(choices.learned, kind="stable"), 0
    found = np.zeros((3, len(known)))
    for place, number in enumerate(known.tolist()):
        now, first = choices.created[number], seen
        seen += int(np.searchsorted(choices.learned[order[seen:]], now, side="right"))
        if seen > first:
            failed += draw(_learn(agent, choices, states, order[first:seen]))
        among, x = choices.candidates[number], choices.contexts[number].astype(default_float())
        values = np.nan_to_num(thetas[among] @ x, nan=-np.inf)
        beliefs = np.asarray(mean(np.nanmean(thetas[among], axis=1) @ x))
        best, taken = among[values.argmax(axis=0)], choices.taken[number]
        expected = beliefs[values.argmax(axis=0)].mean()
        found[:, place] = np.mean(best == taken), expected, beliefs[among == taken][0]
    return _Replayed(found[0], found[1], found[2], failed)


def _learn(
    agent: AbstractAgent,
    choices: LoggedChoices,
    states: dict[int, State],
    rows: Int[np.ndarray, " n"],
) -> Int[np.ndarray, " k"]:
    """Learn these rewards; the items that they are of."""
    dim = choices.contexts.shape[1]
    items = np.unique(choices.taken[rows])
    for item in items.tolist():
        own = rows[choices.taken[rows] == item]
        new = Observations(choices.contexts[own], choices.rewards[own], dim, default_float())
        state = states.get(item) or State.of(agent.likelihood.empty(dim), None)
        states[item] = state.add(new, None, agent.moments())
    return items


def _probabilities(
    agent: AbstractAgent,
    decisions: LoggedDecisions,
    known: Int[np.ndarray, " m"],
    num_draws: int,
    seed: int,
) -> tuple[Float[np.ndarray, "m k"], Float[np.ndarray, "m k"], int]:
    """Probabilities of the policy, mean rewards of a model, and the number of failed draws.

    The policy draws as the service does. The model is what `LinUCB` infers.
    """
    rng, likelihood, moments = np.random.default_rng(seed), agent.likelihood, agent.moments()
    gaussian = GaussianPrior(moments.mean, moments.cov)
    empty = likelihood.empty(decisions.features.shape[2])
    room = int(decisions.num_known[known].max())
    policy = TaskPolicy(agent, empty, room, num_draws - 1)
    model = TaskPolicy(LinUCB(gaussian, likelihood), empty, room, 0)
    shares, means = np.zeros((2, len(known), decisions.mask.shape[1]))
    mean, num_failed = host_mean(likelihood), 0
    requests = _requests(agent, decisions, known, seed)
    while some := list(itertools.islice(requests, TASKS_PER_CALL * num_cores())):
        draws = policy([request for _, request in some])
        beliefs = model([request for _, request in some]).index.theta[:, 0]
        for row, (place, _) in enumerate(some):
            features, mask = decisions.features[known[place]], decisions.mask[known[place]]
            values = all_values(draws.of(row), features.astype(default_float(), copy=False))
            lost = draws.failed[row] | ~np.isfinite(values).all(axis=1)
            values[lost] = rng.random((int(lost.sum()), len(mask)))
            won = wins(values, mask, 1, np.arange(len(mask)))
            shares[place], num_failed = won.mean(axis=0), num_failed + int(lost.sum())
            means[place] = mean(features @ beliefs[row])
    return shares, np.where(np.isfinite(means), means, np.mean(decisions.rewards)), num_failed


def _requests(
    agent: AbstractAgent, decisions: LoggedDecisions, known: Int[np.ndarray, " m"], seed: int
) -> Iterator[tuple[int, TaskRequest]]:
    """The place of each decision in `known`, and its task with the rows that it had shown before;
    task by task, in the order of what was known.
    """
    dim, moments = decisions.features.shape[2], agent.moments()
    empty = State.of(agent.likelihood.empty(dim), None)
    task, state, seen = -1, empty, 0
    for place in np.lexsort((decisions.num_known[known], decisions.tasks[known])):
        number = known[place]
        if decisions.tasks[number] != task:
            task, state, seen = decisions.tasks[number], empty, 0
        rows = decisions.starts[number] + np.arange(seen, decisions.num_known[number])
        phi = decisions.features[rows, decisions.actions[rows]]
        new = Observations(phi, decisions.rewards[rows], dim, default_float())
        state, seen = state.add(new, None, moments), int(decisions.num_known[number])
        leaves = [np.asarray(leaf) for leaf in state.leaves]
        yield int(place), TaskRequest(leaves, state.structure, seed, int(number))
