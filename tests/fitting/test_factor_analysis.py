"""Mixtures of factor analysers against their own law and against free covariances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from diffprior.fitting import em
from diffprior.fitting.components import Components, log_joint, maximize, sufficient_statistics
from diffprior.fitting.factor_analysis import with_factors

DIM, NUM_COMPONENTS = 6, 4
MAKE = np.random.default_rng(8)
MEANS = 2.0 * MAKE.standard_normal((NUM_COMPONENTS, DIM))
FACTORS = MAKE.standard_normal((NUM_COMPONENTS, DIM, 1))
NOISE = np.cov(0.3 * MAKE.standard_normal((DIM, 30)))
COVS = FACTORS @ FACTORS.transpose(0, 2, 1) + NOISE
WEIGHTS = np.full(NUM_COMPONENTS, 1 / NUM_COMPONENTS)


def draws(num: int, seed: int) -> np.ndarray:
    """Samples of flat components that share their noise."""
    rng = np.random.default_rng(seed)
    which = rng.integers(0, NUM_COMPONENTS, num)
    trils = np.linalg.cholesky(COVS)[which]
    return MEANS[which] + np.einsum("nij,nj->ni", trils, rng.standard_normal((num, DIM)))


def log_likelihood(components: Components, x: np.ndarray) -> float:
    joint = log_joint(components, sufficient_statistics(jnp.asarray(x)))
    return float(jnp.mean(jax.nn.logsumexp(joint, axis=1)))


def test_every_step_raises_the_likelihood() -> None:
    """As EM must, when nothing is pooled; an error in the noise's update lowers it."""
    x = draws(400, seed=0)
    statistics = sufficient_statistics(jnp.asarray(x))
    start = Components(
        jnp.log(WEIGHTS), jnp.asarray(MEANS + 0.5), jnp.tile(jnp.eye(DIM), (4, 1, 1))
    )
    components, noise, found = start, jnp.eye(DIM), []
    for _ in range(40):
        joint = log_joint(components, statistics)
        answered = jax.nn.softmax(joint, axis=1).T @ statistics
        free = maximize(answered, DIM, 0.0)
        components, noise = with_factors(free, answered[:, 0], noise, jnp.asarray(1))
        found.append(log_likelihood(components, x))
    assert np.min(np.diff(found)) > -1e-3  # the floor of variances, added to every step
    assert found[-1] > found[0] + 0.1


def test_the_noise_and_the_factors_are_found() -> None:
    search = em._Search.over(draws(20_000, seed=1), None, 0)
    found = search.fit(search.weights, NUM_COMPONENTS, em.Kind(2.0, 1), starts=3)
    found = Components(*(np.asarray(leaf)[:NUM_COMPONENTS] for leaf in found))
    order = [int(np.argmin(np.sum((found.means - mean) ** 2, axis=1))) for mean in MEANS]
    assert sorted(order) == list(range(NUM_COMPONENTS))
    sizes = np.einsum("kii,kjj->kij", COVS, COVS) + COVS**2
    errors = np.sqrt(sizes / (20_000 / NUM_COMPONENTS))  # standard errors of a free covariance
    assert np.max(np.abs(found.covs[order] - COVS) / errors) < 4


def test_covariances_differ_in_as_many_directions_as_factors() -> None:
    search = em._Search.over(draws(2000, seed=2), None, 0)
    covs = np.asarray(search.fit(search.weights, 3, em.Kind(2.0, 2), starts=1).covs[:3])
    for gap in (covs[0] - covs[1], covs[1] - covs[2]):
        sizes = np.sort(np.abs(np.linalg.eigvalsh(gap)))
        assert np.all(sizes[:2] < 1e-6 * sizes[-1])  # at most two factors each, so four of six


@pytest.mark.parametrize("seed", range(3))
def test_few_samples_leave_more_to_new_ones_than_free_covariances(seed: int) -> None:
    x, fresh = draws(150, seed), draws(4000, 100 + seed)
    search = em._Search.over(x, None, seed)
    kinds = em.Kind(2.0, 1), em.Kind(float(DIM))
    fits = [search.fit(search.weights, NUM_COMPONENTS, kind, starts=3) for kind in kinds]
    ours, free = (log_likelihood(fitted, fresh) for fitted in fits)
    exact = np.mean(reference.mixture_log_density(fresh, WEIGHTS, MEANS, COVS))
    assert free < ours < exact


def sheet(num: int, seed: int) -> np.ndarray:
    """A curved surface in eight dimensions, with a little noise, in units of its spread."""
    rng = np.random.default_rng(5)
    first, second = rng.standard_normal((2, 16)), rng.standard_normal((16, 8)) / 4

    def surface(num: int, rng: np.random.Generator) -> np.ndarray:
        x = np.tanh(rng.standard_normal((num, 2)) @ first) @ second
        return x + 0.02 * rng.standard_normal(x.shape)

    return surface(num, np.random.default_rng([5, seed])) / surface(20_000, rng).std(axis=0)


def test_a_sheet_is_given_flat_components() -> None:
    found = em.choose_components(sheet(3000, seed=0), largest=64)
    assert found.kind.rank is not None and found.num_components >= em.MANY_COMPONENTS
    assert found.score > found.scores["64"] + 0.03


def test_the_mean_of_two_runs_is_that_of_their_densities() -> None:
    search, points = em._Search.over(draws(300, seed=3), None, 0), draws(50, seed=4)
    num, kind = 3 * NUM_COMPONENTS, em.Kind(0.5, 1, runs=2)

    def density(components: Components) -> np.ndarray:
        log_weights, means, covs = map(np.asarray, components)
        return np.exp(reference.mixture_log_density(points, np.exp(log_weights), means, covs))

    keys = jax.random.split(jax.random.key(0), (2, 3))
    runs = [density(search._run(search.weights, num, kind, of_run)) for of_run in keys]
    found = search.final(num, kind)
    assert len(found.means) == 2 * num
    np.testing.assert_allclose(density(found), np.mean(runs, axis=0), rtol=1e-6)
    assert np.max(np.abs(np.log(runs[0] / runs[1]))) > 0.1  # each from starts of its own


def test_a_large_sheet_is_given_the_mean_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """New samples are likelier under it than under either run, or one with more in common."""
    monkeypatch.setattr(em, "TWO_FROM", em.MANY_COMPONENTS)
    x, fresh = sheet(3000, seed=1), sheet(4000, seed=2)
    found = em.choose_components(x, largest=64)
    k, kind = found.num_components, found.kind
    assert kind.runs == em.RUNS and len(found.components.means) == em.RUNS * k
    assert found.score == max(found.scores.values())
    for pooling in (em.RUNS_POOLING, em.FACTORS_POOLING):
        alone = em.fit_kind(x, None, k, em.Kind(pooling, kind.rank))
        assert log_likelihood(found.components, fresh) > log_likelihood(alone, fresh) + 0.05
    again = em.fit_kind(x, None, k, kind)
    np.testing.assert_allclose(again.means, found.components.means, atol=1e-6)
