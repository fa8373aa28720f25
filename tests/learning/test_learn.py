"""Learning from logs: the choice, the held-out tasks, the report, the cost of a hedge."""

import contextlib
import dataclasses
import inspect
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest

import diffprior as dp
from diffprior.fitting.config import LOGS_SEARCH, LearningConfig
from diffprior.fitting.em import log_evidence
from diffprior.fitting.rows import blocks_of
from diffprior.logs.statistics import held_out
from diffprior.mixture import GaussianMixture
from diffprior.reporting.tables import plus_minus
from worlds_of_tasks import blobs, mixed_model_of_repeated_measures, repeated_measures, rows

QUICK = LearningConfig(search=dataclasses.replace(LOGS_SEARCH, max_components=2))


def quick(
    logs: dp.Logs | dp.TaskStatistics, families: Sequence[str] = ("gaussian", "mixture")
) -> dp.Model:
    return dp.learn(
        logs, dp.Linear(), families=families, simulate=False, progress=False, config=QUICK
    )


@pytest.fixture(scope="module")
def blob_logs() -> dp.Logs:
    rng = np.random.default_rng(0)
    return dp.Logs(*rows(rng, blobs(rng, 300), 5.0))


@pytest.fixture(scope="module")
def announced(blob_logs: dp.Logs) -> tuple[dp.Model, list[str]]:
    """A model, and the lines that are printed meanwhile."""
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        model = dp.learn(blob_logs, dp.Linear(), quick=True, config=QUICK)
    return model, printed.getvalue().splitlines()


@pytest.fixture(scope="module")
def learned(announced: tuple[dp.Model, list[str]]) -> dp.Model:
    return announced[0]


def test_two_blobs_are_learned_from_five_rows_per_task(learned: dp.Model) -> None:
    report = learned.report
    assert report.chosen not in ("Gaussian", "cold start")
    assert isinstance(learned.prior, dp.MixturePrior)
    assert isinstance(learned.likelihood, dp.Linear) and learned.likelihood.noise_std is not None
    assert abs(float(learned.likelihood.noise_std) - 1) < 0.05
    rng = np.random.default_rng(9)
    new = blocks_of(dp.Logs(*rows(rng, blobs(rng, 1000), 5.0)), dp.Linear(noise_std=1.0))
    truth = GaussianMixture.from_covs(
        np.full(2, 0.5), np.array([[1.5, 1.5], [-1.5, -1.5]]), 0.09 * np.eye(2)[None].repeat(2, 0)
    )
    ours = learned.prior
    components = GaussianMixture.from_covs(
        *(np.asarray(a, float) for a in (ours.weights, ours.means, ours.covs))
    )
    gap = log_evidence(new, truth) - log_evidence(new, components)
    assert gap.mean() < 0.05 + 2 * gap.std() / np.sqrt(1000)


def test_figures_of_the_report_are_of_tasks_held_out(blob_logs: dp.Logs, learned: dp.Model) -> None:
    out = blob_logs.select(held_out(blob_logs.hashes, 0.1))
    report = learned.report
    assert report.num_report_tasks == out.num_tasks
    by_name = {family.name: family for family in report.families}
    for name in ("Gaussian", report.chosen):
        again = dp.evaluate.log_evidence(learned.families[name], out, learned.likelihood)
        np.testing.assert_allclose(by_name[name].log_evidence, again.mean(), rtol=1e-6)
    difference = by_name[report.chosen].log_evidence - by_name["Gaussian"].log_evidence
    np.testing.assert_allclose(by_name[report.chosen].over_gaussian.mean, difference, rtol=1e-6)


def test_nothing_learned_depends_on_the_tasks_of_the_report(
    blob_logs: dp.Logs, learned: dp.Model
) -> None:
    """Rewards of the tasks held out are replaced: no prior may change."""
    out = held_out(blob_logs.hashes, 0.1)[blob_logs.row_tasks]
    noise = 5 * np.random.default_rng(0).standard_normal(blob_logs.num_rows)
    other = dp.Logs(blob_logs.tasks, blob_logs.features, np.where(out, noise, blob_logs.rewards))
    one, two = learned, quick(other)
    assert float(one.likelihood.noise_std) == float(two.likelihood.noise_std)
    assert one.report.chosen == two.report.chosen
    for name, prior in one.families.items():
        for left, right in zip(
            jax.tree.leaves(prior), jax.tree.leaves(two.families[name]), strict=True
        ):
            np.testing.assert_array_equal(left, right)
    assert one.report.families[1].log_evidence != two.report.families[1].log_evidence


