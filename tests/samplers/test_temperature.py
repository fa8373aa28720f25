"""One temperature for every sampler, applied once, and a number of the compiled program."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
from cases import DIM, LINEAR, LOGISTIC, NOISE_STD, SAMPLERS, SamplerCase, case_name, problem

KEY = jax.random.key(0)


@pytest.mark.parametrize("case", SAMPLERS, ids=case_name)
def test_another_temperature_compiles_nothing(case: SamplerCase, compilations: list[str]) -> None:
    """One program was compiled for temperature 1, and it serves 0.25 and any other."""
    evidence = problem(0, DIM, 5).evidence(LINEAR.make())
    sampler = case.make()
    cold, warm = case.make(temperature=0.25), sampler.at_temperature(0.5)
    jax.block_until_ready(sampler.sample(KEY, evidence))
    compilations.clear()
    draws = [s.sample(KEY, evidence) for s in (cold, warm, sampler)]
    assert not compilations
    assert float(warm.temperature) == 0.5 and float(sampler.temperature) == 1.0
    if case.name not in ("exact-empirical", "particle-filter"):  # atoms may be shared
        assert not np.allclose(draws[0], draws[2]) and not np.allclose(draws[1], draws[2])


def test_the_count_sees_compilations(compilations: list[str]) -> None:
    jax.block_until_ready(jax.jit(lambda x: jnp.cos(x) * 3.25)(jnp.ones(7)))
    assert compilations


def test_agents_use_it() -> None:
    """A bandit at temperature T decides as one whose rewards have the T-fold variance."""
    prior, p = dp.GaussianPrior(np.zeros(DIM), np.eye(DIM)), problem(2, DIM, 8)
    noise = {"warm": NOISE_STD, "noisy": 2 * NOISE_STD}
    samplers = {"warm": dp.Exact(prior, temperature=4.0), "noisy": dp.Exact(prior)}
    found = {}
    for name, sampler in samplers.items():
        bandit = dp.Bandit(sampler, dp.Linear(noise[name]), seed=1)
        bandit.update(p.features, p.rewards)
        found[name] = bandit.decide(p.features).scores
    assert_allclose(found["warm"], found["noisy"], atol=1e-10)


class Static(dp.AbstractSampler):
    """A sampler of one's own whose temperature is a constant."""

    prior: dp.AbstractPrior
    temperature: float = eqx.field(static=True, default=1.0)

    def draw(self, key: jax.Array, evidence: dp.AbstractEvidence) -> tuple[jax.Array, dp.Info]:
        return dp.Exact(self.prior).draw(key, evidence)


def test_samplers_of_ones_own_are_tempered_too() -> None:
    evidence = problem(2, DIM, 8, LOGISTIC).evidence(LOGISTIC.make())
    prior = dp.GaussianPrior(np.zeros(DIM), np.eye(DIM))
    expected = dp.Exact(prior, temperature=0.5).sample(KEY, evidence)
    for sampler in (Static(prior, 0.5), Static(prior).at_temperature(0.5)):
        assert_allclose(sampler.sample(KEY, evidence), expected, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, "warm", [1.0]])
def test_impossible_temperatures_are_rejected(temperature: object) -> None:
    prior = dp.GaussianPrior(np.zeros(DIM), np.eye(DIM))
    for use in (
        lambda: dp.best_sampler(prior, temperature),
        lambda: dp.Exact(prior).at_temperature(temperature),
    ):
        with pytest.raises(ValueError, match="^`temperature`: expected"):
            use()
