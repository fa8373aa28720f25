"""One observation as the metrics count it."""

from typing import NamedTuple


class Learned(NamedTuple):
    """A reward, what was predicted for it, and how many its task has learned from with it."""

    reward: float
    predicted: float
    size: int
