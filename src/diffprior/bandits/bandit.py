"""The bandit that one puts into a product: NumPy in, decisions out."""

import dataclasses
import datetime
import math
import threading
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ..checks import choice, positive_int
from ..encoders import Encoder
from ..evidence.base import AbstractEvidence, AbstractLikelihood, capacity_for, small_room
from ..evidence.response import response_of
from ..files.atomic import AnyPath, write_atomic
from ..files.base import from_bytes, from_path, kinds_in, to_bytes
from ..priors.base import AbstractPrior
from ..reporting.figures import AbstractResult, parameter_names, plot_draws
from ..reporting.tables import Table
from ..samplers.base import AbstractSampler
from ._dispatch import check_not_forked
from .agents import ThompsonSampling, known_prior
from .decisions import COMPILE_AFTER, MAX_DRAWS, Decision, Policy, Request, seed_key
from .online import MAX_ROWS, AbstractOnline, seed_or_fresh
from .updates import LARGE, NoiseWarning, NoiseWatch, Observations, State, feature_scales, ordinary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRIALS = 3  # draws that evidence of extreme observations must allow


@dataclasses.dataclass(frozen=True, repr=False)
class Posterior(AbstractResult):
    """Draws from a bandit's posterior, and what they say.

    Attributes:
        draws: Parameters, one draw per row; shape (n, d).
        names: Names of the parameters, if their features have names.
        effective_sample_size: Of a `Response`, how many of the weighted proposals or particles a
            draw is chosen from, effectively; the median.
    """

    draws: Float[np.ndarray, "n d"]
    names: tuple[str, ...] = ()
    effective_sample_size: float | None = None

    @property
    def mean(self) -> Float[np.ndarray, " d"]:
        """Mean of the draws; shape (d,)."""
        return self.draws.mean(axis=0)

    @property
    def cov(self) -> Float[np.ndarray, "d d"]:
        """Covariance of the draws, divided by n - 1; shape (d, d)."""
        return np.atleast_2d(np.cov(self.draws, rowvar=False))

    def intervals(self, level: float = 0.9) -> Float[np.ndarray, "d 2"]:
        """Lowest and highest value of each parameter between its central quantiles.

        Args:
            level: Posterior probability that an interval holds its parameter; between 0 and 1.

        Returns:
            Array (d, 2).

        Raises:
            ValueError: `level` is not between 0 and 1.
        """
        if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
            raise ValueError(f"`level`: expected a number between 0 and 1, got {level!r}; try 0.9")
        tail = 0.5 * (1.0 - level)
        return np.quantile(self.draws, [tail, 1.0 - tail], axis=0).T

    def table(self) -> Table:
        """Mean, standard deviation and 90 % interval of each parameter.

        Returns:
            The table.
        """
        columns = (self.mean, np.sqrt(np.diagonal(self.cov)), *self.intervals(0.9).T)
        rows = [
            (name, *(f"{number:.3g}" for number in numbers))
            for name, *numbers in zip(self._shown_names, *columns, strict=True)
        ]
        return Table(("", "mean", "std", "5 %", "95 %"), rows, f"{len(self.draws)} draws")

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the draws in `ax`, by default a new figure: a histogram of one parameter, points of
        two, 90 % intervals of more.
        """
        return plot_draws(ax, self.draws, self._shown_names)

    def to_arviz(self) -> object:
        """The draws for ArviZ, as one chain of `theta`; needs arviz.

        Returns:
            `InferenceData`, or a `DataTree` from ArviZ 1.0 on; its dimension `parameter` has the
            names.

        Raises:
            ImportError: If arviz is not installed.
        """
        import arviz as az

        names: dict[str, Any] = {
            "coords": {"parameter": self._shown_names},
            "dims": {"theta": ["parameter"]},
        }
        groups: dict[str, Any] = {"posterior": {"theta": self.draws[None]}}
        before_1 = hasattr(az, "InferenceData")
        return az.from_dict(**groups, **names) if before_1 else az.from_dict(groups, **names)

    @property
    def _shown_names(self) -> list[str]:
        return parameter_names(self.draws.shape[1], self.names)


class Bandit(AbstractOnline):
    """Decisions one call at a time, by Thompson sampling unless another agent is given.

    The decisions that follow from a seed and a history are those of run 0 of `simulate` with the
    same seed (Algorithm 3), up to rounding: a Gaussian or a mixture decides in NumPy and in double
    precision, where nothing has to be compiled. Under a generalized linear model a compiled program
    takes half as long, or less; `warm_up` compiles it, as does a thread after 2,000 decisions, and
    it then decides from the 4,000th on (unless `max_rows` is None, as it grows with the rows).

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
        max_rows: Rows of a generalized linear model in memory, at least 128; beyond, equal rows
            are merged and older ones folded into a Gaussian term, so that memory and time stop
            growing. None keeps all, as a `Response` does.
        half_life: For tasks that drift: a number of decisions, or a `datetime.timedelta`, in which
            what a reward counts for halves, so that evidence fades to the prior. Age is counted
            from when the reward was learned. None, the default, forgets nothing.
        encoder: How raw rows, which `decide` and `update` then take beside arrays, become features.

    Raises:
        ValueError: An argument is not what is said above.
        RuntimeError: The process was forked after JAX had begun to work.

    References:
        Algorithm 3 (Thompson sampling with a diffusion prior).
    """

    file_version: ClassVar[int] = 3

    def __init__(
        self,
        prior: object,
        likelihood: AbstractLikelihood | None = None,
        *,
        seed: int | None = None,
        temperature: ArrayLike | None = None,
        max_rows: int | None = MAX_ROWS,
        half_life: ArrayLike | datetime.timedelta | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        super().__init__(prior, likelihood, seed, temperature, max_rows, half_life, encoder)
        compile_after = None if self._max_rows is None else COMPILE_AFTER  # of one shape of rows
        self._policy = Policy(self._agent, self._seed, compile_after)
        self._check_rewards = self.likelihood.check_rewards  # slow to be looked up in a module
        self._stds = feature_scales(self.likelihood, self._moments)
        self._updating = threading.Lock()  # held while evidence is made of evidence
        self._state = State.of(
            self.likelihood.empty(self._dim, self._max_rows or 0), self._max_rows
        )
        self._limit = LARGE * float(getattr(self.likelihood, "noise_std", 1.0))
        self._shown: tuple[State, AbstractEvidence] | None = None
        self._strained = False  # whether the evidence holds extreme observations
        self._noise = NoiseWatch()

    @property
    def sampler(self) -> AbstractSampler:
        """The sampler of the agent; a ValueError if it has none."""
        if not isinstance(self._agent, ThompsonSampling):
            raise ValueError(
                f"`sampler`: expected a bandit with a sampler, got one with "
                f"{type(self._agent).__name__}; ask for `agent`"
            )
        return self._agent.sampler

    @property
    def evidence(self) -> AbstractEvidence:
        """The evidence so far, as it has faded."""
        state, shown = self._present(self._state), self._shown
        if shown is None or shown[0] is not state:
            shown = self._shown = (state, state.evidence)
        return shown[1]

    def decide(
        self,
        features: object,
        *,
        mask: ArrayLike | None = None,
        top_k: int | None = None,
        propensity_draws: int | None = None,
        throw: bool = True,
    ) -> Decision:
        """The action to take.

        Few programs are compiled, whatever the numbers of actions, decisions and draws.

        Args:
            features: Features of each action (K, d), or of a batch of decisions (B, K, d); with an
                `encoder`, also K raw rows as a table or a list of dicts.
            mask: Booleans (K,) or (B, K), true where an action is allowed; None allows all.
            top_k: How many actions to choose, best first; None for one.
            propensity_draws: Most draws from which to estimate a propensity, of which about 16 are
                needed for each action that can win; None for no propensity.
            throw: Whether a failed draw raises; if not, its action is random and marked.

        Returns:
            The decision, or decisions in one.

        Raises:
            ValueError: An argument is not what is said above; then no decision is counted.
            RuntimeError: A draw failed (it counts as a decision), or the process was forked.
        """
        check_not_forked("decide")
        if isinstance(features, Mapping):
            raise ValueError(
                "`features`: expected a row per action, got a dict; pass a list of rows, in the "
                "order of the actions"
            )
        request = Request(
            self._encoded("features", features, self._encoder),
            mask,
            top_k,
            propensity_draws,
            self._num_features,
        )
        with self._lock:
            state, number = self._state, self._num_decisions
            self._num_decisions += request.size
        state = self._present(state, number)
        decision = self._policy.decide(state, number, request)
        if throw and decision.failed is not False and np.any(decision.failed):
            raise RuntimeError(_FAILURE.format("decide"))
        return decision

    def update(self, features: object, reward: ArrayLike) -> None:
        """Learn from rewards, which may come late, in any order, and in batches of any size.

        Linear rewards that contradict their `noise_std` beyond chance and by a factor of two draw a
        `NoiseWarning`, once.

        Args:
            features: Features (d,) of the action that was taken, or (n, d) of many; with an
                `encoder`, also a dict, or raw rows.
            reward: Its reward, or rewards (n,).

        Raises:
            ValueError: An argument is not what is said above, the likelihood cannot produce such a
                reward, or no parameters could be drawn given it; then nothing has been learned.
            RuntimeError: The process was forked.
        """
        check_not_forked("update")
        rows = self._encoded("features", features, self._encoder)
        new = Observations(rows, reward, self._num_features, self._dtype)
        self._check_rewards(new.rewards)
        large = new.largest(self._stds) > self._limit
        with self._updating:
            state = self._with(self._present(self._state), new)
            if (large or self._strained) and self._policy.fails(state, TRIALS):
                raise ValueError(_UNUSABLE.format(self._dtype, new))
            if large and not self._leaves_room(state, new):
                raise ValueError(_UNUSABLE.format(self._dtype, new))
            with self._lock:
                self._state, self._strained = state, self._strained or large
            surprise = self._noise.look(self.evidence) if self._noise.due(len(new)) else None
        if surprise is not None:
            warnings.warn(surprise, NoiseWarning, stacklevel=2)

    def posterior(self, num_draws: int = 1000, *, seed: int | None = None) -> Posterior:
        """The posterior of the parameters; asking for it changes no decision.

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
        check_not_forked("posterior")
        if not 2 <= positive_int("num_draws", num_draws) <= MAX_DRAWS:
            raise ValueError(f"`num_draws`: expected 2 to 2**24, got {num_draws}; try 1000")
        key = seed_key(seed_or_fresh(seed))
        if response_of(self.likelihood) is not None and isinstance(self._agent, ThompsonSampling):
            thetas, info = self.sampler.sample_many(key, self.evidence, num_draws, throw=False)
            draws, failed = np.asarray(thetas), np.asarray(info.failed)
            found = Posterior(draws, (), float(np.median(info.effective_sample_size)))
        else:
            draws, failed = self._policy.posterior(self._present(self._state), key, num_draws)
            found = Posterior(draws, () if self._encoder is None else self._encoder.names)
        if np.any(failed):
            raise RuntimeError(_FAILURE.format("posterior"))
        return found

    def warm_up(
        self, num_actions: int, batch_size: int = 1, *, propensity_draws: int | None = None
    ) -> None:
        """Compile what decisions of this size and updates need, so that none has to wait for it.

        Args:
            num_actions: The number of actions K; all numbers need the same.
            batch_size: The number of decisions in a call; 2 to 32 need the same, and so do more.
            propensity_draws: As of `decide`.

        Raises:
            ValueError: An argument is not a positive integer.
            RuntimeError: The process was forked.
        """
        check_not_forked("warm_up")
        positive_int("num_actions", num_actions)
        shape = (positive_int("batch_size", batch_size), 1, self._num_features)
        request = Request(np.zeros(shape), None, None, propensity_draws, self._num_features)
        state = self._state
        state.warm_up(self._max_rows, self._moments)
        if self._forgetting is not None:
            self._forgetting.faded(state, state.moment + 1.0)
        self._with(state, next(ordinary(self._stds, self._dtype)))
        self._policy.fails(state, TRIALS)
        self._policy.warm_up(state, request)

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

    def to_bytes(self, *, prior: str = "whole") -> bytes:
        """All that is needed to go on, as bytes.

        Args:
            prior: "whole", or "digest" to name the prior instead of carrying it; who reads the
                bytes must then have the prior.

        Returns:
            What `from_bytes` reads, of one moment.

        Raises:
            ValueError: A class of one's own holds what cannot be saved, such as a function.
        """
        check_not_forked("save")
        choice("prior", prior, ("whole", "digest"))
        apart = known_prior(self._agent) if prior == "digest" else ()
        return to_bytes(self, apart)

    def save(self, path: AnyPath, *, prior: str = "whole") -> None:
        """Write all that is needed to go on to a file, whole or not at all.

        Args:
            path: Where to write; the folder must exist.
            prior: As of `to_bytes`.

        Raises:
            ValueError: A class of one's own holds what cannot be saved, such as a function.
            OSError: The file cannot be written; an old one is then as it was.
        """
        write_atomic(path, self.to_bytes(prior=prior))

    @classmethod
    def from_bytes(
        cls,
        blob: bytes | bytearray | memoryview,
        *,
        seed: int | None = None,
        keep_seed: bool = False,
        prior: AbstractPrior | None = None,
    ) -> "Bandit":
        return from_bytes(blob, cls, *_options(seed, keep_seed, prior))

    @classmethod
    def load(
        cls,
        path: AnyPath,
        *,
        seed: int | None = None,
        keep_seed: bool = False,
        prior: AbstractPrior | None = None,
    ) -> "Bandit":
        """Read a bandit that `save` wrote, in this version or an earlier one.

        Args:
            path: The file; it may come from anywhere, nothing in it is run.
            seed: As of a bandit; None for a fresh one, so that copies of a file explore on their
                own.
            keep_seed: Whether to keep the seed, for the very decisions that the saved bandit would
                have taken.
            prior: The prior that the file names by its digest.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is damaged, holds no bandit, or names another prior.
        """
        return from_path(path, cls, *_options(seed, keep_seed, prior))

    def __reduce__(self) -> tuple[object, ...]:
        """The state for pickle and `copy`: bytes, and classes whose modules must be imported."""
        return _copied, (type(self), self.to_bytes(), kinds_in(self))

    @classmethod
    def file_hints(cls) -> dict[str, object]:
        own = {"evidence": AbstractEvidence, "strained": bool, "moment": float}
        return super().file_hints() | own

    def file_fields(self) -> dict[str, object]:
        with self._lock:
            state, common = self._state, super().file_fields()
            own = {"evidence": state.evidence, "strained": self._strained, "moment": state.moment}
        return common | own

    @classmethod
    def upgrade(cls, fields: dict[str, object], version: int) -> dict[str, object]:
        added = {"half_life": None, "in_seconds": False, "moment": 0.0, "encoder": None}
        return added | fields

    @classmethod
    def from_fields(cls, fields: dict[str, object]) -> Self:
        known: dict[str, Any] = fields  # checked against `file_hints`
        _check_room(known["evidence"], known["max_rows"])
        bandit = cls(known["agent"], **cls._options(known))
        evidence = known["evidence"]
        if type(evidence) is not type(bandit.evidence) or evidence.dim != bandit.evidence.dim:
            raise ValueError("`evidence`: expected that of the agent's model, got another")
        if not math.isfinite(known["moment"]):
            raise ValueError(f"`moment`: expected a finite number, got {known['moment']}")
        evidence = evidence.with_capacity(known["max_rows"] or 0)
        state = State.of(evidence, known["max_rows"])
        bandit._state = state._replace(moment=known["moment"])
        bandit._num_decisions = known["num_decisions"]
        bandit._strained = known["strained"]
        return bandit

    def _with(self, state: State, new: Observations) -> State:
        return state.add(new, self._max_rows, self._moments)

    def _leaves_room(self, state: State, new: Observations) -> bool:
        """Whether draws succeed after the same observations again, and after ordinary ones."""
        following = (new, *ordinary(self._stds, self._dtype))
        return not any(self._policy.fails(self._with(state, each), TRIALS) for each in following)


