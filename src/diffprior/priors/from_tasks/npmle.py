"""The smooth nonparametric maximum likelihood: weights of Gaussian kernels on a fixed set of atoms.

Convex in the weights, so that there is one answer whatever the start; for up to three parameters,
where atoms can be everywhere that matters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from .block import AbstractBlock
from .components import Components

MAX_ATOMS = 1600
ROUNDS = 300
CERTIFIED = 1e-3  # nats a task that more rounds could gain at most


@dataclass(frozen=True, eq=False)
class Kernels:
    """Likelihood of every task under every kernel, each row divided by its largest."""

    atoms: Float[np.ndarray, "m d"]
    cov: Float[np.ndarray, "d d"]
    ratios: Float[np.ndarray, "n m"]
    largest: Float[np.ndarray, " n"]

    def weights(
        self, start: Float[np.ndarray, " m"], keep: Bool[np.ndarray, " n"], rounds: int = ROUNDS
    ) -> Float[np.ndarray, " m"]:
        """Exact EM on the weights for the tasks kept; atoms that lose all weight are dropped."""
        ratios = self.ratios[keep]
        active = np.arange(len(start))
        w = start.astype(ratios.dtype)
        for step in range(rounds):
            gain = ratios.T @ (1.0 / (ratios @ w)) / len(ratios)
            w = w * gain
            if step % 20 == 19:
                if np.all(gain < 1.0 + CERTIFIED):
                    break
                alive = w > 1e-6 * w.max()
                if alive.mean() < 0.7:
                    active, w = active[alive], w[alive]
                    ratios = np.ascontiguousarray(ratios[:, alive])
        full = np.zeros(len(start))
        full[active] = w / w.sum()
        return full

    def log_evidence(self, weights: Float[np.ndarray, " m"]) -> Float[np.ndarray, " n"]:
        """log p(h) of every task."""
        mixed = self.ratios @ weights.astype(self.ratios.dtype)
        return np.log(np.maximum(mixed.astype(np.float64), 1e-300)) + self.largest

    def components(self, weights: Float[np.ndarray, " m"], below: float = 1e-5) -> Components:
        """The mixture that the weights make."""
        covs = np.broadcast_to(self.cov, (len(weights), *self.cov.shape))
        return Components(weights, self.atoms, covs).pruned(below)


def kernels(
    blocks: Sequence[AbstractBlock],
    atoms: Float[np.ndarray, "m d"],
    cov: Float[np.ndarray, "d d"],
) -> Kernels:
    """The likelihood of every task under N(atom, cov) for every atom."""
    log_evidence = np.concatenate([b.kernel_log_evidence(atoms, cov) for b in blocks])
    largest = log_evidence.max(axis=1)
    ratios = np.exp(log_evidence - largest[:, None]).astype(np.float32)
    return Kernels(atoms, cov, ratios, largest)


def grid(
    draws: Float[np.ndarray, "n d"], spread: Float[np.ndarray, " d"], max_atoms: int = MAX_ATOMS
) -> Float[np.ndarray, "m d"]:
    """A grid over where posterior draws are, and `spread` beyond, of at most so many points."""
    dim = draws.shape[1]
    low = np.quantile(draws, 0.002, axis=0) - spread
    high = np.quantile(draws, 0.998, axis=0) + spread
    count = int(max_atoms ** (1.0 / dim))
    axes = [np.linspace(a, b, count) for a, b in zip(low, high, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, dim)
