"""Simulation against a twin in NumPy, and what must not change its results."""

import json
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

import diffprior as dp
import reference
from bandits.helpers import STANDARD, Ball, Counting, FailingLater, standard_prior
from diffprior.bandits import simulate as module
from diffprior.bandits.agents import ThompsonSampling, Uniform
from diffprior.bandits.decisions import decision_key, stream_keys
from diffprior.bandits.result import SimulationResult
from diffprior.bandits.simulate import Environment, Rounds, simulate
from statistic import assert_mean

LINEAR = Ball(dp.Linear(0.5), fresh_actions=False)
FRESH = Ball(dp.Linear(0.5), fresh_actions=True)
LOGISTIC = Ball(dp.Logistic(), fresh_actions=True)
RUNS, ROUNDS = 4, 30  # two chunks of 15 rounds; most tests share these shapes and their programs


def world(problem: Ball, seed: int = 0) -> Rounds:
    """Features, means and rewards as NumPy arrays."""
    runs = Environment.of(problem, range(RUNS), seed)
    halves = [runs.rounds(jnp.arange(first, first + 15)) for first in (0, 15)]
    arrays = (np.concatenate(parts, axis=1) for parts in zip(*(h[1:] for h in halves), strict=True))
    return Rounds(halves[0].keys, *arrays)


def twin(rounds: Rounds, run: int, seed: int) -> tuple[list[int], NDArray[np.float64]]:
    """Algorithm 3 with prior N(0, I), Eq. (3) by the book, and the same normal numbers."""
    stream = stream_keys(seed, run).decisions
    history: list[NDArray[np.float64]] = []
    rewards: list[float] = []
    actions, regret = [], []
    for k in range(rounds.rewards.shape[1]):
        features, means = rounds.features[run, k], rounds.means[run, k]
        mean, cov = reference.linear_posterior(*STANDARD, np.array(history), np.array(rewards), 0.5)
        noise = np.asarray(jax.random.normal(decision_key(stream, k), (1, 2)))[0]
        action = int(np.argmax(features @ (mean + np.linalg.cholesky(cov) @ noise)))
        actions.append(action)
        regret.append(np.max(means) - means[action])
        history.append(features[action])
        rewards.append(float(rounds.rewards[run, k, action]))
    return actions, np.cumsum(regret)


@pytest.mark.parametrize("problem", [LINEAR, FRESH], ids=["fixed", "fresh"])
def test_regret_is_that_of_a_loop_in_numpy(problem: Ball) -> None:
    result = simulate(problem, {"TS": dp.Exact(standard_prior())}, RUNS, ROUNDS, seed=3)
    rounds = world(problem, seed=3)
    for run in range(RUNS):
        actions, regret = twin(rounds, run, seed=3)
        np.testing.assert_array_equal(result.actions["TS"][run], actions)
        np.testing.assert_allclose(result.regret["TS"][run], regret, rtol=1e-9, atol=1e-12)


def test_uniform_regret_is_the_mean_gap() -> None:
    result = simulate(FRESH, {"uniform": Uniform(FRESH.likelihood)}, RUNS, ROUNDS)
    rounds = world(FRESH)
    gaps = np.max(rounds.means, axis=2) - np.mean(rounds.means, axis=2)
    each = np.diff(result.regret["uniform"], axis=1, prepend=0.0)
    assert_mean((each - gaps).reshape(-1), 0.0)


def test_environments() -> None:
    fixed, fresh, binary = (world(problem) for problem in (LINEAR, FRESH, LOGISTIC))
    assert np.all(fixed.features == fixed.features[:, :1])
    assert len(np.unique(fixed.features[:, 0].reshape(RUNS, -1), axis=0)) == RUNS
    assert len(np.unique(fresh.features.reshape(RUNS * ROUNDS, -1), axis=0)) == RUNS * ROUNDS
    theta = np.asarray(Environment.of(LOGISTIC, range(RUNS), 0).theta)
    means = reference.family_mean(np.einsum("rnkd,rd->rnk", binary.features, theta), "logistic")
    np.testing.assert_allclose(binary.means, means, rtol=1e-9)
    noise = (fresh.rewards - fresh.means)[:, :, 0].reshape(-1)
    assert len(np.unique(noise)) == RUNS * ROUNDS
    assert_mean(noise, 0.0)
    assert_mean(noise**2, 0.25)


