"""Log evidence of tasks against SciPy, a grid and quadrature; paired comparisons."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

import diffprior as dp
from diffprior.denoisers.network import CorrectedDenoiser
from diffprior.evaluate import (
    cold_start,
    compare,
    estimate_log_evidence,
    first_rewards,
    log_evidence,
    simulate_tasks,
)
from diffprior.evaluate.comparison import log_mean, mixture_log_evidence, mixture_of
from diffprior.evaluate.tasks import evidence_batches
from diffprior.mixture import GaussianMixture
from foreign import TwelveLines

PRIOR = dp.MixturePrior([0.3, 0.7], [[-2.0], [3.0]], [[[1.0]], [[4.0]]])
GAUSSIAN = dp.GaussianPrior([1.5], [[8.4]])
LINEAR = dp.Linear(0.5)


def tasks_of(likelihood: dp.AbstractLikelihood, num_tasks: int = 12, seed: int = 0) -> dp.Logs:
    rows = np.arange(num_tasks) % 6
    return simulate_tasks(PRIOR, likelihood, num_tasks=num_tasks, num_observations=rows, seed=seed)


def by_quadrature(tasks: dp.Logs, log_density: object) -> np.ndarray:
    """log of the integral of p(theta) p(h | theta), one task at a time."""
    weights, means, covs = (np.asarray(a) for a in (PRIOR.weights, PRIOR.means, PRIOR.covs))

    def one(i: int) -> float:
        rows = slice(tasks.starts[i], tasks.starts[i + 1])
        phi, y = tasks.features[rows, 0], tasks.rewards[rows]

        def integrand(theta: float) -> float:
            prior = weights @ stats.norm.pdf(theta, means[:, 0], np.sqrt(covs[:, 0, 0]))
            return float(prior * np.exp(np.sum(log_density(y, phi * theta))))  # type: ignore

        return float(np.log(integrate.quad(integrand, -15, 18, limit=200, points=[-2, 3])[0]))

    return np.array([one(i) for i in range(tasks.num_tasks)])


def logistic(y: np.ndarray, eta: np.ndarray) -> np.ndarray:
    return stats.bernoulli.logpmf(y, special.expit(eta))


def gaussian(y: np.ndarray, eta: np.ndarray) -> np.ndarray:
    return stats.norm.logpdf(y, eta, 0.5)


def test_linear_closed_forms_are_exact() -> None:
    tasks = tasks_of(LINEAR)
    found = estimate_log_evidence(PRIOR, tasks, LINEAR)
    np.testing.assert_allclose(found.values, by_quadrature(tasks, gaussian), atol=1e-6)
    assert found.estimation_error == 0 and found.shortfall == 0
    assert log_evidence(PRIOR, tasks, LINEAR).shape == (12,)


def test_logistic_mixtures_are_unbiased_where_laplace_is_not() -> None:
    tasks = tasks_of(dp.Logistic())
    found, exact = (
        estimate_log_evidence(PRIOR, tasks, dp.Logistic()),
        by_quadrature(tasks, logistic),
    )
    error = np.sqrt(found.variances) + 1e-9
    assert np.all(np.abs(found.values - exact) < 5 * error) and np.all(error < 0.1)
    ((_, stacked, _),) = evidence_batches(tasks, dp.Logistic(), 12)
    laplace = np.asarray(jax.vmap(lambda e: PRIOR.posterior(e)[1])(stacked))
    assert np.mean(np.abs(laplace - exact)) > 2 * np.mean(np.abs(found.values - exact))


def test_the_order_of_tasks_does_not_matter() -> None:
    tasks, mixture = tasks_of(dp.Logistic()), mixture_of(GAUSSIAN)
    offsets, back = np.linspace(-3, 3, 12)[:, None], np.arange(12)[::-1]
    for likelihood in (dp.Logistic(), LINEAR):
        found = mixture_log_evidence(mixture, tasks, likelihood, offsets)
        other = mixture_log_evidence(mixture, tasks.select(back), likelihood, offsets[back])
        np.testing.assert_allclose(other.values, found.values[back], rtol=1e-9)


def test_priors_without_a_closed_form_are_estimated() -> None:
    """TwistedSMC with the exact denoiser, against the closed form."""
    tasks = tasks_of(LINEAR)
    learned = dp.DiffusionPrior.from_prior(PRIOR)
    found = estimate_log_evidence(learned, tasks, LINEAR, num_estimates=16)
    exact = log_evidence(PRIOR, tasks, LINEAR)
    assert abs(found.mean - exact.mean()) < 5 * found.estimation_error + 0.02
    assert 0 < found.estimation_error < 0.1 and "of estimating" in str(found)


@pytest.mark.parametrize("likelihood", [LINEAR, dp.Logistic()])
def test_a_learned_prior_that_no_network_corrects_is_its_mixture(
    likelihood: dp.AbstractLikelihood,
) -> None:
    """In units of its own, of which it has twice as many: z = (theta - 1) / 2."""
    unit = ([[-1.5], [1.0]], np.ones((2, 1, 1)), [[0.25], [1.0]])
    base = GaussianMixture(*map(jnp.asarray, (np.log([0.3, 0.7]), *unit)))
    learned = dataclasses.replace(
        dp.DiffusionPrior.from_prior(PRIOR),
        offset=jnp.ones(1),
        scale=2.0 * jnp.eye(1),
        denoiser=CorrectedDenoiser(base, None, None, 1),
    )
    tasks = tasks_of(likelihood)
    found, exact = (estimate_log_evidence(prior, tasks, likelihood) for prior in (learned, PRIOR))
    np.testing.assert_allclose(found.values, exact.values, atol=1e-5)
    np.testing.assert_allclose(found.variances, exact.variances, atol=1e-5)


def test_a_row_of_weight_two_is_two_rows() -> None:
    rows = ([0, 0, 1], [[1.0], [0.5], [-1.0]], [1.0, 0.0, 2.0])
    twice = dp.Logs(*([v for x in part for v in (x, x)] for part in rows))
    weighted = dp.Logs(*rows, weights=[2.0, 2.0, 2.0])
    for likelihood in (dp.Linear(1.0), dp.Poisson()):
        found = [log_evidence(GAUSSIAN, logs, likelihood) for logs in (weighted, twice)]
        np.testing.assert_allclose(*found, atol=0.02)


def test_log_mean_is_that_of_the_estimates() -> None:
    estimates = np.array([[0.5, 1.5, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0]])
    found = log_mean(np.log(estimates) - 900.0)  # far below what exp can hold
    np.testing.assert_allclose(found.values, np.log([1.5, 2.0]) - 900.0)
    relative = np.var(estimates[0] / 1.5, ddof=1) / 4
    np.testing.assert_allclose(found.variances, [relative, 0.0], atol=1e-12)
    assert found.estimation_error == pytest.approx(np.sqrt(relative) / 2)
    assert found.shortfall == pytest.approx(relative / 4)


def test_log_mean_counts_failures_as_zero_probability() -> None:
    logs = np.log([[1.0, 3.0], [2.0, 2.0], [4.0, 1.0], [1.0, 1.0]])
    logs[2, 1], logs[3] = np.nan, np.nan
    found = log_mean(logs)
    np.testing.assert_allclose(found.values[:3], np.log([2.0, 2.0, 2.0]))
    assert found.values[3] == -np.inf and found.failed == 3
    np.testing.assert_allclose(found.variances[:2], [0.25, 0.0])  # var(1/2, 3/2) / 2


def test_differences_are_paired() -> None:
    """By hand; the standard error is far below that of either mean."""
    tasks = tasks_of(LINEAR, num_tasks=120)
    table = compare({"Gaussian": GAUSSIAN, "mixture": PRIOR}, tasks, LINEAR)
    own, other = log_evidence(PRIOR, tasks, LINEAR), log_evidence(GAUSSIAN, tasks, LINEAR)
    mean, error = table.difference("mixture")
    assert mean == pytest.approx(np.mean(own - other))
    assert error == pytest.approx(stats.sem(own - other))
    assert error < 0.5 * table.log_evidence["mixture"].standard_error
    assert table.difference("Gaussian", "mixture") == (-mean, pytest.approx(error))
    assert mean > 0 and table.best == "mixture" and table.baseline == "Gaussian"
    assert "over Gaussian" in str(table) and table.to_dict()["num_tasks"] == 120


def test_the_cold_start_has_the_scale_of_the_tasks_and_comes_first() -> None:
    """Of many long tasks its variance is the second moment, in their units."""
    truth = dp.GaussianPrior([3.0, -1.0], np.diag([1.0, 0.5]))
    tasks = simulate_tasks(truth, dp.Linear(0.1), num_tasks=200, num_observations=40)
    scale = float(cold_start(tasks, dp.Linear(0.1)).cov[0, 0])
    expected = np.mean(tasks.parameters**2)
    assert scale == pytest.approx(expected, rel=0.1)
    units = dp.Logs(tasks.row_tasks, tasks.features, 1e3 * tasks.rewards)
    assert float(cold_start(units, dp.Linear(100.0)).cov[1, 1]) == pytest.approx(
        1e6 * scale, rel=0.05
    )
    table = compare({"truth": truth}, tasks, dp.Linear(0.1))
    assert table.names == ("cold start", "truth") and table.baseline == "truth"
    numbers: dict = table.to_dict()["priors"]["truth"]  # type: ignore[index]
    gain, error = table.difference("truth", "cold start")
    assert gain == numbers["over_cold_start"] > 5 * error
    assert f"{gain:+.2f} ± {error:.2f}" in str(table)
    assert str(table).index("over cold start") < str(table).index("reward of first choices")


def test_first_choices_earn_the_rewards_that_were_logged() -> None:
    """By hand for a point mass; rows that are equally good count equally; attributes move it."""
    logs = dp.Logs([0, 0, 0, 1, 1], [[1.0], [2.0], [2.0], [-1.0], [1.0]], [5.0, 1, 2, 3, 7])
    point = dp.GaussianPrior([1.0], [[1e-12]])
    np.testing.assert_allclose(first_rewards(point, logs, dp.Linear(1.0)), [1.5, 7.0])
    mirrored = dp.GaussianPrior([-1.0], [[1e-12]])
    np.testing.assert_allclose(first_rewards(mirrored, logs, dp.Linear(1.0)), [5.0, 3.0])
    given = dp.Logs(
        [0, 0, 1, 1], [[1.0], [2.0], [-1.0], [1.0]], [5.0, 1, 3, 7], attributes=[[0.0], [-2.0]]
    )
    prior = dp.ConditionalPrior(point, np.ones((1, 1)), np.zeros(1))
    np.testing.assert_allclose(first_rewards(prior, given, dp.Linear(1.0)), [1.0, 3.0])
    tasks = simulate_tasks(PRIOR, LINEAR, num_tasks=400, num_observations=5)
    table = compare({"truth": PRIOR, "opposite": dp.GaussianPrior([-3.0], [[1.0]])}, tasks, LINEAR)
    gain, error = table.reward_difference("truth")
    assert gain > 5 * error
    loss, error = table.reward_difference("opposite")
    assert loss < -5 * error


def test_samples_add_a_gaussian_and_the_best_mixture() -> None:
    samples = np.asarray(PRIOR.sample(jax.random.key(0), 400))
    table = compare({"own": PRIOR}, tasks_of(LINEAR), LINEAR, samples=samples)
    assert table.names[:3] == ("cold start", "Gaussian", "mixture, K chosen")


def test_wrong_arguments_are_rejected() -> None:
    logs = dp.Logs([0, 0, 1], [[1.0], [0.5], [-1.0]], [1.0, 0.0, 2.0])
    with pytest.raises(
        ValueError,
        match="expected 2 parameters as in the prior, got 1; use features with 2 columns",
    ):
        log_evidence(dp.example_mixture("blobs"), logs, dp.Linear(1.0))
    with pytest.raises(ValueError, match="`baseline`"):
        compare({"a": GAUSSIAN}, logs, dp.Linear(1.0), baseline="b")
    with pytest.raises(ValueError, match="`priors`: expected priors by name, got list"):
        compare([GAUSSIAN], logs, dp.Linear(1.0))


def test_any_object_with_four_members_is_scored() -> None:
    """Against the closed form of the same Gaussian."""
    own = TwelveLines(GAUSSIAN.mean, GAUSSIAN.cov)
    tasks = simulate_tasks(own, LINEAR, num_tasks=12, num_observations=3)
    found = estimate_log_evidence(own, tasks, LINEAR, num_estimates=4)
    exact = log_evidence(GAUSSIAN, tasks, LINEAR)
    assert abs(found.mean - exact.mean()) < 5 * found.estimation_error + 0.02
    assert dp.evaluate.coverage(own, tasks, LINEAR, num_draws=19).failed == 0
