"""The exact sampler: draws follow the posterior, and failures are never silent."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import special, stats

import diffprior as dp
import reference
from cases import (
    ATOMS,
    COVS,
    DIM,
    LINEAR,
    LOGISTIC,
    MEANS,
    PRIORS,
    WEIGHTS,
    LikelihoodCase,
    PriorCase,
    case_name,
    problem,
    representable,
    tolerance,
    unusable_evidence,
)
from chains import assert_near
from diffprior.mixture import GaussianMixture
from statistic import assert_distribution, assert_mean, assert_moments

N = 20_000
KEY = jax.random.key(11)


def draw(
    prior: dp.AbstractPrior, case: LikelihoodCase, num_rows: int
) -> tuple[np.ndarray, dp.Info]:
    evidence = problem(num_rows, DIM, num_rows, case).evidence(case.make())
    return dp.Exact(prior).sample_many(KEY, evidence, N)


@pytest.mark.parametrize("case", PRIORS, ids=case_name)
@pytest.mark.parametrize("num_rows", [0, 2, 6])
def test_linear_draws_have_the_exact_moments(case: PriorCase, num_rows: int) -> None:
    p = problem(num_rows, DIM, num_rows)
    draws, _ = draw(case.make(), LINEAR, num_rows)
    evidence = reference.linear_evidence(p.features, p.rewards, np.sqrt(LINEAR.dispersion))
    assert_moments(draws, *case.denoise(*evidence))


WIDE = ([0.7, 0.3], [[-2.0, 0.0], [3.0, 1.0]], [2.0 * np.eye(2), 4.0 * np.eye(2)])


def test_generalized_linear_draws_have_the_moments_of_a_grid() -> None:
    """A wide prior, whose posterior is skew: Laplace is off by a fifth of a standard
    deviation. The estimates of p(h) are unbiased."""
    case, (weights, means, covs) = LOGISTIC, (np.array(a) for a in WIDE)
    p = problem(3, 2, 6, case)

    def log_density(points: np.ndarray) -> np.ndarray:
        eta = points @ p.features.T
        rows = reference.family_log_density(p.rewards, eta, case.family, case.dispersion)
        return rows.sum(axis=1) + reference.mixture_log_density(points, weights, means, covs)

    mean, cov, log_evidence = reference.grid_moments_2d(log_density, -16.0, 16.0, 500)
    sampler = dp.Exact(dp.MixturePrior(weights, means, covs))
    draws, info = sampler.sample_many(KEY, p.evidence(case.make()), 8192)
    assert_near(np.exp(np.asarray(info.log_evidence) - log_evidence), 1.0, allowance=1e-6)
    centered = (np.asarray(draws) - mean) / np.sqrt(np.diagonal(cov))
    assert_near(centered, 0.0, allowance=0.02)
    assert_near(centered**2, 1.0, allowance=0.03)
    assert np.median(info.effective_sample_size) > 16


@pytest.mark.parametrize("num_rows", [0, 2, 6])
def test_mixture_draws_follow_the_exact_distribution(num_rows: int) -> None:
    """Along several directions, where the distribution of a mixture is known."""
    p = problem(num_rows, DIM, num_rows)
    draws, info = draw(dp.MixturePrior(WEIGHTS, MEANS, COVS), LINEAR, num_rows)
    weights, means, covs, log_evidence = reference.mixture_posterior(
        WEIGHTS, MEANS, COVS, p.features, p.rewards, np.sqrt(LINEAR.dispersion)
    )
    for direction in (*np.eye(DIM), np.ones(DIM), np.array([1.0, -2.0, 0.5])):
        stds = np.sqrt(np.einsum("i,kij,j->k", direction, covs, direction))
        standardized = (np.asarray(draws) @ direction)[:, None] - means @ direction
        assert_distribution(stats.norm.cdf(standardized / stds) @ weights)
    assert_allclose(info.log_evidence, log_evidence, rtol=1e-10, atol=1e-12)


def many_parameters(dim: int, thinnest: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, one of them zero, means and covariances of widths that differ."""
    rng = np.random.default_rng(dim)
    k = 7
    means, roots = rng.standard_normal((k, dim)), rng.standard_normal((k, dim, dim))
    widths = np.geomspace(thinnest, 1.0, k)[:, None, None]
    covs = widths * (roots @ roots.swapaxes(1, 2) / dim + 0.2 * np.eye(dim))
    return np.array([3.0, 0.0, 1.0, 1.0, 2.0, 1.0, 1.0]) / 9.0, means, covs


