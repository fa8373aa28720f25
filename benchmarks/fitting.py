"""What learning a prior costs, beside scikit-learn's regressors of the paper's stages."""

import time
import warnings

import numpy as np

from diffprior.priors.diffusion import DiffusionPrior
from diffprior.problems.mixtures import example_mixture

from .section import Bench, Measurement, mixture_samples


def fit(bench: Bench) -> list[Measurement]:
    """Seconds to learn the default prior, and 100 regressors, of which some are timed."""
    found = []
    for name in ("cross",) if bench.quick else ("cross", "clusters"):
        samples = mixture_samples(example_mixture(name))
        begin = time.perf_counter()
        DiffusionPrior.fit(samples, progress=False)
        ours = time.perf_counter() - begin
        theirs = scikit_learn_seconds(samples, (50,) if bench.quick else (10, 50, 90))
        quantities = {"seconds": ours, "100 regressors, s": theirs, "ratio": theirs / ours}
        found.append(Measurement(name, quantities))
    return found


def scikit_learn_seconds(samples: np.ndarray, stages: tuple[int, ...]) -> float:
    """Seconds for a regressor of each of 100 stages, from some of them."""
    from sklearn.neural_network import MLPRegressor

    rng = np.random.default_rng(0)
    unit = (samples - samples.mean(axis=0)) / samples.std(axis=0)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for t in stages:
            noise = rng.standard_normal(unit.shape)
            noisy = np.sqrt(0.97**t) * unit + np.sqrt(1 - 0.97**t) * noise
            MLPRegressor(hidden_layer_sizes=(100, 100), random_state=0).fit(noisy, noise)
    return (time.perf_counter() - begin) * 100 / len(stages)
