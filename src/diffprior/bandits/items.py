"""Items: choose among many things that each have parameters of their own.

Items are independent given the prior, so a joint draw of all of them is one draw of each. A panel
holds several joint draws; an item's are redrawn when its evidence changes. So a decision is one
matrix-vector product and an argmax, whatever the prior.
"""

import dataclasses
import datetime
import functools
import json
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from ..checks import choice as one_of
from ..checks import positive_int, real_numbers
from ..encoders import Encoder
from ..evidence.base import AbstractLikelihood
from ..evidence.response import response_of
from ..files.cache import SavedArrays
from ..priors.conditional import ConditionalPrior
from ..reporting.figures import html
from ..reporting.tables import Table
from ._dispatch import check_not_forked
from .bandit import Posterior
from .best import Mixtures, best_probabilities
from .decisions import best_first, host_mean, pieces
from .item_choice import ItemChoice, Name, View
from .online import MAX_ROWS, AbstractOnline, seed_or_fresh
from .panel import HOST_SIZES, Panel, PanelDraws, PanelRows, side_by_side, state_kind
from .updates import Observations, State, num_axes

Names = Name | Iterable[object]
MIN_DRAWS, MAX_DRAWS = 2, 2**16
AT_ONCE = 512  # items that `refresh` draws for
NONE = np.empty(0, np.int64)


@dataclasses.dataclass(slots=True)
class _Item:
    """An item; `row` is its place in the panel, -1 if removed, `number` that among all ever."""

    name: Name
    row: int
    number: int
    state: State | None = None
    num_rewards: int = 0
    num_redraws: int = 0
    condition: Float[np.ndarray, " e"] | None = None  # of the prior, given the item's attributes


