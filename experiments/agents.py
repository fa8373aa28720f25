"""The agents of the experiments: Section 6.1, our own, and the baselines to beat."""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import diffprior as dp
from diffprior.checks import choice
from diffprior.files.cache import array_digest
from diffprior.reporting.tables import Table

from .results import Results

NUM_ATOMS = 20_000  # samples that stand for a true prior without closed form, linear rewards
NUM_ATOMS_GLM = 2_000  # and for others, whose likelihood costs a pass over the history
TRUE_SEED = 2**30  # apart from the seeds of training samples and of runs
TRUE = "true"
CHOSEN = "mixture, K chosen"
SAMPLED = {"paper": "the paper's preset", "default": "the default prior"}  # diffusion priors


@dataclass(frozen=True)
class AgentSpec:
    """How an agent is made: which prior, and what decides with it.

    Args:
        name: As in tables.
        prior: Name of its prior, for `LearnedPriors`, or `TRUE`.
        meaning: What it is, in a line.
        sampler: Makes the sampler of Thompson sampling from a prior; or else
        policy: makes an agent of another kind from a prior and a likelihood.
        slow: Whether it may play the first runs only.
    """

    name: str
    prior: str
    meaning: str
    sampler: Callable[..., dp.AbstractSampler] | None = None
    policy: Callable[[Any, dp.AbstractLikelihood], dp.AbstractAgent] | None = None
    slow: bool = False

    def agent(
        self, prior: dp.AbstractPrior, likelihood: dp.AbstractLikelihood, temperature: float = 1.0
    ) -> dp.AbstractAgent:
        """The agent, with this prior; only Thompson sampling has a temperature."""
        if self.sampler is not None:
            return dp.ThompsonSampling(self.sampler(prior, temperature=temperature), likelihood)
        assert self.policy is not None and temperature == 1
        return self.policy(prior, likelihood)


def _paper_dps(prior: Any, temperature: float = 1.0) -> dp.AbstractSampler:
    return dp.LaplaceDPS(prior, covariance="paper", temperature=temperature)


AGENTS = (
    AgentSpec("TS", "N(0, I)", "Thompson sampling that has learned nothing", dp.Exact),
    AgentSpec("TunedTS", "Gaussian", "one Gaussian, fitted to past tasks", dp.Exact),
    AgentSpec("MixTS", "mixture of 2", "two Gaussians, fitted to past tasks", dp.Exact),
    AgentSpec("MixTS(K)", CHOSEN, "as many as held-out tasks justify: the one to beat", dp.Exact),
    AgentSpec("LinUCB", "N(0, I)", "upper confidence bounds; nothing learned", policy=dp.LinUCB),
    AgentSpec("EpsilonGreedy", "N(0, I)", "mostly greedy", policy=dp.EpsilonGreedy),
    AgentSpec("DPS", "paper", "gradients through the denoiser, a baseline of the paper", dp.DPS),
    AgentSpec("DiffTS", "paper", "the paper's method to the letter: LaplaceDPS", _paper_dps),
    AgentSpec("DiffTS fitted", "default", "the fitted reverse covariance", dp.LaplaceDPS),
    AgentSpec("EvidenceDPS", "default", "evidence inside the denoiser", dp.EvidenceDPS),
    AgentSpec("TwistedSMC", "default", "particles; it plays fewer runs", dp.TwistedSMC, slow=True),
    AgentSpec("Exact", TRUE, "the exact posterior, true prior; nobody has it", dp.Exact),
)
NAMES = tuple(spec.name for spec in AGENTS)


def agent_specs(names: Sequence[str] = NAMES) -> tuple[AgentSpec, ...]:
    """The agents of these names, in the order of the registry."""
    chosen = {choice("agent", name, NAMES) for name in names}
    return tuple(spec for spec in AGENTS if spec.name in chosen)


