"""The agents of an experiment, made from the parameters of past tasks: Section 6.1."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from ..bandits.agents import AbstractAgent, ThompsonSampling
from ..bandits.baselines import EpsilonGreedy, LinUCB
from ..checks import choice, positive
from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..evidence.linear import Linear
from ..priors.base import AbstractPrior
from ..priors.empirical import EmpiricalPrior
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from ..problems.base import AbstractProblem
from ..samplers.base import AbstractSampler
from ..samplers.dps import DPS
from ..samplers.evidence_dps import EvidenceDPS
from ..samplers.exact import Exact
from ..samplers.laplace_dps import LaplaceDPS
from ..samplers.twisted_smc import TwistedSMC
from .parts import Parts, digest

NUM_ATOMS = 20_000  # samples that stand for a true prior without closed form, linear rewards
NUM_ATOMS_GLM = 2_000  # and for others, whose likelihood costs a pass over the history
LEARNED = ("paper", "default", "mixture of 2", "mixture of 10")  # priors that are kept as parts
TRUE_SEED = 2**30  # apart from the seeds of training samples and of runs


@dataclass(frozen=True)
class Recipe:
    """How an agent is made: which prior, and what decides with it."""

    name: str
    prior: str
    sampler: Callable[[Any], AbstractSampler] | None = None
    rival: Callable[[Any, AbstractLikelihood], AbstractAgent] | None = None
    slow: bool = False  # a slow agent may play the first runs only

    def agent(
        self, prior: AbstractPrior, likelihood: AbstractLikelihood, temperature: float = 1.0
    ) -> AbstractAgent:
        """The agent; Thompson sampling at any temperature."""
        if self.sampler is not None:
            return Tempered(ThompsonSampling(self.sampler(prior), likelihood), temperature)
        assert self.rival is not None
        if temperature != 1:
            raise ValueError(
                f"`temperature`: expected 1 for {self.name}, which draws from no posterior, "
                f"got {temperature:g}; leave it out"
            )
        return self.rival(prior, likelihood)


class Tempered(AbstractAgent):
    """Thompson sampling that counts each reward 1 / temperature times.

    The same as a sampler's own temperature, but a number of the compiled program rather than a
    constant of it, so that one program serves all temperatures.
    """

    agent: ThompsonSampling
    likelihood: AbstractLikelihood
    weight: Float[Array, ""]

    def __init__(self, agent: ThompsonSampling, temperature: float) -> None:
        self.agent, self.likelihood = agent, agent.likelihood
        self.weight = 1.0 / positive("temperature", temperature, "1 is Bayes' rule")

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.agent.dim

    def index(
        self, key: Key[Array, ""], evidence: AbstractEvidence, features: Float[Array, "k d"]
    ) -> tuple[Float[Array, " k"], Bool[Array, ""]]:
        """phi' theta for one draw of theta."""
        return self.agent.index(key, evidence, features)

    def update(
        self, evidence: AbstractEvidence, phi: Float[Array, " d"], y: Float[Array, ""]
    ) -> AbstractEvidence:
        """A row of weight 1 / temperature."""
        return evidence.add(phi[None], y[None], self.weight.astype(y.dtype)[None])


def _paper_dps(prior: Any) -> AbstractSampler:
    return LaplaceDPS(prior, covariance="paper")


RECIPES = (
    Recipe("TS", "standard", Exact),
    Recipe("TunedTS", "Gaussian", Exact),
    Recipe("MixTS", "mixture of 2", Exact),
    Recipe("MixTS(10)", "mixture of 10", Exact),
    Recipe("LinUCB", "standard", rival=LinUCB),
    Recipe("EpsilonGreedy", "standard", rival=EpsilonGreedy),
    Recipe("DPS", "paper", DPS),
    Recipe("DiffTS", "paper", _paper_dps),
    Recipe("DiffTS fitted", "default", LaplaceDPS),
    Recipe("EvidenceDPS", "default", EvidenceDPS),
    Recipe("TwistedSMC", "default", TwistedSMC, slow=True),
    Recipe("Exact", "true", Exact),
)
NAMES = tuple(recipe.name for recipe in RECIPES)
USUAL = tuple(name for name in NAMES if name != "MixTS(10)")


