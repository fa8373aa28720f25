"""`learn`: from logs to a prior, by a ladder of families judged on tasks held out."""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import choice
from ..evidence.base import AbstractLikelihood
from ..evidence.glm import AbstractFamily
from ..logs.labels import folds, held_out
from ..logs.logs import Logs
from ..priors.base import AbstractPrior
from ..priors.from_tasks.components import Components
from ..priors.from_tasks.data import AnyLogs, blocks_of, is_logs, resolve
from ..priors.from_tasks.em import Mapper, in_threads
from ..priors.from_tasks.noise import Noise
from ..priors.from_tasks.search import Search, gaussian_of, search_mixture
from ..progress import progress as progress_bar
from .cautions import FEW_TASKS, cautions
from .diagnostics import calibration, certificate, reliability
from .diffusion import diffusion_rung
from .families import Family, closed_form, hedged, naive
from .judge import FamilyResult, gain, judge, task_log_evidence
from .regret import Simulation, simulate_regret
from .report import LearningReport, Pictures

HEDGE = 0.003
REPORT_SHARE = 0.1
FEWEST_TASKS = 10  # that can teach something, and be held out in turn
LEAST_ORDER = 4.0  # of structure; two humps need as much
UP_TO = ("gaussian", "mixture", "diffusion")
SHOWN = 2000  # points of a picture


@dataclass(frozen=True)
class Learned:
    """What `learn` found.

    Attributes:
        prior: the chosen prior, hedged.
        likelihood: how rewards arise, with the noise that was estimated.
        report: whether it pays, and what to be careful about.
        families: every prior that was learned, unhedged, by the names of the report.
    """

    prior: AbstractPrior
    likelihood: AbstractLikelihood
    report: LearningReport
    families: dict[str, AbstractPrior]


def learn(
    logs: Any,
    likelihood: Any,
    *,
    seed: int = 0,
    hedge: float = HEDGE,
    up_to: str = "diffusion",
    simulate: bool = True,
    mapper: Mapper = in_threads,
    progress: bool | None = None,
) -> Learned:
    """Learn a prior from what past tasks have shown, and judge it on tasks held out.

    A tenth of the tasks, chosen by their labels, is kept for the report and seen by nothing else.
    From the others come, one after the other: the noise of linear rewards where it is unknown; a
    Gaussian by maximum marginal likelihood; mixtures of Gaussians, their number of components or
    width of kernels chosen by the evidence of tasks held out in turn; and a diffusion model
    distilled from the best of these. A richer family is chosen only where it beats a simpler one by
    more than a standard error.

    Args:
        logs: `Logs`, or `TaskStatistics` for linear rewards; of at least ten tasks.
        likelihood: how rewards arise; `Linear()` without noise has it estimated.
        seed: of everything random. Tasks are split by their labels, whatever the seed.
        hedge: share of a wide Gaussian mixed into the prior, so that a task unlike any before is
            learned instead of denied.
        up_to: the last rung: "gaussian", "mixture" or "diffusion".
        simulate: whether to simulate the regret of the families for the report.
        mapper: how to go over blocks of tasks: `map`, or one that spreads them over machines. The
            result does not depend on it.
        progress: False shows nothing; by default a bar on a terminal.

    Returns:
        The prior, the likelihood with its noise, and the report.

    Raises:
        ValueError: logs or a likelihood that are not; fewer than ten tasks; rewards that the
            likelihood cannot produce.
    """
    if not is_logs(logs):
        raise ValueError(
            f"`logs`: expected Logs or TaskStatistics, got {type(logs).__name__}; "
            "make them by dp.Logs(tasks, features, rewards), or fit a prior to parameters"
        )
    if logs.num_tasks < FEWEST_TASKS:
        raise ValueError(
            f"`logs`: expected at least {FEWEST_TASKS} tasks, got {logs.num_tasks}; a prior is "
            "what tasks have in common, so collect the logs of more, or check their labels"
        )
    choice("up_to", up_to, UP_TO)
    if not 0.0 <= hedge < 1.0:
        raise ValueError(f"`hedge`: expected a share in [0, 1), got {hedge:g}; 0.01 is usual")
    few = logs.num_tasks < FEW_TASKS
    out = np.zeros(logs.num_tasks, bool) if few else held_out(logs.hashes, REPORT_SHARE)
    if isinstance(likelihood, AbstractFamily) and isinstance(logs, Logs):
        likelihood.check_rewards(logs.rewards)  # of all tasks, those of the report too
    work = _Work(logs, out, *resolve(logs.select(~out), likelihood), seed, hedge, mapper)
    with progress_bar("learning", 24, visible=progress) as bar:

        def advance(name: str) -> None:
            bar.describe(name)
            bar.advance()

        return work.run(up_to, simulate, advance)