def test_agents_meet_the_same_environments() -> None:
    problem = LINEAR
    exact = dp.Exact(standard_prior())
    other = dp.Exact(dp.GaussianPrior(np.ones(2), 0.1 * np.eye(2)))
    alone = simulate(problem, {"a": exact}, RUNS, ROUNDS)
    both = simulate(problem, {"b": other, "a": exact, "twin": exact}, RUNS, ROUNDS)
    np.testing.assert_array_equal(alone.regret["a"], both.regret["a"])
    np.testing.assert_array_equal(alone.regret["a"], both.regret["twin"])
    assert not np.array_equal(alone.regret["a"], both.regret["b"])
    mean, error = both.paired_difference("a", "twin")
    assert not np.any(mean) and not np.any(error)
    reseeded = simulate(problem, {"a": exact}, RUNS, ROUNDS, seed=1)
    assert not np.array_equal(alone.regret["a"], reseeded.regret["a"])


def test_chunks_change_nothing() -> None:
    agents = {"TS": dp.Exact(standard_prior())}
    assert module._chunks(LINEAR, RUNS, 53) == (18, 3)  # one round too many
    assert module._chunks(LINEAR, RUNS, ROUNDS) == (15, 2)
    long, short = (simulate(LINEAR, agents, RUNS, n) for n in (53, ROUNDS))
    np.testing.assert_array_equal(long.actions["TS"][:, :ROUNDS], short.actions["TS"])
    np.testing.assert_allclose(long.regret["TS"][:, :ROUNDS], short.regret["TS"], rtol=1e-12)


def test_memory_bounds_the_chunks() -> None:
    assert module._chunks(LINEAR, 100, 10, max_numbers=3 * 100 * 8 * 4) == (3, 4)
    assert module._chunks(LINEAR, 100, 10, max_numbers=1) == (1, 10)


def test_a_program_is_made_once_per_agent() -> None:
    sampler = Counting()
    simulate(LOGISTIC, {"a": sampler}, RUNS, 50)
    once = sampler.tally.count
    simulate(LOGISTIC, {"a": sampler}, RUNS, 75, seed=1)
    assert sampler.tally.count == once


def test_a_failed_draw_raises_or_is_counted() -> None:
    agents = {"fine": dp.Exact(standard_prior()), "bad": FailingLater(6)}
    with pytest.raises(RuntimeError, match="'bad' rest on a draw that failed.*in round 7.*throw"):
        simulate(LINEAR, agents, RUNS, ROUNDS)
    result = simulate(LINEAR, agents, RUNS, ROUNDS, throw=False)
    assert result.failures == {"fine": 0, "bad": 24 * RUNS}
    assert np.all(np.isfinite(result.regret["bad"]))
    assert [row[3] for row in result.table().rows] == ["0", "96"]


@pytest.fixture(scope="module")
def result() -> SimulationResult:
    agents = {"TS": dp.Exact(standard_prior()), "uniform": Uniform(LINEAR.likelihood)}
    return simulate(LINEAR, agents, RUNS, ROUNDS)


def test_statistics(result: SimulationResult) -> None:
    assert (result.num_runs, result.num_rounds) == (RUNS, ROUNDS)
    assert result.agents == ("TS", "uniform")
    ts, uniform = result.regret["TS"], result.regret["uniform"]
    np.testing.assert_allclose(result.mean("TS"), ts.mean(axis=0))
    scaled = np.sqrt(np.sum((ts - ts.mean(axis=0)) ** 2, axis=0) / 3 / 4)
    np.testing.assert_allclose(result.standard_error("TS"), scaled)
    mean, error = result.paired_difference("TS", "uniform")
    np.testing.assert_allclose(mean, np.mean(ts - uniform, axis=0))
    np.testing.assert_allclose(error, np.std(ts - uniform, axis=0, ddof=1) / np.sqrt(4))
    assert np.all(np.diff(ts, axis=1) >= 0) and ts.dtype == np.float64


def test_single_run_has_no_standard_error() -> None:
    curve = {"TS": np.ones((1, 3))}
    single = SimulationResult(curve, {}, {"TS": 0}, {"TS": 0.0}, {"TS": 0.0}, seed=0)
    assert np.all(np.isnan(single.standard_error("TS")))


def test_result_as_json_and_table(result: SimulationResult) -> None:
    row = json.loads(result.to_json())["agents"]["TS"]
    np.testing.assert_allclose(row["regret_curve"], result.mean("TS"))
    assert row["regret"] == row["regret_curve"][-1] and row["failures"] == 0
    assert row["seconds"] > 0 and row["compile_seconds"] > 0
    assert "regret after 30 rounds, 4 runs" in str(result)


