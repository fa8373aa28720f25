"""Every Python block of docs/bandits.md runs as it stands."""

import re
from pathlib import Path

import jax
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "bandits.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = compile(BLOCKS[number], f"{PAGE.name}, block {number}", "exec")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(code, {"__name__": "__main__"})


def test_blocks_are_found() -> None:
    assert len(BLOCKS) == 3
