"""Objects say in one line what they are."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import diffprior as dp
from cases import ATOMS, COVS, DIM, MEANS, RESPONSES, WEIGHTS, diffusion
from foreign import Stranger

ONE, TWO = np.zeros(2), np.eye(2)
OBJECTS: dict[str, Callable[[], Any]] = {
    "GaussianPrior(dim=2)": lambda: dp.GaussianPrior(ONE, TWO),
    "MixturePrior(dim=3, num_components=3)": lambda: dp.MixturePrior(WEIGHTS, MEANS, COVS),
    "EmpiricalPrior(dim=3, num_atoms=40)": lambda: dp.EmpiricalPrior(ATOMS),
    "DiffusionPrior(GaussianPrior(dim=3))": diffusion,
    "DiffusionPrior(WrappedPrior(Stranger, dim=2))": lambda: dp.DiffusionPrior.from_prior(
        Stranger(ONE, TWO)
    ),
    "Exact(GaussianPrior(dim=2), temperature=0.25)": lambda: dp.Exact(
        dp.GaussianPrior(ONE, TWO), temperature=0.25
    ),
    "TwistedSMC(DiffusionPrior(GaussianPrior(dim=3)), steps=3, num_particles=4, temperature=1)": (
        lambda: dp.TwistedSMC(diffusion(), steps=3, num_particles=4)
    ),
    "LinearEvidence(dim=2, count=3, noise_std=0.5)": lambda: dp.Linear(0.5).observe(
        np.ones((3, 2)), np.ones(3)
    ),
    "GLMEvidence(Logistic(), dim=2, num_rows=3)": lambda: dp.Logistic().observe(
        np.ones((3, 2)), np.ones(3)
    ),
    "Response(inner_product, Identity(noise_std=0.7))": lambda: RESPONSES[0].make(),
    "NegativeBinomial(dispersion=2)": lambda: dp.NegativeBinomial(2.0),
    "ZeroInflated(amount=20, log_std=0.8, slope=0.5)": lambda: dp.ZeroInflated(20.0, 0.8, 0.5),
    "Linear(noise_std=0.7)": lambda: dp.Linear(0.7),
    "Gaussian(dim=2)": lambda: dp.Gaussian(ONE, TWO),
    "Schedule(num_stages=3, alpha_bar=0.97 to 0.9127)": lambda: dp.Schedule.constant(3),
}


def test_repr() -> None:
    for text, make in OBJECTS.items():
        assert repr(make()) == text


def test_repr_of_a_learned_prior() -> None:
    samples = np.random.default_rng(0).standard_normal((300, DIM))
    config = dataclasses.replace(dp.FitConfig.tiny(), max_components=1, num_steps=0)
    prior = dp.DiffusionPrior.fit(samples, config=config, progress=False)
    assert repr(prior).startswith("DiffusionPrior(") and "dim=3, num_samples=300" in repr(prior)


def test_repr_inside_programs_and_of_batches() -> None:
    seen = []

    @jax.jit
    def look(evidence: dp.LinearEvidence) -> jax.Array:
        seen.append(repr(evidence))
        return evidence.count

    evidence = dp.Linear(0.5).observe(np.ones((3, 2)), np.ones(3))
    look(evidence)
    assert seen == ["LinearEvidence(dim=2, count=?, noise_std=?)"]
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), evidence)
    assert "count=shape (4,)" in repr(batch)


def test_version() -> None:
    assert dp.__version__[0].isdigit()
