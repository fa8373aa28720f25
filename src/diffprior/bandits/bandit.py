"""The bandit that one puts into a product: NumPy in, decisions out."""

import threading
import warnings
from typing import Any

import numpy as np

from ..checks import default_float, positive_int
from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..samplers.base import AbstractSampler
from .agents import AbstractAgent, ThompsonSampling
from .choose import as_agent, dim_of
from .decisions import DecisionPrograms, awaited
from .forgetting import Forgetting
from .forking import refuse_after_fork
from .noise import NoiseWarning, NoiseWatch
from .posterior import Posterior
from .requests import MAX_DRAWS, Block, Decision, Request, propensity
from .storage import AbstractStoredBandit
from .streams import checked_seed, fresh_seed, seed_key, stream_keys
from .updates import LARGE, Observations, State, checked_max_rows, ordinary

TRIALS = 3  # draws that evidence of extreme observations must allow


class Bandit(AbstractStoredBandit):
    """Decisions one call at a time, by Thompson sampling unless another agent is given.

    The decisions that follow from a seed and a history are those of run 0 of `simulate` with the
    same seed (Algorithm 3).

    A bandit may be shared between threads: decisions run side by side, each on the evidence of the
    moment, updates one after the other, and `save` writes one moment. It does not survive a fork of
    the process, which it notices and says; copies (`copy.deepcopy`, pickle, `load` with
    keep_seed=True) decide as the original would have.

    Args:
        prior: What past tasks say of the parameters, for which the best sampler is chosen; or a
            sampler; or an agent, such as `LinUCB`, which brings its own likelihood.
        likelihood: How rewards arise; None with an agent.
        seed: Integer from 0 to 2**63 - 1 that fixes the random numbers; None, the default, for a
            fresh one.
        temperature: Counts the evidence 1 / temperature times: below 1 exploration is less. None
            leaves the sampler as it is, which for a prior is 1, Bayes' rule.
        max_rows: Rows of a generalized linear model that are kept, at least 128; beyond, equal rows
            are merged and older ones folded into a Gaussian term, so that memory and time stop
            growing. None keeps all.
        half_life: For tasks that drift: a number of decisions, or a `datetime.timedelta`, in which
            what a reward counts for halves, so that evidence fades to the prior. Age is counted
            from when the reward was learned. None, the default, forgets nothing.

    Raises:
        ValueError: An argument is not what is said above.
        RuntimeError: The process was forked after JAX had begun to work.

    References:
        Algorithm 3 (Thompson sampling with a diffusion prior).
    """

    def __init__(
        self,
        prior: Any,
        likelihood: Any = None,
        *,
        seed: int | None = None,
        temperature: Any = None,
        max_rows: int | None = 1024,
        half_life: Any = None,
    ) -> None:
        refuse_after_fork("Bandit")
        self._agent = as_agent(prior, likelihood, temperature)
        self._dim = dim_of(self._agent)
        self._seed = fresh_seed() if seed is None else checked_seed(seed)
        self._max_rows = checked_max_rows(max_rows)
        self._forgetting = None if half_life is None else Forgetting.of(half_life)
        self._programs = DecisionPrograms(self._agent, stream_keys(self._seed, 0))
        self._moments = self._agent.moments()
        self._check_rewards = self.likelihood.check_rewards  # slow to be looked up in a module
        self._stds = np.sqrt(np.diagonal(np.asarray(self._moments.cov, np.float64)))
        self._lock = threading.Lock()  # held while the state is read or replaced
        self._updating = threading.Lock()  # held while evidence is made of evidence
        self._state = State.of(self._agent.init(self._dim, self._max_rows or 0), self._max_rows)
        self._limit = LARGE * float(getattr(self.likelihood, "noise_std", 1.0))
        self._shown: tuple[State, AbstractEvidence] | None = None
        self._num_decisions = 0
        self._strained = False  # whether the evidence holds extreme observations
        self._noise = NoiseWatch()

    @property
    def agent(self) -> AbstractAgent:
        """What decides."""
        return self._agent

    @property
    def sampler(self) -> AbstractSampler:
        """What draws the parameters; a ValueError where the agent has no sampler."""
        if not isinstance(self._agent, ThompsonSampling):
            raise ValueError(
                f"`sampler`: expected a bandit with a sampler, got one with "
                f"{type(self._agent).__name__}; ask for `agent`"
            )
        return self._agent.sampler

    @property
    def likelihood(self) -> AbstractLikelihood:
        """How rewards arise."""
        return self._agent.likelihood

    @property
    def evidence(self) -> AbstractEvidence:
        """What has been learned so far, and is not forgotten."""
        state, shown = self._present(self._state), self._shown
        if shown is None or shown[0] is not state:
            shown = self._shown = (state, state.evidence)
        return shown[1]

    @property
    def seed(self) -> int:
        """What the random numbers follow from."""
        return self._seed

    @property
    def num_decisions(self) -> int:
        """Decisions taken so far, each of a batch counted."""
        return self._num_decisions

    def decide(
        self,
        features: Any,
        *,
        mask: Any = None,
        top_k: int | None = None,
        propensity_draws: int | None = None,
        throw: bool = True,
    ) -> Decision:
        """The action to take.

        Few programs are compiled, whatever the numbers of actions, decisions and draws: actions are
        padded to 8, 32, 128 and so on, and a batch is decided in blocks.

        Args:
            features: Features of each action (K, d), or of a batch of decisions (B, K, d).
            mask: Booleans (K,) or (B, K), true where an action is allowed; None allows all.
            top_k: How many actions to choose, best first; None for one.
            propensity_draws: Draws from which to estimate propensities; None for none.
            throw: Whether a failed draw raises; if not, its action is random and marked.

        Returns:
            The decision, or decisions in one.

        Raises:
            ValueError: An argument is not what is said above; then no decision is counted.
            RuntimeError: A draw failed (it counts as a decision), or the process was forked.
        """
        refuse_after_fork("decide")
        request = Request(features, mask, top_k, propensity_draws, self._dim)
        with self._lock:
            state, number = self._state, self._num_decisions
            self._num_decisions += request.size
        state = self._present(state, number)
        blocks = self._blocks(request, state)
        found = [self._programs.decide(state, number, block) for block in blocks]
        if request.plain:
            decision = request.decision(awaited(found[0])[0], blocks[0])
            if throw and decision.failed:
                raise RuntimeError(_FAILURE.format("decide"))
            return decision
        preferences, scores, failures = request.joined(found, blocks)
        failed = failures > 0
        actions = request.best(preferences)
        share = error = None
        if request.num_draws is not None:
            amounts = (request.top_k, request.num_draws)
            counted = [self._programs.count_hits(state, number, b, *amounts) for b in blocks]
            hits, lost = request.joined(counted, blocks)
            failed = failed | (lost > 0)
            chosen = np.take_along_axis(hits, actions, axis=1)
            share, error = map(request.reply, propensity(chosen, request.num_draws))
        if throw and np.any(failed):
            raise RuntimeError(_FAILURE.format("decide"))
        return Decision(
            request.reply(actions),
            request.reply_each(scores),
            share,
            error,
            request.reply_each(failed),
        )

    def update(self, phi: Any, reward: Any) -> None:
        """Learn from rewards, which may come late, in any order, and in batches of any size.

        Linear rewards that contradict their `noise_std` beyond chance and by a factor of two draw a
        `NoiseWarning`, once.

        Args:
            phi: Features (d,) of the action that was taken, or (n, d) of many.
            reward: Its reward, or rewards (n,).

        Raises:
            ValueError: An argument is not what is said above, the likelihood cannot produce such a
                reward, or no parameters could be drawn given it; then nothing has been learned.
            RuntimeError: The process was forked.
        """
        refuse_after_fork("update")
        new = Observations(phi, reward, self._dim, self._dtype)
        self._check_rewards(new.rewards)
        large = new.largest(self._stds) > self._limit
        with self._updating:
            state = self._with(self._present(self._state), new)
            if (large or self._strained) and self._fails(state):
                raise ValueError(_UNUSABLE.format(self._dtype, new))
            if large and not self._leaves_room(state, new):
                raise ValueError(_UNUSABLE.format(self._dtype, new))
            with self._lock:
                self._state, self._strained = state, self._strained or large
            surprise = self._noise.look(self.evidence) if self._noise.due(len(new)) else None
        if surprise is not None:
            warnings.warn(surprise, NoiseWarning, stacklevel=2)

    def posterior(self, num_draws: int = 1000, *, seed: int | None = None) -> Posterior:
        """What the bandit believes about the parameters; no decision is changed by asking.

        Args:
            num_draws: Number of draws n, 2 to 2**24.
            seed: As of a bandit; None for a fresh one.

        Returns:
            Draws (n, d), their mean, covariance and intervals. They are draws as decisions use
            them, at the sampler's temperature; of `LinUCB` and `EpsilonGreedy` the Gaussian
            posterior, Laplace's approximation where the model is not linear.

        Raises:
            ValueError: An argument is not what is said above, or the agent infers nothing.
            RuntimeError: A draw failed, or the process was forked.
        """
        refuse_after_fork("posterior")
        if not 2 <= positive_int("num_draws", num_draws) <= MAX_DRAWS:
            raise ValueError(f"`num_draws`: expected 2 to 2**24, got {num_draws}; try 1000")
        key = seed_key(fresh_seed() if seed is None else checked_seed(seed))
        draws, failed = self._programs.draw(self._present(self._state), key, num_draws)
        if np.any(failed):
            raise RuntimeError(_FAILURE.format("posterior"))
        return Posterior(draws)

    def warm_up(
        self, num_actions: int, batch_size: int = 1, *, propensity_draws: int | None = None
    ) -> None:
        """Compile what decisions of this size and updates need, so that none has to wait for it.

        Args:
            num_actions: The number of actions K; up to 8, 9 to 32, 33 to 128 and so on need the
                same.
            batch_size: The number of decisions in a call; 2 to 64 need the same, and so do more.
            propensity_draws: As of `decide`.

        Raises:
            ValueError: An argument is not a positive integer.
            RuntimeError: The process was forked.
        """
        refuse_after_fork("warm_up")
        shape = (
            positive_int("batch_size", batch_size),
            positive_int("num_actions", num_actions),
            self._dim,
        )
        request = Request(np.zeros(shape), None, None, propensity_draws, self._dim)
        state = self._state
        state.rehearse(self._max_rows, self._moments)
        if self._forgetting is not None:
            self._forgetting.faded(state, state.moment + 1.0)
        self._with(state, next(ordinary(self._stds, self._dtype)))
        self._fails(state)
        for block in self._blocks(request, state):
            self._programs.decide(state, 0, block)
            if request.num_draws is not None:
                self._programs.count_hits(state, 0, block, 1, request.num_draws)

    def __repr__(self) -> str:
        """Agent, likelihood, size and seed."""
        agent = self._agent
        inner = (
            f"{type(agent.sampler).__name__}({type(agent.sampler.prior).__name__})"
            if isinstance(agent, ThompsonSampling)
            else type(agent).__name__
        )
        return (
            f"Bandit({inner}, {self.likelihood!r}, dim={self._dim}, seed={self._seed}, "
            f"num_decisions={self._num_decisions})"
        )

    @property
    def _dtype(self) -> np.dtype:
        return default_float()

    def _present(self, state: State, num_decisions: int | None = None) -> State:
        """What is left of a state after so many decisions; by default, at this moment."""
        if self._forgetting is None:
            return state
        number = self._num_decisions if num_decisions is None else num_decisions
        return self._forgetting.faded(state, self._forgetting.now(number))

    def _blocks(self, request: Request, state: State) -> list[Block]:
        return request.blocks(self._dtype, self._programs.room(state))

    def _with(self, state: State, new: Observations) -> State:
        return state.add(new, self._max_rows, self._moments)

    def _leaves_room(self, state: State, new: Observations) -> bool:
        """Whether draws succeed after the same observations again, and after ordinary ones."""
        following = (new, *ordinary(self._stds, self._dtype))
        return not any(self._fails(self._with(state, each)) for each in following)

    def _fails(self, state: State) -> bool:
        """Whether draws given this evidence fail."""
        features = np.zeros((1, self._dim))
        (block,) = self._blocks(Request(features, None, None, None, self._dim), state)
        return any(
            bool(np.asarray(self._programs.decide(state, number, block))[0, -1])
            for number in range(TRIALS)
        )


_FAILURE = (
    "`{}`: a draw is not finite or its approximation was not found. Likely causes: features or "
    "rewards of extreme scale (rescale them); a prior fitted to other data; float32 at its limit "
    "(set jax_enable_x64). throw=False takes a random action instead and says so."
)

_UNUSABLE = (
    "`update`: expected observations given which, and those before, parameters can be drawn in {}, "
    "got {}; rescale or drop them, or set jax_enable_x64; nothing has been learned from this call"
)