@eqx.filter_jit
def from_the_posterior(
    prior: dp.MixturePrior, evidence: dp.AbstractEvidence, keys: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One draw by each key, all components conditioned, and the log evidence."""
    posterior, total = prior.posterior(evidence)
    return jnp.concatenate([posterior.sample(key, 1) for key in keys]), total


@eqx.filter_jit
def component_weights(prior: dp.MixturePrior, evidence: dp.AbstractEvidence) -> jax.Array:
    """Those of the components under the evidence."""
    return prior.weigh(evidence)[0]


def rows_of(dim: int, num_rows: int, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features of which the last never varies, and rewards."""
    rng = np.random.default_rng(num_rows)
    features = rng.standard_normal((num_rows, dim)) * (np.arange(dim) < dim - 1)
    return features, features @ theta + 0.5 * rng.standard_normal(num_rows)


@pytest.mark.parametrize("num_rows", [0, 1, 9, 10_000])
def test_draws_are_those_of_the_posterior_of_all_components(num_rows: int) -> None:
    """Of many parameters only the component drawn is conditioned: same numbers, same draw, for one
    history and for one of each draw's own."""
    dim = 9
    weights, means, covs = many_parameters(dim, 0.01)
    prior, likelihood = dp.MixturePrior(weights, means, covs), dp.Linear(0.5)
    rows = [rows_of(dim, num_rows, theta) for theta in means[:3]]
    histories = [likelihood.observe(*each) for each in rows]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *histories)
    keys = jax.random.split(KEY, 12).reshape(3, 4)
    draw = jax.vmap(lambda key, evidence: dp.Exact(prior).draw(key, evidence), in_axes=(0, None))
    thetas, info = eqx.filter_jit(jax.vmap(draw))(keys, stacked)
    for own, draws, log_evidence, of_task, evidence in zip(
        rows, thetas, info.log_evidence, keys, histories, strict=True
    ):
        expected, total = from_the_posterior(prior, evidence, of_task)
        assert_allclose(draws, expected, rtol=1e-9, atol=1e-9)
        assert_allclose(log_evidence, np.full(4, total), rtol=1e-9, atol=1e-9)
        if num_rows <= dim:
            twins = reference.mixture_posterior(weights, means, covs, *own, 0.5)
            assert_allclose(component_weights(prior, evidence), twins[0], rtol=1e-7, atol=1e-12)
            assert_allclose(log_evidence, np.full(4, twins[3]), rtol=1e-9, atol=1e-9)


def few_factors(dim: int) -> GaussianMixture:
    """Twice three components of two factors each, beside noise that three share."""
    rng = np.random.default_rng(dim)
    roots, loadings = rng.standard_normal((2, dim, dim)), 0.5 * rng.standard_normal((6, dim, 2))
    noise = 0.05 * (roots @ roots.swapaxes(1, 2) / dim + 0.2 * np.eye(dim))
    covs = np.repeat(noise, 3, axis=0) + loadings @ loadings.swapaxes(1, 2)
    weights = np.array([3.0, 0.0, 1.0, 1.0, 2.0, 1.0]) / 8.0
    mixture = GaussianMixture.from_covs(weights, rng.standard_normal((6, dim)), covs)
    return mixture.with_factors(noise, loadings)


@pytest.mark.float32
@pytest.mark.parametrize("num_rows", [0, 1, 5, 1000])
def test_components_of_few_factors_are_weighed_as_by_their_covariances(num_rows: int) -> None:
    dim, rng = 9, np.random.default_rng(1)
    mixture, scale = few_factors(dim), np.tril(rng.standard_normal((dim, dim))) / 3 + np.eye(dim)
    parts = (rng.standard_normal(dim), scale)
    prior, whole = (dp.MixturePrior.from_mixture(one, *parts)
                    for one in (mixture, mixture.without_factors()))  # fmt: skip
    assert prior.loadings.shape == (6, dim, 2) and whole.loadings is None
    for own in (prior, whole):
        assert_allclose(own.covs, whole.covs)
    evidence = dp.Linear(0.5).observe(*rows_of(dim, num_rows, np.asarray(whole.means[2])))
    found, expected = (component_weights(one, evidence) for one in (prior, whole))
    assert_allclose(found, expected, atol=tolerance(1e-9, 1e-2))
    draws = [dp.Exact(one).sample(KEY, evidence) for one in (prior, whole)]
    assert_allclose(*draws, atol=tolerance(1e-7, 1e-2))
    again = dp.MixturePrior.from_bytes(prior.to_bytes())
    assert_allclose(again.loadings, prior.loadings, rtol=1e-6)


