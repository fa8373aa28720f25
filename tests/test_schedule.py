"""Schedules against the twin, and the identities of the forward process."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import diffprior as dp
import reference

SCHEDULES = {
    "constant": dp.Schedule.constant(),
    "constant-short": dp.Schedule.constant(7, alpha=0.5),
    "cosine": dp.Schedule.cosine(),
    "cosine-long": dp.Schedule.cosine(1000),
    "log-snr": dp.Schedule.log_snr(),
    "log-snr-long": dp.Schedule.log_snr(200, highest=12.0, lowest=-10.0),
    "one-stage": dp.Schedule((1.0, 0.3)),
}
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


def test_constant_is_the_papers() -> None:
    expected = reference.schedule_constant(100, 0.97)
    schedule = dp.Schedule.constant()
    assert_allclose(schedule.alpha_bar, expected["alpha_bar"], rtol=1e-12)
    assert_allclose(schedule.alpha, 0.97, rtol=1e-12)
    assert_allclose(schedule.beta, 0.03, rtol=1e-12)
    assert_allclose(schedule.beta_tilde, expected["beta_tilde"][1:], rtol=1e-12)


@pytest.mark.parametrize("num_stages", [1, 2, 20, 1000])
def test_cosine_is_within_its_floor_of_the_twin(num_stages: int) -> None:
    floor = 1e-4
    alpha_bar = np.array(dp.Schedule.cosine(num_stages, floor).alpha_bar)
    plain = reference.cosine_alpha_bar(num_stages, minimum=0.0)
    assert_allclose(alpha_bar, floor + (1 - floor) * plain, rtol=1e-12)
    clipped = reference.cosine_alpha_bar(num_stages, minimum=floor)
    assert np.max(np.abs(alpha_bar - clipped)) <= floor * (1 + 1e-9)
    assert_allclose(alpha_bar[-1], floor, rtol=1e-9)


@pytest.mark.parametrize("num_stages", [2, 20, 100])
def test_log_snr_is_the_twins(num_stages: int) -> None:
    schedule = dp.Schedule.log_snr(num_stages)
    assert_allclose(schedule.alpha_bar, reference.log_snr_alpha_bar(num_stages), rtol=1e-12)
    assert_allclose(np.log(schedule.snr), np.linspace(9, -7, num_stages), atol=1e-9)


@every_schedule
def test_coefficients_are_equation_14(schedule: dp.Schedule) -> None:
    assert schedule.alpha_bar[0] == 1.0
    assert schedule.beta_tilde[0] == 0.0  # the paper's last stage has no variance
    for t in range(1, schedule.num_stages + 1):
        expected = reference.posterior_weights(*schedule.alpha_bar[t - 1 : t + 1])
        weights = schedule.weight_clean[t - 1], schedule.weight_noisy[t - 1]
        assert_allclose((*weights, schedule.beta_tilde[t - 1]), expected, rtol=1e-9, atol=1e-15)


@every_schedule
def test_a_noisy_sample_as_evidence(schedule: dp.Schedule) -> None:
    alpha_bar = np.array(schedule.alpha_bar[1:])
    assert_allclose(schedule.snr, alpha_bar / (1 - alpha_bar), rtol=1e-12)
    assert_allclose(schedule.shift_scale, np.sqrt(alpha_bar) / (1 - alpha_bar), rtol=1e-12)


@every_schedule
def test_stages_come_last_first(schedule: dp.Schedule) -> None:
    stages = schedule.stages(jnp.result_type(float))
    assert_allclose(stages.alpha_bar_before, schedule.alpha_bar[-2::-1], rtol=1e-12)
    for name in ("weight_clean", "weight_noisy", "beta_tilde", "snr", "shift_scale"):
        assert_allclose(getattr(stages, name), getattr(schedule, name)[::-1], rtol=1e-12)


@every_schedule
def test_going_back_undoes_going_forward(schedule: dp.Schedule) -> None:
    """Mean and variance of s_{t-1} given s_0 follow from those of s_t and Eq. (14)."""
    before, after = np.array(schedule.alpha_bar[:-1]), np.array(schedule.alpha_bar[1:])
    mean = schedule.weight_clean + schedule.weight_noisy * np.sqrt(after)
    assert_allclose(mean, np.sqrt(before), rtol=1e-9)
    variance = schedule.weight_noisy**2 * (1 - after) + schedule.beta_tilde
    assert_allclose(variance, 1 - before, rtol=1e-9, atol=1e-14)


def test_a_single_stage_ends_in_noise() -> None:
    assert_allclose(dp.Schedule.log_snr(1, lowest=-7.0).snr, np.exp(-7.0))


def stages_kept(full: dp.Schedule, strided: dp.Schedule) -> list[int]:
    return [full.alpha_bar.index(value) for value in strided.alpha_bar[1:]]


@pytest.mark.parametrize("steps", [1, 7, 99, 100])
def test_stride_keeps_the_marginals(steps: int) -> None:
    full = dp.Schedule.constant(100)
    strided = full.stride(steps)
    kept = stages_kept(full, strided)
    expected = reference.strided_alpha_bar(full.alpha_bar, kept)
    assert strided.num_stages == steps and kept[-1] == 100
    assert_allclose(strided.alpha_bar, expected["alpha_bar"], rtol=1e-14)
    assert_allclose(strided.alpha, expected["alpha"][1:], rtol=1e-12)
    assert_allclose(strided.beta_tilde, expected["beta_tilde"][1:], rtol=1e-9)


@given(st.integers(1, 300), st.data())
def test_strides_are_even(num_stages: int, data: st.DataObject) -> None:
    steps = data.draw(st.integers(1, num_stages))
    full = dp.Schedule.log_snr(num_stages)
    kept = stages_kept(full, full.stride(steps))
    gaps = np.diff((0, *kept))
    assert kept[-1] == num_stages and len(kept) == steps
    assert gaps.min() >= 1 and gaps.max() - gaps.min() <= 1


def test_a_schedule_is_a_constant_of_a_program() -> None:
    assert hash(dp.Schedule.cosine(20)) == hash(dp.Schedule.cosine(20))
    assert dp.Schedule.cosine(20) == dp.Schedule.cosine(20) != dp.Schedule.cosine(21)
