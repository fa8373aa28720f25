"""Features learned with a prior: where they pay, what is saved, and the evidence they maximize."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

import diffprior as dp
from diffprior.fitting.config import LearningConfig
from diffprior.learning import network_encoder
from diffprior.learning.network_encoder import Params, TaskRows, as_network
from worlds_of_tasks import marginal_log_density

NOISE, ROWS = 0.3, 20
WHERE = np.array([[0.0, -1.2], [1.0, 0.9], [-1.1, 0.8]])  # of three bumps


def bumps(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.sum((x[..., None, :] - WHERE) ** 2, axis=-1) / 0.5)


def world(num_tasks: int, linear: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (num_tasks, ROWS, 2))
    phi = x if linear else bumps(x)
    theta = np.array([1.0, 0.0, -1.0])[: phi.shape[-1]] + rng.standard_normal(
        (num_tasks, phi.shape[-1])
    )
    y = np.einsum("tnd,td->tn", phi, theta) + NOISE * rng.standard_normal(x.shape[:2])
    return np.repeat(np.arange(num_tasks), ROWS), x.reshape(-1, 2), y.reshape(-1)


def learned(logs: dp.Logs, encoder: dp.NetworkEncoder | None = None) -> dp.Model:
    families = ("gaussian",)
    return dp.learn(logs, dp.Linear(), families=families, progress=False, encoder=encoder)


@pytest.fixture(scope="module")
def model() -> dp.Model:
    tasks, x, y = world(400, linear=False)
    columns = {"task": tasks, "price": 100 + 20 * x[:, 0], "hour": x[:, 1], "paid": y}
    table = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    logs = dp.Logs.read(table, task="task", reward="paid")
    return learned(logs, dp.NetworkEncoder(dim=4))


def test_features_of_a_nonlinear_world_are_learned(model: dp.Model) -> None:
    """Nearly all of the gain of the true features, for tasks that nothing was learned from."""
    assert model.report is not None and model.report.features is not None
    assert model.report.features.pays and str(model.report.features) in str(model.report)
    assert model.report.features.num_columns == 3
    assert model.feature_names == tuple(f"learned {i + 1}" for i in range(model.prior.dim))
    tasks, x, y = world(300, linear=False, seed=1)
    raw = np.column_stack([np.ones(len(x)), 100 + 20 * x[:, 0], x[:, 1]])
    phi = {"learned": model.encode(raw), "true": bumps(x), "raw": raw}
    logs = {name: dp.Logs(tasks, features, y) for name, features in phi.items()}
    priors = {"learned": model, "true": learned(logs["true"]), "raw": learned(logs["raw"])}
    found = {
        name: dp.evaluate.log_evidence(prior.prior, logs[name], prior.likelihood).mean()
        for name, prior in priors.items()
    }
    assert found["true"] - found["learned"] < 0.1 * (found["true"] - found["raw"])


def test_a_model_with_learned_features_takes_raw_rows(model: dp.Model, tmp_path: Path) -> None:
    model.save(tmp_path / "shop.model")
    again = dp.load(tmp_path / "shop.model")
    assert isinstance(again, dp.Model) and again.digest == model.digest
    assert str(again.report) == str(model.report)
    rows = [{"price": 90.0 + 10 * i, "hour": i / 5 - 1} for i in range(6)]
    arrays = np.array([[1.0, row["price"], row["hour"]] for row in rows])
    phi = model.encode(rows)
    np.testing.assert_allclose(model.encode(arrays), phi, rtol=1e-12)
    plain = dp.Bandit(model.prior, model.likelihood, seed=3)
    for given in (rows, arrays, arrays[None]):
        bandit = again.bandit(seed=3)
        assert np.ravel(bandit.decide(given).action)[0] == plain.decide(phi).action
        plain = dp.Bandit(model.prior, model.likelihood, seed=3)
    bandit.update(rows[0], 2.0)
    plain.update(phi[0], 2.0)
    restored = dp.Bandit.from_bytes(bandit.to_bytes(), keep_seed=True)
    draws = (one.posterior(9, seed=0).mean for one in (restored, plain))
    np.testing.assert_allclose(*draws, rtol=1e-6)
    chosen = []
    for given in (rows[0], arrays[0]):
        items = again.items(seed=0)
        items.add(["a", "b"])
        chosen.append(items.choose(given).item)
    assert chosen[0] == chosen[1]
    with pytest.raises(ValueError, match=r"`features`: expected shape \(K, 3\)"):
        bandit.decide(phi[:, :2])


def test_raw_columns_of_a_linear_world_are_kept() -> None:
    tasks, x, y = world(300, linear=True)
    logs = dp.Logs(tasks, x, y)
    found, without = learned(logs, dp.NetworkEncoder(num_steps=300)), learned(logs)
    assert found.report is not None and found.report.features is not None
    assert not found.report.features.pays
    assert "features are the raw columns; learned ones are no better" in str(found.report)
    assert found.prior.digest == without.prior.digest
    np.testing.assert_array_equal(found.encode(x), x)
    few = dp.learn(logs.select(np.arange(50)), dp.Linear(), encoder=dp.NetworkEncoder(), quick=True)
    assert "too few tasks" in str(few.report) and few.prior.dim == 2


def test_what_cannot_be_learned_says_so() -> None:
    logs = dp.Logs(*world(12, linear=True))
    with pytest.raises(ValueError, match="`logs`: expected Logs with a NetworkEncoder, got TaskS"):
        dp.learn(logs.statistics(), dp.Linear(), encoder=dp.NetworkEncoder())
    with pytest.raises(ValueError, match="`width`: expected a positive integer, got 0"):
        dp.NetworkEncoder(width=0)


def test_task_evidence_is_that_of_bayesian_regression() -> None:
    rng = np.random.default_rng(0)
    params = Params.init(rng, 2, 5, 3)
    changed = [0.3 * rng.standard_normal(part.shape) for part in params[5:]]
    params = params._replace(
        mean=jnp.asarray(changed[0]), tril=jnp.asarray(changed[1]), log_noise=jnp.asarray(-0.4)
    )
    params = Params(*(jnp.asarray(part, float) for part in params))
    z, y = rng.standard_normal((7, 2)), rng.standard_normal(7)
    rows = TaskRows(*map(jnp.asarray, (z, y, np.array([1.0] * 6 + [0.0]))))
    phi, tril = np.asarray(jax.vmap(params.features)(rows.z))[:6], np.asarray(params.factor())
    mean, cov = np.asarray(params.mean), tril @ tril.T
    expected = marginal_log_density(phi, y[:6], mean, cov, np.exp(-0.4))
    found = network_encoder.task_evidence(params, rows, binary=False)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    one = rows._replace(y=jnp.ones(7), w=jnp.asarray([1.0] + [0.0] * 6))
    center, spread = phi[0] @ mean, np.sqrt(phi[0] @ cov @ phi[0])
    exact = np.log(quad(lambda t: expit(t) * norm.pdf(t, center, spread), -20, 20)[0])
    bound = float(network_encoder.task_evidence(params, one, binary=True))
    assert exact - 0.05 < bound < exact
    center, scale = rng.standard_normal(2), rng.random(2) + 0.5
    network = network_encoder.as_network(params, z, center, scale)
    again, second = network(center + scale * z), cov + np.outer(mean, mean)
    full = np.asarray(jax.vmap(params.features)(rows.z))
    np.testing.assert_allclose(again @ again.T, full @ second @ full.T, atol=1e-6)
    blob = network.to_bytes()
    np.testing.assert_array_equal(dp.load_bytes(blob)(z), network(z))
    with pytest.raises(ValueError, match="1 \\+ p \\+ w rows"):
        dp.load_bytes(dataclasses.replace(network, last=network.last[1:]).to_bytes())


def test_bernoulli_rewards_and_counts_have_features_too() -> None:
    tasks, x, _ = world(250, linear=False)
    rng, config = np.random.default_rng(2), LearningConfig()
    eta = np.sum(4 * (bumps(x) - 0.2) * rng.standard_normal((250, 3))[tasks], axis=1)
    for likelihood, y in (
        (dp.Logistic(), (rng.random(len(eta)) < expit(eta)).astype(float)),
        (dp.Poisson(), rng.poisson(np.exp(0.5 * eta)).astype(float)),
    ):
        encoder = dp.NetworkEncoder(dim=4)
        logs = dp.Logs(tasks, x, y)
        _, found = network_encoder.learn_features(logs, likelihood, encoder, config, 0)
        assert found.pays


def test_features_come_in_the_order_of_their_part_in_eta() -> None:
    """So that the first of them are those to keep."""
    rng = np.random.default_rng(0)
    params, z = Params.init(rng, 3, 8, 4), rng.standard_normal((500, 3))
    phi = as_network(params, z, np.ones(3), np.full(3, 2.0))(1.0 + 2.0 * z)
    moments = phi.T @ phi / len(phi)
    shares = np.diagonal(moments)
    assert len(shares) == 4 and np.all(np.diff(shares) < 0)
    np.testing.assert_allclose(moments, np.diag(shares), atol=1e-9 * shares[0])
