"""Learning given attributes: against dense algebra, where they say much, and where nothing."""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest

import diffprior as dp
from cli.helpers import run
from diffprior.evaluate.tasks import draw_posteriors
from diffprior.fitting.attributes import Regression, regress_logs
from diffprior.fitting.config import LOGS_SEARCH, LearningConfig
from diffprior.fitting.em import log_evidence
from diffprior.fitting.rows import blocks_of
from diffprior.fitting.search import gaussian_of
from diffprior.learning.attributes import gaussian_given
from diffprior.learning.distill import distill, posterior_draws
from diffprior.learning.scoring import Family
from diffprior.mixture import GaussianMixture
from statistic import Z, assert_mean
from worlds_of_tasks import blobs, marginal_log_density, rows

QUICK = LearningConfig(search=dataclasses.replace(LOGS_SEARCH, max_components=2))
NOISE = 0.7
B = np.array([[1.0, 0.5], [-0.5, 0.0], [0.0, 0.8]])


def world(
    num_tasks: int, seed: int = 0, residuals: np.ndarray | None = None, mean_rows: float = 5.0
) -> dp.Logs:
    """Linear rewards of parameters z B + r; attributes are two numbers and an indicator."""
    rng = np.random.default_rng(seed)
    z = np.column_stack([rng.standard_normal((num_tasks, 2)), rng.random(num_tasks) < 0.3])
    r = 0.5 * rng.standard_normal((num_tasks, 2)) if residuals is None else residuals
    return dp.Logs(*rows(rng, z @ B + r, mean_rows, NOISE), attributes=z)


def learned(logs: dp.Logs, likelihood: dp.AbstractLikelihood | None = None) -> dp.Model:
    return dp.learn(logs, likelihood or dp.Linear(NOISE), quick=True, progress=False, config=QUICK)


def by_task(logs: dp.Logs) -> list[tuple[np.ndarray, np.ndarray]]:
    parts = [slice(a, b) for a, b in zip(logs.starts, logs.starts[1:], strict=False)]
    return [(logs.features[part], logs.rewards[part]) for part in parts]


def test_coefficients_are_those_of_the_dense_mixed_model() -> None:
    """Generalized least squares with the covariance found, and errors from the same information."""
    logs = world(400)
    blocks = blocks_of(logs, dp.Linear(NOISE))
    found = regress_logs(logs, blocks, gaussian_of(blocks))
    information, right = np.zeros((8, 8)), np.zeros(8)
    assert logs.attributes is not None
    for (x, y), z in zip(by_task(logs), logs.attributes - found.center, strict=True):
        design = np.einsum("a,rd->rad", np.concatenate([[1.0], z]), x).reshape(len(x), 8)
        inverse = np.linalg.inv(x @ found.cov @ x.T + NOISE**2 * np.eye(len(x)))
        information += design.T @ inverse @ design
        right += design.T @ inverse @ y
    expected = np.linalg.solve(information, right).reshape(4, 2)
    errors = np.sqrt(np.diag(np.linalg.inv(information))).reshape(4, 2)
    np.testing.assert_allclose(found.mean, expected[0], atol=0.2 * errors[0].max())
    np.testing.assert_allclose(found.coefficients, expected[1:], atol=0.2 * errors.max())
    np.testing.assert_allclose(found.errors, errors[1:], rtol=0.05)
    assert np.all(np.abs(found.coefficients - B) < Z * errors[1:])
    np.testing.assert_allclose(found.cov, 0.25 * np.eye(2), atol=0.1)


def test_coefficients_of_logistic_tasks_are_recovered() -> None:
    rng = np.random.default_rng(3)
    z = rng.standard_normal((1500, 3))
    tasks, x, _ = rows(rng, np.zeros((1500, 2)), 12.0)
    theta = z @ B + 0.7 * rng.standard_normal((1500, 2))
    eta = 2.0 * np.sum(x * theta[tasks], axis=1)
    logs = dp.Logs(tasks, 2.0 * x, rng.random(len(x)) < 1 / (1 + np.exp(-eta)), attributes=z)
    blocks = blocks_of(logs, dp.Logistic())
    gaussian = gaussian_of(blocks)
    family = gaussian_given(logs, dp.Logistic(), gaussian)
    assert family.regression is not None and family.components is not None
    assert np.all(np.abs(family.regression.coefficients - B) < Z * family.regression.errors)
    np.testing.assert_allclose(family.components.covs[0], 0.49 * np.eye(2), atol=0.15)
    given = blocks_of(logs, dp.Logistic(), family.offsets(logs))
    gain = log_evidence(given, family.components).mean()
    assert gain > log_evidence(blocks, gaussian).mean() + 0.1