def test_result_as_dataframe(result: SimulationResult) -> None:
    pytest.importorskip("pandas")
    frame = result.to_dataframe()
    assert list(frame.columns) == ["agent", "round", "regret", "standard_error"]
    last = frame[(frame["agent"] == "uniform") & (frame["round"] == ROUNDS)]
    np.testing.assert_allclose(last["regret"], result.mean("uniform")[-1])


def test_progress_is_silent_off_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    agents = {"TS": dp.Exact(standard_prior())}
    simulate(LINEAR, agents, RUNS, ROUNDS)
    simulate(LINEAR, agents, RUNS, ROUNDS, progress=True)
    assert capfd.readouterr().err == ""


class Wrong(Ball):
    """A problem whose features do not fit."""

    def features(self, key: jax.Array) -> jax.Array:
        return jnp.zeros((3, 2))


class Broken(Ball):
    """A problem with features that are not numbers."""

    def features(self, key: jax.Array) -> jax.Array:
        return jnp.full((8, 2), jnp.nan)


EXACT = dp.Exact(dp.GaussianPrior(*STANDARD))
BINARY = {"a": ThompsonSampling(EXACT, dp.Logistic())}
WIDE = dp.Exact(dp.GaussianPrior(np.zeros(3), np.eye(3)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulate("cross", {"a": EXACT}), "`problem`.*got str.*synthetic"),
        (lambda: simulate(LINEAR, {}), "`agents`.*dict without entries"),
        (lambda: simulate(LINEAR, [EXACT]), "`agents`.*list without names; pass"),
        (lambda: simulate(LINEAR, {"a": "Exact"}), "'a'.*got str.*`Exact"),
        (lambda: simulate(LINEAR, {"a": WIDE}), "2 features for 'a'.*3 parameters"),
        (lambda: simulate(LINEAR, {"a": EXACT}, num_runs=0), "`num_runs`.*got 0"),
        (lambda: simulate(LINEAR, {"a": EXACT}, num_rounds=0), "`num_rounds`.*got 0"),
        (lambda: simulate(LINEAR, {"a": EXACT}, num_rounds=2**63), "`num_rounds`: .*got 512 times"),
        (
            lambda: simulate(LINEAR, {"a": EXACT}, num_runs=2**63),
            "`num_runs`, .*product.*times 200",
        ),
        (lambda: simulate(LINEAR, {"a": EXACT}, seed=-1), "`seed`.*got -1"),
        (
            lambda: simulate(LINEAR, BINARY, RUNS, ROUNDS),
            "likelihood of 'a' cannot take.*0 or 1.*problem.likelihood",
        ),
        (
            lambda: simulate(Wrong(dp.Linear(1.0), False), {"a": EXACT}, 2, 2),
            r"`features`: expected shape \(8, 2\), got \(3, 2\)",
        ),
        (
            lambda: simulate(Broken(dp.Linear(1.0), False), {"a": EXACT}, 2, 2),
            "`problem`: expected finite features",
        ),
    ],
)
def test_wrong_arguments_are_rejected(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_unknown_agent_is_named(result: SimulationResult) -> None:
    with pytest.raises(ValueError, match="`agent`: expected one of 'TS', 'uniform', got 'MixTS'"):
        result.mean("MixTS")


def test_fewer_runs_are_the_first_of_more() -> None:
    few, many = (Environment.of(LINEAR, range(n), 0) for n in (3, 70))
    np.testing.assert_array_equal(few.theta, many.theta[:3])
    assert len(np.unique(many.theta[:, 0])) == 70
    np.testing.assert_array_equal(few.rounds(jnp.arange(2))[1], many.rounds(jnp.arange(2))[1][:3])


def test_a_prime_number_of_runs_uses_all_cores() -> None:
    """In shards of one size, of which the last run fills what is left, and counts once."""
    agents = {"TS": dp.Exact(standard_prior())}
    assert [module._num_shards(n, 2) for n in (1, 2, 3, 5, 509)] == [1, 2, 2, 2, 2]
    even, prime = (simulate(LINEAR, agents, n, ROUNDS) for n in (RUNS, 3))
    assert prime.num_runs == 3
    np.testing.assert_array_equal(prime.actions["TS"], even.actions["TS"][:3])
    np.testing.assert_allclose(prime.regret["TS"], even.regret["TS"][:3], rtol=1e-12)
    assert [module._num_shards(n, 4) for n in (3, 5, 6, 7)] == [3, 3, 3, 4]  # none of repeats only
