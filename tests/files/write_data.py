"""Write a file of every kind as this version keeps it, into a new folder below tests/data.

    JAX_ENABLE_X64=0 python tests/files/write_data.py tests/data/vX.Y.Z

To be run once for each release, in single precision; what it wrote is never
written again, and `test_old_files` reads it for ever. `expected.json` says what the objects mean.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import diffprior as dp
from files.helpers import EXAMPLES, bandit, example

EXCLUDED = ("arrays",)  # checkpoints, which are not read by later versions


def meaning(value: Any) -> Any:
    """A few numbers that say what an object means, independent of how it is kept."""
    if isinstance(value, dp.AbstractPrior):
        moments = value.moments()
        return {"mean": _plain(moments.mean), "cov": _plain(moments.cov)}
    if isinstance(value, dp.AbstractEvidence):
        return _plain(value.log_likelihood(jnp.full(value.dim, 0.3)))
    if isinstance(value, dp.AbstractLikelihood):
        return _plain(value.log_density(jnp.asarray(1.0), jnp.asarray(0.3)))
    if isinstance(value, dp.AbstractSampler):
        return {"temperature": _plain(value.temperature), **meaning(value.prior)}
    if isinstance(value, dp.Bandit):
        features = np.random.default_rng(0).standard_normal((6, 4, 3))
        actions = [int(value.decide(row).action) for row in features]
        return {"actions": actions, "evidence": meaning(value.evidence)}
    return meaning(value.likelihood) if isinstance(value, dp.AbstractAgent) else None


def _plain(numbers: Any) -> Any:
    return np.asarray(numbers, np.float64).tolist()


def objects() -> dict[str, Any]:
    """Objects to write: the examples, and bandits of learned priors."""
    kept = {name: example(name) for name in EXAMPLES if name not in EXCLUDED}
    learned = kept["learned"]
    return kept | {"learned-bandit": bandit(dp.EvidenceDPS(learned, steps=3))}


def main(folder: Path) -> None:
    """Write the files and what they mean."""
    folder.mkdir()
    expected = {}
    for name, value in objects().items():
        value.save(folder / name)
        read = dp.Bandit.load(folder / name, keep_seed=True) if "bandit" in name else value
        expected[name] = {"kind": type(value).__name__, "meaning": meaning(read)}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1))


if __name__ == "__main__":
    assert not jax.config.read("jax_enable_x64"), "write files in single precision"
    main(Path(sys.argv[1]))
