"""Loaders of real data on small files in their formats, and the experiment on one of them."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from experiments import real_data, real_tasks
from experiments.cache import ResultCache
from experiments.datasets import DataFile
from experiments.items import Ratings
from experiments.real_data import LEARNED, run_real_data
from experiments.real_tasks import DATA_SETS
from worlds_of_tasks import mixed_model, repeated_measures

COLUMNS = {
    "InstEval.csv": "s,d,studage,lectage,service,dept,y",
    "Chem97.csv": "lea,school,student,score,gender,age,gcsescore,gcsecnt",
    "Hsb82.csv": "school,minrty,sx,ses,mAch,meanses,sector,cses",
}
OF_TASK = {"lea": 3, "dept": 4, "sector": 2}
LEVELS = {"studage": 4, "lectage": 3, "service": 2, "gender": 2, "minrty": 2, "sx": 2}
TASKS = {"InstEval.csv": "d", "Chem97.csv": "school", "Hsb82.csv": "school"}
NUM_TASKS, ROWS_PER_TASK = 80, 6


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Files by the names of the published ones, in their formats and made up."""
    files: dict[str, bytes] = {}

    def read(file: DataFile, folder: Path) -> bytes:
        return next(files[name] for name in file.checksums if name in files)

    monkeypatch.setattr(real_tasks, "read_data", read)
    rng = np.random.default_rng(0)
    for name, header in COLUMNS.items():
        lines = [header]
        for task in range(NUM_TASKS):
            fixed = {c: f"l{task % n}" for c, n in OF_TASK.items()} | {"meanses": str(task / 7)}
            for _ in range(ROWS_PER_TASK):
                cells = {c: value(LEVELS.get(c, 0), rng) for c in header.split(",")}
                cells |= {column: cell for column, cell in fixed.items() if column in cells}
                cells[TASKS[name]] = str(task)
                lines.append(",".join(cells.values()))
        files[name] = "\n".join(lines).encode()
    rows = NUM_TASKS * ROWS_PER_TASK
    radon = {
        "county_idx": np.repeat(np.arange(NUM_TASKS), ROWS_PER_TASK).tolist(),
        "log_radon": rng.standard_normal(rows).tolist(),
        "floor_measure": rng.choice([0, 1, 9], rows).tolist(),
        "log_uppm": np.repeat(rng.standard_normal(NUM_TASKS), ROWS_PER_TASK).tolist(),
    }
    files["radon_all.json"] = json.dumps(radon).encode()
    choices = [
        f"{i},{rng.integers(2)},{rng.integers(-1, 2)},{rng.integers(-1, 2)}"
        for i in range(NUM_TASKS)
        for _ in range(ROWS_PER_TASK)
    ]
    people = [
        f"{i},{rng.integers(20, 70)},{rng.integers(20, 90)},{i % 2}" for i in range(NUM_TASKS)
    ]
    files["bank_choices.csv"] = "\n".join(["id,choice,Low_Fee,Bank_B", *choices]).encode()
    files["bank_people.csv"] = "\n".join(["id,age,income,gender", *people]).encode()
    days = [f"{task},{day:g},{y}" for task, day, y in zip(*repeated_measures(), strict=True)]
    files["sleepstudy.csv"] = "\n".join(["Subject,Days,Reaction", *days]).encode()
    return files


def value(levels: int, rng: np.random.Generator) -> str:
    return f"l{rng.integers(levels)}" if levels else f"{rng.standard_normal():.3f}"


@pytest.mark.parametrize(
    ("name", "dim"), [("InstEval", 7), ("Chem97", 4), ("Hsb82", 4), ("radon", 3), ("bank", 2)]
)
def test_every_task_is_held_out_once_with_the_encoders_of_the_others(
    files: dict[str, bytes], tmp_path: Path, name: str, dim: int
) -> None:
    of = next(one for one in DATA_SETS if one.name == name)
    labels: list[str] = []
    for seen, held_out in of.turns(tmp_path, 0):
        assert seen.dim == held_out.dim == dim
        assert seen.attributes is not None
        assert held_out.attributes is not None
        assert seen.attributes.shape[1] == held_out.attributes.shape[1] > 0
        assert seen.num_tasks + held_out.num_tasks == NUM_TASKS
        assert not set(seen.labels) & set(held_out.labels)
        labels += [str(label) for label in held_out.labels]
    assert sorted(labels) == sorted(map(str, range(NUM_TASKS)))


def test_log_likelihood_is_that_of_a_mixed_model_and_the_report_is_written(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    names, cache = ["sleepstudy"], ResultCache(tmp_path)
    result = run_real_data(tmp_path / "out", tmp_path, cache, names=names, network=False)
    (of,) = result.data_sets
    assert of.log_likelihood is not None
    subjects, days, rewards = repeated_measures()
    expected = mixed_model(subjects, np.column_stack([np.ones_like(days), days]), rewards)[-1]
    assert abs(of.log_likelihood - expected) < 1e-3
    assert (of.num_tasks, of.num_rows, len(of.chosen)) == (18, 180, 5)
    cold, learned = of.score("no pooling"), of.score(LEARNED)
    assert cold.over_gaussian < -5 * cold.error
    assert abs(learned.over_gaussian) < real_data.HEDGE  # the Gaussian with a hedge
    assert not real_data.worse(result)
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"{expected:.2f}" in page


def test_the_command_names_what_is_missing(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(real_data.main)
    found = CliRunner().invoke(app, ["--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert found.exit_code == 2 and "with some of InstEval.csv" in found.output.replace("\n", " ")


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected a folder with some of InstEval\.csv"):
        run_real_data(tmp_path, tmp_path, ResultCache(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"`data`: expected Hsb82\.csv\.gz or Hsb82\.csv, found none"
    ):
        run_real_data(tmp_path, tmp_path, ResultCache(tmp_path), names=["Hsb82"])
    with pytest.raises(ValueError, match="`only`: expected"):
        run_real_data(tmp_path, tmp_path, ResultCache(tmp_path), names=["hsb"])


def test_new_movies_are_scored_by_their_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    users, movies = np.nonzero(rng.random((90, 20)) < 0.9)
    x = rng.standard_normal((len(users), 2))
    ratings = Ratings(users, movies, x, x[:, 0], rng.standard_normal((20, 3)), np.arange(20) > 14)
    monkeypatch.setattr(real_tasks, "movielens_ratings", lambda folder, seed: ratings)
    (seen, held_out), *others = real_tasks.movielens_turns(Path(), 0)
    assert seen.labels.tolist() == list(range(15)) and held_out.labels.tolist() == list(
        range(15, 20)
    )
    assert set(held_out.counts) == {50} and len(others) == 2
    assert held_out.attributes is not None
    np.testing.assert_array_equal(held_out.attributes, ratings.attributes[15:])
