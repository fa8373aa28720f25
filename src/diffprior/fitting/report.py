"""The report of a fit, and warnings about the samples that a prior is fitted to."""

import warnings
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..files.base import Serializable
from .config import NEGLIGIBLE_GAIN
from .samples import constant_columns

FAR = 20.0  # standard deviations of the other rows from which on a row is an outlier
LISTED = 5  # rows or parameters that a message lists


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
    """A denoiser that was tried: its base, and whether a network corrects it."""

    base: str  # "Gaussian" or "mixture"
    num_components: int  # K of the mixture; 1 of the Gaussian
    corrected: bool  # by a network
    shrinkage: float  # share of the network's correction that held-out samples justify, 0 to 1
    loss: float  # mean squared error on held-out samples under random evidence; see `FitConfig`
    losses: tuple[float, ...] = ()  # that loss at each evaluation of training
    without_attributes: float | None = None  # loss of the best that does not take them; see `str`

    def __str__(self) -> str:
        base = "one Gaussian" if self.base == "Gaussian" else f"a mixture of {self.num_components}"
        network = " and a network" if self.corrected else " alone"
        if self.without_attributes is None:
            return f"{base}{network}: {self.loss:.4f}"
        about = f"(of single samples; without attributes {self.without_attributes:.4f})"
        return f"{base}{network} given attributes: {self.loss:.4f} {about}"


@dataclass(frozen=True)
class FitReport(Serializable):
    """How a prior was fitted. `str(report)` is a table that explains itself.

    Attributes:
        num_samples: rows that the prior was fitted to.
        num_held_out: rows among them that were used for validation only.
        seconds: how long that took.
        losses: the held-out loss before training and at each evaluation after it.
        best: the evaluation chosen, counted from 0.
        stages: the error of the denoiser at each noise level.
        warnings: about the samples.
        candidates: what was tried: bases alone and with a network, and the held-out loss of each;
            none with the paper's preset.
        chosen: the one chosen: of those about as good as the best the simplest, but not one
            Gaussian alone where there is a mixture.
        mixture_gain: cross-validated log density under the mixture less that under one Gaussian, in
            nats per sample; 0 where no mixture is clearly better.
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
        """The chosen candidate, if there was a choice."""
        return self.candidates[self.chosen] if self.candidates else None

    @property
    def network_gain(self) -> float:
        """The share of the base's held-out loss that the network took away; 0 without one."""
        kept = self.base
        if kept is None or not kept.corrected:
            return 0.0
        if kept.without_attributes is not None:
            return 1.0 - kept.loss / kept.without_attributes
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
            f"{self.mixture_gain:.2f} nats per sample, by cross-validation.\n"
        )

    def _draws(self) -> str:
        kept = self.base
        if kept is None or not kept.corrected:
            return "Without a network it is a closed form, and is drawn from as one (Exact).\n"
        rival = "its base" if kept.without_attributes is None else "the best without attributes"
        added = f"The network takes {self.network_gain:.0%} off the loss of {rival}.\n"
        if kept.base == "Gaussian":
            return added + "EvidenceDPS draws from it, stage by stage.\n"
        return added + "FewPasses draws from it in two passes, EvidenceDPS stage by stage.\n"

    def _verdict(self) -> str:
        ratio, log_snr = self.gain
        if ratio > 1.0 - NEGLIGIBLE_GAIN:
            mixed = "little is lost with a Gaussian prior."
            follows = mixed if self.mixture_gain > 0 else "a Gaussian prior would do about as well."
            return f"No level is clearly below linear: {follows}"
        return (
            f"At log SNR {log_snr:.1f} the learned error is {ratio:.2f} of the linear one: the\n"
            "samples have structure that a Gaussian prior would miss."
        )


COLUMNS = "log SNR   learned    linear     noisy  constant"
EXPLANATION = """\
Samples are hidden in noise and predicted from it: mean squared error by noise
level, on held-out samples, where 1 is the variance of the samples.
  log SNR   log of signal over noise: high is nearly clean, low is nearly noise
  learned   this prior
  linear    the best linear prediction: all there is to learn of a Gaussian
  noisy     the noisy sample itself
  constant  the mean of the samples, whatever the noisy sample says"""


