"""Does a learned prior pay on real tasks? Public data sets, on tasks held out in turn.

`python -m experiments.real_data --data FOLDER [--only InstEval]`

Data sets whose files are in the folder are used; the first lines of experiments/real_tasks.py say
where to get them.
"""

import copy
import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import diffprior as dp
from diffprior.checks import choice
from diffprior.evaluate import cold_start, estimate_log_evidence, predictive_check
from diffprior.files.cache import array_digest
from diffprior.fitting.config import LearningConfig
from diffprior.fitting.em import fit_gaussian
from diffprior.fitting.rows import linear_blocks
from diffprior.gaussian import Gaussian
from diffprior.learning.attributes import first_rows
from diffprior.progress import progress
from diffprior.reporting.page import Block, Callout, Heading, Text
from diffprior.reporting.tables import Table, plus_minus

from . import items
from .datasets import find_data
from .experiment import CHANCE
from .real_scores import (
    DIFFUSION,
    GAUSSIAN,
    GIVEN,
    LEARNED,
    MIXTURE,
    NO_POOLING,
    NUM_ROWS,
    POOLED,
    PRIORS,
    WITHOUT,
    Coverage,
    RowsSaved,
    Score,
    TurnResult,
    coverage,
    curves_figure,
    rows_saved,
    scores,
)
from .real_tasks import DATA_SETS, NUM_TURNS, ORACLES, DataSet, Turn
from .results import Folder, Results, Seed, command

WIDE, NARROW = 1e6, 1e-12  # variances of a prior that says nothing, and of one that says all
LENGTHS = (0, 1, 5, 20)  # rows after which the next reward is predicted
NUM_DRAWS = 99  # of a predictive interval
HEDGE = 0.0203  # nats, the most that the hedge in what `learn` returns may cost
REPLAYS = {"movielens": "movielens", "InstEval": "insteval"}  # data sets with choices to replay


@dataclass(frozen=True)
class DataSetResult:
    """All turns of a data set.

    Attributes:
        scores: Against the Gaussian.
        pays: What `learn` chooses, against no pooling.
        attributes: What `learn` chooses, against the same without attributes.
        chosen: In every turn.
        seconds: Of learning, in every turn.
    """

    name: str
    about: str
    num_tasks: int
    num_rows: int
    scores: list[Score]
    pays: list[Score]
    attributes: list[Score]
    saved: list[RowsSaved]
    coverage: Coverage
    chosen: list[str]
    seconds: list[float]

    def score(self, prior: str, num_rows: int = 0) -> Score | None:
        """That of one prior."""
        which = (prior, num_rows)
        return next((s for s in self.scores if (s.prior, s.num_rows) == which), None)

    @property
    def best(self) -> str:
        """The prior with the greatest gain, of those scored on all tasks, if beyond two errors; or
        the Gaussian.
        """
        whole = [s for s in self.scores if s.num_rows == 0]
        most = max(s.num_tasks for s in whole)
        found = [s for s in whole if s.num_tasks == most and s.gain > CHANCE * s.error]
        if not found:
            return GAUSSIAN
        name = max(found, key=lambda s: s.gain).prior
        return Counter(self.chosen).most_common(1)[0][0] if name in (LEARNED, WITHOUT) else name


