"""Off-policy estimates: a slow twin, a closed form, and whether their errors are what they say."""

import numpy as np
import pytest

import diffprior as dp
from diffprior.bandits.agents import as_agent
from diffprior.evaluate import LoggedChoices, LoggedDecisions, off_policy
from diffprior.evaluate.replay import _estimates, _of_choices, _probabilities, _Replayed

DIM, ACTIONS, NOISE = 2, 4, 1.0
NUM_LOGS, TASKS_OF_LOG, ROUNDS = 100, 40, 5
TRUE_MEAN, TRUE_COV = np.array([0.8, -0.4]), np.array([[0.4, 0.1], [0.1, 0.3]])
TARGET = dp.GaussianPrior(TRUE_MEAN, TRUE_COV)  # what the logging policy does not know


def posterior(
    mean: np.ndarray, cov: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """N(mean, cov) given rewards y of features x, by its textbook form."""
    precision = np.linalg.inv(cov) + np.swapaxes(x, -1, -2) @ x / NOISE**2
    shift = np.linalg.solve(cov, mean) + np.einsum("...nd,...n->...d", x, y) / NOISE**2
    both = np.linalg.inv(precision)
    return np.einsum("...ij,...j->...i", both, shift), both


def shares(
    rng: np.random.Generator, mean: np.ndarray, cov: np.ndarray, table: np.ndarray, num_draws: int
) -> np.ndarray:
    """How often each action is the best one under draws of N(mean, cov)."""
    normal = rng.standard_normal((*mean.shape[:-1], num_draws, DIM))
    thetas = mean[..., None, :] + normal @ np.swapaxes(np.linalg.cholesky(cov), -1, -2)
    best = np.argmax(thetas @ np.swapaxes(table, -1, -2), axis=-1)
    return np.mean(best[..., None] == np.arange(ACTIONS), axis=-2)


class Log:
    """Thompson sampling with N(0, I) and 16 draws for propensities, as the service does it."""

    def __init__(self, seed: int, num_tasks: int, num_rounds: int, num_draws: int = 16) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.shape = (num_tasks, num_rounds)
        self.tables = rng.uniform(-1, 1, (*self.shape, ACTIONS, DIM))
        thetas = rng.multivariate_normal(TRUE_MEAN, TRUE_COV, num_tasks)
        self.means = np.einsum("trad,td->tra", self.tables, thetas)
        self.actions, self.rewards = np.zeros(self.shape, int), np.zeros(self.shape)
        self.propensities = np.zeros(self.shape)
        tasks = np.arange(num_tasks)
        for i in range(num_rounds):
            moments = posterior(np.zeros(DIM), np.eye(DIM), *self.history(i))
            taken = np.argmax(shares(rng, *moments, self.tables[:, i], 1), axis=-1)
            share = shares(rng, *moments, self.tables[:, i], num_draws)[tasks, taken]
            self.actions[:, i] = taken
            self.propensities[:, i] = (num_draws * share + 1) / (num_draws + 1)
            noise = NOISE * rng.standard_normal(num_tasks)
            self.rewards[:, i] = self.means[tasks, i, taken] + noise

    def history(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """History of every task before round i."""
        places = self.actions[:, :i, None, None]
        return np.take_along_axis(self.tables[:, :i], places, 2)[:, :, 0], self.rewards[:, :i]

    def arrays(self, some: slice = slice(None)) -> tuple[np.ndarray, ...]:
        """Tasks, features, actions, rewards and propensities of some tasks, one row a decision."""
        tasks = np.broadcast_to(np.arange(self.shape[0])[:, None], self.shape)
        about = (tasks, self.tables, self.actions, self.rewards, self.propensities)
        return tuple(column[some].reshape(-1, *column.shape[2:]) for column in about)

    def decisions(self, some: slice = slice(None)) -> LoggedDecisions:
        return LoggedDecisions.from_arrays(*self.arrays(some))

    def target_shares(self, num_draws: int = 200) -> np.ndarray:
        """Probabilities of the target in the states of the log."""
        rounds = range(self.shape[1])
        moments = [posterior(TRUE_MEAN, TRUE_COV, *self.history(i)) for i in rounds]
        found = [shares(self.rng, *moments[i], self.tables[:, i], num_draws) for i in rounds]
        return np.stack(found, axis=1)


def test_estimators_equal_a_slow_twin() -> None:
    log, rng = Log(0, 6, 4), np.random.default_rng(1)
    pi, q = rng.dirichlet(np.ones(ACTIONS), 24), rng.standard_normal((24, ACTIONS))
    _, _, actions, rewards, propensities = log.arrays()
    replayed = _Replayed.of(log.decisions().actions, pi, q, 0)
    found = _estimates(log.decisions(), np.arange(24), replayed)
    weights = [pi[i, actions[i]] / propensities[i] for i in range(24)]
    terms = [w * r for w, r in zip(weights, rewards, strict=True)]
    robust = [
        sum(pi[i, a] * q[i, a] for a in range(ACTIONS))
        + weights[i] * (rewards[i] - q[i, actions[i]])
        for i in range(24)
    ]
    assert found.ips.value == pytest.approx(np.mean(terms))
    assert found.snips.value == pytest.approx(sum(terms) / sum(weights))
    assert found.dr.value == pytest.approx(np.mean(robust))
    total = sum(weights)
    assert found.effective_sample_size == pytest.approx(total**2 / sum(w**2 for w in weights))
    by_task = [sum(robust[4 * t : 4 * t + 4]) / 4 for t in range(6)]  # tasks of equal length
    assert found.dr.standard_error == pytest.approx(np.std(by_task, ddof=1) / np.sqrt(6))
    residuals = np.array(terms) - np.array(weights) * found.snips.value
    left = [sum(residuals[4 * t : 4 * t + 4]) for t in range(6)]
    expected = np.sqrt(6 / 5 * sum(x**2 for x in left)) / total
    assert found.snips.standard_error == pytest.approx(expected)


def test_probabilities_and_reward_model_are_those_of_the_evidence_of_the_moment() -> None:
    """One task whose rewards come late, against the closed form at each decision."""
    log = Log(3, 1, 6)
    _, tables, actions, rewards, _ = log.arrays()
    created = np.arange(6.0)
    learned = np.array([0.5, 3.5, 2.5, 3.6, 4.5, 6.0])  # the second comes after the third
    decisions = LoggedDecisions.from_arrays(*log.arrays(), created=created, learned=learned)
    order = np.argsort(learned)
    np.testing.assert_array_equal(decisions.actions, actions[order])
    for place, i in enumerate(order):
        assert decisions.num_known[place] == np.sum(learned <= created[i])
    agent = dp.ThompsonSampling(dp.Exact(TARGET), dp.Linear(NOISE))
    own, means, failed = _probabilities(agent, decisions, np.arange(6), 4000, 0)
    assert failed == 0
    for place, i in enumerate(order):
        rows = np.flatnonzero(learned <= created[i])
        known = (tables[rows, actions[rows]], rewards[rows])
        mean, cov = posterior(TRUE_MEAN, TRUE_COV, *known)
        np.testing.assert_allclose(means[place], tables[i] @ mean, rtol=1e-8)
        twin = shares(log.rng, mean, cov, tables[i], 40_000)
        error = np.sqrt((twin * (1 - twin) + 1e-4) * (1 / 4000 + 1 / 40_000))
        assert np.all(np.abs(own[place] - twin) < 5 * error)


def test_beliefs_about_items_are_those_of_the_rewards_known_at_the_moment() -> None:
    """Each reward counts once, from when it is known."""
    rng, num, num_draws = np.random.default_rng(0), 12, 2**12
    created = np.arange(num, dtype=float)
    log = LoggedChoices(
        names=("a", "b"),
        contexts=rng.uniform(-1, 1, (num, DIM)),
        taken=np.arange(num) % 3 % 2,
        rewards=2.0 + rng.standard_normal(num),
        propensities=np.full(num, 0.5),
        candidates=(np.arange(2),) * num,
        created=created,
        learned=created + rng.uniform(0, 4, num),
    )
    agent = as_agent(TARGET, dp.Linear(NOISE))
    found = _of_choices(agent, log, np.arange(num), num_draws, seed=0)
    for i, x in enumerate(log.contexts):
        own = (log.learned <= created[i]) & (log.taken == log.taken[i])
        mean, cov = posterior(TRUE_MEAN, TRUE_COV, log.contexts[own], log.rewards[own])
        assert abs(found.means[i] - x @ mean) < 5 * np.sqrt(x @ cov @ x / num_draws)


def test_a_policy_that_is_the_logging_policy_earns_what_it_earned() -> None:
    """Actions at random: all weights are 1, and every estimate but DR is the mean."""
    tasks, tables, _, rewards, _ = Log(5, 5, 6).arrays()
    decisions = LoggedDecisions.from_arrays(
        tasks, tables, np.zeros(30, int), rewards, np.full(30, 1 / ACTIONS)
    )
    uniform = dp.Uniform(dp.Linear(NOISE), dim=DIM)
    found = off_policy(uniform, decisions, num_draws=1000)
    spread = 5 * np.sqrt(ACTIONS / 1000)
    assert abs(found.snips.value - rewards.mean()) < spread * np.abs(rewards).mean()
    assert found.effective_sample_size == pytest.approx(30, rel=0.01)


def test_a_log_that_cannot_tell_says_so() -> None:
    """Too few decisions, or propensities twice as large as they were."""
    tasks, tables, actions, rewards, _ = Log(7, 40, 9).arrays()
    uniform = dp.Uniform(dp.Linear(NOISE), dim=DIM)
    rng = np.random.default_rng(0)
    actions = rng.integers(ACTIONS, size=len(actions))
    for num_rows, share, problem in (
        (360, 1 / ACTIONS, None),
        (40, 1 / ACTIONS, "effective sample size is"),
        (360, 2 / ACTIONS, "instead of 1"),
    ):
        rows = slice(0, num_rows)
        shares = np.full(num_rows, share)
        log = LoggedDecisions.from_arrays(
            tasks[rows], tables[rows], actions[rows], rewards[rows], shares
        )
        found = off_policy(uniform, log, num_draws=64)
        assert found.mean_weight.value == pytest.approx(1 / (ACTIONS * share), abs=0.07)
        if problem is None:
            assert found.problem is None and "doubly robust" in str(found)
        else:
            assert problem in found.problem and found.to_dict()["problem"] == found.problem
            assert f"this log cannot tell: {found.problem}" in str(found)
            assert "doubly robust" not in str(found)


def test_decisions_without_propensity_are_evidence_alone() -> None:
    *about, propensities = Log(6, 4, 5).arrays()
    last = np.where(np.arange(20) % 5 == 4, propensities, np.nan)
    decisions = LoggedDecisions.from_arrays(*about, last)
    found = off_policy(TARGET, decisions, dp.Linear(NOISE))
    assert (found.num_decisions, found.num_left_out, found.num_tasks) == (4, 16, 4)
    np.testing.assert_array_equal(decisions.num_known[::5], 0)
    np.testing.assert_array_equal(decisions.num_known[4::5], 4)


@pytest.fixture(scope="module")
def logs() -> list[tuple[dp.evaluate.OffPolicy, float, float]]:
    """Of 100 logs: the estimates, the truth, and the mean of a randomized tenth of the traffic."""
    every = Log(0, NUM_LOGS * TASKS_OF_LOG, ROUNDS)
    pi = every.target_shares()
    found = []
    for i in range(NUM_LOGS):
        some = slice(TASKS_OF_LOG * i, TASKS_OF_LOG * (i + 1))
        means, own = (a[some].reshape(-1, ACTIONS) for a in (every.means, pi))
        tenth = every.rng.permutation(len(own))[: len(own) // 10]
        taken = np.argmax(every.rng.random((len(tenth), 1)) < np.cumsum(own[tenth], axis=1), axis=1)
        paid = means[tenth, taken] + NOISE * every.rng.standard_normal(len(tenth))
        estimates = off_policy(TARGET, every.decisions(some), dp.Linear(NOISE), seed=i)
        found.append((estimates, float(np.mean(np.sum(own * means, axis=1))), paid.mean()))
    return found


@pytest.mark.parametrize("name", ["ips", "snips", "dr"])
def test_truth_is_within_two_standard_errors_and_beats_a_tenth_of_the_traffic(
    logs: list[tuple[dp.evaluate.OffPolicy, float, float]], name: str
) -> None:
    """The truth is the mean over all logs, of which one log is a hundredth."""
    truth = float(np.mean([own for _, own, _ in logs]))
    estimates = [getattr(found, name) for found, _, _ in logs]
    inside = [abs(e.value - truth) < 2 * e.standard_error for e in estimates]
    assert sum(inside) >= 88
    error = np.sqrt(np.mean([(e.value - truth) ** 2 for e in estimates]))
    sampled = np.sqrt(np.mean([(mean - truth) ** 2 for _, _, mean in logs]))
    assert error < sampled
    logged = np.mean([found.logged.value for found, _, _ in logs])
    assert truth > logged + 5 * error / 10  # another policy is evaluated than the one that decided


def test_what_cannot_be_judged_is_refused() -> None:
    log = Log(0, 2, 2)
    about = log.arrays()[:4]
    with pytest.raises(ValueError, match="`propensities`: expected probabilities above 0"):
        LoggedDecisions.from_arrays(*about, np.zeros(4))
    with pytest.raises(ValueError, match="`learned`: expected times after"):
        LoggedDecisions.from_arrays(*about, np.ones(4), created=np.ones(4), learned=np.ones(4))
    nothing = LoggedDecisions.from_arrays(*about, np.full(4, np.nan))
    with pytest.raises(ValueError, match="expected propensities, got none"):
        off_policy(TARGET, nothing, dp.Linear(NOISE))
    with pytest.raises(ValueError, match="expected 3 features"):
        off_policy(dp.GaussianPrior(np.zeros(3), np.eye(3)), log.decisions(), dp.Linear(NOISE))
