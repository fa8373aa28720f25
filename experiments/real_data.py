"""Does a learned prior pay on real tasks? Public data sets, on tasks held out in turn.

`python -m experiments.real_data --data FOLDER [--only InstEval]`

Data sets whose files are in the folder are used; the first lines of experiments/real_tasks.py say
where to get them.
"""

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import diffprior as dp
from diffprior.checks import choice
from diffprior.evaluate import estimate_log_evidence
from diffprior.files.cache import array_digest
from diffprior.fitting.em import fit_gaussian
from diffprior.fitting.rows import linear_blocks
from diffprior.gaussian import Gaussian
from diffprior.learning.attributes import NUM_ROWS, first_rows
from diffprior.progress import progress
from diffprior.reporting.page import Block, Callout, Heading, Text
from diffprior.reporting.tables import Table, plus_minus, standard_error

from .cache import ResultCache
from .command import Folder, Fresh, Json, Out, Seed, conduct
from .datasets import find_data
from .real_tasks import DATA_SETS, NUM_TURNS, DataSet, Turn
from .report import write_report

SCALES = np.exp(np.linspace(np.log(1e-3), np.log(1e4), 36))  # of priors without pooling
WIDE, NARROW = 1e6, 1e-12  # variances of a prior that says nothing, and of one that says all
NO_POOLING, POOLED, GAUSSIAN = "no pooling", "complete pooling", "Gaussian"
MIXTURE, GIVEN = "mixture", "Gaussian given attributes"
WITHOUT, LEARNED = "learned without attributes", "learned"
PRIORS = (NO_POOLING, POOLED, GAUSSIAN, MIXTURE, GIVEN, WITHOUT, LEARNED)
MIN_TASKS = 10  # of a number in a table
HEDGE = 0.003  # nats, the most that the share of a wide Gaussian in what `learn` returns may cost


@dataclass(frozen=True)
class TurnResult:
    """Log evidence in nats of the first rows of every task held out, by number of rows (0: all)."""

    values: dict[str, dict[str, list[float]]]  # by prior
    num_rows: list[int]
    chosen: dict[str, str]  # by prior
    seconds: float


@dataclass(frozen=True)
class Score:
    """Mean log evidence of a prior, and over that of the Gaussian, with a paired standard error."""

    prior: str
    num_rows: int
    num_tasks: int
    log_evidence: float
    over_gaussian: float
    error: float


@dataclass(frozen=True)
class DataSetResult:
    """All turns of a data set.

    Attributes:
        attributes: Gain of what `learn` chooses over the same without attributes, by rows.
        log_likelihood: Greatest log-likelihood of a linear mixed model on all tasks, or None.
    """

    name: str
    about: str
    num_tasks: int
    num_rows: int
    scores: list[Score]
    attributes: list[Score]
    chosen: list[str]
    log_likelihood: float | None
    published: str
    seconds: list[float]

    def score(self, prior: str, num_rows: int = 0) -> Score:
        """That of one prior."""
        return next(s for s in self.scores if (s.prior, s.num_rows) == (prior, num_rows))


@dataclass(frozen=True)
class RealDataResult:
    """Every data set that was found."""

    data_sets: list[DataSetResult]

    @property
    def summary(self) -> list[Table]:
        """Tables for a terminal."""
        return [*map(scores_table, self.data_sets), wins_table(self.data_sets)]


def run_real_data(
    out: Path,
    folder: Path,
    cache: ResultCache,
    *,
    names: Sequence[str] = (),
    network: bool = True,
    seed: int = 0,
) -> RealDataResult:
    """Learn from the tasks seen in every turn, score on the others, and write the report."""
    chosen = [_data_set(name) for name in names] if names else _found(folder)
    with progress("", len(chosen)) as bar:
        results = []
        for of in chosen:
            bar.describe(of.name)
            results.append(_run(of, folder, cache, network, seed))
            bar.advance()
    result = RealDataResult(results)
    settings = {"turns": str(NUM_TURNS), "networks": str(network), "seed": str(seed)}
    lost = worse(result)
    verdict = Callout(f"{'; '.join(lost)}.", "bad") if lost else Callout(_NOWHERE_WORSE, "good")
    title = "Does a learned prior pay on real tasks?"
    write_report(out, title, verdict, _blocks(result), settings, cache)
    return result


def _data_set(name: str) -> DataSet:
    by_name = {of.name: of for of in DATA_SETS}
    return by_name[choice("only", name, tuple(by_name))]


def _found(folder: Path) -> list[DataSet]:
    found = [of for of in DATA_SETS if all(find_data(file, folder) for file in of.files)]
    if not found:
        names = ", ".join(name for of in DATA_SETS for file in of.files for name in file.checksums)
        raise FileNotFoundError(
            f"`data`: expected a folder with some of {names}, found none in {folder}; the first "
            "lines of experiments/real_tasks.py say where to get them"
        )
    return found


