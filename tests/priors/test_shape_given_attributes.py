"""Priors whose shape depends on attributes: two blobs that turn with what is known of a task."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

import diffprior as dp
from diffprior.bandits._dispatch import partition
from diffprior.bandits.decisions import TaskPolicy, TaskRequest
from diffprior.evaluate.tasks import draw_posteriors
from diffprior.fitting.config import FitConfig, LearningConfig
from diffprior.samplers.evidence_dps import EvidenceDPS
from statistic import Z

B = np.array([[1.0, -1.0], [0.5, 0.5]])
STD, NOISE = 0.3, 0.3
CONFIG = dataclasses.replace(
    FitConfig.tiny(), max_components=8, num_steps=1500, width=32, batch_size=256,
    validation_draws=2048, validation_evidence=512, evidence_pool=2048, averaging=0.995,
    evaluate_every=150, optimizer="muon", learning_rate=1.5e-2, depth=3, warm_up_steps=100,
    log_precision_range=(-4.0, 6.0),
)  # fmt: skip
NUM_TASKS = 1500


def centers(z: np.ndarray) -> np.ndarray:
    """Of one blob given attributes (n, 2); the other is opposite."""
    angle = 0.5 * np.pi * z[:, 0]
    return 2.0 * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def world(num_tasks: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Attributes and parameters of tasks."""
    rng = np.random.default_rng(seed)
    z = rng.uniform(-1.0, 1.0, (num_tasks, 2))
    sign = np.where(rng.random((num_tasks, 1)) < 0.5, 1.0, -1.0)
    return z, z @ B + sign * centers(z) + STD * rng.standard_normal((num_tasks, 2))


