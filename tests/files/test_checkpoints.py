"""Checkpoints are computed once; a damaged file counts as missing."""

from pathlib import Path

import diffprior as dp
from diffprior.files.cache import Checkpoints


def test_a_checkpoint_is_computed_once_unless_it_is_damaged(tmp_path: Path) -> None:
    means: list[float] = []

    def compute() -> dp.GaussianPrior:
        means.append(1.0)
        return dp.GaussianPrior(means[-1:], [[1.0]])

    checkpoints = Checkpoints(tmp_path / "new")
    for _ in range(2):
        assert checkpoints.get("a, b", {"sizes": (1, 2)}, compute).dim == 1
    assert len(means) == 1
    checkpoints.get("a, b", {"sizes": (1, 3)}, compute)
    assert len(means) == 2
    for path in (tmp_path / "new").iterdir():
        path.write_bytes(path.read_bytes()[:-8])
    checkpoints.get("a, b", {"sizes": (1, 2)}, compute)
    assert len(means) == 3