def _run(of: DataSet, folder: Path, cache: ResultCache, network: bool, seed: int) -> DataSetResult:
    turns, results = list(of.turns(folder, seed)), []
    for number, turn in enumerate(turns):
        settings = {"rows": logs_digest(*turn), "network": network, "seed": seed}
        compute = functools.partial(run_turn, turn, of.likelihood, network, seed)
        name = f"{of.name}, turn {number + 1}"
        results.append(cache.numbers(TurnResult, name, settings, compute))
    seen, held_out = turns[0]
    return DataSetResult(
        of.name,
        of.about,
        seen.num_tasks + held_out.num_tasks,
        seen.num_rows + held_out.num_rows,
        [score for prior in PRIORS for score in scores(results, prior, GAUSSIAN)],
        scores(results, LEARNED, WITHOUT) if seen.attributes is not None else [],
        [result.chosen[LEARNED] for result in results],
        mixed_model(turns[0]) if of.published else None,
        of.published,
        [result.seconds for result in results],
    )


def logs_digest(*logs: dp.Logs) -> str:
    """Of the numbers in logs."""
    arrays = [(part.features, part.rewards, part.starts, part.attributes) for part in logs]
    flat = [np.ravel(a).astype(float) for one in arrays for a in one if a is not None]
    return array_digest(np.concatenate(flat))


def run_turn(turn: Turn, likelihood: dp.AbstractLikelihood, network: bool, seed: int) -> TurnResult:
    """Fit every prior to the tasks seen, and score it on the others."""
    learn = functools.partial(
        dp.learn, likelihood=likelihood, seed=seed, simulate=False, progress=False
    )
    plain = without_attributes(turn.seen)
    without = learn(plain, quick=not network)
    model = without
    if turn.seen.attributes is not None:
        model = learn(turn.seen, quick=not network)
    assert model.report is not None
    assert without.report is not None
    rewards = model.likelihood
    gaussian = without.families[GAUSSIAN]
    mixture = next((p for n, p in without.families.items() if n.startswith("mixture")), gaussian)
    priors = {
        NO_POOLING: (no_pooling(plain, rewards), rewards),
        POOLED: complete_pooling(plain, rewards),
        GAUSSIAN: (gaussian, rewards),
        MIXTURE: (mixture, rewards),
        GIVEN: (model.families.get(GIVEN, gaussian), rewards),
        WITHOUT: (without.prior, rewards),
        LEARNED: (model.prior, rewards),
    }
    values: dict[str, dict[str, list[float]]] = {name: {} for name in priors}
    for count in (*NUM_ROWS, 0):
        some = first_rows(turn.held_out, count) if count else turn.held_out
        if some.num_tasks == 0:
            continue
        for name, (prior, how) in priors.items():
            found = estimate_log_evidence(prior, some, how, seed=seed).values
            values[name][str(count)] = found.tolist()
    chosen = {WITHOUT: without.report.chosen, LEARNED: model.report.chosen}
    seconds = sum(model.report.seconds.values())
    return TurnResult(values, [int(n) for n in turn.held_out.counts], chosen, seconds)


def without_attributes(logs: dp.Logs) -> dp.Logs:
    """The same rows, with nothing known of tasks."""
    plain = copy.copy(logs)
    plain.attributes, plain.attribute_encoder, plain.attribute_names = None, None, ()
    return plain


def no_pooling(logs: dp.Logs, likelihood: dp.AbstractLikelihood) -> dp.GaussianPrior:
    """N(0, s I), with the s that explains the tasks seen best."""
    zero, unit = np.zeros(logs.dim), np.eye(logs.dim)
    few = logs.select(np.arange(min(logs.num_tasks, 500)))
    priors = [dp.GaussianPrior(zero, scale * unit) for scale in SCALES]
    return max(priors, key=lambda p: estimate_log_evidence(p, few, likelihood).mean)


def complete_pooling(
    logs: dp.Logs, likelihood: dp.AbstractLikelihood
) -> tuple[dp.GaussianPrior, dp.AbstractLikelihood]:
    """One vector of parameters for all tasks, and the noise that it leaves."""
    wide = Gaussian(np.zeros(logs.dim), WIDE * np.eye(logs.dim))
    evidence = likelihood_of(likelihood, 1.0).observe(logs.features, logs.rewards)
    theta = np.asarray(evidence.condition(wide)[0].mean, np.float64)
    residuals = logs.rewards - logs.features @ theta
    prior = dp.GaussianPrior(theta, NARROW * np.eye(logs.dim))
    return prior, likelihood_of(likelihood, float(np.std(residuals)))


def likelihood_of(likelihood: dp.AbstractLikelihood, noise_std: float) -> dp.AbstractLikelihood:
    """The likelihood with this noise, if it has any."""
    return dp.Linear(noise_std=noise_std) if isinstance(likelihood, dp.Linear) else likelihood


