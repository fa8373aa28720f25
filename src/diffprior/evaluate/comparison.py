"""Log evidence of tasks under a prior, and priors compared by it on held-out tasks."""

from collections.abc import Mapping
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..gaussian import Gaussian
from ..logs.logs import Logs
from ..priors.adaptor import as_prior
from ..priors.base import AbstractClosedFormPrior
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from ..reporting.tables import Table, plus_minus, standard_error
from ..samplers.choose import closed_form
from ..samplers.twisted_smc import TwistedSMC
from .posterior import draw_posteriors
from .tasks import Tasks, as_tasks

AT_ONCE = 256  # tasks side by side, which bounds the memory
NUM_POINTS = 256  # of importance sampling, for each task
NUM_FROM_PRIOR = 51  # of them from the prior itself, which bounds their weights


@dataclass(frozen=True)
class LogEvidence:
    """log p(h) of every task under one prior, in nats.

    Args:
        values: One number per task (n,); minus infinity where every estimate failed.
        variances: Of each number, where it is estimated; zero where it is exact.
        failed: Estimates that failed, each of which counts as a probability of zero.
    """

    values: Float[np.ndarray, " n"]
    variances: Float[np.ndarray, " n"]
    failed: int = 0

    @property
    def mean(self) -> float:
        """Mean over tasks."""
        return float(np.mean(self.values))

    @property
    def standard_error(self) -> float:
        """Of the mean, over tasks."""
        return standard_error(self.values)

    @property
    def estimation_error(self) -> float:
        """Standard error of the mean for these tasks, which estimating adds."""
        return float(np.sqrt(np.sum(self.variances)) / len(self.values))

    @property
    def shortfall(self) -> float:
        """Bias of the mean, to second order: the log of an unbiased estimate is biased downward."""
        return float(np.mean(self.variances) / 2)

    def __str__(self) -> str:
        """Mean, standard error, and what estimating adds to it."""
        row = (
            plus_minus(self.mean, self.standard_error),
            f"{self.estimation_error:.2g}",
            str(len(self.values)),
            str(self.failed),
        )
        return str(Table(("log evidence per task", "of estimating", "tasks", "failed"), [row]))


def log_evidence(
    prior: object,
    tasks: Tasks | Logs,
    likelihood: AbstractLikelihood | None = None,
    *,
    num_estimates: int = 8,
    seed: int = 0,
) -> Float[np.ndarray, " n"]:
    """Log p(h) of every task under a prior, in nats: one number per task.

    The difference of two priors' numbers on tasks that neither has seen says which describes new
    tasks better, with no exploration involved; `compare` adds the paired standard error, and
    `estimate_log_evidence` the error of each number.

    Arguments and errors are as of `estimate_log_evidence`.

    Returns:
        One number per task (n,).
    """
    return estimate_log_evidence(
        prior, tasks, likelihood, num_estimates=num_estimates, seed=seed
    ).values


def estimate_log_evidence(
    prior: object,
    tasks: Tasks | Logs,
    likelihood: AbstractLikelihood | None = None,
    *,
    num_estimates: int = 8,
    seed: int = 0,
) -> LogEvidence:
    """Log p(h) of every task, with the variance of each number.

    Closed forms are exact where rewards are linear, and so are learned priors that no network
    corrects. For other rewards, a Gaussian or a mixture is estimated by importance sampling about
    its Laplace approximation, and any other closed form is that approximation. Priors without a
    closed form are estimated by `TwistedSMC`. All estimates are unbiased for p(h), so that priors
    of different kinds can be compared.

    Args:
        prior: Any prior, or any object with its four members.
        tasks: `Tasks` or `Logs`.
        likelihood: How rewards arise; needed with logs, by default the tasks' own.
        num_estimates: Independent runs of `TwistedSMC` for each task.
        seed: Of the estimates.

    Returns:
        Numbers and their variances.

    Raises:
        ValueError: If logs come without a likelihood, or features do not fit the prior.

    References:
        Owen and Zhou (2000). Safe and effective importance sampling: a share of the points is
        drawn from the prior, so that weights are bounded, and densities are control variates.
    """
    prior, tasks = as_prior(prior), as_tasks(tasks, likelihood)
    tasks.check_dim(prior)
    prior = closed_form(prior) or prior
    quadratic = tasks.likelihood.empty(tasks.dim).quadratic
    if isinstance(prior, GaussianPrior | MixturePrior) and not quadratic:
        return _importance_sampled(prior, tasks, seed)
    if isinstance(prior, AbstractClosedFormPrior):
        return _closed_form(prior, tasks)
    draws = draw_posteriors(TwistedSMC(prior), tasks, num_estimates, seed)
    return log_mean(draws.log_evidence)


def log_mean(logs: Float[np.ndarray, "n m"]) -> LogEvidence:
    """Log of the mean over the second axis, its variance by the delta method."""
    failed = np.isnan(logs) | (logs == np.inf)
    logs = np.where(failed, -np.inf, logs)
    count = logs.shape[1]
    with np.errstate(invalid="ignore"):
        values = logsumexp(logs, axis=1) - np.log(count)
        ratios = np.where(np.isfinite(values)[:, None], np.exp(logs - values[:, None]), 0.0)
    variances = np.var(ratios, axis=1, ddof=1) / count if count > 1 else np.full(len(logs), np.nan)
    return LogEvidence(values, variances, int(np.sum(failed)))