def screen_samples(samples: Float[np.ndarray, "n d"]) -> tuple[str, ...]:
    """Warn about samples that are few, repeated, constant, of deficient rank, dominated by a few
    rows, or beyond the precision of draws; and return the warnings.
    """
    found = [*_degenerate(samples), *_outlying(samples), *_too_fine(samples)]
    for message in found:
        warnings.warn(f"`samples`: {message}", FitWarning, stacklevel=4)
    return tuple(found)


def _degenerate(samples: Float[np.ndarray, "n d"]) -> list[str]:
    """Few or repeated rows, and parameters that are constant or depend on others."""
    n, constant, found = len(samples), constant_columns(samples), []
    if n < 200:
        found.append(f"{n} samples are few; below 200 a Gaussian prior often does as well")
    distinct = len(np.unique(samples, axis=0))
    if distinct < 0.9 * n:
        found.append(f"only {distinct} of {n} samples are distinct; repeated tasks are counted so")
    if np.any(constant):
        listed = np.flatnonzero(constant).tolist()
        found.append(f"parameters {listed} are constant; the prior keeps them so")
    varying = samples[:, ~constant]
    if varying.shape[1]:
        standard = (varying - varying.mean(axis=0)) / varying.std(axis=0)
        singular = np.linalg.svd(standard, compute_uv=False)
        rank = int(np.sum(singular > 1e-6 * singular[0]))
        if rank < varying.shape[1]:
            found.append(f"the varying parameters have rank {rank} of {varying.shape[1]}")
    return found


def _outlying(samples: Float[np.ndarray, "n d"]) -> list[str]:
    """A few rows, at most a fiftieth, that hold more than half of a parameter's variance."""
    most = max(3, len(samples) // 50)
    distance = np.abs(samples - np.median(samples, axis=0))
    near = np.sort(distance, axis=0)[:-most]
    spread = np.sqrt(np.mean(near**2, axis=0))
    far = (distance > FAR * spread) & (spread > 0)
    share = np.sum(np.where(far, distance, 0.0) ** 2, axis=0)
    far &= share > 0.5 * np.sum(distance**2, axis=0)
    rows, columns = (np.flatnonzero(np.any(far, axis=axis)) for axis in (1, 0))
    if not len(rows):
        return []
    largest = np.max(np.where(far, distance / np.where(spread > 0, spread, 1.0), 0.0))
    return [
        f"rows {_listed(rows)} (counted from 0) lie up to {largest:.2g} standard deviations of the "
        f"others away in parameters {_listed(columns)} and make most of their variance; drop or "
        "repair them unless tasks like these will come again"
    ]


def _too_fine(samples: Float[np.ndarray, "n d"]) -> list[str]:
    """Parameters whose variation is lost in the precision that draws are made in."""
    finfo = jnp.finfo(jnp.result_type(float))
    stds, size = samples.std(axis=0), np.max(np.abs(samples), axis=0)
    varies = ~constant_columns(samples)
    lost = varies & (stds < 100 * float(finfo.eps) * size)
    smallest, largest = float(finfo.tiny) ** 0.5, float(finfo.max) ** 0.5
    beyond = varies & ((stds < 4 * smallest) | (stds > largest / 4))
    name = "single" if finfo.bits == 32 else "double"
    fix = " or set jax_enable_x64" if finfo.bits == 32 else ""
    found = []
    if np.any(lost):
        found.append(
            f"parameters {_listed(np.flatnonzero(lost))} vary too little about a large value for "
            f"{name} precision to hold (by {np.min(stds[lost]):.2g} about "
            f"{np.max(size[lost]):.2g}); subtract a constant from them{fix}"
        )
    if np.any(beyond):
        found.append(
            f"the variances of parameters {_listed(np.flatnonzero(beyond))} are beyond {name} "
            f"precision; change their units{fix}"
        )
    return found


def _listed(numbers: np.ndarray) -> str:
    more = f" and {len(numbers) - LISTED} more" if len(numbers) > LISTED else ""
    return f"{numbers[:LISTED].tolist()}{more}"
