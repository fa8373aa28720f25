"""Files of bandits: complete, and safe to read."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

import diffprior as dp
from bandits.helpers import standard_prior
from diffprior.bandits.bandit import Bandit
from diffprior.denoisers.network import StagewiseDenoiser
from diffprior.fitting.report import FitReport, StageLoss
from diffprior.priors.diffusion import DiffusionPrior, Metadata
from diffprior.samplers.evidence_dps import EvidenceDPS
from diffprior.samplers.laplace_dps import LaplaceDPS

FEATURES = np.random.default_rng(2).standard_normal((7, 2))


def actions_of(bandit: Bandit, rounds: int) -> list[int]:
    return [bandit.decide(FEATURES).action for _ in range(rounds)]


def learned_prior() -> DiffusionPrior:
    """A learned prior as `fit` returns it, though with random weights."""
    grid = dp.Schedule.constant(5)
    with jax.numpy_dtype_promotion("standard"):
        regressors = StagewiseDenoiser.initialize(jax.random.key(0), 2, grid, width=4)
    regressors = jax.tree.map(lambda leaf: leaf.astype(float), regressors)
    exact = DiffusionPrior.from_prior(standard_prior())
    stage = StageLoss(0.0, 0.1, 0.2, 1.0, 0.4)
    report = FitReport(100, 10, 1.5, (1.0, 0.5), 1, (stage,), ("few samples",))
    return DiffusionPrior(
        exact.offset,
        exact.scale,
        regressors,
        exact.residual_log_snr,
        exact.residual,
        grid,
        Metadata(report),
    )


SAMPLERS: dict[str, Callable[[], dp.AbstractSampler]] = {
    "gaussian": lambda: dp.Exact(standard_prior(), temperature=0.5),
    "mixture": lambda: dp.Exact(
        dp.MixturePrior(np.array([0.3, 0.7]), FEATURES[:2], np.stack([np.eye(2)] * 2))
    ),
    "empirical": lambda: dp.Exact(dp.EmpiricalPrior(FEATURES, np.arange(7.0))),
    "oracle": lambda: EvidenceDPS(DiffusionPrior.from_prior(standard_prior()), steps=3),
    "learned": lambda: LaplaceDPS(learned_prior(), covariance="paper"),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_saving_changes_nothing_but_the_seed(name: str, tmp_path: Path) -> None:
    path = tmp_path / "task.bandit"
    bandit = Bandit(SAMPLERS[name](), dp.Linear(0.5), seed=4)
    bandit.update(FEATURES, np.arange(7.0))
    bandit.decide(FEATURES)
    bandit.save(path)
    loaded = Bandit.load(path, keep_seed=True)
    assert jax.tree.structure(loaded._agent) == jax.tree.structure(bandit._agent)
    for part in ("sampler", "likelihood", "evidence"):
        ours, theirs = (jax.tree.leaves(getattr(b, part)) for b in (bandit, loaded))
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(np.maximum(a, -1e300), np.maximum(b, -1e300))
    assert actions_of(loaded, 5) == actions_of(bandit, 5)


def test_a_copy_explores_on_its_own(tmp_path: Path) -> None:
    wide = dp.Exact(dp.GaussianPrior(np.zeros(2), 9 * np.eye(2)))
    bandit = Bandit(wide, dp.Logistic(), seed=1)
    bandit.update(FEATURES, np.ones(7))
    bandit.save(tmp_path / "a")
    copies = [Bandit.load(tmp_path / "a") for _ in range(2)]
    assert actions_of(copies[0], 60) != actions_of(copies[1], 60)
    again = [Bandit.load(tmp_path / "a", seed=3) for _ in range(2)]
    assert actions_of(again[0], 9) == actions_of(again[1], 9)