def _check_room(evidence: AbstractEvidence, max_rows: int | None) -> None:
    """Raise for room for far more rows than a file of this size would have been written with."""
    room = capacity_for(max_rows or 0)
    if not small_room(room, evidence.dim) and room > getattr(evidence, "capacity", room):
        raise ValueError(f"`max_rows`: expected as many as there is room for, got {max_rows}")


def _copied(cls: type[Bandit], blob: bytes, kinds: tuple[type, ...]) -> Bandit:
    return cls.from_bytes(blob, keep_seed=True)


def _options(
    seed: int | None, keep_seed: bool, prior: AbstractPrior | None
) -> tuple[tuple[AbstractPrior, ...], dict[str, object]]:
    """Objects that a file may name by digest, and fields to replace in it."""
    given = () if prior is None else (prior,)
    if keep_seed and seed is None:
        return given, {}
    return given, {"seed": seed_or_fresh(seed)}


_FAILURE = (
    "`{}`: a draw is not finite or its approximation was not found. Likely causes: features or "
    "rewards of extreme scale (rescale them); a prior fitted to other data; float32 at its limit "
    "(set jax_enable_x64). throw=False takes a random action instead and says so."
)

_UNUSABLE = (
    "`update`: expected observations given which, and those before, parameters can be drawn in {}, "
    "got {}; rescale or drop them, or set jax_enable_x64; nothing has been learned from this call"
)