def _closed_form(prior: AbstractClosedFormPrior, tasks: Tasks) -> LogEvidence:
    values = np.empty(len(tasks))
    for which, evidence in tasks.batches(AT_ONCE):
        values[which] = np.asarray(_closed_forms(prior, evidence), np.float64)
    return _failures_as_zero(values, np.zeros(len(tasks)))


def _importance_sampled(
    prior: GaussianPrior | MixturePrior, tasks: Tasks, seed: int
) -> LogEvidence:
    if isinstance(prior, GaussianPrior):
        prior = MixturePrior(np.ones(1), prior.mean[None], prior.cov[None])
    keys = jax.random.split(jax.random.key(seed), len(tasks))
    values, variances = np.empty((2, len(tasks)))
    for which, evidence in tasks.batches(AT_ONCE // 8):
        found = (np.asarray(part, float) for part in _log_weights(prior, keys[which], evidence))
        values[which], variances[which] = _controlled_log_mean(*found)
    return _failures_as_zero(values, variances)


def _failures_as_zero(
    values: Float[np.ndarray, " n"], variances: Float[np.ndarray, " n"]
) -> LogEvidence:
    failed = ~np.isfinite(values)
    return LogEvidence(np.where(failed, -np.inf, values), variances, int(failed.sum()))


def _controlled_log_mean(
    log_weights: Float[np.ndarray, "b m"], ratios: Float[np.ndarray, "b m"]
) -> tuple[Float[np.ndarray, " b"], Float[np.ndarray, " b"]]:
    """Log of the mean weight and its variance.

    p(theta) / q(theta), whose mean is 1, is a control variate: with it an exact Laplace
    approximation gives an exact answer.
    """
    largest = np.max(log_weights, axis=1, keepdims=True)
    weights = np.exp(log_weights - largest)
    mean = weights.mean(axis=1, keepdims=True)
    centered = ratios - ratios.mean(axis=1, keepdims=True)
    slope = np.sum(weights * centered, axis=1) / np.maximum(np.sum(centered**2, axis=1), 1e-300)
    estimate = mean[:, 0] - slope * (ratios.mean(axis=1) - 1.0)
    estimate = np.where(estimate > 0, estimate, mean[:, 0])
    residuals = weights - mean - slope[:, None] * centered
    variance = np.sum(residuals**2, axis=1) / (weights.shape[1] - 2) / weights.shape[1]
    return largest[:, 0] + np.log(estimate), variance / estimate**2


@eqx.filter_jit
def _closed_forms(prior: AbstractClosedFormPrior, evidence: AbstractEvidence) -> Float[Array, " b"]:
    found: Array = jax.lax.map(lambda one: prior.posterior(one)[1], evidence)
    return found


@eqx.filter_jit
def _log_weights(
    prior: MixturePrior, keys: Key[Array, " b"], evidence: AbstractEvidence
) -> tuple[Float[Array, "b m"], Float[Array, "b m"]]:
    """Log weights of draws from q, which mixes prior and Laplace posterior, and p / q."""
    share = NUM_FROM_PRIOR / NUM_POINTS

    def one(
        key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        prior_key, posterior_key = jax.random.split(key)
        posterior, _ = prior.posterior(evidence)
        thetas = jnp.concatenate(
            [
                prior.sample(prior_key, NUM_FROM_PRIOR),
                posterior.sample(posterior_key, NUM_POINTS - NUM_FROM_PRIOR),
            ]
        )
        log_prior, log_posterior = (_log_densities(p, thetas) for p in (prior, posterior))
        proposal = jnp.logaddexp(jnp.log(share) + log_prior, jnp.log1p(-share) + log_posterior)
        log_ratio = log_prior - proposal
        return jax.vmap(evidence.log_likelihood)(thetas) + log_ratio, jnp.exp(log_ratio)

    return jax.vmap(one)(keys, evidence)


def _log_densities(prior: MixturePrior, thetas: Float[Array, "m d"]) -> Float[Array, " m"]:
    def component(mean: Float[Array, " d"], cov: Float[Array, "d d"]) -> Float[Array, " m"]:
        return jax.vmap(Gaussian(mean, cov).log_density)(thetas)

    parts = jax.vmap(component)(prior.means, prior.covs) + jnp.log(prior.weights)[:, None]
    return jax.scipy.special.logsumexp(parts, axis=0)


@dataclass(frozen=True)
class Comparison:
    """Log evidence of the same tasks under several priors.

    Args:
        log_evidence: Of every prior, by name.
        baseline: The prior that the others are compared with.
        num_observations: Rows of each task (n,).
    """

    log_evidence: dict[str, LogEvidence]
    baseline: str
    num_observations: np.ndarray

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the priors, in the order given."""
        return tuple(self.log_evidence)

    @property
    def best(self) -> str:
        """The prior with the highest mean log evidence."""
        return max(self.names, key=lambda name: self.log_evidence[name].mean)

    def difference(self, name: str, other: str | None = None) -> tuple[float, float]:
        """Mean of log p(h) under one prior minus that under another, and its standard error.

        Args:
            name: A prior.
            other: Another; by default the baseline.

        Returns:
            The mean difference, in nats per task, and its standard error over the tasks, which are
            the same for both: paired. Errors of estimating are part of it.
        """
        differences = self._differences(name, other)
        return float(np.mean(differences)), standard_error(differences)

    def by_length(self) -> list[tuple[int, int, dict[str, tuple[float, float]]]]:
        """Differences from the baseline in tasks of similar length.

        Returns:
            For each third of the tasks, short to long: least and most rows of a task, and the mean
            difference of every prior with its standard error.
        """
        order = np.argsort(self.num_observations, kind="stable")
        found = []
        for some in np.array_split(order, min(3, len(order))):
            sizes = self.num_observations[some]
            rows = {name: self._differences(name)[some] for name in self.names}
            table = {name: (float(np.mean(d)), standard_error(d)) for name, d in rows.items()}
            found.append((int(sizes.min()), int(sizes.max()), table))
        return found

    def to_dict(self) -> dict[str, object]:
        """The table as plain numbers.

        Returns:
            A dictionary that JSON can hold.
        """
        return {
            "num_tasks": len(self.num_observations),
            "baseline": self.baseline,
            "priors": {name: self._plain(name) for name in self.names},
        }

    def __str__(self) -> str:
        """A table, one row for each prior."""
        rows = [
            (
                name,
                plus_minus(found.mean, found.standard_error),
                "" if name == self.baseline else plus_minus(*self.difference(name)),
                str(found.failed),
            )
            for name, found in self.log_evidence.items()
        ]
        columns = ("prior", "log evidence per task", f"over {self.baseline}", "failed")
        return f"{len(self.num_observations)} tasks\n{Table(columns, rows)}"

    def _differences(self, name: str, other: str | None = None) -> Float[np.ndarray, " n"]:
        values: np.ndarray = self._of(name).values - self._of(other or self.baseline).values
        return values

    def _of(self, name: str) -> LogEvidence:
        if name not in self.log_evidence:
            listed = ", ".join(map(repr, self.names))
            raise ValueError(f"`name`: expected one of {listed}, got {name!r}; pick one of those")
        return self.log_evidence[name]

    def _plain(self, name: str) -> dict[str, object]:
        found, (difference, error) = self._of(name), self.difference(name)
        return {
            "log_evidence": found.mean,
            "standard_error": found.standard_error,
            "estimation_error": found.estimation_error,
            "difference": difference,
            "difference_standard_error": error,
            "failed": found.failed,
        }


def compare(
    priors: Mapping[str, object],
    tasks: Tasks | Logs,
    likelihood: AbstractLikelihood | None = None,
    *,
    samples: ArrayLike | None = None,
    baseline: str | None = None,
    num_estimates: int = 8,
    seed: int = 0,
) -> Comparison:
    """Compare priors by the log evidence of tasks that none of them has seen.

    Args:
        priors: Priors by name, in a dictionary.
        tasks: `Tasks` or `Logs`; tasks, not rows, must be held out of what the priors saw.
        likelihood: How rewards arise; needed with logs, by default the tasks' own.
        samples: Parameters of past tasks (n, d). With them, "Gaussian" and "mixture, K chosen", the
            number of components chosen by held-out samples, are added to the table: where a
            mixture does as well as a learned prior, it is enough, and faster.
        baseline: The prior to compare the others with; by default the first of the table.
        num_estimates: Independent estimates of each number, where it has no closed form.
        seed: Of the estimates.

    Returns:
        The numbers of every prior, and paired differences with their standard errors.

    Raises:
        ValueError: If priors are not by name or none, or the baseline is none of them.
    """
    if not isinstance(priors, Mapping):
        raise ValueError(
            f"`priors`: expected priors by name, got {type(priors).__name__}; "
            'pass a dictionary such as {"learned": prior}'
        )
    tasks = as_tasks(tasks, likelihood)
    everyone: dict[str, object] = {**_baselines(samples, seed), **priors}
    baseline = baseline or next(iter(everyone), None)
    if baseline not in everyone:
        listed = ", ".join(map(repr, everyone)) or "at least one prior"
        raise ValueError(f"`baseline`: expected {listed}, got {baseline!r}; name one of the priors")
    found = {
        name: estimate_log_evidence(prior, tasks, num_estimates=num_estimates, seed=seed)
        for name, prior in everyone.items()
    }
    return Comparison(found, baseline, tasks.num_observations)


def _baselines(samples: ArrayLike | None, seed: int) -> dict[str, object]:
    if samples is None:
        return {}
    return {
        "Gaussian": GaussianPrior.fit(samples),
        "mixture, K chosen": MixturePrior.fit(samples, seed=seed),
    }