def test_coefficients_under_a_mixture_are_those_of_a_dense_em_step() -> None:
    """Where EM stands still, the responsibilities' dense normal equations hold."""
    rng = np.random.default_rng(6)
    means = np.array([[2.0, 0.0], [-2.0, 1.0]])
    residuals = means[rng.integers(0, 2, 800)] + 0.2 * rng.standard_normal((800, 2))
    logs = world(800, residuals=residuals, mean_rows=15.0)
    mixture = GaussianMixture.from_covs(np.ones(2) / 2, means, np.tile(0.04 * np.eye(2), (2, 1, 1)))
    blocks = blocks_of(logs, dp.Linear(NOISE))
    gaussian = gaussian_of(blocks)
    start = regress_logs(logs, blocks, gaussian)
    found = regress_logs(logs, blocks, gaussian, mixture=mixture, start=start)
    assert logs.attributes is not None
    information, right = np.zeros((8, 8)), np.zeros(8)
    for (x, y), z in zip(by_task(logs), logs.attributes - found.center, strict=True):
        design = np.einsum("a,rd->rad", np.concatenate([[1.0], z]), x).reshape(len(x), 8)
        cov = 0.04 * x @ x.T + NOISE**2 * np.eye(len(x))
        offset = z @ found.coefficients + found.mean - mixture.moments()[0]
        logs_of = [marginal_log_density(x, y, m + offset, 0.04 * np.eye(2), NOISE) for m in means]
        shares = np.exp(logs_of - np.logaddexp.reduce(logs_of))
        information += design.T @ np.linalg.solve(cov, design)
        for share, mean in zip(shares, means - mixture.moments()[0], strict=True):
            right += share * design.T @ np.linalg.solve(cov, y - x @ mean)
    expected = np.linalg.solve(information, right).reshape(4, 2)
    scale = np.sqrt(np.diag(np.linalg.inv(information))).max()
    np.testing.assert_allclose(found.coefficients, expected[1:], atol=0.2 * scale)
    assert np.abs(found.coefficients - B).max() < 0.6 * np.abs(start.coefficients - B).max()


def test_a_wide_logistic_gaussian_is_found() -> None:
    """An extrapolated step once went to where an expansion says nothing."""
    rng = np.random.default_rng(0)
    theta = np.array([2.0, 1.0, -1.0]) + rng.standard_normal((800, 3)) * np.array([2.0, 1.5, 0.7])
    x = rng.standard_normal((800, 20, 3))
    chance = 1 / (1 + np.exp(-np.einsum("nri,ni->nr", x, theta)))
    rewards = rng.random((800, 20)) < chance
    logs = dp.Logs(np.repeat(np.arange(800), 20), x.reshape(-1, 3), rewards.ravel())
    found = gaussian_of(blocks_of(logs, dp.Logistic()))
    np.testing.assert_allclose(np.sqrt(np.diag(found.covs[0])), [2.0, 1.5, 0.7], rtol=0.2)


def test_evidence_given_attributes_is_the_dense_density() -> None:
    logs, rng = world(30), np.random.default_rng(1)
    residual = dp.MixturePrior(
        [0.3, 0.7], rng.standard_normal((2, 2)), np.tile(np.eye(2), (2, 1, 1))
    )
    prior = dp.ConditionalPrior(residual, B, np.array([0.1, 0.2, 0.3]))
    found = dp.evaluate.log_evidence(prior, logs, dp.Linear(NOISE))
    assert logs.attributes is not None
    for value, (x, y), z in zip(found, by_task(logs), logs.attributes, strict=True):
        offset = (z - np.array([0.1, 0.2, 0.3])) @ B
        parts = [
            np.log(w) + marginal_log_density(x, y, np.asarray(m) + offset, np.eye(2), NOISE)
            for w, m in zip([0.3, 0.7], residual.means, strict=True)
        ]
        np.testing.assert_allclose(value, np.logaddexp.reduce(parts), rtol=1e-8)
    average = dp.evaluate.log_evidence(prior, strip(logs), dp.Linear(NOISE))
    plain = dp.evaluate.log_evidence(residual, logs, dp.Linear(NOISE))
    np.testing.assert_allclose(average, plain, rtol=1e-10)
    compared = dp.evaluate.compare({"given": prior, "plain": residual}, logs, dp.Linear(NOISE))
    np.testing.assert_allclose(compared.difference("given")[0], 0.0)
    np.testing.assert_allclose(compared.log_evidence["given"].values, found)


def strip(logs: dp.Logs) -> dp.Logs:
    return dp.Logs(logs.tasks, logs.features, logs.rewards)


