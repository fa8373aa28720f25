"""One version of a model, made ready for decisions and rewards."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..bandits.agents import AbstractAgent, ThompsonSampling
from ..bandits.decisions import TaskPolicy, TaskRequest, host_mean
from ..bandits.updates import LARGE, Forgetting, Observations
from ..evidence.base import AbstractLikelihood
from ..gaussian import Gaussian
from ..priors.base import AbstractPrior
from .arrays import EvidenceArrays
from .requests import ServiceError
from .settings import Settings, check_rewards


@dataclass(frozen=True)
class Version:
    """One version of a model: its prior, its settings and its share of the tasks.

    `ready` says whether everything that it needs is compiled in this process.
    """

    model: str
    seed: int
    version: int
    settings: Settings
    prior: AbstractPrior
    share: float
    created: float
    ready: bool = False

    @cached_property
    def likelihood(self) -> AbstractLikelihood:
        """How rewards arise."""
        return self.settings.make_likelihood()

    @cached_property
    def mean_reward(self) -> Callable[[np.ndarray], np.ndarray]:
        """The mean reward as a function of linear predictors."""
        return host_mean(self.likelihood)

    @cached_property
    def policy(self) -> TaskPolicy:
        """What decides for many tasks at once."""
        agent = self.settings.make_agent(self.prior)
        if isinstance(agent, ThompsonSampling):
            return self.posterior_policy
        return self._policy_of(agent)

    @cached_property
    def posterior_policy(self) -> TaskPolicy:
        """What draws parameters of many tasks at once."""
        return self._policy_of(
            ThompsonSampling(self.settings.make_sampler(self.prior), self.likelihood)
        )

    def _policy_of(self, agent: AbstractAgent) -> TaskPolicy:
        nothing, settings = self.likelihood.empty(self.dim), self.settings
        return TaskPolicy(agent, nothing, settings.max_rows, settings.propensity_draws)

    @property
    def at_random(self) -> bool:
        """Whether actions are chosen at random, on purpose."""
        return self.settings.sampler == "random"

    @cached_property
    def moments(self) -> Gaussian:
        """Mean and covariance of the prior."""
        return self.prior.moments()

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.prior.dim

    @cached_property
    def empty(self) -> EvidenceArrays:
        """What is known of a new task."""
        return EvidenceArrays.of(self.likelihood.empty(self.dim))

    @cached_property
    def _scales(self) -> tuple[np.ndarray, float]:
        """Standard deviations of the prior, and an observation so large that it is tried first."""
        stds = np.sqrt(np.diagonal(np.asarray(self.moments.cov)))
        return stds, LARGE * float(getattr(self.likelihood, "noise_std", 1.0))

    @cached_property
    def _forgetting(self) -> Forgetting | None:
        return self.settings.make_forgetting()

    def moment(self, num_decisions: int, now: float) -> float:
        """When it is, in the units of the half-life; always 0 without one."""
        if self._forgetting is None:
            return 0.0
        return now if self._forgetting.in_seconds else float(num_decisions)

    def fading(self, before: float, moment: float) -> float:
        """What evidence of one moment is tempered by at a later one."""
        return 1.0 if self._forgetting is None else self._forgetting.temperature(before, moment)

    def learn(self, arrays: EvidenceArrays, phi: np.ndarray, reward: float) -> EvidenceArrays:
        """Evidence with one observation more, of bounded size: a function of these alone.

        Raises:
            ServiceError: The reward is outside the support, or cannot be learned from.
        """
        new = self._checked(phi, reward)
        after = arrays.add(new, self.settings.max_rows, self.moments)
        stds, limit = self._scales
        if new.largest(stds) > limit and self._fails(after):
            raise ServiceError(
                422,
                f"`reward`: expected an observation given which parameters can be drawn, got {new};"
                " rescale features and rewards",
            )
        return after

    def warm_up(self) -> None:
        """Compile what decisions and rewards need, by making some up and forgetting them."""
        self.policy([TaskRequest(self.empty.leaves, self.empty.structure, 0, 0)])
        new = Observations(np.ones(self.dim), 0.0, self.dim, np.dtype(self.moments.mean.dtype))
        for arrays in self.empty.rehearsals(self.settings.max_rows):
            arrays.add(new, self.settings.max_rows, self.moments)
        for capacity in self._capacities():
            EvidenceArrays.of(self.likelihood.empty(self.dim, capacity)).faded(2.0)
        object.__setattr__(self, "ready", True)

    def _capacities(self) -> list[int]:
        """Numbers of rows that evidence which fades may have room for."""
        most = 0 if self._forgetting is None else self.settings.max_rows
        return [2**power for power in range(most.bit_length() + 1) if 128 <= 2**power < 2 * most]

    def _checked(self, phi: np.ndarray, reward: float) -> Observations:
        try:
            new = Observations(phi, reward, self.dim, np.dtype(self.moments.mean.dtype))
            check_rewards(self.likelihood, new.rewards)
        except ValueError as error:
            raise ServiceError(422, str(error)) from error
        return new

    def _fails(self, arrays: EvidenceArrays) -> bool:
        """Whether draws given this evidence fail."""
        requests = [TaskRequest(arrays.leaves, arrays.structure, 0, n) for n in range(4)]
        return bool(np.any(self.posterior_policy(requests).failed[:, 0]))
