"""Files of every version since 0.2.0 are readable, and mean what they meant."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

import diffprior as dp
from files.write_data import meaning

DATA = Path(__file__).parents[1] / "data"


def test_files_of_every_version_mean_what_they_meant() -> None:
    folders = sorted(DATA.glob("v*"))
    assert folders
    for folder in folders:
        for name, expected in json.loads((folder / "expected.json").read_text()).items():
            with jax.enable_x64(False):
                found = dp.load(folder / name)
                if isinstance(found, dp.Bandit):
                    found = dp.Bandit.load(folder / name, keep_seed=True)
                assert type(found).__name__ == expected["kind"], name
                np.testing.assert_equal(
                    _rounded(meaning(found)), _rounded(expected["meaning"]), err_msg=name
                )


def _rounded(value: Any) -> Any:
    """Numbers to three digits, which no rounding of single precision reaches."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value if value is None else np.round(np.asarray(value, np.float64), 3)