@dataclass
class _Work:
    """One run of the ladder."""

    logs: AnyLogs
    out: np.ndarray  # which tasks are kept for the report
    likelihood: AbstractLikelihood
    noise: Noise | None
    seed: int
    hedge: float
    mapper: Mapper
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    bounds: dict[int, float] = dataclasses.field(default_factory=dict)  # certificates so far

    def run(self, up_to: str, simulate: bool, advance: Callable[[str], None]) -> Learned:
        """All rungs, the choice and the report."""
        begin = time.perf_counter()
        out, few = self.out, not self.out.any()
        rest = self.logs.select(~out)
        advance("Gaussian")
        gaussian = gaussian_of(blocks_of(rest, self.likelihood), self.mapper)
        seen = reliability(gaussian, rest, self.likelihood)
        self._lap("Gaussian", begin)
        rough = few or seen.learnable_order < LEAST_ORDER
        search = self._mixture(rest, up_to != "gaussian" and not rough, advance)
        families = self._closed_forms(rest, gaussian, search)
        chosen, sentence = choose(search, few, rough)
        if up_to == "diffusion" and chosen != "Gaussian":
            families, chosen, sentence = self._diffusion(rest, families, chosen, sentence, advance)
        advance("report")
        begin = time.perf_counter()
        results, names = self._judged(families, out, chosen, few)
        final = next(f for f in families if f.name == chosen)
        basis = final.components or next(f for f in reversed(families) if f.components).components
        assert basis is not None
        report_logs = rest if few else self.logs.select(out)
        simulation = self._simulated(families, basis, chosen, report_logs, simulate, advance)
        places = self._calibrated(basis, report_logs)
        report = LearningReport(
            **self._about(),
            num_report_tasks=report_logs.num_tasks,
            reliability=tuple(float(v) for v in seen.values),
            learnable_order=seen.learnable_order,
            families=results,
            length_names=names,
            certificate=self._certificate(basis, rest),
            coverage=places and places.coverage,
            coverage_error=places and places.error,
            simulation=simulation,
            chosen=chosen,
            sentence=sentence,
            hedge=self.hedge,
            warnings=cautions(self.logs, self.likelihood, gaussian, seen, self.noise),
            seconds=self.seconds,
            pictures=self._pictures(families, basis, rest, places and places.places),
        )
        self._lap("report", begin)
        prior = self._hedged(final)
        return Learned(prior, self.likelihood, report, {f.name: f.prior for f in families})

    def _certificate(self, components: Components, rest: AnyLogs) -> float:
        """What any prior could still gain over these components, computed once."""
        if id(components) not in self.bounds:
            found = certificate(components, rest, self.likelihood, self.seed)
            self.bounds[id(components)] = found
        return self.bounds[id(components)]

    def _lap(self, name: str, begin: float) -> None:
        self.seconds[name] = time.perf_counter() - begin

    def _mixture(
        self, rest: AnyLogs, wanted: bool, advance: Callable[[str], None]
    ) -> Search | None:
        if not wanted:
            return None
        begin = time.perf_counter()
        found = search_mixture(
            rest, self.likelihood, seed=self.seed, mapper=self.mapper, advance=advance
        )
        self._lap("mixture", begin)
        return found

    def _closed_forms(self, rest: AnyLogs, gaussian: Any, search: Search | None) -> list[Family]:
        families = [
            closed_form("naive estimates", naive(rest, self.likelihood)),
            closed_form("Gaussian", gaussian if search is None else search.gaussian),
        ]
        if search is not None and search.best is not None:
            families.append(closed_form(search.candidates[search.best].name, search.components))
        return families

    def _diffusion(
        self,
        rest: AnyLogs,
        families: list[Family],
        chosen: str,
        sentence: str,
        advance: Callable[[str], None],
    ) -> tuple[list[Family], str, str]:
        begin = time.perf_counter()
        basis = families[-1]
        assert basis.components is not None
        room = self._certificate(basis.components, rest)
        rung = diffusion_rung(basis, rest, self.likelihood, self.seed, self.hedge, room, advance)
        self._lap("diffusion", begin)
        if rung.pays:
            chosen, sentence = rung.family.name, rung.sentence
        else:
            sentence = f"{sentence}; {rung.sentence}"
        return [*families, rung.family], chosen, sentence

    def _judged(
        self, families: list[Family], out: np.ndarray, chosen: str, few: bool
    ) -> tuple[tuple[FamilyResult, ...], tuple[str, ...]]:
        if not few:
            report_logs = self.logs.select(out)
            return judge(families, report_logs, self.likelihood, chosen, self.seed)
        return self._cross_validated(chosen)

    def _cross_validated(self, chosen: str) -> tuple[tuple[FamilyResult, ...], tuple[str, ...]]:
        """Of few tasks, each fifth judged by what the others teach."""
        num_folds = min(5, self.logs.num_tasks)
        which = folds(self.logs.hashes, num_folds, salt=11)
        names = ("naive estimates", "Gaussian")
        parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
        for fold in range(num_folds):
            own, other = self.logs.select(which != fold), self.logs.select(which == fold)
            if other.num_tasks == 0 or own.num_tasks < 2:
                continue
            gaussian = gaussian_of(blocks_of(own, self.likelihood), self.mapper)
            fitted = (naive(own, self.likelihood), gaussian)
            for name, components in zip(names, fitted, strict=True):
                family = closed_form(name, components)
                parts[name].append(task_log_evidence(family, other, self.likelihood))
        values = {name: np.concatenate(found) for name, found in parts.items()}
        return tuple(
            FamilyResult(
                name,
                float(values[name].mean()),
                gain(values[name] - values["Gaussian"]),
                (),
                None,
                name == chosen,
            )
            for name in names
        ), ()

    def _simulated(
        self,
        families: list[Family],
        basis: Any,
        chosen: str,
        report_logs: AnyLogs,
        wanted: bool,
        advance: Callable[[str], None],
    ) -> Simulation | None:
        if not wanted or not isinstance(report_logs, Logs):
            return None
        advance("regret")
        begin = time.perf_counter()
        found = simulate_regret(families, basis, chosen, report_logs, self.likelihood, self.seed)
        self._lap("regret", begin)
        return found

    def _calibrated(self, basis: Any, report_logs: AnyLogs) -> Any:
        if not isinstance(report_logs, Logs):
            return None
        return calibration(basis, report_logs, self.likelihood, self.seed)

    def _about(self) -> dict[str, Any]:
        counts = np.asarray(self.logs.counts, float)
        how = {
            "given": "given",
            "pooled": "from {:,.0f} degrees of freedom of residuals within tasks",
            "joint": "estimated jointly with a Gaussian, from {:,.0f} residual degrees of freedom",
        }
        noise = self.noise
        return {
            "num_tasks": self.logs.num_tasks,
            "num_rows": self.logs.num_rows,
            "rows_a_task": (float(counts.min()), float(np.median(counts)), float(counts.max())),
            "feature_names": self.logs.feature_names,
            "likelihood": type(self.likelihood).__name__.lower(),
            "noise_std": noise and noise.noise_std,
            "noise_from": noise and how[noise.how].format(noise.degrees_of_freedom),
        }

    def _pictures(
        self, families: list[Family], basis: Any, rest: AnyLogs, places: np.ndarray | None
    ) -> Pictures:
        import jax

        key = jax.random.key(self.seed)
        draws = {
            f.name: np.asarray(f.prior.sample(key, SHOWN), np.float64)
            for f in families
            if f.name != "naive estimates"
        }
        order = np.sort(np.argsort(rest.hashes, kind="stable")[:SHOWN])
        blocks = blocks_of(rest.select(order), self.likelihood)
        estimates = np.concatenate([b.draw(basis, self.seed, 77) for b in blocks])
        return Pictures(draws, estimates, places)

    def _hedged(self, final: Family) -> AbstractPrior:
        if self.hedge == 0.0:
            return final.prior
        if final.components is None:
            return final.prior  # the hedge is in it since it was distilled
        return closed_form(final.name, hedged(final.components, self.hedge)).prior


def choose(search: Search | None, few: bool, rough: bool) -> tuple[str, str]:
    """The closed form to take, and why, in a sentence."""
    if few:
        return "Gaussian", "chosen is the Gaussian: with so few tasks nothing richer can be judged"
    if rough:
        return "Gaussian", (
            "chosen is the Gaussian: one task says too little about theta for anything richer to "
            "be learned from so many tasks"
        )
    if search is None or search.best is None:
        return "Gaussian", "chosen is the Gaussian: nothing richer was tried"
    name, (gain, error) = search.candidates[search.best].name, search.gain
    figures = f"{gain:+.3f} +- {error:.3f} nats a task over the Gaussian on tasks held out in turn"
    if search.pays:
        return name, f"chosen: the {name}, {figures}"
    return "Gaussian", f"chosen is the Gaussian: the best mixture ({name}) has {figures}"
