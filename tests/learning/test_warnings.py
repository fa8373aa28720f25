"""Warnings: each planted fault is reported, and sound logs draw none."""

import numpy as np

import diffprior as dp
from diffprior.fitting.rows import blocks_of
from diffprior.fitting.search import gaussian_of
from diffprior.learning.diagnostics import data_warnings, reliability
from diffprior.learning.likelihoods import resolve
from worlds_of_tasks import rows


def warned(logs: dp.Logs) -> str:
    likelihood, noise = resolve(logs, dp.Linear())
    gaussian = gaussian_of(blocks_of(logs, likelihood))
    seen = reliability(gaussian, blocks_of(logs, likelihood))
    return " | ".join(data_warnings(logs, likelihood, gaussian, seen, noise))


def world(n: int = 600, shift: float = 0.5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows with an intercept-like first feature, so that mean rewards differ between tasks."""
    rng = np.random.default_rng(0)
    thetas = rng.standard_normal((n, 2)) + shift
    tasks, x, _ = rows(rng, thetas, 8.0)
    x = np.column_stack([np.ones(len(x)), x[:, 1]])
    return tasks, x, np.sum(x * thetas[tasks], axis=1) + rng.standard_normal(len(x))


def test_sound_logs_draw_no_warning() -> None:
    tasks, x, y = world()
    assert warned(dp.Logs(tasks, x, y)) == ""


def test_survivors_draw_a_warning() -> None:
    logs = dp.Logs(*world(1500))
    means = np.bincount(logs.row_tasks, logs.rewards) / logs.counts
    assert "better ones had been logged" in warned(logs.select(means > np.median(means)))


def test_survivors_of_a_policy_s_logs_draw_a_warning_and_all_of_them_do_not() -> None:
    """Thompson sampling makes mean rewards skewed, which is no selection."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        thetas = rng.standard_normal((1000, 2)) * np.array([1.5, 0.5])
        length = np.linalg.norm(thetas, axis=1)
        tasks = np.repeat(np.arange(1000), rng.geometric(0.1, 1000))
        towards = (thetas / length[:, None])[tasks]
        x = towards + 0.5 * rng.standard_normal(towards.shape)
        y = np.sum(x * thetas[tasks], axis=1) + rng.standard_normal(len(x))
        logs = dp.Logs(tasks, x, y)
        means = np.bincount(logs.row_tasks, logs.rewards) / logs.counts
        assert "better ones" not in warned(logs)
        assert "better ones" in warned(logs.select(means > np.median(means)))


def test_a_threshold_on_rows_draws_a_warning() -> None:
    logs = dp.Logs(*world(1500))
    assert "no task has fewer than 10 rows" in warned(logs.select(logs.counts >= 10))


def test_traffic_that_follows_quality_draws_a_warning() -> None:
    tasks, x, y = world()
    means = np.bincount(tasks, y) / np.bincount(tasks)
    keep = np.ones(len(tasks), bool)
    place = np.arange(len(tasks)) - np.searchsorted(tasks, tasks)
    keep[(means[tasks] < 0.5) & (place >= 3)] = False
    assert "tasks with more rows pay more" in warned(dp.Logs(tasks[keep], x[keep], y[keep]))


def test_drift_between_early_and_late_tasks_draws_a_warning() -> None:
    tasks, x, y = world()
    late = tasks >= 300
    times = tasks.astype(float)
    assert "drift" not in warned(dp.Logs(tasks, x, y, times=times))
    assert "drift" in warned(dp.Logs(tasks, x, y + 1.0 * late, times=times))


def test_a_direction_that_rows_do_not_show_is_named() -> None:
    tasks, x, y = world()
    x = np.column_stack([x, 0.01 * np.random.default_rng(1).standard_normal(len(x))])
    text = warned(dp.Logs(tasks, x, y, feature_names=("base", "price", "color")))
    assert "unseen directions" in text and "color" in text