class Items(AbstractOnline):
    """Items that each have parameters of their own, chosen by Thompson sampling unless another
    agent is given.

    Every decision uses one joint draw of the panel, so each is Thompson sampling exactly. Decision
    n uses member n modulo `num_draws`; decisions that are more than that apart, with no rewards or
    `refresh` between them, use the same draw again.

    Items may be shared between threads: choices see the draws of one moment, updates run one after
    the other and draw before they make choices wait.

    Args:
        prior: What past items say of the parameters, possibly given attributes, for which the best
            sampler is chosen; or a sampler; or an agent, such as `LinUCB`, which brings its own
            likelihood.
        likelihood: How rewards arise; None with an agent.
        num_draws: Joint draws in the panel, 2 to 65,536.
        seed: Integer from 0 to 2**63 - 1 that fixes the random numbers; None for a fresh one.
        temperature: As of `Bandit`.
        max_rows: As of `Bandit`, per item.
        half_life: As of `Bandit`; decisions are counted over all items. What has faded since an
            item's last reward shows in its draws after `refresh`.
        encoder: How raw rows, which `choose` and `update` then take beside arrays, become contexts.
        attribute_encoder: Likewise of the attributes that `add` takes.
        unknown: What an unknown name does in `choose` and `update`: "add" starts the item at the
            prior, "raise" is an error.

    Raises:
        ValueError: An argument is not what is said above.
        RuntimeError: The process was forked after JAX had begun to work.
    """

    max_bytes: ClassVar[int] = 2**34

    def __init__(
        self,
        prior: object,
        likelihood: AbstractLikelihood | None = None,
        *,
        num_draws: int = 64,
        seed: int | None = None,
        temperature: ArrayLike | None = None,
        max_rows: int | None = MAX_ROWS,
        half_life: ArrayLike | datetime.timedelta | None = None,
        encoder: Encoder | None = None,
        attribute_encoder: Encoder | None = None,
        unknown: str = "add",
    ) -> None:
        super().__init__(prior, likelihood, seed, temperature, max_rows, half_life, encoder)
        self._conditional = prior if isinstance(prior, ConditionalPrior) else None
        self._attribute_encoder = attribute_encoder
        if not MIN_DRAWS <= positive_int("num_draws", num_draws) <= MAX_DRAWS:
            raise ValueError(f"`num_draws`: expected 2 to {MAX_DRAWS}, got {num_draws}; try 64")
        self._num_draws = int(num_draws)
        self._unknown = one_of("unknown", unknown, ("add", "raise"))
        self._mean = host_mean(self._agent.likelihood)
        self._response = response_of(self._agent.likelihood)
        self._empty = State.of(self.likelihood.empty(self._dim, 0), None)
        self._draws = PanelDraws(self._agent, self._seed, self._num_draws, self._dim)
        self._panel = Panel(self._draws.empty())
        self._posteriors: dict[int, tuple[Any, ...]] = {}  # for exact propensities
        self._items: dict[Name, _Item] = {}
        self._active: list[_Item] = []  # by row
        self._num_added = self._version = 0
        self._refreshing: threading.Thread | None = None
        self._updating = threading.RLock()  # held while evidence is made of evidence

    @property
    def names(self) -> list[Name]:
        """Names of the items that can be chosen, in the order of the rows of `context`."""
        with self._lock:
            return [item.name for item in self._active]

    def __len__(self) -> int:
        """Number of items that can be chosen."""
        return len(self._active)

    def __contains__(self, name: object) -> bool:
        """Whether an item can be chosen."""
        item = self._items.get(name)  # type: ignore[call-overload]
        return item is not None and item.row >= 0

    def __repr__(self) -> str:
        """Agent, likelihood and size."""
        return (
            f"Items({type(self._agent).__name__}, {self.likelihood!r}, {len(self)} items, "
            f"dim={self._dim}, num_draws={self._num_draws}, num_decisions={self._num_decisions})"
        )

    def _repr_html_(self) -> str | None:
        """What `repr` says, as a table for notebooks."""
        parts = [("items", f"{len(self):,}"), ("decisions", f"{self._num_decisions:,}")]
        parts += [("agent", type(self._agent).__name__), ("likelihood", repr(self.likelihood))]
        parts += [("parameters of each item", f"{self._dim}")]
        return html([Table((), parts, words=True)])

    def add(self, names: Names, attributes: object = None) -> None:
        """Let items be chosen. New ones start at the prior, removed ones where they were.

        Args:
            names: One name or several, strings or integers.
            attributes: What is known of them, for a prior given attributes: (n, a) or (a,) of one,
                NaN where it is not known; with an `attribute_encoder` also a dict, several, or a
                table. Without attributes, new items are average ones.

        Raises:
            ValueError: A name is no string or integer, or occurs twice; or attributes do not fit.
        """
        wanted = _checked_names("names", names)
        conditions = None if attributes is None else self._conditions(attributes, len(wanted))
        with self._updating:
            self._add(wanted, conditions)

    def _conditions(self, attributes: object, count: int) -> Float[np.ndarray, "n e"]:
        """Conditions of the prior by the attributes of so many items."""
        if self._conditional is None:
            raise ValueError(
                "`attributes`: expected None with a prior that was not learned given attributes; "
                "learn one by fit(samples, attributes=...)"
            )
        numbers = self._encoded("attributes", attributes, self._attribute_encoder)
        z = np.atleast_2d(np.asarray(numbers, np.float64))
        if len(z) != count:
            raise ValueError(
                f"`attributes`: expected a row for each of {count} names, got {len(z)}"
            )
        return self._conditional.conditions(z)

    def _add(
        self, names: Sequence[Name], conditions: Float[np.ndarray, "n e"] | None = None
    ) -> None:
        shown, again = [], []
        for place, name in enumerate(names):
            item = self._items.get(name)
            if item is None:
                item = _Item(name, -1, self._num_added)
                self._num_added += 1
            if conditions is not None:
                item.condition = conditions[place]
            if item.row < 0:
                shown.append(item)
            elif conditions is not None:
                again.append(item)
        self._show(shown)
        self._redraw(again)

    def _show(self, items: Sequence[_Item]) -> None:
        """Draw for items and give them a row in the panel, some at a time."""
        with self._lock:
            self._panel.reserve(len(items))
        for start in range(0, len(items), AT_ONCE):
            some = items[start : start + AT_ONCE]
            rows = self._redrawn([(item, item.state) for item in some])
            with self._lock:
                for place, item in enumerate(some):
                    item.row = self._panel.size + place
                    item.num_redraws += 1
                    self._items[item.name] = item
                self._active.extend(some)
                self._panel.append(rows)
                self._version += 1

    def remove(self, names: Names) -> None:
        """Let items no longer be chosen. Their evidence stays, and may still be updated.

        Args:
            names: One name or several.

        Raises:
            ValueError: A name is unknown.
        """
        items = [self._known("names", name) for name in _checked_names("names", names)]
        with self._updating, self._lock:
            for item in items:
                self._remove(item)
            self._version += 1

    def _remove(self, item: _Item) -> None:
        if item.row < 0:
            return
        last = self._active.pop()
        self._panel.drop(item.row)
        if last is not item:
            last.row = item.row
            self._active[item.row] = last
        item.row = -1

    def forget(self, names: Names) -> None:
        """Remove items with their evidence; added again, they start at the prior.

        Args:
            names: One name or several.

        Raises:
            ValueError: A name is unknown.
        """
        items = [self._known("names", name) for name in _checked_names("names", names)]
        with self._updating, self._lock:
            for item in items:
                self._remove(item)
                del self._items[item.name]
            self._version += 1

    def choose(
        self,
        context: object,
        *,
        among: Iterable[object] | None = None,
        exclude: Iterable[object] | None = None,
        top_k: int = 1,
        propensity: str = "panel",
    ) -> ItemChoice:
        """The item to show.

        Args:
            context: Features (d,) that all items share, or (K, d) of each candidate, in the order
                of `among`, or else of `names`; for a batch (B, 1, d) or (B, K, d). With an
                `encoder` also a dict, or K of them.
            among: Names that may be chosen; None for all.
            exclude: Names that may not.
            top_k: How many items to choose, best first.
            propensity: How the propensity is computed, if it is read: "panel", the share of the
                other joint draws; or "exact", by quadrature, which needs linear rewards, a Gaussian
                or mixture prior and `top_k=1`.

        Returns:
            The choice, or choices in one.

        Raises:
            ValueError: An argument is not what is said above, or no item is left; then no decision
                is counted.
            RuntimeError: The process was forked.
        """
        check_not_forked("choose")
        given = self._encoded("context", context, self._encoder)
        axes = min(max(num_axes("context", given), 1), 3)
        candidates = None if among is None else self._candidates(among)
        barred = None if exclude is None else _checked_names("exclude", exclude)
        one_of("propensity", propensity, ("panel", "exact"))
        if propensity == "exact":
            self._check_exact(top_k)
        with self._lock:
            rows = None if candidates is None else self._rows(candidates)
            out = self._places(barred, rows) if barred else NONE
            count = len(self._active) if rows is None else len(rows)
            if count == len(out):
                raise ValueError(
                    "`items`: expected some that can be chosen, got none; add items, or exclude "
                    "fewer"
                )
            if positive_int("top_k", top_k) > count - len(out):
                raise ValueError(
                    f"`top_k`: expected at most {count - len(out)}, the number of items that can "
                    f"be chosen, got {top_k}; add items, or exclude fewer"
                )
            x = self._checked_context(given, axes, count)
            number, version = self._num_decisions, self._version
            self._num_decisions += len(x)
            view = View(self._panel, rows, out, int(top_k), number, self._seed, self._response)
            named, places, highest = list[Any](), [], []
            for i, each in enumerate(x):
                values = view.values(self._agent, i, each)
                best = best_first(values[None], top_k)[0]
                chosen = best if rows is None else rows[best]
                named.append([self._active[row].name for row in chosen.tolist()])
                places.append(best)
                highest.append(values[best])
        single = axes < 3
        scores = self._mean(np.array(highest))
        items = named if top_k > 1 else [names[0] for names in named]
        scores = _reply(scores, single, top_k)
        about = (propensity, view, x, places, version, single)
        whole = functools.partial(self._propensities, *about)
        return ItemChoice(items[0] if single else items, scores, whole)

    def update(self, item: Names, context: object, reward: ArrayLike) -> None:
        """Learn from rewards, which may come late, in any order, and of many items at once.

        Args:
            item: The item that was shown, or the item of each reward.
            context: Its features (d,), or (n, d) of many; with an `encoder` also raw rows.
            reward: Its reward, or rewards (n,).

        Raises:
            ValueError: An argument is not what is said above, the likelihood cannot produce such a
                reward, or no parameters could be drawn given it; then nothing has been learned.
            RuntimeError: The process was forked.
        """
        check_not_forked("update")
        names = [item] if isinstance(item, Name | np.integer) else list(item)
        given = self._encoded("context", context, self._encoder)
        new = Observations(given, reward, self._num_features, self._dtype)
        if len(names) not in (1, len(new)):
            raise ValueError(
                f"`item`: expected one name, or one for each of {len(new)} rewards, got "
                f"{len(names)}; repeat the names of items that have several rewards"
            )
        self.likelihood.check_rewards(new.rewards)
        names = [_checked_name("item", name) for name in names] * (
            len(new) if len(names) == 1 else 1
        )
        places: dict[Name, list[int]] = {}
        for place, name in enumerate(names):
            places.setdefault(name, []).append(place)
        with self._updating:
            items = self._found("item", places)
            pairs = zip(items, places.values(), strict=True)
            proposals = [(one, self._with(one, new.select(which))) for one, which in pairs]
            rows = self._redrawn(proposals)
            with self._lock:
                self._commit(proposals, rows)
                for one, which in zip(items, places.values(), strict=True):
                    one.num_rewards += len(which)

    def _redrawn(self, proposals: Sequence[tuple[_Item, State | None]]) -> PanelRows:
        """Rows of the panel for items that have shown this; a ValueError if a draw fails."""
        words = np.array([(i.number, i.num_redraws + 1) for i, _ in proposals], np.int64)
        conditions = self._stacked_conditions([item for item, _ in proposals])
        rows = self._draws([state for _, state in proposals], words.reshape(-1, 2), conditions)
        if rows.failed.any():
            names = [proposals[place][0].name for place in np.flatnonzero(rows.failed).tolist()]
            raise ValueError(
                f"`update`: expected observations given which parameters can be drawn, got others "
                f"of {names[:3]}; rescale or drop them, or set jax_enable_x64; nothing has been "
                "learned from this call"
            )
        return rows

    def _stacked_conditions(self, items: Sequence[_Item]) -> Float[np.ndarray, "n e"] | None:
        if self._conditional is None:
            return None
        average = self._conditional.average
        found = [average if item.condition is None else item.condition for item in items]
        return np.array(found).reshape(-1, len(average))

    def _commit(self, proposals: Sequence[tuple[_Item, State | None]], rows: PanelRows) -> None:
        """Put evidence and draws in their places; the lock is held."""
        for item, state in proposals:
            item.state = state
            item.num_redraws += 1
        places = np.array([item.row for item, _ in proposals], np.int64)
        shown = np.flatnonzero(places >= 0)
        self._panel.write(places[shown], rows.select(shown))
        self._version += 1

    def _with(self, item: _Item, new: Observations) -> State:
        """The state of an item with these observations; its rows are allocated as they come."""
        state, most = self._present(item.state or self._empty), self._max_rows
        if most is None or item.num_rewards + len(new) <= most:
            return state.add(new, None, self._moments)
        if state.room is not None and item.num_rewards <= most:
            state = State.of(state.evidence, most, like=state)
        return state.add(new, most, self._moments)

    def refresh(self, names: Names | None = None, *, background: bool = False) -> None:
        """Draw anew, so that decisions to come use other draws than those before.

        Choices and updates go on meanwhile: a few hundred items are drawn for at a time.

        Args:
            names: Items to draw for; None for all that can be chosen.
            background: Return at once, and draw in a thread of its own; nothing is done if an
                earlier one still draws.

        Raises:
            ValueError: A name is unknown.
        """
        check_not_forked("refresh")
        with self._lock:
            items = list(self._active)
        if names is not None:
            items = [self._known("names", name) for name in _checked_names("names", names)]
        if not background:
            self._redraw(items)
        elif self._refreshing is None or not self._refreshing.is_alive():
            self._refreshing = threading.Thread(target=self._redraw, args=(items,), daemon=True)
            self._refreshing.start()

    def _redraw(self, items: Sequence[_Item]) -> None:
        """Draw anew for items that can be chosen, some at a time."""
        for start in range(0, len(items), AT_ONCE):
            with self._updating:
                some = [item for item in items[start : start + AT_ONCE] if item.row >= 0]
                if not some:
                    continue
                states = [None if i.state is None else self._present(i.state) for i in some]
                proposals = list(zip(some, states, strict=True))
                rows = self._redrawn(proposals)
                with self._lock:
                    self._commit(proposals, rows)

    def posterior(self, name: Name, num_draws: int = 1000, *, seed: int | None = None) -> Posterior:
        """Posterior of the parameters of an item; reading it changes no decision.

        Args:
            name: The item, active or removed.
            num_draws: Number of draws n, at least 2.
            seed: As of `Items`; None for a fresh one.

        Returns:
            Draws (n, d), their mean, covariance and intervals.

        Raises:
            ValueError: The name is unknown, or the agent infers nothing.
            RuntimeError: A draw failed.
        """
        check_not_forked("posterior")
        if positive_int("num_draws", num_draws) < MIN_DRAWS:
            raise ValueError(f"`num_draws`: expected at least 2, got {num_draws}; try 1000")
        item = self._known("name", _checked_name("name", name))
        state = item.state
        state = None if state is None else self._present(state)
        thetas = self._draws.posterior(state, num_draws, seed_or_fresh(seed), item.condition)
        if not np.isfinite(thetas).all():
            raise RuntimeError("`posterior`: a draw failed; rescale features or set jax_enable_x64")
        return Posterior(thetas, () if self._encoder is None else self._encoder.names)

    def _known(self, argument: str, name: Name) -> _Item:
        item = self._items.get(name)
        if item is None:
            raise ValueError(f"`{argument}`: expected a known item, got {name!r}; add it first")
        return item

    def _found(self, argument: str, names: Iterable[Name]) -> list[_Item]:
        """The items of these names, unknown ones added if that is the setting."""
        missing = [name for name in names if name not in self._items]
        if missing and self._unknown == "add":
            with self._updating:
                self._add([name for name in missing if name not in self._items])
        return [self._known(argument, name) for name in names]

    def _candidates(self, among: Iterable[object]) -> list[_Item]:
        names = _checked_names("among", among)
        if not names:
            raise ValueError("`among`: expected at least one name, got none; None means all items")
        return self._found("among", names)

    def _rows(self, items: Sequence[_Item]) -> Int[np.ndarray, " k"]:
        rows = np.array([item.row for item in items], np.int64)
        if rows.min() < 0:
            name = items[int(rows.argmin())].name
            raise ValueError(
                f"`among`: expected items that can be chosen, got {name!r}, which was removed; "
                "add it again, or leave it out"
            )
        return rows

    def _places(
        self, barred: Sequence[Name], rows: Int[np.ndarray, " k"] | None
    ) -> Int[np.ndarray, " e"]:
        """Where among the candidates these items are."""
        found = np.array([self._items[name].row for name in barred if name in self], np.int64)
        return found if rows is None else np.flatnonzero(np.isin(rows, found))

    def _checked_context(
        self, context: ArrayLike, axes: int, count: int
    ) -> Float[np.ndarray, "b k d"]:
        """Contexts (B, 1, d) shared by all items, or (B, K, d)."""
        shape = ("B", "K", self._num_features)[-axes:]
        fix = "pass a number for each parameter, or a row of them for each candidate"
        x = np.asarray(real_numbers("context", context, shape, fix), self._dtype)
        x = x.reshape((1,) * (3 - axes) + x.shape)
        if x.shape[1] not in (1, count) or len(x) == 0:
            raise ValueError(
                f"`context`: expected {self._num_features} numbers, or a row of them for each of "
                f"{count} candidates, got shape {np.shape(context)}"
            )
        return x

    def _check_exact(self, top_k: int) -> None:
        if top_k != 1 or self._draws.mixture is None:
            raise ValueError(
                '`propensity`: expected "panel", got "exact", which needs linear rewards, a '
                'Gaussian or mixture prior, and top_k=1; use "panel" with more draws'
            )

    def _propensities(
        self,
        method: str,
        view: "View",
        x: Float[np.ndarray, "b k d"],
        places: Sequence[Int[np.ndarray, " top_k"]],
        version: int,
        single: bool,
    ) -> tuple[Any, Any]:
        """Propensities of choices and their standard errors, while the items are as they were."""
        with self._lock:
            if self._version != version:
                raise RuntimeError(
                    "`propensity`: expected to be read before items change, got items that have "
                    "been updated since `choose`; read it right after the choice"
                )
            if method == "exact":
                found = [self._exact(view, each, p) for each, p in zip(x, places, strict=True)]
            else:
                pairs = enumerate(zip(x, places, strict=True))
                found = [view.shares(self._agent, i, each, p) for i, (each, p) in pairs]
        shares, errors = (np.stack(part) for part in zip(*found, strict=True))
        return _reply(shares, single, view.top_k), _reply(errors, single, view.top_k)

    def _exact(
        self, view: "View", x: Float[np.ndarray, "r d"], places: Int[np.ndarray, " one"]
    ) -> tuple[Float[np.ndarray, " one"], Float[np.ndarray, " one"]]:
        rows = np.arange(self._panel.size) if view.rows is None else view.rows
        allowed = np.setdiff1d(np.arange(len(rows)), view.excluded)
        weights, means, factors = self._conditioned([self._active[row] for row in rows[allowed]])
        phi = np.broadcast_to(x, (len(rows), self._dim))[allowed].astype(np.float64)
        centers = np.matmul(means, phi[:, :, None])[:, :, 0]
        half = np.matmul(factors, phi[:, None, :, None])[..., 0]
        mixtures = Mixtures(weights, centers, np.sqrt((half**2).sum(axis=2)))
        shares = np.zeros(len(rows))
        shares[allowed] = best_probabilities(mixtures)
        return shares[places], np.zeros(1)

    def _conditioned(self, items: Sequence[_Item]) -> list[np.ndarray]:
        """Weights, means and factors of items' posteriors; those not known yet are computed."""
        known, mixture = self._posteriors, self._draws.mixture
        assert mixture is not None
        changed = [i for i in items if known.get(i.number, (-1,))[0] != i.num_redraws]
        for start, size in pieces(len(changed), HOST_SIZES):
            some = changed[start : start + size]
            states = [item.state or self._empty for item in some]
            parts = mixture.posteriors(states, self._stacked_conditions(some))
            for item, *own in zip(some, *parts, strict=True):
                known[item.number] = (item.num_redraws, *own)
        found = [known[item.number][1:] for item in items]
        return [np.stack(column) for column in zip(*found, strict=True)]

    @classmethod
    def file_hints(cls) -> dict[str, object]:
        return super().file_hints() | {
            "conditional": ConditionalPrior | None,
            "attribute_encoder": Encoder | None,
            "about": SavedArrays,
            "evidence": tuple[SavedArrays, ...],
            "num_draws": int,
            "unknown": str,
        }

    def file_fields(self) -> dict[str, object]:
        with self._updating, self._lock:
            items = sorted(self._items.values(), key=lambda item: (item.row < 0, item.row))
            text = json.dumps([item.name for item in items]).encode()
            counts = [(item.number, item.num_rewards, item.num_redraws) for item in items]
            about: dict[str, np.ndarray] = {
                "names": np.frombuffer(text, np.uint8),
                "counts": np.array(counts, np.int64).reshape(-1, 3),
                "sizes": np.array([len(self._active), self._num_added], np.int64),
            }
            conditions = self._stacked_conditions(items)
            if conditions is not None:
                about["offsets"] = conditions
            return super().file_fields() | {
                "conditional": self._conditional,
                "attribute_encoder": self._attribute_encoder,
                "about": SavedArrays(about),
                "evidence": tuple(_stacked(items)),
                "num_draws": self._num_draws,
                "unknown": self._unknown,
            }

    @classmethod
    def from_fields(cls, fields: dict[str, object]) -> Self:
        known: dict[str, Any] = fields  # checked against `file_hints`
        own = {k: known[k] for k in ("num_draws", "attribute_encoder", "unknown")}
        found = cls(known["agent"], **cls._options(known), **own)
        found._conditional = known["conditional"]
        about = known["about"].arrays
        names = _checked_names("names", json.loads(np.asarray(about["names"], np.uint8).tobytes()))
        counts = np.asarray(about["counts"], np.int64).reshape(len(names), 3)
        num_active, found._num_added = (int(size) for size in about["sizes"])
        numbers = counts[:, 0]
        distinct = len(np.unique(numbers)) == len(numbers)
        if not (0 <= num_active <= len(names) and distinct and counts.min(initial=0) >= 0):
            raise ValueError("`items`: expected items with numbers of their own, got others")
        if found._num_added <= numbers.max(initial=-1):
            raise ValueError("`items`: expected counts from 0, got others")
        items = [
            _Item(name, -1, int(number), None, int(rewards), int(redraws) - 1)
            for name, (number, rewards, redraws) in zip(names, counts, strict=True)
        ]
        if found._conditional is not None:
            conditions = np.asarray(about["offsets"], np.float64).reshape(len(names), -1)
            for item, condition in zip(items, conditions, strict=True):
                item.condition = condition
        for stack in known["evidence"]:
            found._unstack(stack.arrays, items)
        found._num_decisions = known["num_decisions"]
        found._items = {item.name: item for item in items}
        found._show(items[:num_active])
        for item in items[num_active:]:
            item.num_redraws += 1
        return found

    def _unstack(self, arrays: dict[str, np.ndarray], items: Sequence[_Item]) -> None:
        """Give items the evidence that `_stacked` wrote."""
        where, moments = arrays["items"], arrays["moments"]
        columns = [arrays[str(i)] for i in range(len(arrays) - 3)]
        if int(arrays["capacity"]) > max(column.size for column in columns):
            raise ValueError("`capacity`: expected room for the rows that there are, got more")
        empty = self.likelihood.empty(self._dim, int(arrays["capacity"]))
        like = State.of(empty, None)
        fits = [c.shape[1:] == leaf.shape for c, leaf in zip(columns, like.leaves, strict=True)]
        if not all(fits) or not 0 <= where.min(initial=0) <= where.max(initial=0) < len(items):
            raise ValueError("`evidence`: expected that of the agent's model, got another")
        for place, index in enumerate(where):
            leaves = [
                np.asarray(c[place], leaf.dtype)
                for c, leaf in zip(columns, like.leaves, strict=True)
            ]
            state = like.with_leaves(leaves)
            full = self._max_rows if items[index].num_rewards > (self._max_rows or 0) else None
            rooms = State.of(state.evidence, full, like=like)
            items[index].state = rooms._replace(moment=float(moments[place]))


