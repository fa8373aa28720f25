"""diffprior: posterior sampling with a diffusion-model prior, and Thompson sampling built on it.

Names are imported when they are first used, so that a program waits only for what it uses.
"""

import difflib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers, which read no table
    from . import evaluate as evaluate
    from . import executors as executors
    from .bandits.agents import AbstractAgent as AbstractAgent
    from .bandits.agents import EpsilonGreedy as EpsilonGreedy
    from .bandits.agents import LinUCB as LinUCB
    from .bandits.agents import ThompsonSampling as ThompsonSampling
    from .bandits.agents import Uniform as Uniform
    from .bandits.bandit import Bandit as Bandit
    from .bandits.bandit import Posterior as Posterior
    from .bandits.decisions import Decision as Decision
    from .bandits.item_choice import ItemChoice as ItemChoice
    from .bandits.items import Items as Items
    from .bandits.result import SimulationResult as SimulationResult
    from .bandits.simulate import simulate as simulate
    from .bandits.updates import NoiseWarning as NoiseWarning
    from .encoders import Encoder as Encoder
    from .encoders import EncodingWarning as EncodingWarning
    from .evidence.base import AbstractEvidence as AbstractEvidence
    from .evidence.base import AbstractLikelihood as AbstractLikelihood
    from .evidence.families import Identity as Identity
    from .evidence.families import Logistic as Logistic
    from .evidence.families import NegativeBinomial as NegativeBinomial
    from .evidence.families import Poisson as Poisson
    from .evidence.families import ZeroInflated as ZeroInflated
    from .evidence.glm import AbstractFamily as AbstractFamily
    from .evidence.glm import GLMEvidence as GLMEvidence
    from .evidence.linear import Linear as Linear
    from .evidence.linear import LinearEvidence as LinearEvidence
    from .evidence.response import Response as Response
    from .evidence.response import ResponseEvidence as ResponseEvidence
    from .files.base import load as load
    from .files.base import load_bytes as load_bytes
    from .files.cache import keep_compiled as keep_compiled
    from .fitting.config import FitConfig as FitConfig
    from .fitting.report import FitReport as FitReport
    from .fitting.report import FitWarning as FitWarning
    from .gaussian import Gaussian as Gaussian
    from .learning.learn import learn as learn
    from .learning.model import Model as Model
    from .learning.report import LearningReport as LearningReport
    from .logs.logs import Logs as Logs
    from .logs.shards import ShardedLogs as ShardedLogs
    from .logs.statistics import TaskStatistics as TaskStatistics
    from .priors.base import AbstractClosedFormPrior as AbstractClosedFormPrior
    from .priors.base import AbstractPrior as AbstractPrior
    from .priors.conditional import ConditionalPrior as ConditionalPrior
    from .priors.diffusion import DiffusionPrior as DiffusionPrior
    from .priors.empirical import EmpiricalPrior as EmpiricalPrior
    from .priors.gaussian import GaussianPrior as GaussianPrior
    from .priors.mixture import MixturePrior as MixturePrior
    from .problems.base import AbstractProblem as AbstractProblem
    from .problems.base import RowProblem as RowProblem
    from .problems.synthetic import ItemProblem as ItemProblem
    from .problems.synthetic import Synthetic as Synthetic
    from .problems.synthetic import example_mixture as example_mixture
    from .problems.synthetic import synthetic as synthetic
    from .samplers.base import AbstractSampler as AbstractSampler
    from .samplers.base import ExpansionWarning as ExpansionWarning
    from .samplers.base import Info as Info
    from .samplers.choose import best_sampler as best_sampler
    from .samplers.evidence_dps import EvidenceDPS as EvidenceDPS
    from .samplers.exact import Exact as Exact
    from .samplers.few_passes import FewPasses as FewPasses
    from .samplers.laplace_dps import DPS as DPS
    from .samplers.laplace_dps import LaplaceDPS as LaplaceDPS
    from .samplers.twisted_smc import ParticleFilter as ParticleFilter
    from .samplers.twisted_smc import TwistedSMC as TwistedSMC
    from .schedule import Schedule as Schedule

_NAMES = {
    ".bandits.agents": "AbstractAgent EpsilonGreedy LinUCB ThompsonSampling Uniform",
    ".bandits.bandit": "Bandit Posterior",
    ".bandits.decisions": "Decision",
    ".bandits.item_choice": "ItemChoice",
    ".bandits.items": "Items",
    ".bandits.result": "SimulationResult",
    ".bandits.simulate": "simulate",
    ".bandits.updates": "NoiseWarning",
    ".encoders": "Encoder EncodingWarning",
    ".evidence.base": "AbstractEvidence AbstractLikelihood",
    ".evidence.families": "Identity Logistic NegativeBinomial Poisson ZeroInflated",
    ".evidence.glm": "AbstractFamily GLMEvidence",
    ".evidence.linear": "Linear LinearEvidence",
    ".evidence.response": "Response ResponseEvidence",
    ".files.base": "load load_bytes",
    ".files.cache": "keep_compiled",
    ".fitting.config": "FitConfig",
    ".fitting.report": "FitReport FitWarning",
    ".gaussian": "Gaussian",
    ".learning.learn": "learn",
    ".learning.model": "Model",
    ".learning.report": "LearningReport",
    ".logs.logs": "Logs",
    ".logs.shards": "ShardedLogs",
    ".logs.statistics": "TaskStatistics",
    ".priors.base": "AbstractClosedFormPrior AbstractPrior",
    ".priors.conditional": "ConditionalPrior",
    ".priors.diffusion": "DiffusionPrior",
    ".priors.empirical": "EmpiricalPrior",
    ".priors.gaussian": "GaussianPrior",
    ".priors.mixture": "MixturePrior",
    ".problems.base": "AbstractProblem RowProblem",
    ".problems.synthetic": "ItemProblem Synthetic example_mixture synthetic",
    ".samplers.base": "AbstractSampler ExpansionWarning Info",
    ".samplers.choose": "best_sampler",
    ".samplers.evidence_dps": "EvidenceDPS",
    ".samplers.exact": "Exact",
    ".samplers.few_passes": "FewPasses",
    ".samplers.laplace_dps": "DPS LaplaceDPS",
    ".samplers.twisted_smc": "ParticleFilter TwistedSMC",
    ".schedule": "Schedule",
}
_SUBMODULES = ("evaluate", "executors")  # whose names are used with them
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)
__version__: str


if not TYPE_CHECKING:  # where it would hide misspelled names

    def __getattr__(name: str) -> object:
        """Import a public name and store it (PEP 562)."""
        if name == "__version__":
            value = _version()
        elif name in _SUBMODULES:
            value = importlib.import_module(f".{name}", __name__)
        elif name in _MODULES:
            value = getattr(importlib.import_module(_MODULES[name], __name__), name)
        else:
            similar = difflib.get_close_matches(name, [*__all__, *_SUBMODULES], 1, 0.6)
            hint = f"; did you mean {similar[0]!r}?" if similar else ""
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List all public names, imported or not."""
    return sorted({*globals(), *__all__, "__version__", *_SUBMODULES})


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("diffprior")
    except metadata.PackageNotFoundError:  # run from its source, not installed
        return "unknown"