def test_a_gaussian_is_chosen_where_tasks_are_gaussian() -> None:
    rng = np.random.default_rng(1)
    logs = dp.Logs(*rows(rng, [2.0, -1.0] + rng.standard_normal((300, 2)), 5.0))
    report = quick(logs).report
    assert report.chosen == "Gaussian" and "best mixture" in report.sentence
    cold = report.families[0]
    assert cold.name == "cold start" and cold.over_gaussian.mean < 0
    assert report.verdict.startswith("Use this prior") and "a Gaussian is enough" in report.verdict
    alone = quick(logs, ("mixture",))
    assert isinstance(alone.prior, dp.MixturePrior) and "mixture" in alone.report.chosen


def test_the_gaussian_is_announced_first_and_closed_forms_can_be_all(
    blob_logs: dp.Logs, announced: tuple[dp.Model, list[str]]
) -> None:
    found, lines = announced
    first, second = (line for line in lines if not re.search(r"\d of \d+ after", line))
    assert first.startswith("Gaussian after") and "over a cold start" in first
    assert second.startswith("chosen: the mixture of 2")
    assert list(found.families) == ["cold start", "Gaussian", "mixture of 2"]
    assert found.report.simulation is None
    with pytest.raises(ValueError, match="`families`: expected .* with quick=True"):
        dp.learn(blob_logs, dp.Linear(), families=("diffusion",), quick=True)


def test_a_table_is_read_by_the_names_of_its_columns() -> None:
    tasks, days, rewards = repeated_measures()
    columns = zip(tasks, days, rewards, strict=True)
    table = [{"subject": int(t), "day": d, "ms": y} for t, d, y in columns]
    logs = dp.Logs.read(table, task="subject", reward="ms")
    one = dp.learn(table, dp.Linear(), task="subject", reward="ms", quick=True, progress=False)
    two = dp.learn(logs, dp.Linear(), quick=True, progress=False)
    assert one.encoder == two.encoder and one.prior.digest == two.prior.digest
    with pytest.raises(ValueError, match="`logs`: .* a table with task=COLUMN .* got list; name"):
        dp.learn(table, dp.Linear())
    with pytest.raises(ValueError, match="`logs`: .* got list with task; name"):
        dp.learn(table, dp.Linear(), task="subject")
    with pytest.raises(ValueError, match="`task`: expected none with Logs, .* got 'subject'"):
        dp.learn(logs, dp.Linear(), task="subject", reward="ms")
    with pytest.raises(ValueError, match="`reward`: .*'paid'"):
        dp.learn(table, dp.Linear(), task="subject", reward="paid")


def test_few_tasks_give_the_mixed_model_of_maximum_likelihood() -> None:
    tasks, days, rewards = repeated_measures()
    logs = dp.Logs(tasks, days[:, None], rewards, intercept=True)
    learned = dp.learn(logs, dp.Linear(), simulate=False, progress=False)
    gaussian = learned.families["Gaussian"]
    assert isinstance(gaussian, dp.GaussianPrior)
    _, cov, noise_variance, _ = mixed_model_of_repeated_measures()
    np.testing.assert_allclose(np.diagonal(gaussian.cov), np.diagonal(cov), rtol=1e-3)
    np.testing.assert_allclose(float(learned.likelihood.noise_std) ** 2, noise_variance, rtol=1e-3)
    assert learned.report.chosen == "Gaussian"
    text = " ".join(learned.report.warnings)
    assert "too few tasks: 18" in text and "144 residual degrees of freedom" in text