def run_real_data(
    results: Results,
    *,
    data: Folder = None,
    only: Annotated[
        list[str] | None, typer.Option(help="One data set; repeat for more; by default all found.")
    ] = None,
    network: Annotated[
        bool, typer.Option(help="Whether `learn` may fit networks, which takes minutes each.")
    ] = True,
    diffusion: Annotated[
        bool, typer.Option(help="Whether to fit a diffusion prior in the first turn in any case.")
    ] = True,
    replay: Annotated[
        bool, typer.Option(help="Whether to replay choices among new movies and lecturers.")
    ] = True,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Gain of learned priors on real tasks, with and without attributes."""
    if data is None:
        raise FileNotFoundError("`data`: expected a folder, got none; pass --data FOLDER")
    chosen = [_data_set(name) for name in only] if only else _found(data)
    turns: dict[str, list[TurnResult]] = {}
    data_sets: list[DataSetResult] = []
    replays: dict[str, items.CatalogResult] = {}
    with progress("", len(chosen)) as bar:
        for of in chosen:
            bar.describe(of.name)
            found, turns[of.name] = _run(of, data, results, network, diffusion, seed)
            data_sets.append(found)
            if replay and of.name in REPLAYS:
                about = {"split": seed, "quick": not network}
                compute = functools.partial(
                    items.replayed, REPLAYS[of.name], data, seed, quick=not network
                )
                name = f"replay, {of.name}"
                replays[of.name] = results.numbers(items.CatalogResult, name, about, compute)
            bar.advance()
    known = [oracle for oracle in ORACLES if find_data(oracle.file, data)]
    oracles = {one.name: (mixed_model(one.logs(data)), one.published) for one in known}
    settings = {"turns": str(NUM_TURNS), "networks": str(network), "seed": str(seed)}
    lost = worse(data_sets)
    verdict = Callout(f"{'; '.join(lost)}.", "bad") if lost else Callout(_NOWHERE_WORSE, "good")
    curves = results.picture("real_data", _CURVES, lambda: curves_figure(turns))
    scored = {of.name: scores_table(of) for of in data_sets}
    wins, of_replays = wins_table(data_sets), [items.table(*pair) for pair in replays.items()]
    agreement = [oracles_table(oracles)] if oracles else []
    best = Counter(of.best for of in data_sets).most_common()
    count = "; ".join(f"{name}: {number}" for name, number in best)
    blocks: list[Block] = [Text(_INTRODUCTION), wins]
    blocks += [Text(f"Best, on so many data sets: {count}."), curves]
    blocks += [Heading("Agreement with lme4"), *agreement] if agreement else []
    blocks += [Heading("Regret of choices among new items"), *of_replays] if of_replays else []
    for name, table in scored.items():
        blocks += [Heading(name), table]
    title = "Does a learned prior pay on real tasks?"
    summary = [*scored.values(), wins, *of_replays, *agreement]
    results.report(title, verdict, blocks, settings, summary)
    return {"data_sets": data_sets, "oracles": oracles, "replays": replays}


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


def _run(
    of: DataSet, folder: Path, cache: Results, network: bool, diffusion: bool, seed: int
) -> tuple[DataSetResult, list[TurnResult]]:
    turns, results = list(of.turns(folder, seed)), []
    for number, turn in enumerate(turns):
        settings = {"rows": logs_digest(*turn), "network": network, "seed": seed}
        also = diffusion and number == 0
        settings["diffusion"] = also
        compute = functools.partial(run_turn, turn, of.likelihood, network, also, seed)
        name = f"{of.name}, turn {number + 1}"
        results.append(cache.numbers(TurnResult, name, settings, compute))
    seen, held_out = turns[0]
    result = DataSetResult(
        of.name,
        of.about,
        seen.num_tasks + held_out.num_tasks,
        seen.num_rows + held_out.num_rows,
        [score for prior in PRIORS for score in scores(results, prior, GAUSSIAN)],
        scores(results, LEARNED, NO_POOLING),
        scores(results, LEARNED, WITHOUT) if seen.attributes is not None else [],
        rows_saved(results),
        coverage(results),
        [result.chosen[LEARNED] for result in results],
        [sum(result.seconds.values()) for result in results],
    )
    return result, results


def logs_digest(*logs: dp.Logs) -> str:
    """Of the numbers in logs."""
    arrays = [(part.features, part.rewards, part.starts, part.attributes) for part in logs]
    flat = [np.ravel(a).astype(float) for one in arrays for a in one if a is not None]
    return array_digest(np.concatenate(flat))


def run_turn(
    turn: Turn,
    likelihood: dp.AbstractLikelihood | str,
    network: bool,
    diffusion: bool,
    seed: int,
) -> TurnResult:
    """Fit every prior to the tasks seen, and score it on the others."""
    learn = functools.partial(
        dp.learn, likelihood=likelihood, seed=seed, simulate=False, progress=False
    )
    plain = without_attributes(turn.seen)
    without = learn(plain, quick=not network)
    model = without if turn.seen.attributes is None else learn(turn.seen, quick=not network)
    assert model.report is not None
    assert without.report is not None
    found = dict(without.families)
    enough = plain.num_tasks >= LearningConfig().min_held_out_tasks  # which `learn` asks for
    if diffusion and enough and DIFFUSION not in found:
        found |= learn(plain, families=["diffusion"]).families
    rewards, gaussian = model.likelihood, without.families[GAUSSIAN]
    priors = {
        NO_POOLING: (cold_start(plain, rewards, seed=seed), rewards),
        POOLED: complete_pooling(plain, rewards),
        GAUSSIAN: (gaussian, rewards),
        MIXTURE: (next((p for n, p in found.items() if n.startswith(MIXTURE)), gaussian), rewards),
        GIVEN: (model.families.get(GIVEN, gaussian), rewards),
        WITHOUT: (without.prior, rewards),
        LEARNED: (model.prior, rewards),
    }
    if DIFFUSION in found:
        priors[DIFFUSION] = (found[DIFFUSION], rewards)
    values: dict[str, dict[str, list[float]]] = {name: {} for name in priors}
    for count in (*NUM_ROWS, 0):
        some = first_rows(turn.held_out, count) if count else turn.held_out
        for name, (prior, how) in priors.items() if some.num_tasks else ():
            estimate = estimate_log_evidence(prior, some, how, seed=seed)
            values[name][str(count)] = estimate.values.tolist()
    check = predictive_check(
        model.prior, turn.held_out, rewards, lengths=LENGTHS, num_draws=NUM_DRAWS, seed=seed
    )
    return TurnResult(
        values,
        [int(n) for n in turn.held_out.counts],
        {WITHOUT: without.report.chosen, LEARNED: model.report.chosen},
        model.report.seconds,
        {
            str(row.num_rows): [row.num_tasks, round(row.coverage * row.num_tasks)]
            for row in check.rows
        },
    )


def without_attributes(logs: dp.Logs) -> dp.Logs:
    """The same rows, with nothing known of tasks."""
    plain = copy.copy(logs)
    plain.attributes, plain.attribute_encoder, plain.attribute_names = None, None, ()
    return plain


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


def mixed_model(logs: dp.Logs) -> float:
    """Greatest log-likelihood of a linear mixed model, all coefficients random."""
    noise_std = float(np.std(logs.rewards))
    blocks = [block.with_noise(noise_std) for block in linear_blocks(logs.statistics(), 1.0)]
    return fit_gaussian(blocks, noise_std=noise_std).log_evidence


def scores_table(of: DataSetResult) -> Table:
    """Gains over the Gaussian, by number of rows."""
    counts = [score.num_rows for score in of.scores if score.prior == GAUSSIAN]
    columns = ("prior", *(f"{n} rows" if n else "all rows" for n in counts))
    left_out = {GAUSSIAN} if of.attributes else {GAUSSIAN, GIVEN, WITHOUT}
    present = {score.prior for score in of.scores} - left_out
    rows = [
        (name, *(_gain(of.score(name, n)) for n in counts)) for name in PRIORS if name in present
    ]
    rows.append(("learned, over no pooling", *map(_gain, of.pays)))
    if of.attributes:
        rows.append(("learned, over without attributes", *map(_gain, of.attributes)))
    chosen = ", ".join(f"{name} ({count})" for name, count in Counter(of.chosen).items())
    caption = (
        f"{of.name}: {of.about}; {of.num_tasks:,} tasks, {of.num_rows:,} rows. Nats per task held "
        f"out over the Gaussian; chosen, in so many turns: {chosen}."
    )
    diffusion = of.score(DIFFUSION)
    if diffusion is not None:
        caption += f" The diffusion prior is scored on {diffusion.num_tasks} tasks."
    return Table(columns, rows, caption)


def _gain(score: Score | None) -> str:
    if score is None:
        return ""
    if score.gain == 0.0 and not score.error > 0:
        return "0"
    return plus_minus(score.gain, score.error, signed=True)


def wins_table(data_sets: Sequence[DataSetResult]) -> Table:
    """What `learn` chooses on each data set."""
    rows = []
    for of in data_sets:
        saved = {one.num_rows: str(one) for one in of.saved}
        covered = plus_minus(100 * of.coverage.share, 100 * of.coverage.error)
        rows.append(
            (
                of.name,
                f"{of.num_tasks:,}",
                _gain(of.pays[-1]),
                _gain(of.score(LEARNED)),
                _gain(of.attributes[-1]) if of.attributes else "",
                of.best,
                saved.get(0, ""),
                saved.get(3, ""),
                covered,
                f"{np.median(of.seconds):.0f}",
            )
        )
    columns = (
        "data set",
        "tasks",
        "over no pooling",
        "over the Gaussian",
        "over no attributes",
        "best",
        "0 rows are worth",
        "3 rows are worth",
        "coverage, %",
        "seconds",
    )
    return Table(columns, rows, _WINS)


def oracles_table(oracles: dict[str, tuple[float, float]]) -> Table:
    """Log-likelihoods of linear mixed models by EM, and as published."""
    rows = [(name, f"{own:.2f}", f"{published:.2f}") for name, (own, published) in oracles.items()]
    caption = "Log-likelihood of a linear mixed model at its maximum: ours, and as of lme4."
    return Table(("data set", "diffprior", "lme4"), rows, caption)


def worse(data_sets: Sequence[DataSetResult]) -> list[str]:
    """Where what `learn` chooses is worse than a Gaussian, no pooling or without attributes."""
    found = []
    for of in data_sets:
        scored = [("the Gaussian", s) for s in of.scores if s.prior == LEARNED]
        scored += [("no pooling", s) for s in of.pays]
        scored += [("without attributes", s) for s in of.attributes]
        found += [
            f"{of.name}: {_gain(s)} nats per task, against {rival}, on {s.num_rows or 'all'} rows"
            for rival, s in scored
            if s.gain < -CHANCE * s.error - HEDGE
        ]
    return found


_INTRODUCTION = (
    "Priors are learned from some tasks and scored by the log evidence of others, on the first "
    "rows of each in random order, so that every task is held out once. No pooling is N(0, "
    "s I), with the best s; complete pooling is one regression for all tasks."
)
_NOWHERE_WORSE = (
    "What is learned is nowhere worse than a Gaussian, no pooling, or without attributes, beyond "
    f"two standard errors and the {HEDGE:.2g} nats that its hedge may cost."
)
_WINS = (
    "What `learn` chooses: nats per task held out, on all of its rows, over rivals; the prior that "
    "is best, a Gaussian unless another is better by two errors; rows without a prior after which "
    "the next reward is predicted as well as after none or three with it, with bootstrap intervals "
    "of 90 %; coverage of predictive intervals of 90 % of the next reward after "
    f"{', '.join(map(str, LENGTHS))} rows; median seconds to learn."
)
_CURVES = (
    "Mean log density of the next reward after so many rows, with errors paired to what is "
    "learned; the first point without pooling may be far below."
)

if __name__ == "__main__":
    typer.run(command(run_real_data))
