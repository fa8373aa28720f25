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
    filled = dataclasses.asdict(dp.FitConfig().for_base(dim, components))
    left = {name for name, value in filled.items() if value is None}
    assert left == {"schedule", "max_components"}
    low, high = filled["log_precision_range"]
    assert low < high <= 9.0 and filled["depth"] >= 2
    assert filled["num_steps"] >= (1500 if components * dim**2 >= 2**16 or dim <= 3 else 3000)


def test_settings_win_over_defaults() -> None:
    config = dp.FitConfig(width=5, num_steps=7, learning_rate=0.5).for_base(20, 3)
    assert (config.width, config.num_steps, config.learning_rate) == (5, 7, 0.5)
    assert config.for_base(2) == config
    assert dp.FitConfig.tiny().for_base(3) == dp.FitConfig.tiny()
    paper = dp.FitConfig.paper().for_base(2)
    assert (paper.width, paper.num_steps, paper.optimizer) == (100, 1250, "adam")


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
