"""What `fit` takes: schedules by name, weights, groups, warm starts, sizes; and its programs."""

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import diffprior as dp
from diffprior.mixture import GaussianMixture
from diffprior.priors import choose_base, descent
from diffprior.priors.corrected import CorrectedDenoiser
from diffprior.priors.fitting import checked_schedule
from statistic import assert_mean

RNG = np.random.default_rng(4)
SAMPLES = RNG.standard_normal((400, 2)) @ np.array([[1.0, 0.3], [0.0, 2.0]]) + 3.0
TWO = np.where(RNG.random((400, 1)) < 0.5, 2.0, -2.0) + 0.3 * RNG.standard_normal((400, 2))
EVENT = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """The names of the programs compiled so far."""
    names: list[str] = []

    def listen(event: str, duration: float, **details: str) -> None:
        if event == EVENT:
            names.append(str(details.get("fun_name", "")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def small(samples: Any = SAMPLES, **options: Any) -> dp.DiffusionPrior:
    """A fit that is over soon."""
    sizes = {"num_steps": 20, "width": 8, "depth": 2, "progress": False} | options
    return dp.DiffusionPrior.fit(samples, **sizes)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few draws, so that little is computed."""
    monkeypatch.setattr(choose_base, "HELD_OUT_DRAWS", 64)
    monkeypatch.setattr(choose_base, "JUDGED_EVIDENCE", 8)
    monkeypatch.setattr("diffprior.priors.correction_loss.LARGEST_POOL", 256)
    monkeypatch.setattr("diffprior.priors.residuals.RESIDUAL_DRAWS", 128)
    plan = choose_base.TrainingPlan(descent.Recipe(40, 32, 2e-2, False, 16), 8, 2, (-4.0, 3.0))
    monkeypatch.setattr(choose_base, "training_plan", lambda dim, mixed: plan)
    one = lambda *_, **__: SimpleNamespace(num_components=1)  # noqa: E731
    monkeypatch.setattr(choose_base, "choose_components", one)
    monkeypatch.setattr(choose_base, "NOISE", -1e9)  # the least loss is kept, however little less


def test_a_second_fit_compiles_nothing(short: None, compilations: list[str]) -> None:
    """Other samples, another seed and another number of steps, of the same shapes."""
    first = small(sample_weights=np.ones(400))
    assert any("descend" in name for name in compilations)  # the count sees what it should
    compilations.clear()
    second = small(SAMPLES[::-1] * 2, seed=1, num_steps=30, sample_weights=np.full(400, 2.0))
    assert not compilations
    assert first.report.losses != second.report.losses


def test_sizes_are_those_asked_for(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not the network is kept in the end."""
    trained, optimize = [], choose_base.optimize

    def watched(start: Any, *args: Any) -> Any:
        found = optimize(start, *args)
        trained.append((start, found[1]))
        return found

    monkeypatch.setattr(choose_base, "optimize", watched)
    small(TWO, num_steps=7, width=5, depth=3)
    ((start, fitted),) = trained
    assert start.weights_hidden.shape == (2, 5, 5)
    assert len(fitted.losses) == 2  # before, and after one chunk of 7 steps


@pytest.mark.parametrize("num_steps", [1, 249, 250, 251])
def test_so_many_steps_are_taken(num_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient of one, and a rate that sums up to what the schedule says."""
    loss = lambda p, key, rows, size: jnp.sum(p)  # noqa: E731
    rows = descent.Rows.of(np.zeros((1, 1)), None)
    keys = (jax.random.key(0), jax.random.key(1))
    recipe = descent.Recipe(num_steps, 1, 1.0, False)
    monkeypatch.setattr(descent, "AVERAGING", 0.0)
    params, fitted = descent.optimize(
        jnp.zeros(1, jnp.float32), loss, rows, recipe, keys, False, lambda p: np.asarray(p)
    )
    assert len(fitted.losses) == 1 + -(-num_steps // 250)
    step = np.arange(num_steps)
    left = np.clip((step - 100) / max(num_steps - 100, 1), 0, 1)
    rates = np.minimum(step / 100, 1) * (0.01 + 0.99 * (1 + np.cos(np.pi * left)) / 2)
    assert_allclose(-params[0], np.sum(rates), rtol=1e-3, atol=1e-6)


def test_a_warm_start_goes_on_from_where_another_fit_ended(unlearned: list) -> None:
    """Nothing is learned here, so that the base is that of the start, in its coordinates."""
    first = small(SAMPLES, seed=3)
    base = GaussianMixture(
        jnp.log(jnp.array([0.5, 0.5])),
        jnp.array([[0.2, 0.1], [-0.2, 0.3]]),
        jnp.stack([jnp.eye(2)] * 2),
        0.9 * jnp.ones((2, 2)),
    )
    first = dataclasses.replace(
        first,
        denoiser=CorrectedDenoiser(base, None, None, 2),
        schedule=dp.Schedule.cosine(7),
    )
    moved = SAMPLES[:300] * 1.5 + 1.0
    second = dp.DiffusionPrior.fit(moved, initial=first, seed=5)
    leaves = map(jax.tree.leaves, (second.denoiser, first.denoiser))
    for ours, theirs in zip(*leaves, strict=True):
        assert_allclose(ours, theirs, rtol=1e-6)
    assert_array_equal(second.offset, first.offset)
    assert_array_equal(second.scale, first.scale)
    assert second.schedule == dp.Schedule.cosine(7)
    unit = np.concatenate(unlearned[-1])
    back = unit @ np.asarray(first.scale).T + np.asarray(first.offset)
    assert_allclose(np.sort(back[:, 0]), np.sort(moved[:, 0]), atol=1e-5)


def test_a_warm_start_begins_with_the_loss_that_the_other_ended_with(short: None) -> None:
    first = small(TWO, num_steps=200)
    second = small(TWO, initial=first, width=None, depth=None, num_steps=1)
    assert first.report.base.corrected
    assert_allclose(second.report.losses[0], first.report.base.loss, rtol=1e-4)


def test_samples_count_by_their_weights(unlearned: list) -> None:
    weights = np.where(SAMPLES[:, 0] > 2.5, 3.0, 0.0)
    weights[0] = 1.0
    prior = small(sample_weights=weights)
    mean = weights @ SAMPLES / weights.sum()
    cov = np.cov(SAMPLES.T, aweights=weights, bias=True)
    assert_allclose(prior.moments().mean, mean, rtol=1e-9)
    assert_allclose(prior.moments().cov, cov, rtol=1e-5)
    assert prior.report.num_samples == np.sum(weights > 0)


def test_rows_are_drawn_by_their_weights() -> None:
    rows = descent.Rows.of(np.eye(4), np.array([1.0, 0.0, 2.0, 5.0]))
    drawn = np.asarray(rows.draw(jax.random.key(0), 20_000))
    assert_mean(drawn[:, [0, 2, 3]], np.array([1.0, 2.0, 5.0]) / 8)
    assert not np.any(drawn[:, 1])
    plain = descent.Rows.of(np.eye(4), None)
    assert_mean(plain.draw(jax.random.key(0), 20_000), np.full(4, 0.25))


def test_residuals_count_held_out_rows_by_their_weights(unlearned: list) -> None:
    """An unlearned network is the best linear one: rows far out have larger errors when noise
    hides them, so that a prior that counts them alone has larger residuals there."""
    far = np.sum((SAMPLES - 3.0) ** 2, axis=1) > 4
    first = small()
    weights = np.where(far, 1.0, 1e-9)
    second = small(initial=first, width=None, depth=None, sample_weights=weights)
    assert float(second.residual[0]) > 1.3 * float(first.residual[0])


def test_rows_that_do_not_count_are_not_enough() -> None:
    few = np.r_[np.ones(4), np.zeros(396)]
    with pytest.raises(ValueError, match="`sample_weights`: expected at least 20 .*, got 4"):
        small(sample_weights=few)
    one = np.repeat([1.0, 0.0], 200)
    with pytest.raises(ValueError, match="`groups`: .*two different labels among rows"):
        small(sample_weights=one, groups=np.repeat([0, 1], 200))


def test_groups_are_held_out_together(unlearned: list) -> None:
    """Every task is there four times; labels may be anything."""
    tasks = np.repeat(np.arange(100), 4)
    samples = SAMPLES[tasks]
    with pytest.warns(dp.FitWarning, match="100 of 400 samples are distinct"):
        prior = small(samples, groups=[f"task {t}" for t in tasks])
    train, held_out = unlearned[-1]
    apart = np.abs(train[:, None, :] - held_out[None, :, :]).max(axis=-1)
    assert apart.min() > 1e-9 and prior.report.num_held_out == len(held_out) == 80


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cosine", dp.Schedule.cosine(64)),
        ("log_snr", dp.Schedule.log_snr(64)),
        (None, dp.Schedule.log_snr(64)),
        (dp.Schedule.cosine(3), dp.Schedule.cosine(3)),
    ],
)
def test_schedules_by_name(name: Any, expected: dp.Schedule) -> None:
    assert checked_schedule(name) == expected
    assert checked_schedule(None, "paper") == dp.Schedule.constant()
    assert checked_schedule("cosine", "paper") == dp.Schedule.cosine(100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "cosines"}, "`schedule`: expected a Schedule or one of .*got 'cosines'"),
        ({"schedule": 20}, "`schedule`: expected a Schedule or one of .*got 20"),
        ({"num_steps": 0}, "`num_steps`: expected a positive integer, got 0"),
        ({"width": 1.5}, "`width`: expected a positive integer, got 1.5"),
        ({"depth": 2, "preset": "paper"}, "`depth`: expected None with the paper's"),
        ({"seed": -1}, r"`seed`: expected a whole number from 0 to 2\^32 - 1, got -1"),
        ({"sample_weights": np.ones(3)}, r"`sample_weights`: expected shape \(400,\)"),
        ({"sample_weights": -np.ones(400)}, "`sample_weights`: expected non-negative"),
        ({"groups": np.zeros(400)}, "`groups`: expected at least two different labels, got one"),
        ({"groups": np.zeros(3)}, r"`groups`: expected shape \(400,\), got \(3,\)"),
    ],
)
def test_options_are_refused_before_anything_is_learned(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose_base, "optimize", None)
    with pytest.raises(ValueError, match=message):
        dp.DiffusionPrior.fit(SAMPLES, **options)


def test_what_cannot_be_started_from_is_refused(untrained: dp.DiffusionPrior) -> None:
    closed = dp.DiffusionPrior.from_prior(dp.GaussianPrior(np.zeros(2), np.eye(2)))
    three = RNG.standard_normal((300, 3))
    for samples, options, message in (
        (SAMPLES, {"initial": closed}, "`initial`: .*got PriorDenoiser of 2 parameters"),
        (three, {"initial": untrained}, "`initial`: expected a prior of 3 parameters"),
        (SAMPLES, {"initial": untrained, "preset": "paper"}, "`initial`: .*the same preset"),
        (SAMPLES, {"initial": untrained, "width": 9}, "`width`: expected None with `initial`"),
        (SAMPLES, {"initial": dp.GaussianPrior}, "`initial`: expected a DiffusionPrior"),
    ):
        with pytest.raises(ValueError, match=message):
            dp.DiffusionPrior.fit(samples, **options)


@pytest.mark.float32
def test_parameters_far_from_zero_are_drawn_with_their_spread(unlearned: list) -> None:
    """By a hundred million in double precision; in single precision, that is said instead."""
    if jax.config.read("jax_enable_x64"):
        prior = dp.DiffusionPrior.fit(SAMPLES + 1e8)
    else:
        with pytest.warns(dp.FitWarning, match=r"parameters \[0, 1\] vary too little"):
            prior = dp.DiffusionPrior.fit(SAMPLES + 1e8)
        prior = dp.DiffusionPrior.fit(SAMPLES + 1e3)
    draws = np.asarray(prior.sample(jax.random.key(0), 2000), np.float64)
    assert_allclose(draws.std(axis=0), SAMPLES.std(axis=0), rtol=0.1)


@pytest.mark.float32
def test_tiny_parameters_are_drawn_with_their_spread(unlearned: list) -> None:
    prior = dp.DiffusionPrior.fit(SAMPLES * 1e-18)
    draws = 1e18 * np.asarray(prior.sample(jax.random.key(0), 2000), np.float64)
    assert_allclose(draws.std(axis=0), SAMPLES.std(axis=0), rtol=0.1)
    assert_allclose(draws.mean(axis=0), SAMPLES.mean(axis=0), rtol=0.1)