def test_the_report_is_text_numbers_and_a_page(learned: dp.Model, tmp_path: Path) -> None:
    report = learned.report
    text = str(report)
    for words in (report.verdict, "over the Gaussian", "chosen", "reward of first choices"):
        assert words in text
    report.to_json(tmp_path / "report.json")
    numbers = json.loads((tmp_path / "report.json").read_text())
    assert numbers == report.to_dict()
    assert numbers["families"][1]["over_gaussian"]["mean"] == 0.0
    report.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    gain, over = report.result.over_cold, report.result.over_gaussian
    assert numbers["families"][-1]["over_cold"]["mean"] == gain.mean > 2 * gain.error
    for one in (gain, over):  # the same number everywhere
        shown = f"+{plus_minus(one.mean, one.error)}"
        assert shown in text and shown in page
    assert f"more than a Gaussian gains +{plus_minus(over.mean, over.error)}" in report.verdict
    assert numbers["verdict"] == report.verdict and report.verdict in page
    assert page.count("<img") == 3 and "http" not in page.replace("http-equiv", "")


def test_next_rewards_are_covered_as_promised(learned: dp.Model) -> None:
    report = learned.report
    found = report.next_rewards
    assert found is not None and found.coverage is not None and found.coverage_error is not None
    assert abs(found.coverage - 0.9) < 4 * found.coverage_error + 0.01
    assert abs(found.predicted - found.mean) < 4 * found.error


def test_statistics_are_enough_for_linear_rewards(blob_logs: dp.Logs, learned: dp.Model) -> None:
    again = dp.learn(blob_logs.statistics(), dp.Linear(), progress=False, config=QUICK)
    assert again.report.chosen == "mixture of 2" and "diffusion" not in again.families
    assert again.report.simulation is None and again.report.next_rewards is None
    ours, theirs = again.families["Gaussian"], learned.families["Gaussian"]
    np.testing.assert_allclose(ours.mean, theirs.mean, atol=1e-4)
    np.testing.assert_allclose(ours.cov, theirs.cov, atol=1e-3)
    with pytest.raises(ValueError, match="expected rows for Logistic rewards, got statistics"):
        dp.learn(blob_logs.statistics(), dp.Logistic())


def test_hedging_costs_little_and_saves_a_task_unlike_any_other(
    blob_logs: dp.Logs, learned: dp.Model
) -> None:
    bare = learned.families[learned.report.chosen]
    cost = dp.evaluate.log_evidence(bare, blob_logs, learned.likelihood)
    cost = cost - dp.evaluate.log_evidence(learned.prior, blob_logs, learned.likelihood)
    assert cost.mean() < -np.log(1 - 0.02)
    moments = bare.moments()
    std = np.sqrt(np.diagonal(np.asarray(moments.cov)))
    theta = np.asarray(moments.mean) + 5 * std * np.array([1.0, -1.0]) / np.sqrt(2)
    rng = np.random.default_rng(0)
    _, x, y = rows(rng, theta[None], 1.0)
    x = rng.standard_normal((30, 2))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = x @ theta + rng.standard_normal(30)
    evidence = dp.Linear(noise_std=1.0).observe(x, y)

    def miss(prior: dp.MixturePrior) -> float:
        posterior = prior.posterior(evidence)[0].moments()
        error = (np.asarray(posterior.mean) - theta) / np.sqrt(np.diagonal(posterior.cov))
        return float(np.max(np.abs(error)))

    assert miss(learned.prior) < 2 < miss(bare)


def test_wrong_arguments_are_rejected(blob_logs: dp.Logs) -> None:
    with pytest.raises(ValueError, match="`rewards`: expected 0 or 1"):
        dp.learn(blob_logs, dp.Logistic())
    unchecked = inspect.unwrap(dp.learn)  # by the type checker of the tests
    with pytest.raises(ValueError, match="`logs`: expected Logs, .* got ndarray"):
        unchecked(np.zeros((5, 2)), dp.Linear())
    with pytest.raises(ValueError, match="`likelihood`: expected a likelihood, got int"):
        unchecked(blob_logs, 1)
    with pytest.raises(ValueError, match="`hedge`: expected a share"):
        dp.learn(blob_logs, dp.Linear(), hedge=1.0)
    with pytest.raises(ValueError, match="`families`: expected one of"):
        dp.learn(blob_logs, dp.Linear(), families=("network",))
    with pytest.raises(ValueError, match="`families`: expected 'gaussian' among them with 30"):
        dp.learn(blob_logs.select(np.arange(30)), dp.Linear(), families=("mixture",))
    with pytest.raises(ValueError, match="`logs`: expected at least 10 tasks, got 3"):
        dp.learn(blob_logs.select(np.arange(3)), dp.Linear())