def agents_table(names: Sequence[str]) -> Table:
    rows = [
        (spec.name, SAMPLED.get(spec.prior, spec.prior), spec.meaning)
        for spec in agent_specs(names)
    ]
    caption = "Every agent but the first and those without a prior has learned from past tasks."
    return Table(("agent", "prior", "what it is"), rows, caption, words=True)


class LearnedPriors:
    """Priors learned from the parameters of past tasks, each when it is first asked for.

    Args:
        label: Name of the samples, for the names of cached results.
        samples: Parameters of past tasks (n, d).
        results: Where what takes time to learn is cached.
        seed: Of everything random.
    """

    def __init__(self, label: str, samples: Any, results: Results, seed: int = 0) -> None:
        self.label, self.results, self.seed = label, results, seed
        self.samples = np.asarray(samples, np.float64)
        self.dim, self.digest = self.samples.shape[1], array_digest(self.samples)
        self._found: dict[str, dp.AbstractPrior] = {}

    def __getitem__(self, name: str) -> Any:
        """The prior of this name, an `AbstractPrior`; closed form unless it is a diffusion."""
        if name not in self._found:
            self._found[name] = _PRIORS[choice("prior", name, tuple(_PRIORS))](self)
        return self._found[name]

    def draws(self, name: str, count: int) -> np.ndarray:
        """Samples of a prior, to be shown."""
        return np.asarray(self[name].sample(jax.random.key(self.seed + 1), count), np.float64)

    def mixture(self, num_components: int | None) -> dp.AbstractPrior:
        """A Gaussian mixture; without a number of components, the best for held-out samples."""
        return self.results.saved(
            f"prior, {self.label}, mixture of {num_components or 'K'}",
            {"components": num_components, "samples": self.digest, "seed": self.seed},
            lambda: dp.MixturePrior.fit(self.samples, num_components, seed=self.seed),
        )

    def diffusion(self, preset: str, schedule: dp.Schedule | None = None) -> dp.DiffusionPrior:
        """A diffusion prior, learned with a preset."""
        stages = None if schedule is None else list(schedule.alpha_bar)
        shown = "" if schedule is None else f", {schedule.num_stages} stages"
        settings = {"preset": preset, "alpha_bar": stages}
        return self.results.saved(
            f"prior, {self.label}, {preset}{shown}",
            {**settings, "samples": self.digest, "seed": self.seed},
            lambda: _fit(self.samples, preset, schedule, self.seed),
        )


_PRIORS: dict[str, Callable[[LearnedPriors], dp.AbstractPrior]] = {
    "N(0, I)": lambda priors: dp.GaussianPrior(np.zeros(priors.dim), np.eye(priors.dim)),
    "Gaussian": lambda priors: dp.GaussianPrior.fit(priors.samples),
    "mixture of 2": lambda priors: priors.mixture(2),
    CHOSEN: lambda priors: priors.mixture(None),
    "paper": lambda priors: priors.diffusion("paper"),
    "default": lambda priors: priors.diffusion("default"),
}


def _fit(
    samples: np.ndarray, preset: str, schedule: dp.Schedule | None, seed: int
) -> dp.DiffusionPrior:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.FitWarning)  # few samples may be the point
        config = dp.FitConfig.paper() if preset == "paper" else dp.FitConfig()
        config = dataclasses.replace(config, schedule=schedule)
        return dp.DiffusionPrior.fit(samples, config=config, seed=seed, progress=False)


def true_prior(problem: dp.AbstractProblem, seed: int) -> dp.AbstractClosedFormPrior:
    """The true prior where the true posterior has a closed form, else many of its samples."""
    linear = isinstance(problem.likelihood, dp.Linear)
    known = getattr(problem, "true_prior", None)
    if known is not None and linear:
        return known
    count = NUM_ATOMS if linear else NUM_ATOMS_GLM
    key = jax.random.key(TRUE_SEED + seed)
    return dp.EmpiricalPrior(jnp.asarray(problem.sample_parameters(key, count)))
