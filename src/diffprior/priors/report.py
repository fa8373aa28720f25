"""What fitting a prior came to, for people to read and for files to keep."""

from dataclasses import dataclass

from ..files.base import Serialisable


class FitWarning(UserWarning):
    """Samples that a prior can be fitted to, though perhaps not to good effect."""


@dataclass(frozen=True)
class StageLoss(Serialisable):
    """Mean squared error per coordinate of s_0 given s_t, on held-out samples, in unit coordinates.

    `noisy` is the error of s_t / sqrt(alpha_bar) itself, `constant` that of the prior mean, and
    `linear` that of the best linear predictor: what a learned denoiser has to beat.
    """

    log_snr: float
    learned: float
    noisy: float
    constant: float
    linear: float


@dataclass(frozen=True)
class FitReport(Serialisable):
    """How a prior was fitted. `str(report)` is a table that explains itself.

    Attributes:
        num_samples: rows that the prior was fitted to.
        num_held_out: how many of them it was only judged by.
        seconds: how long that took.
        losses: the held-out loss before training and at each evaluation after it.
        best: which evaluation was kept, counted from 0.
        stages: the error of the denoiser at each noise level.
        warnings: what is odd about the samples.
    """

    num_samples: int
    num_held_out: int
    seconds: float
    losses: tuple[float, ...]
    best: int
    stages: tuple[StageLoss, ...]
    warnings: tuple[str, ...]

    @property
    def gain(self) -> tuple[float, float]:
        """The smallest ratio of the learned to the linear error, and the log SNR where it is."""
        best = min(self.stages, key=lambda stage: stage.learned / stage.linear)
        return best.learned / best.linear, best.log_snr

    def __str__(self) -> str:
        rows = "\n".join(
            f"{s.log_snr:7.2f} {s.learned:9.5f} {s.linear:9.5f} {s.noisy:9.4g} {s.constant:9.5f}"
            for s in self.stages[:: max(1, len(self.stages) // 16)]
        )
        notes = "".join(f"\nwarning: {warning}" for warning in self.warnings)
        return f"{self._head()}\n{EXPLANATION}\n{COLUMNS}\n{rows}\n{self._verdict()}{notes}"

    def _head(self) -> str:
        return (
            f"{self.num_samples} samples, {self.num_held_out} of them held out; "
            f"{self.seconds:.1f} s; best of {len(self.losses)} evaluations: {self.best}"
        )

    def _verdict(self) -> str:
        ratio, log_snr = self.gain
        if ratio > WORTH:
            return "No level is clearly below linear: a Gaussian prior would do about as well."
        return (
            f"At log SNR {log_snr:.1f} the learned error is {ratio:.2f} of the linear one: the\n"
            "samples have structure that a Gaussian prior would miss."
        )


WORTH = 0.97  # of the linear error, below which learning paid
COLUMNS = "log SNR   learned    linear     noisy  constant"
EXPLANATION = """\
Samples are hidden in noise and predicted from it: mean squared error by noise
level, on held-out samples, where 1 is the variance of the samples.
  log SNR   log of signal over noise: high is nearly clean, low is nearly noise
  learned   this prior
  linear    the best linear prediction: all there is to learn of a Gaussian
  noisy     the noisy sample itself
  constant  the mean of the samples, whatever the noisy sample says"""
