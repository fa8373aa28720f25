"""One run of the ladder: its rungs one after the other, the choice, and the report."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..evidence.base import AbstractLikelihood
from ..logs.labels import Selection, folds
from ..logs.logs import Logs
from ..priors.base import AbstractPrior
from ..priors.from_tasks.block import AbstractBlock
from ..priors.from_tasks.components import Components
from ..priors.from_tasks.data import AnyLogs, blocks_of
from ..priors.from_tasks.noise import Noise
from ..priors.from_tasks.search import SEARCH_TASKS, Search, gaussian_of, search_mixture
from .cautions import cautions
from .diagnostics import calibration, certificate, reliability
from .diffusion import diffusion_rung
from .families import Family, closed_form, hedged, naive
from .judge import FamilyResult, gain, judge, task_log_evidence
from .passes import Passes
from .regret import Simulation, simulate_regret
from .report import LearningReport, Pictures
from .source import AbstractSource

LEAST_ORDER = 4.0  # of structure; two humps need as much
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


@dataclass
class Run:
    """What is learned from, how, and what has been found so far."""

    source: AbstractSource
    selection: Selection  # what is learned from
    out: np.ndarray  # which tasks of the sample are kept for the report
    likelihood: AbstractLikelihood
    noise: Noise | None
    seed: int
    hedge: float
    passes: Passes
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    bounds: dict[int, float] = dataclasses.field(default_factory=dict)  # certificates so far

    @property
    def logs(self) -> AnyLogs:
        """The tasks in memory."""
        return self.source.sample

    def run(
        self, allowed: frozenset[str], simulate: bool, advance: Callable[[str], None]
    ) -> Learned:
        """All rungs, the choice and the report."""
        begin = time.perf_counter()
        out, few = self.out, not self.out.any()
        rest, blocks = self.logs.select(~out), self.source.blocks(self.likelihood, self.selection)
        advance("Gaussian")
        gaussian = gaussian_of(blocks, self.passes)
        seen = reliability(gaussian, blocks, self.passes)
        self._lap("Gaussian", begin)
        rough = few or seen.learnable_order < LEAST_ORDER
        forced = "gaussian" not in allowed
        if forced and few:
            raise ValueError(
                f"`families`: expected 'gaussian' among them with {self.logs.num_tasks} tasks, got "
                f"{sorted(allowed)}; richer families need more tasks, so add it"
            )
        wanted = allowed != {"gaussian"} and (forced or not rough)
        search = self._mixture(rest, blocks, wanted, advance)
        families = self._closed_forms(blocks, gaussian, search)
        chosen, sentence = choose(search, few, rough, forced)
        if "diffusion" in allowed and chosen != "Gaussian":
            must = "mixture" not in allowed
            rung = self._diffusion(rest, families, chosen, sentence, must, advance)
            families, chosen, sentence = rung
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
        self,
        rest: AnyLogs,
        blocks: Sequence[AbstractBlock],
        wanted: bool,
        advance: Callable[[str], None],
    ) -> Search | None:
        if not wanted:
            return None
        begin = time.perf_counter()
        found = search_mixture(
            rest,
            self.likelihood,
            seed=self.seed,
            executor=self.passes,
            everything=blocks if self.source.larger or rest.num_tasks > SEARCH_TASKS else None,
            advance=advance,
        )
        self._lap("mixture", begin)
        return found

    def _closed_forms(
        self, blocks: Sequence[AbstractBlock], gaussian: Any, search: Search | None
    ) -> list[Family]:
        families = [
            closed_form("naive estimates", naive(blocks, self.passes)),
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
        must: bool,
        advance: Callable[[str], None],
    ) -> tuple[list[Family], str, str]:
        begin = time.perf_counter()
        basis = families[-1]
        assert basis.components is not None
        room = self._certificate(basis.components, rest)
        rung = diffusion_rung(
            basis,
            rest,
            self.source,
            self.likelihood,
            self.seed,
            self.hedge,
            room,
            self.passes,
            advance,
        )
        self._lap("diffusion", begin)
        if rung.pays or must:
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
            blocks = blocks_of(own, self.likelihood)
            fitted = (naive(blocks), gaussian_of(blocks))
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
        how = {
            "given": "given",
            "pooled": "from {:,.0f} degrees of freedom of residuals within tasks",
            "joint": "estimated jointly with a Gaussian, from {:,.0f} residual degrees of freedom",
        }
        noise = self.noise
        return {
            "num_tasks": self.source.num_tasks,
            "num_rows": self.source.num_rows,
            "rows_per_task": self.source.rows_per_task(),
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


def choose(search: Search | None, few: bool, rough: bool, forced: bool = False) -> tuple[str, str]:
    """The closed form to take, and why, in a sentence."""
    if few:
        return "Gaussian", "chosen is the Gaussian: with so few tasks nothing richer can be judged"
    if rough and not forced:
        return "Gaussian", (
            "chosen is the Gaussian: one task says too little about theta for anything richer to "
            "be learned from so many tasks"
        )
    if search is None or search.best is None:
        return "Gaussian", "chosen is the Gaussian: nothing richer was tried"
    name, (gain, error) = search.candidates[search.best].name, search.gain
    figures = f"{gain:+.3f} +- {error:.3f} nats a task over the Gaussian on tasks held out in turn"
    if search.pays or forced:
        return name, f"chosen: the {name}, {figures}"
    return "Gaussian", f"chosen is the Gaussian: the best mixture ({name}) has {figures}"
