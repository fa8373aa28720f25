"""`learn`: from logs to a prior, by families of increasing richness scored on held-out tasks."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..checks import choice
from ..evaluate.comparison import COLD
from ..evidence.base import AbstractLikelihood
from ..evidence.glm import AbstractFamily
from ..evidence.response import Response
from ..executors import AbstractExecutor, InProcess
from ..files.cache import Checkpoints
from ..fitting.attributes import Regression
from ..fitting.config import LearningConfig
from ..fitting.em import AbstractBlock, one_thread
from ..fitting.rows import AnyLogs, blocks_of
from ..fitting.search import GAUSSIAN as GAUSSIAN_ALONE
from ..fitting.search import Search, gaussian_of
from ..logs.logs import Logs
from ..logs.shards import ShardedLogs
from ..logs.statistics import Selection, TaskStatistics, folds
from ..mixture import GaussianMixture
from ..priors.diffusion import DiffusionPrior
from ..progress import Progress
from ..progress import progress as progress_bar
from .attributes import (
    GAUSSIAN,
    GIVEN,
    SHAPED,
    AttributeReport,
    attribute_report,
    gaussian_given,
    mixture_given,
    turns,
)
from .diagnostics import (
    Reliability,
    Simulation,
    data_warnings,
    predict_second_halves,
    reliability,
    simulate_regret,
)
from .distill import FOLD_SALT, distill, em_round, learning_tasks
from .likelihoods import likelihood_advice, named_likelihood, resolve
from .model import Model
from .network_encoder import LearnedFeatures, NetworkEncoder, learn_features
from .payoff import curve_sizes, learning_curve, rows_saved
from .report import LearningReport, Pictures
from .responses import learn_response
from .scoring import (
    Family,
    HeldOut,
    by_name,
    cold_start,
    family_of,
    gain,
    hedged,
    score,
    task_log_evidence,
)
from .search import first_tasks, search_logs
from .source import LOADED, Passes, Source

FAMILIES = ("gaussian", "mixture", "diffusion")
FEW_FOLDS = 5  # of few tasks
# Steps of the progress bar, about as many as each phase usually takes of the time.
STEPS = {
    "features": 4,
    "Gaussian": 1,
    "mixture": 8,
    "attributes": 8,
    "diffusion": 60,
    "report": 3,
    "regret": 20,
}
SHOWN_POINTS = 2000  # of a figure
CURVE_GAIN = 1e-5  # nats per task and step at which Gaussians of the report's parts are fitted
NOISE_FROM = {
    "given": "given",
    "pooled": "from {:,.0f} degrees of freedom of residuals within tasks",
    "joint": "estimated jointly with a Gaussian, from {:,.0f} residual degrees of freedom",
}


def learn(
    logs: object,
    likelihood: AbstractLikelihood | str,
    *,
    task: str | None = None,
    reward: str | None = None,
    features: str | Sequence[str] | None = None,
    attributes: str | Sequence[str] = (),
    families: Sequence[str] | None = None,
    seed: int = 0,
    hedge: float = 0.02,
    quick: bool = False,
    simulate: bool | None = None,
    executor: AbstractExecutor | None = None,
    checkpoint_dir: str | Path | None = None,
    progress: bool | None = None,
    config: LearningConfig | None = None,
    encoder: NetworkEncoder | None = None,
) -> Model:
    """Learn a prior from the logs of past tasks, and score it on held-out tasks.

    A tenth of the tasks, chosen by their labels, is held out for the report. The others are used,
    in this order, to estimate the noise of linear rewards if it is unknown; to fit a Gaussian by
    maximum marginal likelihood, which is announced within seconds; to fit mixtures of Gaussians,
    whose size is chosen by cross-validated evidence; and, where the largest of them is the best, so
    that there may be finer structure, to improve a diffusion model distilled from it. A richer
    family is chosen only if it beats a simpler one by more than a standard error.

    Args:
        logs: `Logs`, `ShardedLogs` of any size, `TaskStatistics` for linear rewards, or a table
            (a path, a data frame or a list of dicts) with its columns; at least ten tasks. Of
            shards, a sample of about 50,000 tasks is held in memory, by which families are chosen
            and scored; what is chosen is fitted to all of them.
        likelihood: Distribution of rewards; the noise of `Linear()` is estimated. By its name
            ("linear", "logistic", "poisson", "negative-binomial" or "zero-inflated"), all that it
            needs is estimated; "auto" is what the rewards suggest, and of counts, what held-out
            tasks do. Of a `Response`, the prior is a Gaussian or a mixture.
        task: Column of task labels; this and the next three are for a table, as of `Logs.read`.
        reward: Column of rewards.
        features: Columns of features; by default all that have no other role.
        attributes: Columns of what is known of a task before its first reward.
        families: Families to choose from, some of "gaussian", "mixture" and "diffusion"; all by
            default. A single one is fitted whether or not it beats the others.
        seed: Random seed. Tasks are split by their labels, whatever the seed.
        hedge: Weight of a cold start and of a wide Gaussian mixed into the prior, so that tasks
            unlike any before are learned almost as from a cold start.
        quick: Whether to stop after the closed forms, a Gaussian and mixtures, and to simulate
            nothing: seconds instead of minutes. `TaskStatistics` allow no more.
        simulate: Whether to simulate the regret of the families for the report; by default if a
            diffusion model was fitted, which takes longer.
        executor: Where passes over the tasks run: `executors.Processes()`, `executors.Ray(...)`;
            by default in this process. The result does not depend on it.
        checkpoint_dir: Folder for every finished pass over shards; an interrupted run resumes from
            there.
        progress: Whether to show a progress bar; by default on a terminal.
        config: Settings that few users change.
        encoder: `NetworkEncoder()` to learn features from `Logs` too, used where they pay.

    Returns:
        The model: the prior, the likelihood with its noise, the encoder of the logs, and the
        report.

    Raises:
        ValueError: The logs have fewer than ten tasks, rewards that the likelihood cannot produce,
            or another type.
    """
    logs = _as_logs(logs, task, reward, features, attributes)
    if checkpoint_dir is not None and not isinstance(logs, ShardedLogs):
        raise ValueError(
            f"`checkpoint_dir`: expected None with {type(logs).__name__}, got {checkpoint_dir}; "
            "only passes over shards are saved, so write some with dp.ShardedLogs.write"
        )
    allowed = frozenset(choice("families", name, FAMILIES) for name in families or FAMILIES)
    if quick or isinstance(logs, TaskStatistics):
        allowed, simulate = allowed - {"diffusion"}, bool(simulate)
    if not allowed:
        raise ValueError(
            "`families`: expected 'gaussian' or 'mixture' with quick=True or TaskStatistics, got "
            "'diffusion' alone, which takes minutes and rows; name another, or pass dp.Logs"
        )
    if not 0.0 <= hedge < 1.0:
        raise ValueError(f"`hedge`: expected a share in [0, 1), got {hedge:g}; 0.02 is usual")
    config = config or LearningConfig()
    if isinstance(likelihood, Response):
        if encoder is not None:
            raise ValueError(
                "`encoder`: expected None with a Response, got a NetworkEncoder; pass a family "
                "such as dp.Linear(), since a response makes what it needs of the columns"
            )
        return learn_response(logs, likelihood, "mixture" in allowed, seed, hedge, config)
    planned = {GAUSSIAN, "report", *(allowed - {"gaussian"})}
    planned |= {"attributes"} if getattr(logs, "attributes", None) is not None else set()
    if simulate or (simulate is None and "diffusion" in allowed):
        planned.add("regret")
    planned |= set() if encoder is None else {"features"}
    with progress_bar("learning", sum(STEPS[name] for name in planned), visible=progress) as bar:
        passes = Passes(executor or InProcess())
        if isinstance(logs, ShardedLogs):
            cache = None if checkpoint_dir is None else Checkpoints(Path(checkpoint_dir))
            passes = Passes(passes.executor, bar.describe, cache, logs.digest)
        if isinstance(likelihood, str):
            likelihood, why = named_likelihood(likelihood, logs)
            bar.note(f"likelihood: {likelihood!r} ({why})")
        learned = None
        if encoder is not None:
            bar.describe("features")
            logs, learned = learn_features(logs, likelihood, encoder, config, seed)
            bar.advance(STEPS["features"])
            bar.note(str(learned))
        try:
            run = _Run(logs, likelihood, seed, hedge, passes, config, bar, learned)
            with one_thread():
                return run.learn(allowed, simulate)
        finally:
            LOADED.clear()


def _as_logs(
    logs: object,
    task: str | None,
    reward: str | None,
    features: str | Sequence[str] | None,
    attributes: str | Sequence[str],
) -> Logs | ShardedLogs | TaskStatistics:
    """Read a table by the names of its columns; logs have none."""
    named = {"task": task, "reward": reward, "features": features, "attributes": attributes or None}
    given = [name for name, value in named.items() if value is not None]
    if isinstance(logs, Logs | TaskStatistics | ShardedLogs):
        if given:
            raise ValueError(
                f"`{given[0]}`: expected none with {type(logs).__name__}, which has its columns, "
                f"got {named[given[0]]!r}; leave it out, or pass a table"
            )
        return logs
    if task is None or reward is None:
        raise ValueError(
            "`logs`: expected Logs, ShardedLogs, TaskStatistics, or a table with task=COLUMN and "
            f"reward=COLUMN, got {type(logs).__name__}"
            f"{' with ' + ', '.join(given) if given else ''}; name the columns, make "
            "dp.Logs(tasks, features, rewards), or fit a prior to parameters"
        )
    return Logs.read(logs, task=task, reward=reward, features=features, attributes=attributes)


class _Run:
    """One call of `learn`: its inputs, and what was found so far."""

    def __init__(
        self,
        logs: AnyLogs | ShardedLogs,
        likelihood: object,
        seed: int,
        hedge: float,
        passes: Passes,
        config: LearningConfig,
        progress: Progress,
        features: LearnedFeatures | None,
    ) -> None:
        self.features = features
        self.source = Source.of(logs, likelihood, passes, config)
        self.seed, self.hedge, self.passes = seed, hedge, passes
        self.config, self.progress = config, progress
        self.seconds: dict[str, float] = {}
        sample, num_tasks = self.source.sample, self.source.num_tasks
        if num_tasks < config.min_tasks:
            raise ValueError(
                f"`logs`: expected at least {config.min_tasks} tasks, got {num_tasks}; a prior is "
                "what tasks have in common, so collect the logs of more, or check their labels"
            )
        share = 0.0 if num_tasks < config.min_held_out_tasks else config.report_share
        self.selection = Selection(share)  # of the tasks learned from
        out = ~self.selection.mask(sample.hashes)
        self.few = not out.any()
        if isinstance(likelihood, AbstractFamily) and isinstance(sample, Logs):
            likelihood.check_rewards(sample.rewards)  # of all tasks, those of the report too
        self.rest = sample.select(~out)  # tasks learned from that are in memory
        self.held_out = self.rest if self.few else sample.select(out)
        self.likelihood, self.noise = resolve(self.rest, likelihood)
        self.cold = cold_start(self.rest, self.likelihood)
        self.families = [self.cold]
        self.base = self.cold  # the closed form that is chosen
        self.chosen = self.sentence = ""
        self.worth: AttributeReport | None = None

    def learn(self, allowed: frozenset[str], simulate: bool | None) -> Model:
        """Fit all families, choose one and write the report."""
        forced = "gaussian" not in allowed
        if forced and self.few:
            raise ValueError(
                f"`families`: expected 'gaussian' among them with {self.source.num_tasks} tasks, "
                f"got {sorted(allowed)}; richer families need more tasks, so add it"
            )
        blocks = self.source.blocks(self.likelihood, self.selection)
        with self._phase(GAUSSIAN):
            gaussian = gaussian_of(blocks, self.passes)
            self._choose(family_of(GAUSSIAN, gaussian))
            seen = reliability(gaussian, blocks, self.passes)
        self._note_gaussian()
        rough = self.few or seen.learnable_order < self.config.min_order
        search = None
        if allowed != {"gaussian"} and (forced or not rough):
            with self._phase("mixture"):
                search = self._search(blocks, gaussian, forced)
        elif "mixture" in allowed:
            self.progress.drop(STEPS["mixture"])
        name, self.sentence = gaussian_or_mixture(search, self.few, rough, forced)
        if search is not None and name != GAUSSIAN:
            self._choose(family_of(name, search.mixture))
        if isinstance(self.rest, Logs) and self.rest.attributes is not None:
            with self._phase("attributes"):
                search = self._attributes(self.rest, gaussian, search, forced)
        if search is not None and self.base.name not in (GAUSSIAN, GAUSSIAN + GIVEN):
            self._diffusion(search, allowed)
        trained = "diffusion" in self.seconds
        if "diffusion" in allowed and not trained:
            self.progress.drop(STEPS["diffusion"] + STEPS["regret"] * (simulate is None))
        simulation = None
        if isinstance(self.held_out, Logs) and (trained if simulate is None else simulate):
            self.progress.note("simulating regret: minutes; simulate=False leaves it out")
            with self._phase("regret"):
                simulation = simulate_regret(
                    self.families, self.base, self.chosen, self.held_out, self.likelihood,
                    self.seed, lambda share: self.progress.advance(share * STEPS["regret"]),
                )  # fmt: skip
        with self._phase("report"):
            report = self._report(seen, self._warnings(gaussian, seen), simulation)
        final = by_name(self.families, self.chosen)
        if self.hedge:  # a diffusion model has had it since it was distilled
            final = final.hedged(self.hedge, self.cold)
        return Model(
            final.prior,
            self.likelihood,
            self.source.encoder,
            getattr(self.source.sample, "attribute_encoder", None),
            feature_names=self.source.sample.feature_names,
            attribute_names=() if self.worth is None else self.worth.names,
            report=report,
            families={f.name: f.prior for f in self.families},
        )

    def _choose(self, family: Family, sentence: str | None = None) -> None:
        """Add the best family so far."""
        self.families.append(family)
        self.chosen, self.sentence = family.name, self.sentence if sentence is None else sentence
        self.base = self.base if family.components is None else family

    def _note_gaussian(self) -> None:
        """The first answer, long before the last."""
        values = [
            task_log_evidence(f, self.held_out, self.likelihood).mean() for f in self.families
        ]
        self.progress.note(
            f"Gaussian after {self.seconds[GAUSSIAN]:.1f} s: {values[1]:.3f} nats per task, "
            f"{values[1] - values[0]:+.3f} over a cold start"
        )

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self.progress.describe(name)
        begin, end = time.perf_counter(), self.progress.done + STEPS[name]
        yield
        self.seconds[name] = time.perf_counter() - begin
        self.progress.advance(end - self.progress.done)

    def _search(
        self, blocks: Sequence[AbstractBlock], gaussian: GaussianMixture, required: bool
    ) -> Search:
        larger = self.source.num_tasks > self.source.sample.num_tasks
        return search_logs(
            self.rest,
            self.likelihood,
            gaussian,
            config=self.config.search,
            seed=self.seed,
            executor=self.passes,
            everything=blocks if larger else None,
            required=required,
        )

    def _attributes(
        self, rest: Logs, gaussian: GaussianMixture, search: Search | None, required: bool
    ) -> Search | None:
        """Closed forms given attributes, beside what these are worth; the search that is used."""
        config, likelihood = self.config.search, self.likelihood
        if self.few:
            config = dataclasses.replace(config, num_folds=min(FEW_FOLDS, rest.num_tasks))
        found = turns(rest, likelihood, gaussian, config)
        self.worth = attribute_report(found, likelihood, self.progress.describe)
        best, given, over = gaussian_given(rest, likelihood, gaussian), None, self.worth.gain
        families = [best]
        if search is not None and self.worth.pays:
            self.progress.describe("mixture given attributes")
            assert best.components is not None
            given = search_logs(
                rest,
                likelihood,
                best.components,
                config=config,
                seed=self.seed,
                executor=self.passes,
                required=required,
                regressions=[*(turn.families[1].regression for turn in found), best.regression],
            )
            own, other = (one.best if required else one.candidate for one in (given, search))
            over = gain(given.values[own] - search.values[other])
            if own != GAUSSIAN_ALONE:
                families.append(mixture_given(rest, likelihood, gaussian, best, given, self.passes))
        *others, best = families
        self.families += others
        if over.mean <= max(over.error, 0.0):
            self.families.append(best)
            self.sentence += "; attributes are left out, as they are no better"
            return search
        about = f"better than the {self.chosen} without attributes, by cross-validation"
        self._choose(best, f"chosen: the {best.name}, {about}")
        return given

    def _diffusion(self, search: Search, allowed: frozenset[str]) -> None:
        """Distill the closed form, improve it by EM while that pays, and compare with it.

        Where more components explain more, a network that takes no attributes, and where there are
        some, one that does, beginning where the first ended. One fold of the tasks scores. The
        closed form was fitted to them too, which favors it: a diffusion model is chosen only if it
        is clearly better.
        """
        self.progress.note(self.sentence)
        required = "mixture" not in allowed
        plain, base, rest = search.grows or required, self.base, self.rest
        if "diffusion" not in allowed:
            return
        if not plain and self.worth is None:
            self.sentence += "; no diffusion model was fitted, as more components explain no more"
            return
        self.progress.note("fitting a diffusion model: minutes; quick=True leaves it out")
        with self._phase("diffusion"):
            assert base.components is not None
            prior = distill(hedged(base.components, self.hedge, self.cold))
            name = "diffusion" + (GIVEN if base.regression is not None else "")
            family = Family(name, prior, regression=base.regression)
            fold = rest.select(folds(rest.hashes, self.config.num_folds, FOLD_SALT) == 0)
            scoring = first_tasks(fold, self.config.scoring_tasks)
            best = task_log_evidence(base, scoring, self.likelihood, self.seed)
            values = task_log_evidence(family, scoring, self.likelihood, self.seed)
            if plain:
                family, values, rounds = self._rounds(family, values, scoring)
                over = gain(values - best)
                after = f" after {rounds} rounds of EM" if rounds else ""
                if over.mean > over.error:
                    about = f"chosen: the diffusion model{after}, better than the {base.name}"
                    best = values
                    self._choose(family, about)
                elif required:
                    about = f"the diffusion model distilled from it is no better{after}"
                    self._choose(family, about)
                else:
                    self.families.append(family)
                    self.sentence += f"; the diffusion model distilled from it is no better{after}"
            if isinstance(rest, Logs) and rest.attributes is not None:
                regression = base.regression or Regression.none(rest.attributes, base.components)
                family = Family(SHAPED, family.residual, regression=regression)
                family, values, rounds = self._rounds(family, values, scoring, self.hedge)
                over = gain(values - best)
                if rounds and over.mean > over.error:
                    about = (
                        f"chosen: the {SHAPED}, better than the best whose shape does not depend"
                    )
                    self._choose(family, f"{about} on them")

    def _rounds(
        self, family: Family, values: np.ndarray, scoring: AnyLogs, shape_hedge: float | None = None
    ) -> tuple[Family, np.ndarray, int]:
        """The diffusion model after as many rounds of EM as pay, its scores, and how many."""
        config, rounds = self.config, 0
        while rounds < config.max_rounds:
            self.progress.describe(f"EM of the {family.name} model, round {rounds + 1}")
            assert isinstance(family.residual, DiffusionPrior)
            better = em_round(
                family.residual,
                self.source.pieces(learning_tasks(self.source.num_tasks, rounds, config)),
                self.likelihood,
                rounds,
                self.seed,
                passes=self.passes,
                config=config,
                regression=family.regression,
                shape_hedge=shape_hedge,
            )
            if shape_hedge is not None and not better.denoiser.takes_attributes:
                break
            trial = dataclasses.replace(family, residual=better)
            new = task_log_evidence(trial, scoring, self.likelihood, self.seed)
            step = gain(new - values)
            if step.mean <= step.error:
                break
            family, values, rounds = trial, new, rounds + 1
            self.progress.advance(STEPS["diffusion"] / (2 * config.max_rounds + 2))
        return family, values, rounds

    def _warnings(self, gaussian: GaussianMixture, seen: Reliability) -> tuple[str, ...]:
        sample = self.source.sample
        found = data_warnings(sample, self.likelihood, gaussian, seen, self.noise)
        for encoder in (self.source.encoder, getattr(sample, "attribute_encoder", None)):
            found += () if encoder is None else encoder.warnings
        if self.worth is not None and self.worth.hurts:
            figures = f"{self.worth.gain.mean:+.3f} +- {self.worth.gain.error:.3f} nats per task"
            found += (f"attributes hurt: a Gaussian given them has {figures}; leave them out",)
        return found

    def _report(
        self, seen: Reliability, warnings: tuple[str, ...], simulation: Simulation | None
    ) -> LearningReport:
        likelihood, held_out, seed, noise = self.likelihood, self.held_out, self.seed, self.noise
        turns, sizes = self._held_out()
        next_rewards = places = None
        if isinstance(held_out, Logs):
            next_rewards, places = predict_second_halves(self.base, held_out, likelihood, seed)
        draws = {f.name: f.draw(seed, SHOWN_POINTS) for f in self.families if f.name != COLD}
        shown = first_tasks(self.rest, SHOWN_POINTS)
        estimates = self.base.posterior_draws(shown, likelihood, seed, 77)[0]
        return LearningReport(
            num_tasks=self.source.num_tasks,
            num_rows=self.source.num_rows,
            rows_per_task=self.source.rows_per_task,
            feature_names=self.source.sample.feature_names,
            likelihood=type(likelihood).__name__.lower(),
            noise_std=None if noise is None else noise.noise_std,
            noise_from=(
                None if noise is None else NOISE_FROM[noise.how].format(noise.degrees_of_freedom)
            ),
            num_report_tasks=held_out.num_tasks,
            reliability=tuple(float(value) for value in seen.values),
            learnable_order=seen.learnable_order,
            families=score(turns, likelihood, self.chosen, seed),
            rows_saved=rows_saved(turns, self.chosen, likelihood, seed),
            curve=learning_curve(turns, sizes, likelihood, seed) if sizes else None,
            next_rewards=next_rewards,
            simulation=simulation,
            chosen=self.chosen,
            sentence=self.sentence,
            hedge=self.hedge,
            warnings=warnings,
            seconds=self.seconds,
            likelihood_advice=", because ".join(likelihood_advice(self.source.sample)),
            attributes=self.worth,
            features=self.features,
            pictures=Pictures(draws, estimates, places),
        )

    def _held_out(self) -> tuple[list[HeldOut], list[int]]:
        """Tasks held out, families learned from the others, and sizes of nested parts of these.

        Few tasks are held out a fifth at a time, from cold starts and Gaussians of the others.
        """
        if not self.few:
            sizes = curve_sizes(self.rest.num_tasks)
            return [self._turn(self.rest, self.held_out, self.families, sizes)], sizes
        logs, found = self.source.sample, []
        num_folds = min(FEW_FOLDS, logs.num_tasks)
        which = folds(logs.hashes, num_folds, salt=11)
        sizes = curve_sizes(logs.num_tasks - int(np.bincount(which).max()))
        for fold in range(num_folds):
            own, other = logs.select(which != fold), logs.select(which == fold)
            if other.num_tasks == 0 or own.num_tasks < 2:
                continue
            kinds = (False,) if self.worth is None else (False, True)
            gaussians = [self._gaussian(own, given) for given in kinds]
            found.append(
                self._turn(own, other, [cold_start(own, self.likelihood), *gaussians], sizes)
            )
        return found, sizes

    def _turn(
        self, seen: AnyLogs, held_out: AnyLogs, families: Sequence[Family], sizes: Sequence[int]
    ) -> HeldOut:
        """Families beside Gaussians of parts of the tasks seen; that of all is known."""
        given = self.chosen.endswith(GIVEN)
        known = by_name(families, GAUSSIAN + GIVEN * given)
        fewer = [
            known if size == seen.num_tasks else self._gaussian(first_tasks(seen, size), given)
            for size in sizes
        ]
        return HeldOut(held_out, families, fewer)

    def _gaussian(self, logs: AnyLogs, given: bool) -> Family:
        """A Gaussian of these tasks alone, given their attributes or not."""
        gaussian = gaussian_of(blocks_of(logs, self.likelihood), min_gain=CURVE_GAIN)
        if given and isinstance(logs, Logs):
            return gaussian_given(logs, self.likelihood, gaussian)
        return family_of(GAUSSIAN, gaussian)


def gaussian_or_mixture(
    search: Search | None, few: bool, rough: bool, forced: bool
) -> tuple[str, str]:
    """Choose between the Gaussian and the best mixture, with the reason in a sentence."""
    if few:
        return GAUSSIAN, "chosen: the Gaussian, since so few tasks cannot validate anything richer"
    if rough and not forced:
        return GAUSSIAN, (
            "chosen: the Gaussian, since one task says too little about theta for anything richer "
            "to be learned from so many tasks"
        )
    if search is None or search.best == GAUSSIAN_ALONE:
        return GAUSSIAN, "chosen: the Gaussian, since nothing richer was tried"
    if search.pays:
        about = "better than the Gaussian by cross-validation"
        return search.name, f"chosen: the {search.name}, {about}"
    if forced:
        return search.name, f"chosen: the {search.name}, the best of those asked for"
    about = f"the best mixture ({search.name}) is not clearly better by cross-validation"
    return GAUSSIAN, f"chosen: the Gaussian; {about}"
