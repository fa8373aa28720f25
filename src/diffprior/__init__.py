"""diffprior: posterior sampling with a diffusion-model prior, and Thompson sampling built on it."""

from importlib import metadata as _metadata

from . import evaluate as evaluate
from .bandits.agents import AbstractAgent, ThompsonSampling
from .bandits.bandit import Bandit
from .bandits.baselines import EpsilonGreedy, LinUCB, Uniform
from .bandits.noise import NoiseWarning
from .bandits.posterior import Posterior
from .bandits.requests import Decision
from .bandits.result import SimulationResult
from .bandits.simulate import simulate
from .caching import keep_compiled
from .evidence.base import AbstractEvidence, AbstractLikelihood
from .evidence.families import Identity, Logistic, NegativeBinomial, Poisson
from .evidence.glm import AbstractFamily, GLMEvidence
from .evidence.linear import Linear, LinearEvidence
from .files.base import load, load_bytes
from .gaussian import Gaussian
from .learning.ladder import Learned, learn
from .learning.report import LearningReport
from .logs.logs import Logs
from .logs.statistics import TaskStatistics
from .priors.base import AbstractClosedFormPrior, AbstractPrior
from .priors.diffusion import DiffusionPrior
from .priors.empirical import EmpiricalPrior
from .priors.gaussian import GaussianPrior
from .priors.mixture import MixturePrior
from .priors.report import FitReport, FitWarning
from .problems.base import AbstractProblem
from .problems.mixtures import mixture
from .problems.mnist import mnist
from .problems.movielens import movielens
from .problems.rows import RowProblem
from .problems.synthetic import Synthetic, synthetic
from .samplers.base import AbstractSampler, Info
from .samplers.choose import best_sampler
from .samplers.dps import DPS
from .samplers.evidence_dps import EvidenceDPS
from .samplers.exact import Exact
from .samplers.laplace_dps import LaplaceDPS
from .samplers.particle_filter import ParticleFilter
from .samplers.twisted_smc import TwistedSMC
from .schedule import Schedule

try:
    __version__ = _metadata.version("diffprior")
except _metadata.PackageNotFoundError:  # run from its source, not installed
    __version__ = "unknown"

__all__ = [
    "AbstractAgent",
    "AbstractClosedFormPrior",
    "AbstractEvidence",
    "AbstractFamily",
    "AbstractLikelihood",
    "AbstractPrior",
    "AbstractProblem",
    "AbstractSampler",
    "Bandit",
    "DPS",
    "Decision",
    "DiffusionPrior",
    "EmpiricalPrior",
    "EpsilonGreedy",
    "EvidenceDPS",
    "Exact",
    "FitReport",
    "FitWarning",
    "GLMEvidence",
    "Gaussian",
    "GaussianPrior",
    "Identity",
    "Info",
    "LaplaceDPS",
    "Learned",
    "LearningReport",
    "LinUCB",
    "Linear",
    "LinearEvidence",
    "Logistic",
    "Logs",
    "MixturePrior",
    "NegativeBinomial",
    "NoiseWarning",
    "ParticleFilter",
    "Poisson",
    "Posterior",
    "RowProblem",
    "Schedule",
    "SimulationResult",
    "Synthetic",
    "TaskStatistics",
    "ThompsonSampling",
    "TwistedSMC",
    "Uniform",
    "best_sampler",
    "keep_compiled",
    "learn",
    "load",
    "load_bytes",
    "mixture",
    "mnist",
    "movielens",
    "simulate",
    "synthetic",
]
