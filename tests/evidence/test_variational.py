"""The variational Gaussian: where it stands still, and what its bound bounds."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from cases import LIKELIHOODS, LikelihoodCase, case_name, problem
from diffprior.evidence.glm import variational

DIM = 2
solve = eqx.filter_jit(variational)


def fitted(prior: dp.Gaussian, evidence: dp.AbstractEvidence) -> tuple[dp.Gaussian, float]:
    """The variational Gaussian under any prior, and its bound."""
    tril = np.linalg.cholesky(prior.cov)
    q = solve(evidence.reparameterize(prior.mean, jnp.asarray(tril)))
    q_cov = np.asarray(q.factor) @ np.asarray(q.factor).T
    assert_allclose(np.linalg.slogdet(q_cov)[1], q.log_det, atol=1e-9)
    mean, cov = np.asarray(prior.mean) + tril @ q.mean, tril @ q_cov @ tril.T
    return dp.Gaussian(mean, cov), float(q.bound)


@pytest.mark.parametrize("case", LIKELIHOODS, ids=case_name)
def test_it_is_a_fixed_point_with_a_bound_just_below_the_log_evidence(
    case: LikelihoodCase,
) -> None:
    p = problem(0, DIM, 12, case)
    belief, bound = fitted(p.gaussian(), p.evidence(case.make()))
    rows = (p.features, p.rewards, case.family, case.dispersion)
    expansion = reference.expected_expansion(belief.mean, belief.cov, *rows)[:2]
    mean, cov = reference.condition_gaussian(p.mean, p.cov, *expansion)
    stds = np.sqrt(np.diagonal(cov))
    assert_allclose((belief.mean - mean) / stds, 0.0, atol=0.02)
    assert_allclose(
        np.asarray(belief.cov) / np.outer(stds, stds), cov / np.outer(stds, stds), atol=0.02
    )

    def log_density(points: np.ndarray) -> np.ndarray:
        eta = points @ p.features.T
        rows = reference.family_log_density(p.rewards, eta, case.family, case.dispersion)
        return rows.sum(axis=1) + reference.gaussian_log_density(points, p.mean, p.cov)

    exact = reference.grid_moments_2d(log_density, p.mean - 12.0, p.mean + 12.0, 500)[2]
    gap = exact - float(bound)
    assert -1e-3 < gap < (1e-3 if case.family == "gaussian" else 0.05)


def test_no_data_give_back_the_prior() -> None:
    p = problem(1, DIM, 0)
    belief, bound = fitted(p.gaussian(), dp.Logistic().observe(dim=DIM))
    assert_allclose(belief.cov, p.cov, rtol=1e-9)
    assert_allclose(bound, 0.0, atol=1e-9)
