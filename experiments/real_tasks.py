"""Real tasks: loaders of public data sets, and their turns of tasks to learn from and to score on.

Files are looked for in the folder that is passed, and in its folders `multitask` and `ml-1m`, as
they are or packed. Rdatasets (https://vincentarelbundock.github.io/Rdatasets) has the data sets of
R's packages lme4 (InstEval, sleepstudy) and mlmRev (Chem97, Hsb82) as CSV; `bank_choices.csv` and
`bank_people.csv` are choiceAtt and demo of data(bank) in R's package bayesm, written to CSV;
`radon_all.json.zip` is in posteriordb (https://github.com/stan-dev/posteriordb).
"""

import dataclasses
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import csv

import diffprior as dp
from diffprior.learning.attributes import NUM_ROWS
from diffprior.logs.statistics import folds, label_hashes

from .datasets import INSTEVAL, DataFile, read_data
from .items import movielens_ratings
from .movielens import RATINGS

NUM_TURNS = 5
NUM_SPLITS = 3  # of the movies
FOLD_SALT = 1000  # apart from the splits of `learn`
RDATASETS = "https://vincentarelbundock.github.io/Rdatasets/csv/"


def csv_file(name: str, address: str, checksum: str, packed: str) -> DataFile:
    """A CSV file, or the same packed by gzip."""
    return DataFile("multitask", address, {f"{name}.gz": packed, name: checksum})


CHEM97 = csv_file(
    "Chem97.csv",
    f"{RDATASETS}mlmRev/Chem97.csv",
    "3a8379992f43dab30bbb1631f63a7fc406f7356d4cb2f35c73c850704b484dcc",
    "dffe054d44279fcc297446082984cec50a15647c8ff0a9af0eeabc3d54469d0c",
)
HSB82 = csv_file(
    "Hsb82.csv",
    f"{RDATASETS}mlmRev/Hsb82.csv",
    "d820cf853af77e3163ffb828361defb25ac005f0074703c61fd35cad5cbd6b37",
    "ceaa21f0b210015ca144ffe4f74966d6b82d9dc8e2c24dfa1cf29c1468ce190e",
)
SLEEPSTUDY = csv_file(
    "sleepstudy.csv",
    f"{RDATASETS}lme4/sleepstudy.csv",
    "20922ddc87d538bf2344f73d49000eeb2d7e14934b6191a3e071fefc329942c4",
    "5876443183b9bc8a6927c2b69bacb0cdc202465deb58b46166c72408d691998e",
)
BANK_CHOICES = csv_file(
    "bank_choices.csv",
    "choiceAtt of data(bank) in R's package bayesm",
    "00994166967c74909e8d934a7a7aa7baafeaefa3be37fc5116c61823a08ae33f",
    "418997e4489436f3a1e28281ee6776335c8e199cddb7319a36a8c2b8f336d831",
)
BANK_PEOPLE = csv_file(
    "bank_people.csv",
    "demo of data(bank) in R's package bayesm",
    "08e4fbd7151321260c2f9c0d8c5752d5478699b9cda56c9244037a2d07fc1bb3",
    "b562aacc0d21d3d6de9d8e631895842023860257e5aa75d2158318f784abda28",
)
RADON = DataFile(
    "multitask",
    "https://github.com/stan-dev/posteriordb/raw/master/posterior_database/data/data/"
    "radon_all.json.zip",
    {
        "radon_all.json.zip": "3f30c7909d530be01e70ab9e98f9f5d5e83371bb15c6dd168696aefd805b5672",
        "radon_all.json": "05cac39913090df5430e3f769d8eb8d2ee4e6f0a3c5286c9e767f37926d51ffd",
    },
    "radon_all.json",
)


class Turn(NamedTuple):
    """Tasks to learn from, and others to score on, with the same encoders."""

    seen: dp.Logs
    held_out: dp.Logs


Turns = Callable[[Path, int], Iterator[Turn]]


@dataclass(frozen=True)
class DataSet:
    """One data set: what its tasks are, how rewards arise, and its turns from a folder and a seed.

    Attributes:
        published: Log-likelihood of its mixed model by lme4, and of which.
    """

    name: str
    files: tuple[DataFile, ...]
    about: str
    turns: Turns
    likelihood: dp.AbstractLikelihood = dataclasses.field(default_factory=dp.Linear)
    published: str = ""


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

    def turns(self, read: Callable[[Path], pa.Table]) -> Turns:
        """Turns of a table: tasks by label, rows in random order, encoders fitted to tasks seen."""

        def turns(folder: Path, seed: int) -> Iterator[Turn]:
            table = read(folder)
            table = table.take(np.random.default_rng(seed).permutation(table.num_rows))
            labels = np.asarray(table[self.task].to_numpy(zero_copy_only=False)).astype(str)
            names, places = np.unique(labels, return_inverse=True)
            fold = folds(label_hashes(names), NUM_TURNS, FOLD_SALT + seed)[places]
            for turn in range(NUM_TURNS):
                yield self.turn(
                    *(table.filter(pa.array(own)) for own in (fold != turn, fold == turn))
                )

        return turns


def table(file: DataFile, *texts: str) -> Callable[[Path], pa.Table]:
    """A reader of a CSV file, with codes of categories as texts."""
    options = csv.ConvertOptions(column_types={column: pa.string() for column in texts})
    return lambda folder: csv.read_csv(io.BytesIO(read_data(file, folder)), convert_options=options)


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
        published="lme4 publishes -875.97, by maximum likelihood",
    ),
    DataSet(
        "movielens",
        (RATINGS,),
        "new movies of MovieLens 1M, ratings less the mean and the user's bias, users' tastes of "
        "rank 5 from other movies; given genres and year; three splits",
        movielens_turns,
    ),
)
