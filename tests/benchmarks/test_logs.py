"""The benchmark of priors from logs: cells, the policies that collect, and rows of data."""

import numpy as np

import diffprior as dp
from benchmarks.logs import CASES, KINDS, cells
from benchmarks.logs_cells import Cell, Figure, law_of, rows_of
from benchmarks.logs_data import rows_of_problem
from benchmarks.logs_decisions import collected
from benchmarks.logs_gaps import true_log_evidence


def test_every_cell_has_a_label_of_its_own_and_can_be_run_alone() -> None:
    labels = [cell.label for cell in cells([], [0, 1, 2])]
    assert len(set(labels)) == len(labels) and {case[0] for case in CASES} == set(KINDS)
    chosen = list(cells(["gap H", "noise"], [1]))
    assert {cell.kind for cell in chosen} == {"gap", "noise"}
    assert all(cell.seed == 1 for cell in chosen)


def test_a_figure_is_told_beside_its_target() -> None:
    cell = Cell("gap", "H", 1000, 5.0, 0.03, 0)
    assert "MISS" in str(Figure(cell, 0.04, {})) and Figure(cell, 0.03, {}).reached


def test_policies_earn_more_than_chance_and_stop_early_where_told() -> None:
    thetas = law_of("blobs")(np.random.default_rng(0), 400)
    rewards, lengths = {}, {}
    for policy in ("uniform", "greedy", "thompson", "stopped"):
        cell = Cell("adaptive", policy, 400, 10.0, 0.01, 0)
        tasks, x, y = collected(np.random.default_rng(1), thetas, policy, cell)
        assert len(np.unique(tasks)) == 400 and np.all(np.diff(tasks) >= 0)
        assert np.max(np.linalg.norm(x, axis=1)) <= 1
        rewards[policy], lengths[policy] = y.mean(), np.bincount(tasks)
    assert rewards["greedy"] > rewards["uniform"] + 0.5 < rewards["thompson"]
    assert np.mean(lengths["stopped"] == 3) > 2 * np.mean(lengths["thompson"] == 3)


def test_draws_of_the_truth_give_its_evidence() -> None:
    rng = np.random.default_rng(0)
    logs = dp.Logs(*rows_of(rng, rng.standard_normal((50, 2)), 3.0))
    likelihood = dp.Linear(noise_std=1.0)
    found = true_log_evidence(logs, likelihood, rng.standard_normal((40_000, 2)))
    exact = dp.evaluate.log_evidence(dp.GaussianPrior(np.zeros(2), np.eye(2)), logs, likelihood)
    np.testing.assert_allclose(found, exact, atol=0.1)


def test_tasks_of_data_are_logged_once_each() -> None:
    rng = np.random.default_rng(0)
    parameters, actions = rng.standard_normal((30, 3)), rng.standard_normal((50, 3))
    problem = dp.RowProblem(parameters, actions, dp.Linear(noise_std=1e-3))
    logs = rows_of_problem(rng, problem, 12)
    assert logs.num_tasks == 30 and np.all(logs.counts == 12)
    fitted = np.linalg.lstsq(logs.features[:12], logs.rewards[:12], rcond=None)[0]
    np.testing.assert_allclose(fitted, parameters[0], atol=0.01)