def _reply(array: Float[np.ndarray, "b top_k"], single: bool, top_k: int) -> Any:
    """A result without the axes that the choice did not have."""
    array = array[:, 0] if top_k == 1 else array
    array = array[0] if single else array
    return float(array) if array.ndim == 0 else array


def _stacked(items: Sequence[_Item]) -> Iterator[SavedArrays]:
    """The evidence of items, arrays of one shape side by side."""
    groups: dict[object, list[int]] = {}
    for place, item in enumerate(items):
        if item.state is not None:
            groups.setdefault(state_kind(item.state), []).append(place)
    for places in groups.values():
        states = [state for i in places if (state := items[i].state) is not None]
        columns = side_by_side(states, len(states))
        yield SavedArrays(
            {
                "items": np.array(places, np.int64),
                "moments": np.array([state.moment for state in states]),
                "capacity": np.array(getattr(states[0].evidence, "capacity", 0), np.int64),
                **{str(i): column for i, column in enumerate(columns)},
            }
        )


def _checked_name(argument: str, name: object) -> Name:
    if isinstance(name, np.integer | np.str_):
        name = name.item()
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise ValueError(
            f"`{argument}`: expected names that are strings or integers, got {name!r}; "
            "convert it, as in str(name)"
        )
    return name


def _checked_names(argument: str, names: Names) -> list[Name]:
    """Names as a list without repeats."""
    given = [names] if isinstance(names, str | int | np.integer) else list(names)
    found = [_checked_name(argument, name) for name in given]
    if len(set(found)) != len(found):
        twice = Counter(found).most_common(1)[0][0]
        raise ValueError(f"`{argument}`: expected names once each, got {twice!r} twice; drop one")
    return found
