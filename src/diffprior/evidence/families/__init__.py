"""Likelihoods by name: one file each, and one line here."""

from ..base import AbstractLikelihood
from ..linear import Linear
from .identity import Identity
from .logistic import Logistic
from .negative_binomial import NegativeBinomial
from .poisson import Poisson

LIKELIHOODS: dict[str, type[AbstractLikelihood]] = {
    "linear": Linear,
    "logistic": Logistic,
    "poisson": Poisson,
    "negative-binomial": NegativeBinomial,
}

__all__ = ["LIKELIHOODS", "Identity", "Linear", "Logistic", "NegativeBinomial", "Poisson"]
