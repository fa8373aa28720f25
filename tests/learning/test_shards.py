"""Logs in files by task: written in little memory, learned from, and resumed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import diffprior as dp
from diffprior.executors import ShardError
from diffprior.fitting.config import LearningConfig
from diffprior.logs import shards as sharding
from shard_functions import COLUMNS, make_logs, sharded

ROOT = Path(__file__).parents[2]


def test_every_task_is_in_one_file(tmp_path: Path) -> None:
    logs = make_logs(tmp_path / "logs.parquet", 100)
    sharding.write_shards(
        tmp_path / "logs.parquet",
        tmp_path / "logs.shards",
        "task",
        9,
        batch_rows=50,
        buffer_rows=120,
    )
    shards = sharded(tmp_path / "logs.parquet", 9)
    parts = [shard.read() for shard in shards.shards]
    assert len(parts) >= 9 and shards.num_tasks == 100 and shards.num_rows == logs.num_rows
    labels = [label for part in parts for label in part.labels.tolist()]
    assert len(set(labels)) == len(labels) == 100
    tops = [part.hashes.max() for part in parts]
    assert tops == sorted(tops)
    for part in parts:
        for label in part.labels.tolist():
            ours, theirs = (logs_.select(logs_.labels == label) for logs_ in (part, logs))
            np.testing.assert_array_equal(ours.features, theirs.features)
            np.testing.assert_array_equal(ours.rewards, theirs.rewards)


def test_tasks_are_counted_in_little_memory(tmp_path: Path) -> None:
    make_logs(tmp_path / "logs.parquet", 3000)
    _, estimate = sharding.count_rows_and_tasks([tmp_path / "logs.parquet"], "task", 400)
    assert abs(estimate / 3000 - 1) < 5 / np.sqrt(400)


def test_impossible_shards_are_rejected(tmp_path: Path) -> None:
    logs = tmp_path / "logs.parquet"
    make_logs(logs, 20)
    with pytest.raises(ValueError, match="`source`: expected a Parquet file"):
        dp.ShardedLogs.write(tmp_path / "none.parquet", tmp_path / "a", task="task")
    with pytest.raises(ValueError, match="`task`: expected a column"):
        dp.ShardedLogs.write(logs, tmp_path / "a", task="user")
    with pytest.raises(ValueError, match="`folder`: expected an empty folder"):
        dp.ShardedLogs.write(logs, tmp_path, task="task")
    with pytest.raises(ValueError, match="`folder`: expected a folder of files by task"):
        dp.ShardedLogs.read(tmp_path, **COLUMNS)
    shards = sharded(logs, 10)
    with pytest.raises(ValueError, match="`task`: expected 'task', by which"):
        dp.ShardedLogs.read(tmp_path / "logs.shards", **{**COLUMNS, "task": "x0"})
    with pytest.raises(ShardError, match=r"part-00000.parquet failed: ValueError: .*0 and 1"):
        dp.learn(shards, dp.Logistic(), progress=False)
    with pytest.raises(ValueError, match="`checkpoint_dir`: expected None with Logs"):
        dp.learn(dp.Logs.read(logs, **COLUMNS), dp.Linear(), checkpoint_dir=tmp_path / "kept")


def test_more_tasks_than_the_sample_refine_the_prior(tmp_path: Path) -> None:
    """The sample chooses, all tasks fit: the Gaussian is that of all of them."""
    logs = make_logs(tmp_path / "logs.parquet", 600)
    shards = sharded(tmp_path / "logs.parquet", 40)
    whole = dp.learn(logs, dp.Linear(noise_std=0.5), families=("gaussian",), simulate=False)
    config = LearningConfig(sample_tasks=250)
    some = dp.learn(
        shards, dp.Linear(noise_std=0.5), families=("gaussian",), simulate=False, config=config
    )
    assert some.report.num_tasks == 600 and some.report.num_rows == logs.num_rows
    assert some.report.rows_per_task == whole.report.rows_per_task
    assert 5 < some.report.num_report_tasks < whole.report.num_report_tasks
    ours, theirs = (found.families["Gaussian"] for found in (some, whole))
    np.testing.assert_allclose(ours.mean, theirs.mean, atol=1e-6)
    np.testing.assert_allclose(ours.cov, theirs.cov, atol=1e-6)


LEARN = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
import diffprior as dp
columns = {"task": "task", "reward": "reward", "features": "x*", "intercept": False}
shards = dp.ShardedLogs.read(sys.argv[1], **columns)
dp.learn(shards, dp.Linear(), families=("gaussian",), simulate=False, checkpoint_dir=sys.argv[2])
"""


def test_a_run_that_was_killed_resumes(tmp_path: Path) -> None:
    """Passes that were finished are not done again, and the prior is that of one run."""
    make_logs(tmp_path / "logs.parquet", 400)
    shards, saved = sharded(tmp_path / "logs.parquet", 50), tmp_path / "saved"
    arguments = [sys.executable, "-c", LEARN, str(tmp_path / "logs.shards"), str(saved)]
    killed = subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    deadline = time.monotonic() + 100
    while len(list(saved.glob("pass-sums*.dprior"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() < 0

    def passes(folder: Path) -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in folder.glob("pass-*.dprior")}

    def learn(folder: Path) -> dp.Model:
        options = {"families": ("gaussian",), "simulate": False, "progress": False}
        return dp.learn(shards, dp.Linear(), checkpoint_dir=folder, **options)

    before, resumed, whole = passes(saved), learn(saved), learn(tmp_path / "other")
    assert len(before) >= 3 and before.items() <= passes(saved).items()
    assert before.keys() < passes(saved).keys() == passes(tmp_path / "other").keys()
    assert resumed.prior.digest == whole.prior.digest


def test_the_manifest_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that was left half written is not taken for shards."""
    make_logs(tmp_path / "logs.parquet", 50)

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(sharding, "write_atomic", fail)
    with pytest.raises(OSError, match="no space"):
        sharded(tmp_path / "logs.parquet", 10)
    with pytest.raises(ValueError, match="found no _shards.json"):
        dp.ShardedLogs.read(tmp_path / "logs.shards", **COLUMNS)
