"""One small object of every kind that is kept, and files taken apart and put together again."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.testing import assert_array_equal

import diffprior as dp
from cases import (
    DIM,
    LIKELIHOODS,
    PRIORS,
    RESPONSES,
    SAMPLERS,
    diffusion,
    network_denoiser,
    problem,
)
from diffprior.denoisers.network import (
    CorrectedDenoiser,
    Correction,
    NetworkDenoiser,
    StagewiseDenoiser,
)
from diffprior.feature_network import FeatureNetwork
from diffprior.files.base import Serializable
from diffprior.files.cache import SavedArrays
from diffprior.fitting.report import Candidate, FitReport, StageLoss
from diffprior.learning.attributes import AttributeReport
from diffprior.learning.diagnostics import NextRewards, Regret, Simulation
from diffprior.learning.network_encoder import LearnedFeatures
from diffprior.learning.payoff import LearningCurve, RowsSaved
from diffprior.learning.report import LearningReport
from diffprior.learning.scoring import FamilyResult, Gain
from diffprior.mixture import GaussianMixture
from diffprior.priors.diffusion import Metadata

REPORT = FitReport(
    100, 20, 1.25, (0.9, float("nan")), 1, (StageLoss(-7.0, 0.9, 2.0, 1.0, 0.9),), ()
)
CHOICE = (
    Candidate("Gaussian", 1, False, 0.0, 0.9),
    Candidate("mixture", 2, True, 0.5, 0.8, (0.9,)),
)


def network(isotropic: bool = False) -> NetworkDenoiser:
    """A small network of random weights in the default precision."""
    return network_denoiser(3, width=4, depth=2, isotropic=isotropic)


def corrected(mixed: bool) -> CorrectedDenoiser:
    """A small network of random weights on a mixture, or on one Gaussian."""
    net = Correction.initialize(np.random.default_rng(0), 3, 2 if mixed else 1, width=4, depth=2)
    net = jax.tree.map(lambda leaf: leaf.astype(jnp.result_type(float)), net)
    if not mixed:
        return CorrectedDenoiser(None, net, jnp.linspace(0.5, 1.0, 9), 3)
    vectors, means = jnp.stack([jnp.eye(3)] * 2), jnp.array([[0.5] * 3, [-0.5] * 3])
    base = GaussianMixture(jnp.log(jnp.array([0.4, 0.6])), means, vectors, 0.7 * jnp.ones((2, 3)))
    return CorrectedDenoiser(base, net, None, 3)


def stagewise(grid: dp.Schedule) -> StagewiseDenoiser:
    """Small regressors of random weights in the default precision."""
    with jax.numpy_dtype_promotion("standard"):
        made = StagewiseDenoiser.initialize(jax.random.key(0), 3, grid, width=4)
    return jax.tree.map(lambda leaf: leaf.astype(jnp.result_type(float)), made)


def learned(denoiser: Any = None, schedule: dp.Schedule | None = None) -> dp.DiffusionPrior:
    """A learned prior as `fit` returns it, though with random weights."""
    rng = np.random.default_rng(3)
    return dp.DiffusionPrior(
        jnp.asarray(rng.standard_normal(3)),
        jnp.asarray(np.linalg.cholesky(np.eye(3) + 0.3)),
        network() if denoiser is None else denoiser,
        jnp.asarray([-7.0, 1.0, 9.0]),
        jnp.asarray([0.9, 0.3, 0.01]),
        schedule or dp.Schedule.log_snr(4),
        Metadata(REPORT),
    )


def chosen() -> dp.DiffusionPrior:
    """A prior with a mixture base, and the reason for it."""
    report = dataclasses.replace(REPORT, candidates=CHOICE, chosen=1)
    return dataclasses.replace(learned(corrected(mixed=True)), metadata=Metadata(report))


def paper() -> dp.DiffusionPrior:
    """A prior of one regressor for each stage."""
    grid = dp.Schedule.constant(3)
    return learned(stagewise(grid), grid)


def bandit(prior_or_sampler: Any, seed: int = 4) -> dp.Bandit:
    """A bandit that has seen something."""
    made = dp.Bandit(prior_or_sampler, dp.Linear(0.5), seed=seed)
    made.update(np.eye(3), np.arange(3.0))
    return made


def encoder() -> dp.Encoder:
    """An encoder of columns of several types."""
    rows = [{"age": i % 7 or None, "genres": ("a|b", "b|c", "c")[i % 3]} for i in range(60)]
    return dp.Encoder.fit(rows, ["age", "genres", "age*genres"], min_count=5)


def feature_network() -> FeatureNetwork:
    """Two features of three columns, by random weights."""
    shapes = ((3, 4), (4,), (4, 4), (4,), (8, 2))
    weights = map(np.random.default_rng(5).standard_normal, shapes)
    return FeatureNetwork(np.zeros(3), np.ones(3), *weights)


def model() -> dp.Model:
    """A model with an encoder and a report."""
    gain = Gain(0.5, 0.1, 9)
    families = (FamilyResult("Gaussian", -1.5, gain, gain, None, True),)
    regrets = (Regret("Gaussian", 1.0, 3.0, 0.5, -1.0, 0.1, 0.0, 0.0),)
    curve = LearningCurve((2, 4, 8), (gain, gain, gain), gain, 90)
    report = LearningReport(
        *(9, 90, (10.0, 10.0, 10.0), ("a", "b"), "linear", 0.5, "given", 1, (0.9, 0.8), 9.0),
        *(families, RowsSaved(2.5, 1.0, 8.0, 8, 9), curve, NextRewards(0.2, 0.3, 0.1, 0.9, 0.01)),
        *(Simulation(regrets, 50, 8, 1.0), "Gaussian", "chosen: it"),
        *(0.003, ("few tasks",), {"Gaussian": 1.0}),
        attributes=AttributeReport(("z",), gain, (1,), (gain,), ("z", "y"), (gain, gain)),
    )
    rows = [{"x": float(i), "y": i % 2 == 0} for i in range(9)]
    columns = dp.Encoder.fit(rows, ["x", "y"], intercept=False)
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    return dp.Model(prior, dp.Linear(0.5), columns, report=report)


def _gaussian() -> dp.GaussianPrior:
    return PRIORS[0].make()


def _conditional() -> dp.ConditionalPrior:
    return dp.ConditionalPrior(_gaussian(), np.ones((2, DIM)), np.zeros(2))


def _items(likelihood: dp.AbstractLikelihood) -> dp.Items:
    items = dp.Items(_conditional(), likelihood, seed=3, num_draws=4)
    items.add(["a", 7, "c"], attributes=np.arange(6.0).reshape(3, 2))
    items.update(["a", 7, "a"], np.eye(DIM), np.array([1.0, 0.0, 1.0]))
    items.remove("c")
    return items


# How an object of every kind is made, by a name.
EXAMPLES: dict[str, Callable[[], Any]] = {
    **{case.name: case.make for case in (*LIKELIHOODS, *RESPONSES, *PRIORS)},
    **{
        f"{case.name}-evidence": lambda case=case: problem(0, 3, 5, case).evidence(case.make())
        for case in (*LIKELIHOODS, *RESPONSES)
    },
    **{case.name: functools.partial(case.make, temperature=0.3) for case in SAMPLERS},
    "oracle": diffusion,
    "learned": learned,
    "mixture-base": chosen,
    "gaussian-base": lambda: learned(corrected(mixed=False)),
    "paper": paper,
    "isotropic": lambda: learned(network(isotropic=True)),
    "gaussian-law": lambda: _gaussian().moments(),
    "thompson": lambda: dp.ThompsonSampling(dp.Exact(_gaussian()), dp.Logistic()),
    "linucb": lambda: dp.LinUCB(_gaussian(), dp.Linear(0.3)),
    "epsilon": lambda: dp.EpsilonGreedy(_gaussian(), dp.Linear(0.3)),
    "uniform": lambda: dp.Uniform(dp.Poisson()),
    "arrays": lambda: SavedArrays({"a": np.arange(3), "b": np.zeros((2, 0))}),
    "bandit": lambda: bandit(dp.Exact(_gaussian())),
    "encoder": encoder,
    "network": feature_network,
    "learned-features": lambda: LearnedFeatures(4, 2, 3, Gain(0.5, 0.1, 9)),
    "moved": lambda: dp.AbstractPrior.moved(_gaussian(), np.ones(DIM)),
    "conditional": _conditional,
    "items": lambda: _items(dp.Linear(0.5)),
    "logistic-items": lambda: _items(dp.Logistic()),
    "model": model,
}


@functools.cache
def example(name: str) -> Serializable:
    """One of `EXAMPLES`, made when it is first asked for."""
    return EXAMPLES[name]()


def contents(value: Any) -> Any:
    """All that an object holds, as tuples and dictionaries of values and arrays."""
    if isinstance(value, Serializable):
        return type(value).__name__, {k: contents(v) for k, v in value.file_fields().items()}
    if isinstance(value, tuple):
        return tuple(map(contents, value))
    return {k: contents(v) for k, v in value.items()} if isinstance(value, dict) else value


def assert_same(ours: Any, expected: Any, *, rtol: float = 0.0) -> None:
    """Both hold the same; arrays are of the same type and dtype, and equal up to `rtol`."""
    _assert_same(contents(ours), contents(expected), rtol)


def _assert_same(ours: Any, expected: Any, rtol: float) -> None:
    assert isinstance(ours, jax.Array) == isinstance(expected, jax.Array)
    assert isinstance(ours, jax.Array) or type(ours) is type(expected)
    if isinstance(expected, jax.Array | np.ndarray):
        if rtol == 0:
            assert ours.dtype == expected.dtype
            assert_array_equal(ours, expected)
        else:
            np.testing.assert_allclose(ours, expected, rtol=rtol, atol=1e-30)
    elif isinstance(expected, tuple | dict):
        assert len(ours) == len(expected)
        for key in expected if isinstance(expected, dict) else range(len(expected)):
            _assert_same(ours[key], expected[key], rtol)
    else:
        assert ours == expected or (ours != ours and expected != expected)


def take_apart(blob: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The table of arrays, what the header says about the object, and the data."""
    length = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + length])
    about = json.loads(header.pop("__metadata__")["diffprior"])
    return header, about, blob[8 + length :]


def put_together(header: dict[str, Any], about: Any, data: bytes) -> bytes:
    """A file of these parts with honest checksums: what a forger would write."""
    if isinstance(about, dict) and "checksums" in about:
        entries = {name: entry for name, entry in header.items() if isinstance(entry, dict)}
        places = {name: entry.get("data_offsets") for name, entry in entries.items()}
        about["checksums"] = {
            name: hashlib.blake2b(data[slice(*place)], digest_size=16).hexdigest()
            for name, place in places.items()
            if isinstance(place, list) and all(type(n) is int for n in place)
        }
    text = about if isinstance(about, str) else json.dumps(about)
    plain = json.dumps({"__metadata__": {"checksum": "", "diffprior": text}, **header})
    seal = hashlib.blake2b(plain.encode(), digest_size=16).hexdigest()
    sealed = plain.replace('""', f'"{seal}"', 1).encode()
    return len(sealed).to_bytes(8, "little") + sealed + data


def forged(blob: bytes, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> bytes:
    """The file with its header changed, and checksums that fit the change."""
    header, about, data = take_apart(blob)
    change(header, about)
    return put_together(header, about, data)