def mixed_model(turn: Turn) -> float:
    """Greatest log-likelihood on all tasks of a linear mixed model, all coefficients random."""
    parts = [without_attributes(part).statistics() for part in turn]
    blocks = [block for part in parts for block in linear_blocks(part, 1.0)]
    noise_std = float(np.std(np.concatenate([part.rewards for part in turn])))
    blocks = [block.with_noise(noise_std) for block in blocks]
    return fit_gaussian(blocks, noise_std=noise_std).log_evidence


def scores(results: Sequence[TurnResult], prior: str, against: str) -> list[Score]:
    """One prior against another, by number of rows."""
    found = []
    for count in (*NUM_ROWS, 0):
        own, other = (
            np.array([x for r in results for x in r.values[name].get(str(count), [])])
            for name in (prior, against)
        )
        if len(own) >= MIN_TASKS:
            over = own - other
            mean = float(np.mean(over))
            error = standard_error(over)
            found.append(Score(prior, count, len(own), float(np.mean(own)), mean, error))
    return found


def scores_table(of: DataSetResult) -> Table:
    """Gains over the Gaussian, by number of rows."""
    counts = [score.num_rows for score in of.scores if score.prior == GAUSSIAN]
    columns = ("prior", *(f"{n} rows" if n else "all rows" for n in counts))
    names = [name for name in PRIORS if name != GAUSSIAN]
    if not of.attributes:
        names = [name for name in names if name not in (GIVEN, WITHOUT)]
    rows = [(name, *(_gain(of.score(name, n)) for n in counts)) for name in names]
    if of.attributes:
        rows.append(("learned, over without attributes", *map(_gain, of.attributes)))
    caption = (
        f"{of.name}: {of.about}; {of.num_tasks:,} tasks, {of.num_rows:,} rows. Nats per task held "
        f"out over the Gaussian; chosen in turn: {', '.join(of.chosen)}."
    )
    if of.log_likelihood is not None:
        caption += f" Log-likelihood of the Gaussian on all tasks: {of.log_likelihood:.2f}; "
        caption += f"{of.published}."
    return Table(columns, rows, caption)


def _gain(score: Score) -> str:
    if score.over_gaussian == 0.0 and not score.error > 0:
        return "0"
    return plus_minus(score.over_gaussian, score.error, signed=True)


def wins_table(data_sets: Sequence[DataSetResult]) -> Table:
    """What `learn` chooses, against each rival, on all rows of a task."""
    rows = []
    for of in data_sets:
        learned, cold = of.score(LEARNED), of.score(NO_POOLING)
        best = max(PRIORS, key=lambda name, of=of: of.score(name).log_evidence)  # type: ignore[misc]
        over_cold = plus_minus(cold.over_gaussian, cold.error, signed=True)
        rows.append((of.name, f"{learned.num_tasks:,}", over_cold, _gain(learned), best))
    columns = ("data set", "tasks", f"{NO_POOLING} over the Gaussian", "learned over it", "best")
    return Table(columns, rows, "All data sets, nats per task on all of its rows.")


def worse(result: RealDataResult) -> list[str]:
    """Where what `learn` chooses is worse than a Gaussian, or than without attributes."""
    found = []
    for of in result.data_sets:
        scored = [("the Gaussian", s) for s in of.scores if s.prior == LEARNED]
        scored += [("without attributes", s) for s in of.attributes]
        found += [
            f"{of.name}: {_gain(s)} nats per task, against {rival}, on {s.num_rows or 'all'} rows"
            for rival, s in scored
            if s.over_gaussian < -2 * s.error - HEDGE
        ]
    return found


def _blocks(result: RealDataResult) -> list[Block]:
    """Contents of the page."""
    blocks: list[Block] = [Text(_INTRODUCTION), wins_table(result.data_sets)]
    for of in result.data_sets:
        blocks += [Heading(of.name), scores_table(of)]
    return blocks


_INTRODUCTION = (
    "Priors are learned from some tasks and scored by the log evidence of others, on the first "
    "rows of each in random order, so that every task is held out once. No pooling is N(0, "
    "s I), with the best s; complete pooling is one regression for all tasks."
)
_NOWHERE_WORSE = (
    "What is learned is nowhere worse than a Gaussian, or than without attributes, beyond two "
    f"standard errors and the {HEDGE:g} nats that its hedge may cost."
)


def main(
    data: Folder = None,
    only: Annotated[
        list[str] | None, typer.Option(help="One data set; repeat for more; by default all found.")
    ] = None,
    out: Out = Path("results/real_data"),
    json: Json = None,
    network: Annotated[
        bool, typer.Option(help="Whether `learn` may fit networks, which takes minutes each.")
    ] = True,
    fresh: Fresh = False,
    seed: Seed = 0,
) -> None:
    """Gain of learned priors on real tasks, with and without attributes."""

    def run(cache: ResultCache) -> RealDataResult:
        if data is None:
            raise FileNotFoundError("`data`: expected a folder, got none; pass --data FOLDER")
        names = tuple(only or ())
        return run_real_data(out, data, cache, names=names, network=network, seed=seed)

    conduct(run, out, json, fresh)


if __name__ == "__main__":
    typer.run(main)
