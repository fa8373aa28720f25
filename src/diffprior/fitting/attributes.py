"""How parameters depend on what is known of a task: theta = mean + B'(z - center) + r.

B has a Gaussian prior whose variance is estimated too (empirical Bayes), for each raw column its
own, so that many sparse indicators shrink, and attributes that say nothing vanish. The ridge
regression is the same whether parameters are known, or only evidence about them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from ..checks import real_numbers
from ..logs.logs import Logs
from ..mixture import GaussianMixture
from .em import AbstractTasks
from .rows import AnyLogs, RowTasks, block_order, shifted, symmetric
from .samples import whitened, whitening
from .search import SearchConfig, search_samples

MAX_STEPS, MIXED_STEPS = 100, 12  # with a Gaussian, and with a mixture of residuals
TOLERANCE = 1e-4  # change of the tasks' means in residual standard deviations
EXPANSIONS = 3  # of generalized linear models
MIN_STRENGTH = 1e-8  # variance of a coefficient as a share of the parameters'
TASKS_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class Regression:
    """Regression of parameters on attributes."""

    center: Float[np.ndarray, " a"]  # mean attributes
    coefficients: Float[np.ndarray, "a d"]  # B
    mean: Float[np.ndarray, " d"]  # of the parameters of the average task
    cov: Float[np.ndarray, "d d"]  # of the residuals
    errors: Float[np.ndarray, "a d"]  # standard errors of the coefficients
    scale: Float[np.ndarray, " a"]  # standard deviations of attributes; 1 where they are constant

    @staticmethod
    def none(attributes: Float[np.ndarray, "n a"], residual: GaussianMixture) -> "Regression":
        """Coefficients of zero."""
        zeros = np.zeros((attributes.shape[1], residual.dim))
        center, scale = np.nanmean(attributes, axis=0), spread_of(attributes)
        mean, cov = (np.asarray(part) for part in residual.moments())
        return Regression(center, zeros, mean, cov, zeros, scale)

    def standardized(self, attributes: Float[np.ndarray, "n a"]) -> Float[np.ndarray, "n a"]:
        """Attributes in standard deviations from their center, zero where they are not known."""
        return np.where(np.isnan(attributes), 0.0, (attributes - self.center) / self.scale)

    def offsets(self, attributes: Float[np.ndarray, "n a"]) -> Float[np.ndarray, "n d"]:
        """B'(z - center) of tasks; an attribute that is NaN is taken to be the average."""
        return np.asarray(self.standardized(attributes) * self.scale @ self.coefficients)

    @property
    def residual(self) -> GaussianMixture:
        """The Gaussian of the average task."""
        return GaussianMixture.single(self.mean, self.cov)


def checked_attributes(attributes: ArrayLike, num_tasks: int) -> Float[np.ndarray, "n a"]:
    """Attributes as numbers, one row for each task."""
    fix = "one row of numbers for each task; encode categories as indicators"
    return np.asarray(real_numbers("attributes", attributes, (num_tasks, "a"), fix), np.float64)


def offsets_of(regression: Regression | None, logs: AnyLogs) -> Float[np.ndarray, "t d"] | None:
    """B'(z - center) of the tasks of logs; None without a regression."""
    if regression is None:
        return None
    assert isinstance(logs, Logs)
    assert logs.attributes is not None
    return regression.offsets(logs.attributes)


def regress_logs(
    logs: Logs,
    blocks: Sequence[RowTasks],
    gaussian: GaussianMixture,
    used: Bool[np.ndarray, " a"] | None = None,
    mixture: GaussianMixture | None = None,
    start: Regression | None = None,
) -> Regression:
    """From logs that carry attributes, and the evidence of their tasks.

    Attributes that are not `used` get coefficients of zero; `mixture` and `start` are as of
    `regress_tasks`.
    """
    assert logs.attributes is not None
    z, columns = logs.attributes[block_order(logs)], attribute_columns(logs)
    if used is None or used.all():
        return regress_tasks(blocks, z, gaussian, columns, mixture, start)
    found = regress_tasks(
        blocks, z[:, used], gaussian, np.unique(columns[used], return_inverse=True)[1]
    )
    every = np.zeros((len(used), gaussian.dim)), np.zeros((len(used), gaussian.dim))
    center = np.nanmean(z, axis=0)
    every[0][used], every[1][used] = found.coefficients, found.errors
    return Regression(center, every[0], found.mean, found.cov, every[1], spread_of(z))


def attribute_columns(logs: Logs) -> Int[np.ndarray, " a"]:
    """Number of the raw column of each attribute; of arrays, numbers are one and indicators one."""
    assert logs.attributes is not None
    if logs.attribute_encoder is not None:
        return np.unique(logs.attribute_encoder.raw_columns, return_inverse=True)[1]
    kinds = [len(np.unique(column[~np.isnan(column)])) > 2 for column in logs.attributes.T]
    return np.unique(kinds, return_inverse=True)[1]