def log_density(points: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Of residuals seen with noise, where the blobs are at plus and minus `at`."""
    var = STD**2 + NOISE**2
    logs = [-0.5 * np.sum((points - s * at) ** 2, axis=-1) / var for s in (1.0, -1.0)]
    return np.asarray(np.logaddexp(*logs) - np.log(4 * np.pi * var))


def logs_of(z: np.ndarray, thetas: np.ndarray) -> dp.Logs:
    """Each parameter seen once, with noise."""
    noise = NOISE * np.random.default_rng(7).standard_normal(thetas.shape)
    tasks = np.repeat(np.arange(len(z)), 2)
    x = np.tile(np.eye(2), (len(z), 1))
    return dp.Logs(tasks, x, (thetas + noise).ravel(), attributes=z)


@pytest.fixture(scope="module")
def learned() -> dp.ConditionalPrior:
    """The prior given attributes that turn the blobs."""
    z, thetas = world(NUM_TASKS, 0)
    return dp.DiffusionPrior.fit(thetas, attributes=z, config=CONFIG, progress=False)


def test_the_network_finds_most_of_the_shape_that_attributes_explain(
    learned: dp.ConditionalPrior,
) -> None:
    """Without it a ring is the best: how much better the truth is follows from both densities."""
    z, thetas = world(200, 1)
    logs = logs_of(z, thetas)
    past, parameters = world(NUM_TASKS, 0)
    mixture = dp.MixturePrior.fit(parameters, attributes=past)
    found, plain = (
        dp.evaluate.log_evidence(prior, logs, dp.Linear(NOISE)) for prior in (learned, mixture)
    )
    seen = logs.rewards.reshape(-1, 2) - z @ B
    true = log_density(seen, centers(z))
    ring = log_density(seen[:, None], centers(world(4000, 2)[0])[None])
    possible = true - np.logaddexp.reduce(ring, axis=1) + np.log(4000)
    gain = found - plain
    error = np.std(gain - 0.7 * possible) / np.sqrt(len(gain))
    assert np.mean(gain - 0.7 * possible) > Z * error
    assert np.mean(true - found) > -Z * np.std(true - found) / np.sqrt(len(gain))
    report = learned.residual.report  # type: ignore[attr-defined]
    assert "given attributes" in str(report) and 0.1 < report.network_gain < 1.0


def test_given_attributes_it_is_an_ordinary_prior(
    learned: dp.ConditionalPrior, tmp_path: Path
) -> None:
    for attributes in ([0.8, 0.0], [-0.8, 0.5]):
        z = np.array([attributes])
        given, center = learned.given(attributes), centers(z)[0]
        assert isinstance(given, dp.DiffusionPrior)
        drawn = np.asarray(given.sample(jax.random.key(0), 2000))
        draws = drawn - (z @ B)[0]
        away = np.minimum(*(np.linalg.norm(draws - s * center, axis=1) for s in (1.0, -1.0)))
        assert np.mean(away < 4 * STD) > 0.9
        moments = given.moments()
        expected = np.outer(center, center) + STD**2 * np.eye(2)
        np.testing.assert_allclose(moments.mean, (z @ B)[0], atol=0.5)
        np.testing.assert_allclose(moments.cov, expected, atol=1.0)
        other = EvidenceDPS(given).sample(jax.random.key(0), dp.Linear(1.0).observe(dim=2))
        assert np.all(np.isfinite(other))
        given.save(tmp_path / "given.dprior")
        loaded = dp.load(tmp_path / "given.dprior")
        np.testing.assert_array_equal(loaded.sample(jax.random.key(0), 2000), drawn)
    learned.save(tmp_path / "learned.dprior")
    loaded = dp.load(tmp_path / "learned.dprior")
    for attributes in (None, [0.8, 0.0], [np.nan, 0.5]):
        draws = [p.given(attributes).sample(jax.random.key(1), 2000) for p in (loaded, learned)]
        np.testing.assert_array_equal(*draws)
    average = learned.given(None).sample(jax.random.key(1), 2000)
    np.testing.assert_allclose(
        average, learned.given(learned.center).sample(jax.random.key(1), 2000), atol=1e-4
    )
    evidence = dp.Linear(0.5).observe([[1.0, 0.0]], [2.0])
    posterior = learned.given([0.8, 0.0]).denoise(evidence.precision, evidence.shift)
    assert np.linalg.eigvalsh(posterior.cov).min() > 0


def test_whoever_takes_tasks_side_by_side_agrees_with_one_prior_after_another(
    learned: dp.ConditionalPrior, tmp_path: Path
) -> None:
    """Evaluation, and items before and after their first reward."""
    z, thetas = world(3, 3)
    tasks = logs_of(z, thetas)
    agent = dp.ThompsonSampling(EvidenceDPS(learned.residual), dp.Linear(NOISE))
    together = draw_posteriors(learned, tasks, dp.Linear(NOISE), 500, 0).values
    items = dp.Items(learned, dp.Linear(NOISE), seed=0)
    items.add(["0", "1", "2"], attributes=z)
    before = [items.posterior(name, 500, seed=1).draws for name in ("0", "1", "2")]
    panel = np.stack([draw[:3] for draw in items._panel.draws])  # of items without rewards
    for place in range(3):
        own, rows = learned.given(z[place]), slice(2 * place, 2 * place + 2)
        evidence = dp.Linear(NOISE).observe(tasks.features[rows], tasks.rewards[rows])
        alone = np.asarray(EvidenceDPS(own).sample_many(jax.random.key(4), evidence, 500)[0])
        prior = np.asarray(own.sample(jax.random.key(5), 500))
        items.update(str(place), tasks.features[rows], tasks.rewards[rows])
        after = items.posterior(str(place), 500, seed=2).draws
        pairs = ((together[place], alone), (after, alone), (before[place], prior))
        for found, expected in (*pairs, (panel[:, place], prior)):
            error = np.sqrt(found.var(axis=0) / len(found) + expected.var(axis=0) / 500)
            assert np.all(np.abs(found.mean(axis=0) - expected.mean(axis=0)) < Z * error + 0.03)
        condition = learned.conditions(z[place : place + 1])[0]
        leaves, structure = partition(evidence)
        leaves = [np.asarray(leaf) for leaf in leaves]
        request = TaskRequest(leaves, structure, 5, 0, 1.0, condition)
        served = TaskPolicy(agent, evidence, 2, 499)([request]).index.theta[0]
        error = np.sqrt((served.var(axis=0) + alone.var(axis=0)) / 500)
        assert np.all(np.abs(served.mean(axis=0) - alone.mean(axis=0)) < Z * error + 0.03)
    items.save(tmp_path / "items")
    again = dp.Items.load(tmp_path / "items")
    np.testing.assert_allclose(
        again.posterior("1", 5, seed=3).draws, items.posterior("1", 5, seed=3).draws, atol=1e-5
    )


def test_attributes_that_say_nothing_leave_the_simpler_prior(
    learned: dp.ConditionalPrior,
) -> None:
    z, thetas = world(NUM_TASKS, 0)
    shuffled = np.random.default_rng(1).permutation(z)
    quick = dataclasses.replace(CONFIG, num_steps=600)
    found = dp.DiffusionPrior.fit(thetas, attributes=shuffled, config=quick, progress=False)
    assert found.scale is None
    assert isinstance(found.residual, dp.DiffusionPrior)
    assert not found.residual.denoiser.takes_attributes
    with pytest.raises(ValueError, match="`initial`: expected .* the same attributes"):
        dp.DiffusionPrior.fit(thetas, initial=learned.given(None), progress=False)


def test_a_shape_that_attributes_turn_is_learned_from_logs() -> None:
    """Means do not depend on them, so that a Gaussian given attributes is worth nothing."""
    logs, others = (logs_of(*_turned(count, seed)) for count, seed in ((400, 0), (200, 1)))
    config = LearningConfig(max_rounds=1, round_steps=100, round_draws=800, scoring_tasks=60)
    model = dp.learn(
        logs, dp.Linear(NOISE), seed=0, simulate=False, progress=False, config=config,
        families=("gaussian", "mixture", "diffusion"),
    )  # fmt: skip
    assert model.report is not None
    assert model.report.chosen == "diffusion shaped by attributes"
    assert isinstance(model.prior, dp.ConditionalPrior) and model.prior.scale is not None
    plain = next(prior for name, prior in model.families.items() if "mixture" in name.lower())
    gain = dp.evaluate.log_evidence(model.prior, others, dp.Linear(NOISE))
    gain = gain - dp.evaluate.log_evidence(plain, others, dp.Linear(NOISE))
    assert gain.mean() > Z * gain.std() / np.sqrt(len(gain))


def _turned(num_tasks: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    z, thetas = world(num_tasks, seed)
    return z, thetas - z @ B
