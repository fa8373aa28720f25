"""On a Ray cluster of two nodes: the same digits as in one process, whoever dies."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import diffprior as dp
import shard_functions as functions
from diffprior.executors import AbstractExecutor, InProcess, Ray, ShardError
from diffprior.fitting.config import LearningConfig
from diffprior.fitting.search import SearchConfig
from diffprior.learning.distill import distill, em_round, learning_tasks
from diffprior.learning.source import Passes, Source
from diffprior.mixture import GaussianMixture
from shard_functions import DIM, make_logs, sharded


@pytest.fixture(scope="module")
def executor(cluster: Any) -> Iterator[AbstractExecutor]:
    with Ray(cluster.address) as found:
        yield found


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_same(ours: Any, theirs: Any, atol: float = 0.0) -> None:
    for a, b in zip(leaves(ours), leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=0.0, atol=atol)


def test_the_contract_holds_on_two_nodes(executor: AbstractExecutor, tmp_path: Path) -> None:
    found = list(executor.map(functools.partial(functions.scaled, 0.1), range(9)))
    np.testing.assert_array_equal(found, [0.1 * np.full(3, i) for i in range(9)])
    places = functions.both_places(executor)
    assert len(places) == 2 and set(places.values()) == {1}
    assert list(executor.map(functions.precision, [0])) == ["float64True"]
    once = functools.partial(functions.dies_once, str(tmp_path))
    assert list(executor.map(once, range(8))) == list(range(8))
    with pytest.raises(ShardError, match="shard 7 failed: ValueError: seven is not wanted"):
        list(executor.map(functions.rejected, range(20)))
    with pytest.raises(ShardError, match="shard 3 failed: its worker died"):
        list(executor.map(functions.dies_always, range(5)))


def test_learned_priors_have_the_same_digits(executor: AbstractExecutor, tmp_path: Path) -> None:
    """Bit for bit from the same shards; to 1e-6 from other shards, and from memory."""
    logs = make_logs(tmp_path / "logs.parquet", 210)
    shards = sharded(tmp_path / "logs.parquet", 45)
    assert len(shards.shards) == 5
    learn = functools.partial(
        dp.learn,
        likelihood=dp.Linear(),
        families=("gaussian", "mixture"),
        simulate=False,
        progress=False,
        config=LearningConfig(min_order=0.0, search=SearchConfig(max_components=2, max_tied=0)),
    )
    there, here, memory = learn(shards, executor=executor), learn(shards), learn(logs)
    assert any("mixture" in name for name in there.families)
    for name, prior in there.families.items():
        assert_same(prior, here.families[name])
        assert_same(prior, memory.families[name], 1e-6)
    assert_same(there.likelihood, memory.likelihood, 1e-6)
    assert there.report.rows_per_task == memory.report.rows_per_task
    assert there.report.num_tasks == 210 and there.report.warnings == memory.report.warnings
    for ours, theirs in zip(there.report.families, memory.report.families, strict=True):
        np.testing.assert_allclose(ours.log_evidence, theirs.log_evidence, atol=1e-6)


def test_a_round_of_diffusion_em_has_the_same_digits(
    executor: AbstractExecutor, tmp_path: Path
) -> None:
    config, likelihood = LearningConfig(round_steps=60, round_draws=250), dp.Linear(noise_std=1.0)
    logs = make_logs(tmp_path / "logs.parquet", 200)
    center = np.full(DIM, 0.5)  # far from the truth, so that there is something to learn
    covs = np.stack([2.0 * np.eye(DIM)] * 2)
    start = distill(GaussianMixture.from_covs(np.full(2, 0.5), np.stack([-center, center]), covs))

    def round_of(source: Source, passes: Passes) -> dp.DiffusionPrior:
        pieces = source.pieces(learning_tasks(200, 0), piece_tasks=64)
        return em_round(start, pieces, likelihood, 0, passes=passes, config=config)

    here, there = Passes(InProcess()), Passes(executor)
    shards = sharded(tmp_path / "logs.parquet", 70)
    ours = round_of(Source.of(shards, likelihood, here, config), there)
    assert_same(ours, round_of(Source.of(logs, likelihood, here, config), here), 1e-6)
    assert ours.denoiser.correction is not None and start.denoiser.correction is None
    np.testing.assert_allclose(ours.denoiser.base.means, start.denoiser.base.means)


def test_simulated_runs_have_the_same_digits(executor: AbstractExecutor) -> None:
    problem = dp.synthetic("cross")
    agents = {
        "TS": dp.Exact(dp.GaussianPrior(np.zeros(2), np.eye(2))),
        "MixTS": dp.Exact(problem.true_prior),
    }
    play = functools.partial(dp.simulate, problem, agents, 20, 15, seed=3, progress=False)
    here, there, again = play(), play(executor=executor), play(executor=InProcess())
    assert there.num_runs == 20 and there.failures == here.failures
    for name in agents:
        np.testing.assert_array_equal(there.actions[name], here.actions[name])
        np.testing.assert_array_equal(there.regret[name], again.regret[name])
        np.testing.assert_allclose(there.regret[name], here.regret[name], atol=1e-6)


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_node_killed_in_mid_round_costs_time_alone(
    cluster: Any, executor: AbstractExecutor, tmp_path: Path
) -> None:
    """The node of one worker dies while both are at work; the other does the rest."""
    make_logs(tmp_path / "logs.parquet", 120)
    shards = sharded(tmp_path / "logs.parquet", 10).shards
    function = functools.partial(functions.slow, functions.count_rows, 0.2, str(tmp_path))
    expected = [functions.count_rows(shard) for shard in shards]
    functions.both_places(executor)
    results = executor.map(function, shards)
    first = next(results)
    (node,) = cluster.worker_nodes
    cluster.remove_node(node, allow_graceful=False)
    assert [first, *results] == expected
    assert len(list(tmp_path.glob("began-*"))) == 2  # the one that died, and the one that went on
    cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
    assert list(executor.map(functions.count_rows, shards)) == expected
