"""Priors of responses beyond generalized linear models, from logs: EM over draws of each task."""

import time
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from ..evaluate.comparison import COLD, cold_start, log_evidence
from ..evaluate.tasks import draw_posteriors
from ..evidence.response import Response
from ..fitting.config import LearningConfig
from ..logs.logs import Logs
from ..logs.statistics import folds, held_out
from ..mixture import GaussianMixture
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from ..samplers.exact import Exact
from .attributes import GAUSSIAN
from .model import Model
from .report import LearningReport
from .scoring import FamilyResult, family_of, gain

FOLD_SALT, NUM_FOLDS = 23, 5  # of the tasks learned from; one fold chooses
NUM_DRAWS, NUM_STEPS = 4, 10  # of each task, and steps of EM
NUM_ESTIMATES = 8  # of log evidence
NUM_COMPONENTS = (2, 4, 8)
SMALL_SHARE = 0.2  # that the report sees of few tasks
ATTRIBUTES = "attributes are left out: priors of a response do not depend on them"
GAUSSIAN_KEPT = "chosen: the Gaussian; no mixture is clearly better on tasks held out"
MIXTURE_CHOSEN = "chosen: the mixture of {}, better than anything simpler on tasks held out"
Closed = GaussianPrior | MixturePrior
Fit = Callable[[Float[np.ndarray, "n d"]], Closed]


def learn_response(
    logs: object,
    likelihood: Response,
    mixtures: bool,
    seed: int,
    hedge: float,
    config: LearningConfig,
) -> Model:
    """The better of a Gaussian and, if asked for, a mixture, by tasks held out."""
    if not isinstance(logs, Logs) or logs.num_tasks < config.min_tasks:
        raise ValueError(
            f"`logs`: expected Logs of at least {config.min_tasks} tasks with a Response, got "
            f"{logs!r:.60}; read them with dp.Logs.read"
        )
    begin, few = time.perf_counter(), logs.num_tasks < config.min_held_out_tasks
    out = held_out(logs.hashes, SMALL_SHARE if few else config.report_share)
    rest, new = logs.select(~out), logs.select(out)

    def nats(prior: Closed, tasks: Logs) -> Float[np.ndarray, " t"]:
        return log_evidence(prior, tasks, likelihood, num_estimates=NUM_ESTIMATES, seed=seed)

    def fitted(start: Closed, fit: Fit, tasks: Logs) -> Closed:
        return by_em(start, fit, tasks, likelihood, seed)

    cold = cold_start(rest, likelihood, seed=seed)
    priors: dict[str, Closed] = {COLD: cold, GAUSSIAN: fitted(cold, GaussianPrior.fit, rest)}
    chosen, sentence = GAUSSIAN, "chosen: the Gaussian, since nothing richer was tried"
    if mixtures and not few:
        fold = folds(rest.hashes, NUM_FOLDS, FOLD_SALT)
        seen, scoring = rest.select(fold != 0), rest.select(fold == 0)
        gaussian = fitted(cold, GaussianPrior.fit, seen)
        best, size, sentence = nats(gaussian, scoring), 1, GAUSSIAN_KEPT
        for k in NUM_COMPONENTS:
            values = nats(fitted(gaussian, mixture_of(k), seen), scoring)
            over = gain(values - best)
            if over.mean > over.error:
                best, size = values, k
            elif k > NUM_COMPONENTS[0]:
                break
        if size > 1:
            chosen, sentence = f"mixture of {size}", MIXTURE_CHOSEN.format(size)
            priors[chosen] = fitted(priors[GAUSSIAN], mixture_of(size), rest)
    families = {name: family_of(name, components_of(prior)) for name, prior in priors.items()}
    scores = {name: nats(prior, new) for name, prior in priors.items()}
    results = tuple(
        FamilyResult(
            name, float(own.mean()), gain(own - scores[COLD]), gain(own - scores[GAUSSIAN]),
            None, name == chosen,
        )
        for name, own in scores.items()
    )  # fmt: skip
    warnings = () if logs.encoder is None else logs.encoder.warnings
    counts = logs.counts
    report = LearningReport(
        num_tasks=logs.num_tasks,
        num_rows=logs.num_rows,
        rows_per_task=(float(counts.min()), float(np.median(counts)), float(counts.max())),
        feature_names=logs.feature_names,
        likelihood=type(likelihood).__name__.lower(),
        noise_std=None,
        noise_from=None,
        num_report_tasks=new.num_tasks,
        reliability=(),
        learnable_order=0.0,
        families=results,
        rows_saved=None,
        curve=None,
        next_rewards=None,
        simulation=None,
        chosen=chosen,
        sentence=sentence,
        hedge=hedge,
        warnings=warnings + (ATTRIBUTES,) * (logs.attributes is not None),
        seconds={"response": time.perf_counter() - begin},
    )
    return Model(
        families[chosen].hedged(hedge, families[COLD]).prior if hedge else priors[chosen],
        likelihood,
        logs.encoder,
        feature_names=logs.feature_names,
        report=report,
        families=dict(priors),
    )


def by_em(prior: Closed, fit: Fit, logs: Logs, likelihood: Response, seed: int) -> Closed:
    """Fit a prior to draws from the posterior of every task under the prior before, in turn."""
    for step in range(NUM_STEPS):
        draws = draw_posteriors(Exact(prior), logs, likelihood, NUM_DRAWS, seed + step).values
        draws = draws.reshape(-1, prior.dim)
        prior = fit(draws[np.isfinite(draws).all(axis=1)])
    return prior


def mixture_of(num_components: int) -> Fit:
    """Fits mixtures of so many components."""
    return lambda samples: MixturePrior.fit(samples, num_components)


def components_of(prior: Closed) -> GaussianMixture:
    """The components of a prior, in double precision."""
    if isinstance(prior, GaussianPrior):
        return GaussianMixture.single(np.asarray(prior.mean, float), np.asarray(prior.cov, float))
    weights, means = np.asarray(prior.weights, float), np.asarray(prior.means, float)
    return GaussianMixture.from_covs(weights, means, np.asarray(prior.covs, float))