def regress_samples(
    samples: Float[np.ndarray, "n d"],
    attributes: Float[np.ndarray, "n a"],
    seed: int | None = None,
) -> Regression:
    """From parameters that are known.

    With a `seed`, residuals may be other than Gaussian: coefficients are then estimated again under
    the mixture that is found for residuals, which knows narrow shapes.
    """
    cov = np.atleast_2d(np.cov(samples.T, ddof=0))
    gaussian = GaussianMixture.single(samples.mean(axis=0), cov)
    found = _regress(None, samples, attributes, gaussian, None, gaussian)
    if seed is None:
        return found
    rest = samples - found.offsets(attributes)
    offset, scale = whitening(rest)
    search = search_samples(whitened(rest, offset, scale), seed=seed)
    if not search.pays:
        return found
    mixture = search.mixture.transform(offset, scale)
    some = slice(SearchConfig.max_tasks)
    return _regress(None, samples[some], attributes[some], mixture, None, gaussian, found)


def regress_tasks(
    blocks: Sequence[AbstractTasks],
    attributes: Float[np.ndarray, "n a"],
    gaussian: GaussianMixture,
    columns: Int[np.ndarray, " a"] | None = None,
    mixture: GaussianMixture | None = None,
    start: Regression | None = None,
) -> Regression:
    """From evidence about the parameters of each task, in the order of the blocks.

    A `gaussian` is the prior without attributes; a `mixture` that of the residuals that `start`
    leaves, by default a Gaussian, estimated too.
    """
    tasks = [block for block in blocks if isinstance(block, RowTasks)]
    found, residual = start, gaussian if mixture is None else mixture
    offsets = np.zeros((len(attributes), gaussian.dim))
    for _ in range(1 if tasks[0].exact or mixture is not None else EXPANSIONS):
        offsets = offsets if found is None else found.offsets(attributes)
        near = [block.expanded(residual) for block in shifted(tasks, offsets)]
        precision = np.concatenate([np.moveaxis(symmetric(b.precision), -1, 0) for b in near])
        shift = np.concatenate([b.shift.T for b in near])
        shift = shift + np.einsum("nij,nj->ni", precision, offsets)
        found = _regress(precision, shift, attributes, residual, columns, gaussian, start)
        residual = found.residual
    assert found is not None
    return found


def _regress(
    precision: Float[np.ndarray, "n d d"] | None,
    shift: Float[np.ndarray, "n d"],
    attributes: Float[np.ndarray, "n a"],
    residual: GaussianMixture,
    columns: Int[np.ndarray, " a"] | None,
    gaussian: GaussianMixture,
    start: Regression | None = None,
) -> Regression:
    """Generalized least squares of coefficients, and EM of the residuals' covariance, in turn.

    Without a `precision`, `shift` has the parameters themselves. The prior of a coefficient vector
    is N(0, strength cov), with the covariance of a `gaussian` without attributes and a strength for
    each raw column by MacKay's fixed point. A mixture of residuals stays as it is: with the
    probability of each component given each task, this is EM of the coefficients.
    """
    center = np.nanmean(attributes, axis=0)
    known = np.where(np.isnan(attributes), center, attributes)
    z, scale = _scaled(known - center)
    (n, d), num_attributes = shift.shape, z.shape[1]
    design = np.concatenate([np.ones((n, 1)), z], axis=1)
    group = np.zeros(num_attributes, int) if columns is None else columns
    size = np.bincount(group) * d
    penalty = np.linalg.inv(gaussian.covs[0])
    strength = np.full(len(size), 1.0 / num_attributes)
    mean, cov = residual.moments()
    mixed, about_mean = residual.num_components > 1, residual.transform(-mean, np.eye(d))
    before = np.zeros((num_attributes, d)) if start is None else start.coefficients * scale[:, None]
    beta = np.concatenate([mean[None], before])
    places = np.arange(1, num_attributes + 1)
    for _ in range(MIXED_STEPS if mixed else MAX_STEPS):
        residual = about_mean if mixed else GaussianMixture.single(np.zeros(d), cov)
        weight, score = _marginal(precision, shift, design @ beta, residual)
        information, right = _normal_equations(design, weight, score)
        information[places, :, places] += penalty / strength[group][:, None, None]
        flat = information.reshape(right.size, right.size)
        inverse = np.linalg.inv(flat)
        new = (inverse @ right.ravel()).reshape(right.shape)
        blocks = inverse.reshape(information.shape)[places, :, places]
        doubt = np.bincount(group, np.einsum("ipq,pq->i", blocks, penalty))
        used = np.maximum(size - doubt / strength, 1e-6)
        square = np.bincount(group, np.einsum("ip,pq,iq->i", new[1:], penalty, new[1:]))
        strength = np.clip(square / used, MIN_STRENGTH, 1e3)
        unit = np.linalg.solve(np.linalg.cholesky(cov), (design @ (new - beta)).T)
        if not mixed:
            left = score - np.einsum("nij,nj->ni", weight, design @ new)
            spread = left.T @ left / max(n - 1.0 - used.sum() / d, 1.0)
            cov = cov + cov @ (spread - weight.mean(axis=0)) @ cov
            cov = 0.5 * (cov + cov.T)
        beta = new
        if np.sqrt(np.mean(unit**2)) < TOLERANCE:
            break
    errors = np.sqrt(np.diagonal(blocks, axis1=1, axis2=2)) / scale[:, None]
    coefficients = beta[1:] / scale[:, None]
    return Regression(center, coefficients, beta[0], cov, errors, spread_of(attributes))


