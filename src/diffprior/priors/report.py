"""What fitting a prior came to, for people to read and for files to keep."""

from dataclasses import dataclass

from ..files.base import Serializable


class FitWarning(UserWarning):
    """Samples that a prior can be fitted to, though perhaps not to good effect."""


@dataclass(frozen=True)
class StageLoss(Serializable):
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
class Candidate(Serializable):
    """A denoiser that was tried: what it stands on, and what a network added to that.

    Attributes:
        base: "Gaussian" or "mixture".
        num_components: K of the mixture; 1 of the Gaussian.
        corrected: whether a network corrects it.
        shrinkage: the share of the network's correction that held-out samples justify, 0 to 1.
        loss: mean squared error on held-out samples under random evidence, in units in which the
            posterior of a unit Gaussian has variance 1.
        losses: that loss at each evaluation of training.
    """

    base: str
    num_components: int
    corrected: bool
    shrinkage: float
    loss: float
    losses: tuple[float, ...] = ()

    def __str__(self) -> str:
        base = "one Gaussian" if self.base == "Gaussian" else f"a mixture of {self.num_components}"
        return f"{base}{' and a network' if self.corrected else ' alone'}: {self.loss:.4f}"


@dataclass(frozen=True)
class FitReport(Serializable):
    """How a prior was fitted. `str(report)` is a table that explains itself.

    Attributes:
        num_samples: rows that the prior was fitted to.
        num_held_out: how many of them it was only judged by.
        seconds: how long that took.
        losses: the held-out loss before training and at each evaluation after it.
        best: which evaluation was kept, counted from 0.
        stages: the error of the denoiser at each noise level.
        warnings: what is odd about the samples.
        candidates: what was tried: bases alone and with a network, and the held-out loss of each;
            none with the paper's preset.
        chosen: which of them was kept: of those about as good as the best the simplest, but not one
            Gaussian alone where there is a mixture.
        mixture_gain: log density of samples held out in turn under the mixture less that under one
            Gaussian, in nats a sample; 0 where no mixture is clearly better.
    """

    num_samples: int
    num_held_out: int
    seconds: float
    losses: tuple[float, ...]
    best: int
    stages: tuple[StageLoss, ...]
    warnings: tuple[str, ...]
    candidates: tuple[Candidate, ...] = ()
    chosen: int = 0
    mixture_gain: float = 0.0

    @property
    def base(self) -> Candidate | None:
        """What was kept, if there was a choice."""
        return self.candidates[self.chosen] if self.candidates else None

    @property
    def network_gain(self) -> float:
        """The share of the base's held-out loss that the network took away; 0 without one."""
        kept = self.base
        if kept is None or not kept.corrected:
            return 0.0
        alone = next(c for c in self.candidates if c.base == kept.base and not c.corrected)
        return 1.0 - kept.loss / alone.loss

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
        table = f"{EXPLANATION}\n{COLUMNS}\n{rows}\n"
        return f"{self._head()}\n{self._choice()}{table}{self._verdict()}{notes}"

    def _head(self) -> str:
        head = f"{self.num_samples} samples, {self.num_held_out} of them held out; "
        trained = f"; best of {len(self.losses)} evaluations: {self.best}"
        return f"{head}{self.seconds:.1f} s{trained if len(self.losses) > 1 else ''}"

    def _choice(self) -> str:
        if not self.candidates:
            return ""
        lines = (f"  {c}{' (kept)' * (i == self.chosen)}" for i, c in enumerate(self.candidates))
        table = "Held-out loss under random evidence:\n" + "\n".join(lines)
        return f"{self._mixture()}{table}\n{self._draws()}"

    def _mixture(self) -> str:
        if self.mixture_gain <= 0:
            return "No mixture is clearly likelier than one Gaussian.\n"
        mixture = next(c for c in self.candidates if c.base == "mixture")
        return (
            f"A mixture of {mixture.num_components} is likelier than one Gaussian by "
            f"{self.mixture_gain:.2f} nats a sample, held out in turn.\n"
        )

    def _draws(self) -> str:
        kept = self.base
        if kept is None or not kept.corrected:
            return "Without a network it is a closed form, and is drawn from as one (Exact).\n"
        added = f"The network takes {self.network_gain:.0%} off the loss of its base.\n"
        if kept.base == "Gaussian":
            return added + "EvidenceDPS draws from it, stage by stage.\n"
        return added + "FewPasses draws from it in two passes, EvidenceDPS stage by stage.\n"

    def _verdict(self) -> str:
        ratio, log_snr = self.gain
        if ratio > WORTH and self.mixture_gain > 0:
            return "No level is clearly below linear: little is lost with a Gaussian prior."
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
