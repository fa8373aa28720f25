"""Loaders of real data on small files in their formats, and the experiment on one of them."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments import datasets, real_data, real_tasks
from experiments.datasets import DataFile
from experiments.items import Ratings
from experiments.mnist import Embedding
from experiments.real_data import run_real_data
from experiments.real_scores import LEARNED, NUM_ROWS, TurnResult, coverage, rows_saved
from experiments.real_tasks import DATA_SETS
from experiments.results import Results
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
        names = (*file.checksums, file.member.rsplit("/")[-1])
        return next(files[name] for name in names if name in files)

    monkeypatch.setattr(real_tasks, "read_data", read)
    monkeypatch.setattr(datasets, "read_data", read)
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
    lines = {
        "VerbAgg.csv": "id,btype,situ,mode,Anger,Gender,r2",
        "Train.csv": "id,choice,"
        + ",".join(f"{name}{i}" for i in (1, 2) for name in ("price", "time", "change", "comfort")),
        "rwm5yr.csv": "id,docvis,age,outwork,hhninc,kids,female",
    }
    for name, header in lines.items():
        rows_each = 5 if name == "rwm5yr.csv" else ROWS_PER_TASK
        cells = rng.integers(0, 4, size=(NUM_TASKS * rows_each, header.count(",")))
        ids = np.repeat(np.arange(NUM_TASKS), rows_each)
        table = [[str(i), *map(str, row)] for i, row in zip(ids, cells, strict=True)]
        for row in table:
            if name == "VerbAgg.csv":
                row[1:4] = [f"l{int(cell) % 2}" for cell in row[1:4]]
                row[4:] = [row[0], f"l{int(row[0]) % 2}", "YN"[int(row[6]) % 2]]
            elif name == "Train.csv":
                row[1] = f"choice{1 + int(row[1]) % 2}"
            else:
                row[6] = str(int(row[0]) % 2)
        table += [["-1", *table[0][1:]]] if name == "rwm5yr.csv" else []  # asked in one year only
        files[name] = "\n".join([header, *map(",".join, table)]).encode()
    files["sleepstudy.csv"] = "\n".join(["Subject,Days,Reaction", *days]).encode()
    return files


def value(levels: int, rng: np.random.Generator) -> str:
    return f"l{rng.integers(levels)}" if levels else f"{rng.standard_normal():.3f}"


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        ("InstEval", 7),
        ("Chem97", 4),
        ("Hsb82", 4),
        ("radon", 3),
        ("bank", 2),
        ("VerbAgg", 4),
        ("Train", 4),
        ("rwm5yr", 5),
    ],
)
def test_every_task_is_held_out_once_with_the_encoders_of_the_others(
    files: dict[str, bytes], tmp_path: Path, name: str, dim: int
) -> None:
    of = next(one for one in DATA_SETS if one.name == name)
    labels: list[str] = []
    for seen, held_out in of.turns(tmp_path, 0):
        assert seen.dim == held_out.dim == dim
        if name != "Train":
            assert seen.attributes is not None
            assert held_out.attributes is not None
            assert seen.attributes.shape[1] == held_out.attributes.shape[1] > 0
        if name in ("VerbAgg", "Train"):
            assert set(seen.rewards) == {0, 1}
        assert seen.num_tasks + held_out.num_tasks == NUM_TASKS
        assert not set(seen.labels) & set(held_out.labels)
        labels += [str(label) for label in held_out.labels]
    assert sorted(labels) == sorted(map(str, range(NUM_TASKS)))


def test_report_agrees_with_a_mixed_model_and_with_its_own_numbers(
    files: dict[str, bytes], results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects, days, rewards = repeated_measures()
    expected = mixed_model(subjects, np.column_stack([np.ones_like(days), days]), rewards)[-1]
    monkeypatch.setattr(
        real_data, "find_data", lambda file, folder: set(file.checksums) & set(files)
    )
    few = {"network": False, "diffusion": True}  # too few tasks for one, so it is left out
    result = run_real_data(results, data=results.out, only=["sleepstudy"], **few)
    ((name, (own, published)),) = result["oracles"].items()
    assert (name, published) == ("sleepstudy", -875.97) and abs(own - expected) < 1e-3
    (of,) = result["data_sets"]
    assert (of.num_tasks, of.num_rows, len(of.chosen)) == (18, 180, 5)
    cold, learned = of.score("no pooling"), of.score(LEARNED)
    assert cold is not None and learned is not None
    assert cold.gain < -5 * cold.error
    assert of.pays[-1].gain == pytest.approx(learned.gain - cold.gain)
    assert abs(learned.gain) < real_data.HEDGE  # the Gaussian with a hedge
    assert not real_data.worse([of]) and of.score("diffusion") is None
    assert all(one.low <= one.equal <= one.high for one in of.saved)
    assert of.coverage.num_predictions == 3 * 18  # after 0, 1 and 5 of ten rows
    page = (results.out / "report.html").read_text()
    assert f"{expected:.2f}" in page and str(of.saved[0]) in page


def turn_result(cold: np.ndarray, learned: np.ndarray) -> TurnResult:
    """Tasks of ten rows, with the log density of each row under two priors."""
    values = {}
    for name, densities in (("no pooling", cold), ("Gaussian", learned), (LEARNED, learned)):
        sums = np.cumsum(densities, axis=1)
        values[name] = {str(n): sums[:, n - 1].tolist() for n in NUM_ROWS if n <= 10}
        values[name]["0"] = sums[:, -1].tolist()
    return TurnResult(values, [10] * len(cold), {}, {}, {"0": [30, 27], "5": [30, 24]})


def test_rows_saved_are_those_after_which_the_rival_predicts_as_well() -> None:
    noise = 0.1 * np.random.default_rng(0).standard_normal((40, 10))
    cold = np.array([-3, -2, -1.2, -1.2, -1.2, -1, -1, -1, -1, -1]) + noise  # by NUM_ROWS
    learned = np.full(10, -1.2) + noise  # as after 2, 3 or 4 rows
    found = rows_saved([turn_result(cold, learned)])
    assert found[0].num_rows == 0 and abs(found[0].equal - 3) < 0.5
    assert found[0].low <= found[0].equal <= found[0].high
    none = rows_saved([turn_result(cold, cold)])
    assert [round(one.equal, 6) for one in none] == [0, 1, 3]
    never = rows_saved([turn_result(cold, np.ones((40, 10)))])
    assert str(never[0]) == "> 7 (> 7 to > 7)"


def test_coverage_is_pooled_over_numbers_of_rows() -> None:
    found = coverage([turn_result(np.zeros((5, 10)), np.zeros((5, 10)))] * 2)
    assert (found.share, found.num_predictions) == (0.85, 120)
    assert found.error == pytest.approx(np.sqrt(0.85 * 0.15 / 120))


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


def test_digits_of_a_task_keep_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.random.default_rng(0).integers(10, size=500).astype(np.uint8)
    embedding = Embedding(np.eye(10)[labels], labels, 1.0)
    monkeypatch.setattr(real_tasks, "load_digits", lambda folder: (None, None))
    monkeypatch.setattr(real_tasks, "embed_digits", lambda *digits, seed: embedding)
    seen, held_out = next(real_tasks.mnist_turns(Path(), 0))
    assert seen.num_tasks + held_out.num_tasks == real_tasks.NUM_DIGIT_TASKS
    for own in range(20):
        rows = slice(seen.starts[own], seen.starts[own + 1])
        shown = seen.features[rows].argmax(axis=1)
        won = seen.rewards[rows] == 1
        assert won.sum() == 10 and len(set(shown[won])) == 1
        assert not set(shown[won]) & set(shown[~won])
    firsts = seen.rewards[seen.starts[:-1]]
    assert abs(firsts.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(firsts))
