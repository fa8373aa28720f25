"""Settings: presets, defaults by number of parameters, and validation."""

import dataclasses
from typing import Any

import pytest

import diffprior as dp


def test_schedules_by_name() -> None:
    for name, expected in (
        ("cosine", dp.Schedule.cosine(64)),
        ("log_snr", dp.Schedule.log_snr(64)),
        (None, dp.Schedule.log_snr(64)),
        (dp.Schedule.cosine(3), dp.Schedule.cosine(3)),
    ):
        assert dp.FitConfig(schedule=name).reverse_schedule() == expected
    paper = dp.FitConfig.paper()
    assert paper.reverse_schedule() == dp.Schedule.constant()
    cosine = dataclasses.replace(paper, schedule="cosine")
    assert cosine.reverse_schedule() == dp.Schedule.cosine(100)


@pytest.mark.parametrize("dim", [1, 3, 8, 9, 16, 17, 33, 64])
@pytest.mark.parametrize("components", [1, 8, 256])
def test_every_setting_of_training_has_a_default(dim: int, components: int) -> None:
    training = dp.FitConfig().training(dim, components)
    assert None not in training
    low, high = training.log_precision_range
    assert low < high <= 9.0 and training.depth >= 2 and training.optimizer == "muon"
    quick = dim <= 3 or (components > 1 and components * dim**2 >= 2**16)
    assert (training.num_steps == 1500) == quick and training.num_steps >= 1500


def test_settings_win_over_defaults() -> None:
    training = dp.FitConfig(width=5, num_steps=7, learning_rate=0.5, patience=2).training(20, 3)
    assert (training.width, training.num_steps, training.learning_rate) == (5, 7, 0.5)
    assert training.patience == 2 and training.depth == 4
    assert dp.FitConfig.tiny().training(3) == dp.FitConfig.tiny().training(20, 256)
    paper = dp.FitConfig.paper().training(2)
    assert (paper.width, paper.num_steps, paper.optimizer) == (100, 1250, "adam")


def test_defaults_by_number_of_parameters() -> None:
    for dim, components, expected in (
        (8, 1, (128, 4, 3500, 2e-2, 0.0)),
        (8, 9, (128, 4, 3500, 7e-3, 0.0)),
        (16, 1, (192, 4, 8000, 2e-2, 0.0)),
        (16, 256, (192, 4, 1500, 2e-2, 0.1)),
        (32, 1, (384, 3, 3000, 2e-2, 0.1)),
        (32, 9, (256, 4, 3000, 2e-2, 0.1)),
        (64, 9, (256, 4, 3000, 7e-3, 0.0)),
    ):
        found = dp.FitConfig().training(dim, components)
        assert (*found[:3], found.learning_rate, found.weight_decay) == expected, (dim, components)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "cosines"}, "`schedule`: expected a Schedule or one of .*got 'cosines'"),
        ({"num_steps": -1}, "`num_steps`: expected a whole number, got -1"),
        ({"width": 0}, "`width`: expected a positive integer, got 0"),
        ({"depth": 1}, "`depth`: expected at least 2 hidden layers"),
        ({"depth": 3, "denoiser": "stagewise"}, "`depth`: expected None with the paper's"),
        ({"prefer_mixture": True, "denoiser": "stagewise"}, "`prefer_mixture`: expected False"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dp.FitConfig(**settings)