def test_draws_given_attributes_are_about_the_exact_posterior() -> None:
    """Of evaluation, of a closed form, and of the E-step of a diffusion model of residuals."""
    logs = world(40, mean_rows=3.0)
    center, cov = np.zeros(3), 0.25 * np.eye(2)
    regression = Regression(
        center, B, np.array([0.2, -0.1]), cov, np.zeros_like(B), np.ones(len(B))
    )
    components = GaussianMixture.single(regression.mean, cov)
    prior = dp.GaussianPrior(regression.mean, cov)
    family = Family("given", prior, components, regression)
    assert logs.attributes is not None
    offsets, exact = regression.offsets(logs.attributes), []
    for (x, y), offset in zip(by_task(logs), offsets, strict=True):
        precision = np.linalg.inv(cov) + x.T @ x / NOISE**2
        shift = np.linalg.solve(cov, regression.mean + offset) + x.T @ y / NOISE**2
        exact.append((np.linalg.solve(precision, shift), np.linalg.cholesky(precision)))
    likelihood = dp.Linear(NOISE)
    draws = {
        "evaluation": draw_posteriors(family.prior, logs, likelihood, 16, 0).values,
        "closed form": np.moveaxis(family.posterior_draws(logs, likelihood, 5, count=16), 0, 1),
    }
    sampler = dp.TwistedSMC(distill(components), num_particles=16)
    one = posterior_draws(sampler, logs, likelihood, 0, conditions=offsets) + offsets
    draws["E-step"] = one[:, None]
    for values in draws.values():
        unit = [(v - mean) @ half for v, (mean, half) in zip(values, exact, strict=True)]
        assert_mean(np.concatenate(unit), np.zeros(2))
        assert_mean(np.concatenate(unit) ** 2, np.ones(2))


