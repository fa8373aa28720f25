"""Files of earlier versions are read for ever, and mean what they meant.

`tests/data/v0.1.0/expected.json` is what version 0.1.0 said of its files in single precision: draws
from the priors, and the next six decisions of the bandits.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import diffprior as dp
from files.write_data import meaning

DATA = Path(__file__).parents[1] / "data"
OLD = DATA / "v0.1.0"
EXPECTED = json.loads((OLD / "expected.json").read_text())
LINEAR = [name for name in EXPECTED["bandits"] if name.endswith("linear")]


@pytest.mark.parametrize("name", EXPECTED["priors"])
def test_priors_of_0_1_0_draw_the_same(name: str) -> None:
    with jax.enable_x64(False):
        prior = dp.DiffusionPrior.load(OLD / f"{name}.dprior")
        draws = prior.sample(jax.random.key(1), 5)
        np.testing.assert_allclose(draws, EXPECTED["priors"][name], rtol=2e-4, atol=2e-5)
        assert prior.report.num_samples > 0 and prior.report.stages[0].log_snr < 0
        again = dp.load_bytes(prior.to_bytes())
    assert again.digest == prior.digest


@pytest.mark.parametrize("name", LINEAR)
def test_linear_bandits_of_0_1_0_decide_the_same(name: str) -> None:
    expected = EXPECTED["bandits"][name]
    with jax.enable_x64(False):
        bandit = dp.Bandit.load(OLD / f"{name}.bandit", keep_seed=True)
        found = [bandit.decide(np.asarray(features)) for features in expected["features"]]
    assert [decision.action for decision in found] == expected["actions"]
    assert bandit.num_decisions == expected["num_decisions"]


@pytest.mark.parametrize("name", EXPECTED["bandits"])
def test_bandits_of_0_1_0_keep_what_they_learned(name: str) -> None:
    """Five rewards, however they are kept now; and the bandit goes on."""
    path = OLD / f"{name}.bandit"
    bandit: Any = dp.Bandit.load(path, seed=0)
    evidence = bandit.evidence
    assert bandit.num_decisions == 5 and evidence.dim == 2
    length = int.from_bytes(path.read_bytes()[:8], "little")
    table = json.loads(path.read_bytes()[8 : 8 + length])
    arrays = {
        key: np.frombuffer(path.read_bytes()[8 + length :][slice(*entry["data_offsets"])], "<f4")
        for key, entry in table.items()
        if key != "__metadata__"
    }
    if isinstance(evidence, dp.LinearEvidence):
        assert evidence.count == 5
        np.testing.assert_array_equal(np.ravel(evidence.precision), arrays["evidence.precision"])
        np.testing.assert_array_equal(evidence.shift, arrays["evidence.shift"])
    else:
        assert evidence.num_rows == 5
        old = arrays["evidence.features"].reshape(-1, 2)
        np.testing.assert_array_equal(evidence.features[:5], old[:5])
        np.testing.assert_array_equal(evidence.rewards[:5], arrays["evidence.rewards"][:5])
        np.testing.assert_array_equal(evidence.weights[:5], np.ones(5))
    bandit.update(np.eye(2), np.ones(2))
    again = dp.Bandit.from_bytes(bandit.to_bytes(), keep_seed=True)
    assert again.num_decisions == 5


def test_altered_files_of_0_1_0_are_refused(tmp_path: Path) -> None:
    blob = (OLD / "mixture-logistic.bandit").read_bytes()
    swaps = {
        b'\\"dtype\\": \\"int32\\"': b'\\"dtype\\": \\"(9,)i\\"',
        b'{\\"number\\": 5,': b'{\\"number\\":-5,',
        b'\\"num_decisions\\": 5': b'\\"num_decisions\\":-5',
        b'\\"array\\": \\"evidence.rewards\\"': b'\\"array\\": \\"evidence.weights\\"',
        b'\\"class\\": \\"Logistic\\"': b'\\"class\\": \\"Logistik\\"',
        b'\\"version\\": 1': b'\\"version\\": 3',
        b'\\"kind\\": \\"diffprior.Bandit\\"': b'\\"kind\\": \\"diffprior.Banana\\"',
    }
    for old, new in swaps.items():
        assert blob.count(old) >= 1
        length = int.from_bytes(blob[:8], "little")
        header = blob[8 : 8 + length].replace(old, new)
        path = tmp_path / "file"
        path.write_bytes(len(header).to_bytes(8, "little") + header + blob[8 + length :])
        with pytest.raises(ValueError, match="`path`: "):
            dp.load(path)


NEWER = [
    pytest.param(folder, name, id=f"{folder.name}-{name}")
    for folder in sorted(DATA.glob("v*"))
    if folder != OLD
    for name in json.loads((folder / "expected.json").read_text())
]


@pytest.mark.parametrize(("folder", "name"), NEWER)
def test_files_of_every_version_mean_what_they_meant(folder: Path, name: str) -> None:
    expected = json.loads((folder / "expected.json").read_text())[name]
    with jax.enable_x64(False):
        found = dp.load(folder / name)
        if isinstance(found, dp.Bandit):
            found = dp.Bandit.load(folder / name, keep_seed=True)
        assert type(found).__name__ == expected["kind"]
        np.testing.assert_equal(_rounded(meaning(found)), _rounded(expected["meaning"]))


def _rounded(value: Any) -> Any:
    """Numbers to three digits, which no rounding of single precision reaches."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value if value is None else np.round(np.asarray(value, np.float64), 3)
