"""Task labels: the same hash for a label on every machine, and splits and draws based on it."""

import hashlib
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from ..tables import text_of


def label_hashes(labels: np.ndarray) -> UInt64[np.ndarray, " n"]:
    """A 64-bit hash per label that depends on its text alone.

    The integer 7, the float 7.0 and the text "7" are one label, because a CSV file does not
    distinguish them. Python's own `hash` differs from one process to the next.
    """
    digests = (hashlib.blake2b(text_of(label).encode(), digest_size=8).digest() for label in labels)
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def folds(hashes: UInt64[np.ndarray, " n"], num_folds: int, salt: int = 0) -> Int[np.ndarray, " n"]:
    """The fold of every task, from 0 to num_folds - 1; another `salt` is another partition."""
    return (_mixed(hashes, salt) % np.uint64(num_folds)).astype(np.int64)


def held_out(
    hashes: UInt64[np.ndarray, " n"], share: float, salt: int = 0
) -> Bool[np.ndarray, " n"]:
    """Whether each task is held out, about `share` of them; its label alone decides."""
    return _mixed(hashes, salt) < np.uint64(int(share * 2.0**64))


@dataclass(frozen=True)
class Selection:
    """Some of all tasks, chosen by their labels alone, so that every shard can choose its own.

    A share `held_out` is left out; then the first of `num_folds`, if positive; of the rest, a
    `share` is taken. Salts say which.
    """

    held_out: float = 0.0
    num_folds: int = 0
    fold_salt: int = 0
    share: float = 1.0
    share_salt: int = 0

    def mask(self, hashes: UInt64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """Whether each task is chosen."""
        chosen = ~held_out(hashes, self.held_out)
        if self.num_folds:
            chosen &= folds(hashes, self.num_folds, self.fold_salt) != 0
        if self.share < 1.0:
            chosen &= held_out(hashes, self.share, self.share_salt)
        return chosen


def uniforms(
    hashes: UInt64[np.ndarray, " n"], count: int, *numbers: int
) -> Float[np.ndarray, "n c"]:
    """Uniform numbers in (0, 1) per task, determined by its label and `numbers`.

    A counter is mixed with the hash, so a task has the same numbers in any shard.
    """
    salt = 0
    for number in numbers:
        salt = (salt * 1_000_003 + number + 1) % 2**48
    streams = _mixed(hashes, salt)
    bits = np.stack([_mixed(streams, counter + 1) for counter in range(count)], axis=1)
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def normals(
    hashes: UInt64[np.ndarray, " n"], count: int, *numbers: int
) -> Float[np.ndarray, "n c"]:
    """Standard normal numbers per task, like `uniforms`."""
    from scipy.special import ndtri  # slow to import, and not needed to decide

    return np.asarray(ndtri(uniforms(hashes, count, *numbers)))


def _mixed(hashes: UInt64[np.ndarray, " n"], salt: int) -> UInt64[np.ndarray, " n"]:
    """The finalizer of SplitMix64 applied to hash plus salt, so that splits do not share bits."""
    step = np.uint64((0x9E3779B97F4A7C15 * (salt + 1)) % 2**64)
    with np.errstate(over="ignore"):
        z = hashes + step
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