def test_learn_uses_attributes_that_say_something_and_reports_their_worth(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    logs = world(500, residuals=blobs(rng, 500))
    model = learned(logs)
    report = model.report
    assert report is not None and report.attributes is not None
    assert report.chosen == "mixture of 2 given attributes"
    assert isinstance(model.prior, dp.ConditionalPrior)
    error = 5 * np.sqrt(1.5**2 / 300)
    np.testing.assert_allclose(model.prior.coefficients, B, atol=error)
    new = world(400, seed=8, residuals=blobs(rng, 400))
    values = {
        name: dp.evaluate.log_evidence(prior, new, model.likelihood).mean()
        for name, prior in model.families.items()
    }
    best = values.pop("mixture of 2 given attributes")
    assert all(best > other + 0.1 for other in values.values())
    truth = dp.MixturePrior([0.5, 0.5], [[1.5, 1.5], [-1.5, -1.5]], [0.09 * np.eye(2)] * 2)
    known = dp.ConditionalPrior(truth, B, np.zeros(3))
    assert best > dp.evaluate.log_evidence(known, new, model.likelihood).mean() - 0.06
    assert report.attributes.pays and report.attributes.num_rows[0] == 1
    few, many = report.attributes.by_rows[0], report.attributes.gain
    assert 0 < few.mean < many.mean
    assert "given attributes" in str(report)
    model.save(tmp_path / "model")
    loaded = dp.load(tmp_path / "model")
    assert loaded.report.to_dict() == report.to_dict()
    z = np.array([1.0, np.nan, 0.0])
    np.testing.assert_array_equal(
        loaded.bandit(attributes=z).posterior(10, seed=0).mean,
        model.bandit(attributes=z).posterior(10, seed=0).mean,
    )


def test_attributes_of_noise_change_nothing() -> None:
    rng = np.random.default_rng(0)
    logs = strip(world(200, seed=5))
    plain = learned(logs)
    noise = rng.standard_normal((200, 20))
    names = [f"noise {i}" for i in range(20)]
    given = learned(
        dp.Logs(logs.tasks, logs.features, logs.rewards, attributes=noise, attribute_names=names)
    )
    new = world(300, seed=6)
    more = dp.Logs(new.tasks, new.features, new.rewards, attributes=rng.standard_normal((300, 20)))
    ours, theirs = (
        dp.evaluate.log_evidence(m.prior, more, m.likelihood).mean() for m in (given, plain)
    )
    assert ours > theirs - 0.02
    if not isinstance(given.prior, dp.ConditionalPrior):
        assert given.prior.digest == plain.prior.digest
        assert "attributes are left out" in given.report.sentence
        given.bandit(attributes=noise[0])  # ignored
    with pytest.raises(ValueError, match="`attributes`: expected none"):
        plain.bandit(attributes=noise[0])


def test_with_few_tasks_a_gaussian_given_attributes_is_chosen_by_cross_validation() -> None:
    model = learned(world(80))
    assert model.report.chosen == "Gaussian given attributes"
    names = [family.name for family in model.report.families]
    assert names == ["cold start", "Gaussian", "Gaussian given attributes"]
    assert model.report.families[2].over_gaussian.mean > 0.1


def test_logs_take_attributes_per_task_or_per_row_and_reject_those_that_vary() -> None:
    tasks, x = ["b", "a", "b", "a", "c"], np.eye(5)
    z = np.array([[1.0, np.nan], [2.0, 0.0], [3.0, 5.0]])  # of b, a and c
    logs = dp.Logs(tasks, x, np.ones(5), attributes=z, attribute_names=["price", "size"])
    again = dp.Logs(tasks, x, np.ones(5), attributes=z[[0, 1, 0, 1, 2]])
    np.testing.assert_array_equal(logs.attributes, again.attributes)
    np.testing.assert_array_equal(logs.select(np.array([2, 0])).attributes, z[[2, 0]])
    np.testing.assert_array_equal(logs.select_rows(np.arange(5) < 4).attributes, z)
    bad = z[[0, 1, 0, 2, 2]]
    with pytest.raises(ValueError, match="`price`: expected one value per task, got .* task a"):
        dp.Logs(tasks, x, np.ones(5), attributes=bad, attribute_names=["price", "size"])
    for wrong, message in (
        (z[:2], "expected 3 rows, one per task, or 5"),
        ([["toys"], ["cars"], ["toys"]], "expected numbers"),
        (np.full((3, 1), np.inf), "finite"),
    ):
        with pytest.raises(ValueError, match=f"`attributes`: .*{message}"):
            dp.Logs(tasks, x, np.ones(5), attributes=wrong)


def table(num_tasks: int, seed: int = 0) -> list[dict[str, object]]:
    """Campaigns with a category, labels and a price, which is missing now and then."""
    rng, found = np.random.default_rng(seed), list[dict[str, object]]()
    for campaign in range(num_tasks):
        category = str(rng.choice(["toys", "cars", "books"]))
        genres = str(rng.choice(["new", "new|sale", "sale", "old"]))
        price = float(rng.lognormal())
        level = {"toys": 1.5, "cars": -1.5, "books": 0.0}[category] + ("sale" in genres)
        shown = {
            "category": category,
            "genres": genres,
            "price": None if campaign % 9 == 4 else price,
        }
        slope = 0.5 * rng.standard_normal()
        for _ in range(6):
            x = float(rng.standard_normal())
            reward = level + slope * x + 0.5 * float(rng.standard_normal())
            found.append({"campaign": campaign, "x": x, **shown, "paid": reward})
    return found


def test_raw_attributes_go_from_a_file_to_a_bandit_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "logs.csv"
    cells = table(120)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(cells[0]))
        writer.writeheader()
        writer.writerows(cells)
    options = ["--task", "campaign", "--reward", "paid", "--features", "x", "--intercept"]
    options += ["--likelihood", "linear", "--attributes", "category,genres,price"]
    printed = run("learn", path, *options, "--quick", "-o", tmp_path / "shop.model")
    assert "Gaussian given attributes" in printed
    assert "all but category" in printed
    model = dp.load(tmp_path / "shop.model")
    worth = dict(zip(model.report.attributes.columns, model.report.attributes.losses, strict=True))
    assert worth["category"].mean > worth["genres"].mean > 0.1 > abs(worth["price"].mean)
    means = [
        float(model.bandit(attributes=z).posterior(10, seed=0).mean[0])
        for z in (
            {"category": "toys", "genres": "new|sale", "price": 2.0},
            {"category": "cars"},
            None,
        )
    ]
    assert means[0] - means[1] > 2.0
    assert means[1] < means[2] < means[0]
    with pytest.raises(ValueError, match="`categry`: expected one of the columns"):
        model.bandit(attributes={"categry": "toys"})
    for wrong in ("toys.csv", 5, [{"category": "toys"}]):
        with pytest.raises(ValueError, match="`attributes`: expected a dict of raw columns"):
            model.bandit(attributes=wrong)
    unknown = np.full(len(model.attribute_names), np.nan)
    assert model.prior_given(unknown).moments() == model.prior_given(None).moments()
    rows_again = dp.Logs.read(
        cells, task="campaign", reward="paid", features="x",
        encoder=model.encoder, attribute_encoder=model.attribute_encoder,
    )  # fmt: skip
    first = dp.Logs.read(
        path, task="campaign", reward="paid", features="x", intercept=True,
        attributes=["category", "genres", "price"],
    )  # fmt: skip
    np.testing.assert_allclose(rows_again.attributes, first.attributes)
