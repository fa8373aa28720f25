"""What fitting a prior came to, for people to read and for files to keep."""

import warnings
from dataclasses import dataclass

import numpy as np

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
    """How a prior was fitted. `str(report)` is a table."""

    num_samples: int
    num_held_out: int
    seconds: float
    losses: tuple[float, ...]
    best: int
    stages: tuple[StageLoss, ...]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        head = (
            f"{self.num_samples} samples, {self.num_held_out} of them held out; "
            f"{self.seconds:.1f} s; best of {len(self.losses)} looks: {self.best}\n"
        )
        table = "log SNR   learned    linear     noisy  constant\n" + "\n".join(
            f"{s.log_snr:7.2f} {s.learned:9.5f} {s.linear:9.5f} {s.noisy:9.4g} {s.constant:9.5f}"
            for s in self.stages[:: max(1, len(self.stages) // 16)]
        )
        notes = "".join(f"\nwarning: {warning}" for warning in self.warnings)
        return head + table + notes


def look_at_samples(samples: np.ndarray) -> tuple[str, ...]:
    """Warnings, also raised as such: too few, constant, duplicated, or of deficient rank."""
    n, d = samples.shape
    found = []
    if n < 200:
        found.append(f"{n} samples are few; below 200 a Gaussian prior often does as well")
    distinct = len(np.unique(samples, axis=0))
    if distinct < 0.9 * n:
        found.append(f"only {distinct} of {n} samples are distinct; repeated tasks are counted so")
    stds = samples.std(axis=0)
    constant = np.flatnonzero(stds <= 1e-12 * np.maximum(1.0, np.abs(samples).max(axis=0)))
    if len(constant):
        found.append(f"parameters {constant.tolist()} are constant; the prior keeps them so")
    varying = np.delete(samples, constant, axis=1)
    if varying.shape[1]:
        standard = (varying - varying.mean(axis=0)) / varying.std(axis=0)
        singular = np.linalg.svd(standard, compute_uv=False)
        rank = int(np.sum(singular > 1e-6 * singular[0]))
        if rank < varying.shape[1]:
            found.append(f"the varying parameters have rank {rank} of {varying.shape[1]}")
    for message in found:
        warnings.warn(f"`samples`: {message}", FitWarning, stacklevel=3)
    return tuple(found)
