"""MNIST, Appendix C.2: classifiers of one digit against the rest are tasks, digits are actions."""

from pathlib import Path

import numpy as np

from ..files.cache import ResultCache
from ..problems.mnist import embed_digits, load_digits, one_against_rest
from .data import Data


def mnist_data(
    cache: ResultCache, folder: str | Path | None = None, *, seed: int = 0, download: bool = False
) -> Data:
    """One-against-rest classifiers as parameters and digits as actions."""

    def compute() -> dict[str, np.ndarray]:
        embedding = embed_digits(*load_digits(folder, download=download), seed=seed)
        return {
            "parameters": one_against_rest(embedding.features, embedding.labels, seed=seed),
            "digits": embedding.features,
            "test_accuracy": np.array(embedding.test_accuracy),
        }

    found = cache.arrays("embeddings, mnist", {"seed": seed}, compute)
    accuracy = f"{100 * float(found['test_accuracy']):.1f} %"
    facts = {
        "tasks": f"{len(found['parameters']):,}, all of them training samples",
        "digits": f"{len(found['digits']):,}",
        "noise of linear rewards": "1",
        "test accuracy of the classifier": accuracy,
    }
    introduction = _INTRODUCTION.format(accuracy=accuracy)
    return Data("mnist", "MNIST", introduction, found["parameters"], found["digits"], 1.0, facts)


_INTRODUCTION = (
    "A random classifier tells one digit from the rest; find the digits that it favors, among ten "
    "random ones each round. Digits are embedded in 8 dimensions by a network whose accuracy on "
    "the test set is {accuracy}; parameters of past tasks are regressions on 20 random digits "
    "each, half of one label. Linear rewards have noise of standard deviation 1."
)
