"""The bandit that one puts into a product: NumPy in, decisions out."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import on_device, positive_int, real_numbers
from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..priors.base import AbstractPrior
from ..priors.files import read_file, write_file
from ..samplers.base import AbstractSampler
from ..samplers.choose import best_sampler
from .agents import ThompsonSampling, checked_seed, decision_key, stream_keys
from .decisions import Decision, DecisionProgram, Request, count_hits, dimensions, propensity
from .packing import pack, unpack

FILE_KIND = "diffprior.Bandit"


class Bandit:
    """Thompson sampling, one call at a time: Algorithm 3.

    Takes a prior, for which the best sampler is chosen, or a sampler. The decisions that follow
    from a seed and a history are those of run 0 of `simulate` with the same seed.

    Rows of a generalised linear model are kept up to `max_rows`; then equal ones are merged and the
    older ones folded into a Gaussian term, so that memory and time stop growing. None keeps all.
    """

    def __init__(
        self, prior_or_sampler: Any, likelihood: Any, *, seed: int = 0, max_rows: int | None = 1024
    ) -> None:
        self._agent = ThompsonSampling(_as_sampler(prior_or_sampler), likelihood)
        self._evidence = self._agent.init(self._agent.dim)
        self._seed = checked_seed(seed)
        self._streams = stream_keys(self._seed, 0)
        self._max_rows = None if max_rows is None else _checked_max_rows(max_rows)
        self._program = DecisionProgram(self._agent, self._streams.decisions)
        self._num_decisions = 0

    @property
    def sampler(self) -> AbstractSampler:
        """What draws the parameters."""
        return self._agent.sampler

    @property
    def likelihood(self) -> AbstractLikelihood:
        """How rewards arise."""
        return self._agent.likelihood

    @property
    def evidence(self) -> AbstractEvidence:
        """What has been learnt so far."""
        return self._evidence

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
        """The action to take, for features (K, d), or for a batch of decisions (B, K, d).

        `mask`, of shape (K,) or (B, K), is true where an action is allowed. One program is compiled
        for each shape of `features`. A failed draw raises, or with throw=False the action is
        random. `propensity_draws` asks for propensities, estimated from that many draws.
        """
        request = Request(features, mask, top_k, self._agent.dim)
        number = np.asarray(self._num_decisions % 2**32, np.uint32)
        self._num_decisions += request.size
        inputs = (request.features, request.mask)
        found = self._program(self._evidence, number, *inputs, request.top_k)
        actions, scores, failed = map(np.asarray, found)
        share = error = None
        if propensity_draws is not None:
            num_draws = positive_int("propensity_draws", propensity_draws)
            key = decision_key(self._streams.propensities, on_device(number))
            features, allowed = map(on_device, inputs)
            chosen = on_device(actions)
            hits, lost = count_hits(
                key, self._agent, self._evidence, features, allowed, chosen, num_draws
            )
            failed = failed | np.asarray(lost)
            share, error = map(request.reply, propensity(np.asarray(hits), num_draws))
        if throw and np.any(failed):
            raise RuntimeError(_FAILURE.format(type(self.sampler).__name__))
        return Decision(
            request.reply(actions),
            request.reply_each(scores),
            share,
            error,
            request.reply_each(failed),
        )

    def update(self, phi: Any, reward: Any) -> None:
        """Learn from a reward for features (d,), or from rewards (n,) for features (n, d).

        Rewards may come late, in any order, and in batches of any size.
        """
        dim = self._agent.dim
        axes = (dim,) if dimensions("phi", phi) < 2 else ("n", dim)
        phi = real_numbers("phi", phi, axes, f"{dim} numbers for each reward")
        reward = real_numbers("reward", reward, phi.shape[:-1], "one reward for each row of `phi`")
        features, rewards = np.reshape(phi, (-1, dim)), np.reshape(reward, -1)
        evidence, at_once = self._evidence, self._max_rows and self._max_rows // 2
        for piece in _binary_pieces(len(rewards), at_once or len(rewards)):
            if self._max_rows is not None:
                room = self._max_rows - (piece.stop - piece.start)
                evidence = evidence.bounded(room, self.sampler.prior.moments())
            evidence = evidence.extend(features[piece], rewards[piece])
        self._evidence = evidence

    def save(self, path: str | Path) -> None:
        """Write all that is needed to go on to one file: safetensors with a JSON header."""
        arrays: dict[str, np.ndarray] = {}
        parts = {"sampler": self.sampler, "likelihood": self.likelihood, "evidence": self.evidence}
        header = {name: pack(part, name, arrays) for name, part in parts.items()}
        header |= {"seed": self._seed, "num_decisions": self._num_decisions}
        header["max_rows"] = self._max_rows
        write_file(path, FILE_KIND, header, arrays)

    @staticmethod
    def load(path: str | Path, *, seed: int | None = None, keep_seed: bool = False) -> "Bandit":
        """Read a bandit that `save` wrote; nothing in a file is run.

        It gets a fresh seed, so that copies of a file explore independently, unless `seed` is
        given, or `keep_seed` asks for the very decisions that the saved bandit would have taken.
        """
        header, arrays = read_file(path, FILE_KIND)
        try:
            sampler, likelihood, evidence = (
                unpack(header[name], arrays) for name in ("sampler", "likelihood", "evidence")
            )
            saved_seed, num_decisions = header["seed"], header["num_decisions"]
            max_rows = header["max_rows"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"`path`: {path} does not hold a whole bandit; save anew") from error
        if seed is None:
            seed = saved_seed if keep_seed else secrets.randbits(31)
        bandit = Bandit(sampler, likelihood, seed=seed, max_rows=max_rows)
        if type(evidence) is not type(bandit.evidence) or evidence.dim != bandit.evidence.dim:
            raise ValueError(f"`path`: {path} holds evidence of another model; save it anew")
        bandit._evidence, bandit._num_decisions = evidence, int(num_decisions)
        return bandit


_FAILURE = (
    "`{}`: a draw is not finite or its approximation was not found. Likely causes: features or "
    "rewards of extreme scale (rescale them); a prior fitted to other data; float32 at its limit "
    "(set jax_enable_x64). throw=False takes a random action instead and says so."
)


def _as_sampler(prior_or_sampler: Any) -> AbstractSampler:
    if isinstance(prior_or_sampler, AbstractSampler):
        return prior_or_sampler
    if isinstance(prior_or_sampler, AbstractPrior):
        return best_sampler(prior_or_sampler)
    raise ValueError(
        f"`prior_or_sampler`: expected a prior or a sampler, got {type(prior_or_sampler).__name__};"
        " fit a prior to the parameters of past tasks, or start from GaussianPrior(mean, cov)"
    )


def _checked_max_rows(max_rows: Any) -> int:
    max_rows = positive_int("max_rows", max_rows)
    if max_rows < 128:
        raise ValueError(
            f"`max_rows`: expected at least 128, got {max_rows}; older rows are approximated by a "
            "Gaussian term, which needs that many to be accurate; None keeps all"
        )
    return max_rows


def _binary_pieces(n: int, at_most: int) -> Iterator[slice]:
    """Slices of lengths 2^i that make up n, so that few programs serve batches of all sizes."""
    start = 0
    while start < n:
        length = 1 << (min(n - start, at_most).bit_length() - 1)
        yield slice(start, start + length)
        start += length