@pytest.mark.float32
@pytest.mark.parametrize("num_rows", [0, 3, 100, 10_000])
def test_weights_of_components_survive_single_precision(num_rows: int) -> None:
    """Thin components and long histories, whose log likelihoods are a million times what tells
    components apart."""
    dim, noise_std = 12, 0.05
    weights, means, covs = many_parameters(dim, 1e-4)
    means = representable(np.linspace(0.9, 1.1, len(means))[:, None] * means[:1])
    covs, weights = representable(covs), representable(np.full(len(means), 1 / len(means)))
    features, rewards = rows_of(dim, num_rows, means[2])
    evidence = dp.Linear(noise_std).observe(features, rewards)
    precision = np.asarray(evidence.precision, np.float64)
    shift = np.asarray(evidence.shift, np.float64)
    logs = []
    for weight, mean, cov in zip(weights, means, covs, strict=True):
        own, gradient = np.linalg.inv(cov), shift - precision @ mean
        gain = gradient @ np.linalg.solve(own + precision, gradient) / 2
        log_det = np.linalg.slogdet(np.eye(dim) + cov @ precision)[1]
        logs.append(np.log(weight) + mean @ (shift + gradient) / 2 + gain - log_det / 2)
    found = np.asarray(component_weights(dp.MixturePrior(weights, means, covs), evidence))
    assert np.sum(special.softmax(logs) > 0.05) >= 2 or num_rows > 3  # so that it says something
    assert_allclose(found, special.softmax(logs), atol=tolerance(1e-7, 3e-3))


def test_empirical_draws_are_atoms_as_often_as_they_should() -> None:
    p = problem(2, DIM, 2, LOGISTIC)
    draws, _ = draw(dp.EmpiricalPrior(ATOMS), LOGISTIC, 2)
    rows = (p.features, p.rewards, "logistic")
    likelihood = np.exp([reference.log_likelihood(atom, *rows) for atom in ATOMS])
    hits = np.all(np.asarray(draws)[:, None] == ATOMS, axis=2)
    assert np.all(hits.sum(axis=1) == 1)
    assert_mean(hits, likelihood / likelihood.sum())


def test_draws_are_independent() -> None:
    draws, _ = draw(PRIORS[0].make(), LINEAR, 6)
    centered = np.asarray(draws) - np.asarray(draws).mean(axis=0)
    assert_mean(np.einsum("ni,nj->nij", centered[1:], centered[:-1]), np.zeros((DIM, DIM)))


@pytest.mark.parametrize("temperature", [0.25, 4.0])
def test_temperature_scales_the_evidence(temperature: float) -> None:
    p, case = problem(6, DIM, 6), PRIORS[0]
    sampler = dp.Exact(case.make(), temperature=temperature)
    draws, _ = sampler.sample_many(KEY, p.evidence(LINEAR.make()), N)
    noise_std = np.sqrt(LINEAR.dispersion * temperature)
    assert_moments(
        draws, *case.denoise(*reference.linear_evidence(p.features, p.rewards, noise_std))
    )


def failing_draws() -> list[tuple[dp.AbstractPrior, dp.AbstractEvidence]]:
    huge = unusable_evidence(DIM)
    far = dp.EmpiricalPrior(np.full((2, DIM), 1e200))
    return [
        (PRIORS[0].make(), huge),
        (PRIORS[1].make(), huge),
        (far, dp.Linear(1.0).observe(np.eye(DIM), np.ones(DIM))),
    ]


@pytest.mark.parametrize("index", range(3), ids=["gaussian", "mixture", "empirical"])
def test_a_failed_draw_raises_or_says_so(index: int) -> None:
    prior, evidence = failing_draws()[index]
    sampler = dp.Exact(prior)
    message = r"`Exact`: a draw is not finite .* Likely causes: .* throw=False"
    with pytest.raises(eqx.EquinoxRuntimeError, match=message):
        sampler.sample(KEY, evidence)
    with pytest.raises(eqx.EquinoxRuntimeError, match=message):
        sampler.sample_many(KEY, evidence, 3)
    assert np.all(np.isnan(sampler.sample(KEY, evidence, throw=False)))
    assert np.all(sampler.sample_many(KEY, evidence, 3, throw=False)[1].failed)
