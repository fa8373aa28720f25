"""The report of a fit: short, readable, and its columns are the predictors they are named after."""

import dataclasses

import numpy as np
from numpy.testing import assert_allclose

import diffprior as dp
from diffprior.fitting.report import Candidate, FitReport, StageLoss

STAGES = tuple(StageLoss(x, 0.9 / (1 + x * x), 2.0, 1.0, 0.9) for x in (-7.0, 1.0, 9.0))
REPORT = FitReport(100, 20, 1.25, (0.9, 0.8), 1, STAGES, ("few samples",))


def test_report_reads_as_a_table() -> None:
    lines = str(REPORT).splitlines()
    assert lines[0] == "100 samples, 20 of them held out; 1.2 s; best of 2 evaluations: 1"
    head = next(i for i, line in enumerate(lines) if line.startswith("log SNR"))
    assert lines[head].split() == ["log", "SNR", "learned", "linear", "noisy", "constant"]
    assert lines[-1] == "warning: few samples"
    rows = [[float(cell) for cell in line.split()] for line in lines[head + 1 : head + 4]]
    stages = [(s.log_snr, s.learned, s.linear, s.noisy, s.constant) for s in REPORT.stages]
    assert_allclose(rows, stages, atol=1e-4)


def test_report_explains_its_columns_and_says_what_follows() -> None:
    report, text = REPORT, str(REPORT)
    for word in ("log SNR", "learned", "linear", "noisy", "constant"):
        assert any(line.startswith(f"  {word} ") for line in text.splitlines())
    learned, linear = min((s.learned / s.linear, s.linear) for s in report.stages)
    assert report.gain == (learned, 9.0) and linear == 0.9
    assert "At log SNR 9.0 the learned error is 0.01 of the linear one" in text
    stages = tuple(dataclasses.replace(s, learned=0.99 * s.linear) for s in report.stages)
    assert "a Gaussian prior would do" in str(dataclasses.replace(report, stages=stages))


def test_report_says_what_was_chosen_and_why() -> None:
    gaussian, mixture = (
        Candidate("Gaussian", 1, False, 0.0, 2.0),
        Candidate("mixture", 3, False, 0.0, 1.0),
    )
    learned = dataclasses.replace(mixture, corrected=True, loss=0.9)
    report = dataclasses.replace(REPORT, candidates=(gaussian,), losses=(2.0,), best=0)
    assert "No mixture is clearly likelier than one Gaussian." in str(report)
    assert "evaluations" not in str(report) and "network" not in str(report).split("Held-out")[0]
    both = dataclasses.replace(
        report, candidates=(gaussian, mixture, learned), chosen=2, mixture_gain=0.25
    )
    assert "A mixture of 3 is likelier than one Gaussian by 0.25 nats per sample" in str(both)
    assert "The network takes 10% off the loss of its base." in str(both)
    alone = dataclasses.replace(both, chosen=1)
    assert "The network takes" not in str(alone) and "drawn from as one" in str(alone)
    stages = tuple(dataclasses.replace(s, learned=s.linear) for s in report.stages)
    assert "would do about as well" not in str(dataclasses.replace(both, stages=stages))


def test_report_of_a_fit_is_short(learned: dp.DiffusionPrior) -> None:
    lines = str(learned.report).splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    assert learned.report.num_samples == 2000 and learned.report.num_held_out == 200
    assert learned.report.warnings == ()


def test_columns_are_the_errors_of_simple_predictors(learned: dp.DiffusionPrior) -> None:
    """For samples of unit covariance: s_t / sqrt(alpha_bar), the mean, and the best linear one."""
    for stage in learned.report.stages:
        snr = np.exp(stage.log_snr)
        assert_allclose([stage.noisy, stage.constant, stage.linear], [1 / snr, 1.0, 1 / (1 + snr)])


def test_residual_of_the_prior_is_that_of_the_report(learned: dp.DiffusionPrior) -> None:
    stages = learned.report.stages
    assert_allclose(learned.residual_log_snr, [s.log_snr for s in stages])
    assert_allclose(learned.residual, [s.learned for s in stages])
    assert np.all(np.diff(learned.residual_log_snr) > 0)


def test_evaluations_say_where_the_best_was(learned: dp.DiffusionPrior) -> None:
    report = learned.report
    best = min(report.losses)
    assert best <= report.losses[report.best] < best + 0.05 * (report.losses[0] - best)
    assert dataclasses.replace(report) == report
