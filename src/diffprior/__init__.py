"""diffprior: posterior sampling with a diffusion-model prior, and Thompson sampling built on it.

Names are imported when they are first asked for, so that a program waits only for what it uses.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import evaluate as evaluate
    from . import executors as executors
    from .bandits.agents import AbstractAgent, EpsilonGreedy, LinUCB, ThompsonSampling, Uniform
    from .bandits.bandit import Bandit, Posterior
    from .bandits.decisions import Decision
    from .bandits.result import SimulationResult
    from .bandits.simulate import simulate
    from .bandits.updates import NoiseWarning
    from .caching import keep_compiled
    from .evidence.base import AbstractEvidence, AbstractLikelihood
    from .evidence.families import Identity, Logistic, NegativeBinomial, Poisson
    from .evidence.glm import AbstractFamily, GLMEvidence
    from .evidence.linear import Linear, LinearEvidence
    from .files.base import load, load_bytes
    from .fitting.config import FitConfig
    from .fitting.report import FitReport, FitWarning
    from .gaussian import Gaussian
    from .learning.learn import Learned, learn
    from .learning.report import LearningReport
    from .logs.logs import Logs
    from .logs.shards import ShardedLogs
    from .logs.statistics import TaskStatistics
    from .priors.base import AbstractClosedFormPrior, AbstractPrior
    from .priors.diffusion import DiffusionPrior
    from .priors.empirical import EmpiricalPrior
    from .priors.gaussian import GaussianPrior
    from .priors.mixture import MixturePrior
    from .problems.base import AbstractProblem
    from .problems.rows import RowProblem
    from .problems.synthetic import Synthetic, example_mixture, synthetic
    from .samplers.base import AbstractSampler, Info
    from .samplers.choose import best_sampler
    from .samplers.dps import DPS
    from .samplers.evidence_dps import EvidenceDPS
    from .samplers.exact import Exact
    from .samplers.few_passes import FewPasses
    from .samplers.laplace_dps import LaplaceDPS
    from .samplers.particle_filter import ParticleFilter
    from .samplers.twisted_smc import TwistedSMC
    from .schedule import Schedule

_NAMES = {
    ".bandits.agents": (
        "AbstractAgent",
        "EpsilonGreedy",
        "LinUCB",
        "ThompsonSampling",
        "Uniform",
    ),
    ".bandits.bandit": ("Bandit", "Posterior"),
    ".bandits.decisions": ("Decision",),
    ".bandits.result": ("SimulationResult",),
    ".bandits.simulate": ("simulate",),
    ".bandits.updates": ("NoiseWarning",),
    ".caching": ("keep_compiled",),
    ".evidence.base": ("AbstractEvidence", "AbstractLikelihood"),
    ".evidence.families": ("Identity", "Logistic", "NegativeBinomial", "Poisson"),
    ".evidence.glm": ("AbstractFamily", "GLMEvidence"),
    ".evidence.linear": ("Linear", "LinearEvidence"),
    ".files.base": ("load", "load_bytes"),
    ".gaussian": ("Gaussian",),
    ".fitting.config": ("FitConfig",),
    ".fitting.report": ("FitReport", "FitWarning"),
    ".learning.learn": ("Learned", "learn"),
    ".learning.report": ("LearningReport",),
    ".logs.logs": ("Logs",),
    ".logs.shards": ("ShardedLogs",),
    ".logs.statistics": ("TaskStatistics",),
    ".priors.base": ("AbstractClosedFormPrior", "AbstractPrior"),
    ".priors.diffusion": ("DiffusionPrior",),
    ".priors.empirical": ("EmpiricalPrior",),
    ".priors.gaussian": ("GaussianPrior",),
    ".priors.mixture": ("MixturePrior",),
    ".problems.base": ("AbstractProblem",),
    ".problems.rows": ("RowProblem",),
    ".problems.synthetic": ("Synthetic", "example_mixture", "synthetic"),
    ".samplers.base": ("AbstractSampler", "Info"),
    ".samplers.choose": ("best_sampler",),
    ".samplers.dps": ("DPS",),
    ".samplers.evidence_dps": ("EvidenceDPS",),
    ".samplers.exact": ("Exact",),
    ".samplers.few_passes": ("FewPasses",),
    ".samplers.laplace_dps": ("LaplaceDPS",),
    ".samplers.particle_filter": ("ParticleFilter",),
    ".samplers.twisted_smc": ("TwistedSMC",),
    ".schedule": ("Schedule",),
}
_FOLDERS = ("evaluate", "executors")  # whose names are used with them
__version__: str
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


if not TYPE_CHECKING:  # where it would hide misspelled names

    def __getattr__(name: str) -> Any:
        """Import a public name, and keep it (PEP 562)."""
        if name == "__version__":
            value = _version()
        elif name in _FOLDERS:
            value = importlib.import_module(f".{name}", __name__)
        elif name in _MODULES:
            value = getattr(importlib.import_module(_MODULES[name], __name__), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """What there is, imported or not."""
    return sorted({*globals(), *__all__, "__version__", *_FOLDERS})


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("diffprior")
    except metadata.PackageNotFoundError:  # run from its source, not installed
        return "unknown"


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
    "FewPasses",
    "FitConfig",
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
    "ShardedLogs",
    "SimulationResult",
    "Synthetic",
    "TaskStatistics",
    "ThompsonSampling",
    "TwistedSMC",
    "Uniform",
    "best_sampler",
    "keep_compiled",
    "example_mixture",
    "learn",
    "load",
    "load_bytes",
    "simulate",
    "synthetic",
]