def recipes(names: tuple[str, ...] = USUAL) -> tuple[Recipe, ...]:
    """The recipes of these names, in the order of the registry."""
    chosen = {choice("agent", name, NAMES) for name in names}
    return tuple(recipe for recipe in RECIPES if recipe.name in chosen)


class Materials:
    """The priors that agents are made of, each made of the samples when first asked for.

    `problem` is where the agents will act, `samples` are the parameters of past tasks.
    """

    def __init__(
        self, label: str, problem: AbstractProblem, samples: Any, parts: Parts, seed: int = 0
    ) -> None:
        self.label, self.problem, self.parts, self.seed = label, problem, parts, seed
        self.samples = np.asarray(samples, np.float64)
        self._priors: dict[str, AbstractPrior] = {}

    def prior(self, name: str) -> AbstractPrior:
        """The prior of this name."""
        if name not in self._priors:
            self._priors[name] = _PRIORS[choice("prior", name, tuple(_PRIORS))](self)
        return self._priors[name]

    def has(self, name: str) -> bool:
        """Whether a prior has been asked for."""
        return name in self._priors

    def share(self, other: "Materials") -> None:
        """Have one set of priors with another of the same samples, whichever asks for them first.

        Nothing may ask for the true prior, which depends on the rewards.
        """
        self._priors = other._priors

    @property
    def digest(self) -> str:
        """What tells these samples from others."""
        return digest(self.samples)

    def agent(self, recipe: Recipe, temperature: float = 1.0) -> AbstractAgent:
        """The agent of a recipe."""
        return recipe.agent(self.prior(recipe.prior), self.problem.likelihood, temperature)

    @property
    def truth_is_closed_form(self) -> bool:
        """Whether the true posterior is; otherwise samples stand for the true prior."""
        known = getattr(self.problem, "true_prior", None) is not None
        return known and isinstance(self.problem.likelihood, Linear)

    def label_of(self, recipe: Recipe) -> str:
        """Its name, with what stands for the true prior."""
        sampled = self._stands_for_truth(recipe)
        return f"{recipe.name} ({self._num_atoms:,} samples)" if sampled else recipe.name

    def learned(self, preset: str) -> AbstractPrior:
        """A diffusion prior, kept as a part."""
        name = f"prior, {self.label}, {preset}"
        return self.parts.prior(name, self.samples, preset=preset, seed=self.seed)

    def true(self) -> AbstractPrior:
        """The true prior, or an empirical one that stands for it."""
        if self.truth_is_closed_form:
            return self.problem.true_prior  # type: ignore[attr-defined]
        key = jax.random.key(TRUE_SEED + self.seed)
        return EmpiricalPrior(jnp.asarray(self.problem.sample_parameters(key, self._num_atoms)))

    def _stands_for_truth(self, recipe: Recipe) -> bool:
        return recipe.prior == "true" and not self.truth_is_closed_form

    @property
    def _num_atoms(self) -> int:
        return NUM_ATOMS if isinstance(self.problem.likelihood, Linear) else NUM_ATOMS_GLM

    def standard(self) -> AbstractPrior:
        """N(0, I)."""
        dim = self.samples.shape[1]
        return GaussianPrior(np.zeros(dim), np.eye(dim))

    def mixture(self, num_components: int) -> AbstractPrior:
        """A Gaussian mixture fitted to the samples, kept as a part."""

        def fit() -> dict[str, np.ndarray]:
            prior = MixturePrior.fit(self.samples, num_components=num_components, seed=self.seed)
            return {name: np.asarray(getattr(prior, name)) for name in _MIXTURE}

        settings = {"components": num_components, "samples": self.digest, "seed": self.seed}
        shown = f"prior, {self.label}, mixture of {num_components}"
        return MixturePrior(**self.parts.arrays("mixture", settings, fit, shown=shown))


_MIXTURE = ("weights", "means", "covs")
_PRIORS: dict[str, Callable[[Materials], AbstractPrior]] = {
    "standard": Materials.standard,
    "Gaussian": lambda materials: GaussianPrior.fit(materials.samples),
    "mixture of 2": lambda materials: materials.mixture(2),
    "mixture of 10": lambda materials: materials.mixture(10),
    "paper": lambda materials: materials.learned("paper"),
    "default": lambda materials: materials.learned("default"),
    "true": Materials.true,
}