def _marginal(
    precision: Float[np.ndarray, "n d d"] | None,
    shift: Float[np.ndarray, "n d"],
    means: Float[np.ndarray, "n d"],
    residual: GaussianMixture,
) -> tuple[Float[np.ndarray, "n d d"], Float[np.ndarray, "n d"]]:
    """Expected log likelihood of a task's mean mu, -mu' W mu / 2 + v' mu, where theta - mu has the
    distribution of residuals, and components have the probabilities that `means` give them.
    """
    centers, covs = np.asarray(residual.means), np.asarray(residual.covs)
    if precision is None:
        starts = range(0, len(shift), TASKS_AT_ONCE)
        rest, inverse = shift - means, np.linalg.inv(covs)
        parts = [residual.log_joint(rest[start : start + TASKS_AT_ONCE]) for start in starts]
        joint = np.concatenate(parts)
        shares = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
        weight = np.tensordot(shares, inverse, 1)
        score = np.einsum("nij,nj->ni", weight, shift)
        return weight, score - shares @ np.einsum("kij,kj->ki", inverse, centers)
    parts, joint = [], np.zeros((len(covs), len(shift)))
    for k, (center, cov) in enumerate(zip(centers, covs, strict=True)):
        left = np.eye(len(cov)) + precision @ cov
        found = np.linalg.solve(left, np.concatenate([precision, shift[:, :, None]], axis=2))
        weight, score = 0.5 * (found[:, :, :-1] + found[:, :, :-1].swapaxes(1, 2)), found[:, :, -1]
        moved = np.einsum("nij,nj->ni", weight, means + center)
        joint[k] = np.einsum("ni,ni->n", score - 0.5 * moved, means + center)
        joint[k] += 0.5 * np.einsum("ni,ij,nj->n", shift, cov, score)
        joint[k] += residual.log_weights[k] - 0.5 * np.linalg.slogdet(left)[1]
        parts.append((weight, score - weight @ center))
    shares = np.exp(joint - np.logaddexp.reduce(joint, axis=0))
    weights, scores = zip(*parts, strict=True)
    return np.einsum("kn,knij->nij", shares, weights), np.einsum("kn,kni->ni", shares, scores)


def _normal_equations(
    design: Float[np.ndarray, "n a"],
    weight: Float[np.ndarray, "n d d"],
    score: Float[np.ndarray, "n d"],
) -> tuple[Float[np.ndarray, "a d a d"], Float[np.ndarray, "a d"]]:
    """The information about coefficients (attribute by parameter), and its right side."""
    a, d = design.shape[1], score.shape[1]
    rows, columns = np.triu_indices(a)
    total = np.zeros((len(rows), d * d))
    for start in range(0, len(design), TASKS_AT_ONCE):
        own = slice(start, start + TASKS_AT_ONCE)
        products = design[own][:, rows] * design[own][:, columns]
        total += products.T @ weight[own].reshape(-1, d * d)
    information = np.empty((a, d, a, d))
    information[rows, :, columns] = total.reshape(-1, d, d)
    information[columns, :, rows] = total.reshape(-1, d, d)
    return information, design.T @ score


def spread_of(attributes: Float[np.ndarray, "n a"]) -> Float[np.ndarray, " a"]:
    """Standard deviations of attributes where they are known; 1 where they are constant."""
    stds = np.nanstd(attributes, axis=0)
    return np.where(stds > 0, stds, 1.0)


def _scaled(
    z: Float[np.ndarray, "n a"],
) -> tuple[Float[np.ndarray, "n a"], Float[np.ndarray, " a"]]:
    """Numbers in standard deviations; indicators and constants as they are."""
    is_number = np.array([len(np.unique(column)) > 2 for column in z.T])
    scale = np.where(is_number, z.std(axis=0), 1.0)
    return z / scale, scale
