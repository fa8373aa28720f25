"""Cold start of items: movies and lecturers with their real ratings, and simulated catalogs.

`python -m experiments.items --data FOLDER`
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import typer
from jaxtyping import Float, Int
from scipy import sparse

import diffprior as dp
from diffprior.evaluate import cold_start
from diffprior.progress import progress
from diffprior.reporting.page import Callout, Text
from diffprior.reporting.tables import Table, plus_minus

from .datasets import INSTEVAL, read_table
from .movielens import load_catalog, regress
from .results import Folder, Quick, Results, Runs, Seed, command

TEMPERATURES = (1.0, 0.25, 0.0)  # 0 is greedy: the highest posterior mean
WINDOWS = (250, 1000, 2500)  # first visitors that regret is averaged over
NUM_SPLITS = 3  # of a data set
NEW_SHARE = 0.3  # of items, which nothing is learned from
MIN_PAST_ROWS, MAX_PAST_ROWS = 5, 200  # of a past item
RANK, NUM_SWEEPS = 5, 8  # of visitors' tastes
USER_RIDGE, MOVIE_RIDGE, TASTE_RIDGE = 5.0, 2.0, 8.0
NUM_CHOICES = 20  # among which a visitor chooses
MIN_CHOICES = {"movielens": 20, "insteval": 5}
COLD, RANDOM = "N(0, s I)", "random"
GIVEN = " given attributes"


class Visit(NamedTuple):
    """A visitor: features of items and the visitor (k, d), or (d,) of all; the items that can be
    chosen, None for all; their mean rewards; and what noise adds to them.
    """

    features: Float[np.ndarray, "..."]
    items: Int[np.ndarray, " k"] | None
    means: Float[np.ndarray, " k"]
    noise: float = 0.0


class Catalog(NamedTuple):
    """New items, what is known of them, and the visitors who choose among them."""

    items: Int[np.ndarray, " n"]
    attributes: Float[np.ndarray, "n a"] | None
    visits: Callable[[], Iterator[Visit]]


class Ratings(NamedTuple):
    """Ratings less what is known of the visitor, features of each, and attributes of all items."""

    visitors: Int[np.ndarray, " n"]
    items: Int[np.ndarray, " n"]
    features: Float[np.ndarray, "n d"]
    rewards: Float[np.ndarray, " n"]
    attributes: Float[np.ndarray, "m a"]
    is_new: np.ndarray  # (m,)

    def past(
        self, rng: np.random.Generator, *, attributes: bool, most: int = MAX_PAST_ROWS
    ) -> dp.Logs:
        """Rows of past items, so many of each at most."""
        return self.logs(rng, ~self.is_new, attributes=attributes, least=MIN_PAST_ROWS, most=most)

    def logs(
        self,
        rng: np.random.Generator,
        which: np.ndarray,
        *,
        attributes: bool,
        least: int,
        most: int,
    ) -> dp.Logs:
        """Rows of `which` items in random order, of each at least and at most so many."""
        order = rng.permutation(np.flatnonzero(which[self.items]))
        counts = np.bincount(self.items)
        order = order[counts[self.items[order]] >= least]
        order = order[np.argsort(self.items[order], kind="stable")]
        place = np.arange(len(order)) - np.searchsorted(self.items[order], self.items[order])
        rows = order[place < most]
        known = self.attributes[self.items[rows]] if attributes else None
        return dp.Logs(
            self.items[rows],
            self.features[rows],
            self.rewards[rows],
            attributes=known,
            check_features=False,
        )

    def replay(self, rng: np.random.Generator, least: int, most: int = NUM_CHOICES) -> Catalog:
        """Visitors who have rated at least so many new items choose among `most` of those."""
        rows = rng.permutation(np.flatnonzero(self.is_new[self.items]))
        rows = rows[np.argsort(self.visitors[rows], kind="stable")]
        names, starts = np.unique(self.visitors[rows], return_index=True)
        own = dict(zip(names.tolist(), np.split(rows, starts[1:]), strict=True))
        order = [v for v in rng.permutation(names).tolist() if len(own[v]) >= least]
        visits = [
            Visit(self.features[some], self.items[some], self.rewards[some])
            for v in order[: WINDOWS[-1]]
            for some in [own[v][:most]]
        ]
        items = np.flatnonzero(self.is_new)
        return Catalog(items, self.attributes[items], lambda: iter(visits))


def movielens_ratings(folder: Path | None, seed: int) -> Ratings:
    """MovieLens 1M: features are one and the visitor's tastes, by which past movies were rated."""
    ratings, catalog = load_catalog(folder)
    users, movies, values = ratings
    rng = np.random.default_rng(seed)
    is_new = rng.random(len(catalog.attributes)) < NEW_SHARE
    old = ~is_new[movies]
    mean = float(values[old].mean())
    shape = (int(users.max()) + 1, len(is_new))
    tastes, biases = _tastes(users[old], movies[old], values[old] - mean, shape, rng)
    features = np.column_stack([np.ones(len(users)), tastes[users]])
    rewards = values - mean - biases[users]
    return Ratings(users, movies, features, rewards, catalog.attributes, is_new)


def _tastes(
    users: Int[np.ndarray, " n"],
    movies: Int[np.ndarray, " n"],
    values: Float[np.ndarray, " n"],
    shape: tuple[int, int],
    rng: np.random.Generator,
) -> tuple[Float[np.ndarray, "u r"], Float[np.ndarray, " u"]]:
    """Tastes of users with a standard deviation of one, and their mean ratings."""

    def step(
        rows: np.ndarray,
        columns: np.ndarray,
        size: tuple[int, int],
        other: np.ndarray,
        bias: np.ndarray,
        ridge: float,
    ) -> tuple[np.ndarray, np.ndarray]:
        target = sparse.csr_array((values - bias[columns], (rows, columns)), shape=size)
        design = np.column_stack([np.ones(len(other)), other])
        found = regress(target, design, [ridge, *[TASTE_RIDGE] * RANK])
        return found[:, 1:], found[:, 0]

    other, bias = 0.1 * rng.standard_normal((shape[1], RANK)), np.zeros(shape[1])
    for _ in range(NUM_SWEEPS):
        tastes, own = step(users, movies, shape, other, bias, USER_RIDGE)
        other, bias = step(movies, users, shape[::-1], tastes, own, MOVIE_RIDGE)
    return tastes / tastes.std(axis=0), own


def insteval_ratings(folder: Path | None, seed: int) -> Ratings:
    """Lecturers rated by students: features are one, whether the lecture was for another
    department, how long ago it was, and the student's semester; attributes are departments.
    """
    table = read_table(INSTEVAL, folder)
    columns = {name: table[name].to_numpy().astype(float) for name in table.column_names}
    students, lecturers = (np.unique(columns[k], return_inverse=True)[1] for k in ("s", "d"))
    ages = [columns[k] - columns[k].mean() for k in ("lectage", "studage")]
    ages = [age / age.std() for age in ages]
    features = np.column_stack([np.ones(len(students)), columns["service"], *ages])
    departments = np.unique(columns["dept"], return_inverse=True)[1]
    attributes = np.zeros((lecturers.max() + 1, departments.max() + 1))
    attributes[lecturers, departments] = 1.0
    is_new = np.random.default_rng(seed).random(len(attributes)) < NEW_SHARE
    old = ~is_new[lecturers]
    rewards = columns["y"] - columns["y"][old].mean()
    count = np.bincount(students[old], minlength=students.max() + 1)
    total = np.bincount(students[old], rewards[old], minlength=len(count))
    rewards = rewards - (total / (count + USER_RIDGE))[students]
    return Ratings(students, lecturers, features, rewards, attributes, is_new)


SOURCES = {"movielens": movielens_ratings, "insteval": insteval_ratings}


def learned_priors(
    ratings: Ratings, seed: int, *, quick: bool
) -> tuple[dict[str, dp.AbstractPrior], dp.AbstractLikelihood]:
    """A cold start, and Gaussian, mixture and diffusion with and without attributes."""
    priors: dict[str, dp.AbstractPrior] = {}
    likelihood: dp.AbstractLikelihood | None = None
    for attributes in (False, True):
        logs = ratings.past(np.random.default_rng(seed), attributes=attributes)
        model = dp.learn(
            logs,
            likelihood or dp.Linear(),
            families=None if quick else ["diffusion"],
            quick=quick,
            seed=seed,
            simulate=False,
            progress=False,
        )
        likelihood = model.likelihood
        priors.setdefault(COLD, cold_start(logs, likelihood, seed=seed))
        for kind in ("Gaussian", "mixture", "diffusion"):
            end = GIVEN if attributes else ""
            found = [n for n in model.families if n.startswith(kind) and n.endswith(end)]
            if found:
                priors[kind + end] = model.families[found[-1]]
    assert likelihood is not None
    return priors, likelihood


class Greedy:
    """Chooses the item of the highest posterior mean; rewards are linear."""

    def __init__(self, prior: dp.AbstractPrior, noise_std: float, catalog: Catalog) -> None:
        self._offsets = np.zeros((len(catalog.items), prior.dim))
        if isinstance(prior, dp.ConditionalPrior):
            assert catalog.attributes is not None
            self._offsets, prior = prior.offsets(catalog.attributes), prior.residual
        self._mean = jax.jit(lambda precision, shift: prior.denoise(precision, shift).mean)
        self._noise_std = noise_std
        self._rows = {name: row for row, name in enumerate(catalog.items.tolist())}
        self._precision = np.zeros((len(self._rows), prior.dim, prior.dim))
        self._shift = np.zeros((len(self._rows), prior.dim))
        first = np.asarray(self._mean(self._precision[0], self._shift[0]))
        self._means = first + self._offsets

    def choose(self, visit: Visit) -> int:
        """Place among the candidates."""
        rows = slice(None) if visit.items is None else [self._rows[i] for i in visit.items.tolist()]
        return int((self._means[rows] * visit.features).sum(axis=1).argmax())

    def update(self, item: int, x: Float[np.ndarray, " d"], reward: float) -> None:
        row, z = self._rows[item], x / self._noise_std
        offset = self._offsets[row]
        self._precision[row] += np.outer(z, z)
        self._shift[row] += z * (reward - x @ offset) / self._noise_std
        mean = self._mean(self._precision[row], self._shift[row])
        self._means[row] = np.asarray(mean) + offset


class Sampled:
    """Thompson sampling by `Items`."""

    def __init__(
        self,
        prior: dp.AbstractPrior,
        likelihood: dp.AbstractLikelihood,
        catalog: Catalog,
        temperature: float,
        seed: int,
    ) -> None:
        self._items = dp.Items(prior, likelihood, temperature=temperature, seed=seed)
        given = isinstance(prior, dp.ConditionalPrior)
        self._items.add(catalog.items, attributes=catalog.attributes if given else None)

    def choose(self, visit: Visit) -> int:
        """Place among the candidates."""
        chosen = self._items.choose(visit.features, among=visit.items).item
        return int(chosen) if visit.items is None else visit.items.tolist().index(chosen)  # type: ignore[arg-type]

    def update(self, item: int, x: Float[np.ndarray, " d"], reward: float) -> None:
        self._items.update(item, x, reward)


def regret_of(
    prior: dp.AbstractPrior,
    likelihood: dp.AbstractLikelihood,
    catalog: Catalog,
    temperature: float,
    seed: int,
) -> list[float]:
    """Regret of each visit."""
    if temperature == 0:
        noise_std = float(likelihood.noise_std)  # type: ignore[attr-defined]
        agent: Greedy | Sampled = Greedy(prior, noise_std, catalog)
    else:
        agent = Sampled(prior, likelihood, catalog, temperature, seed)
    regret = []
    for visit in catalog.visits():
        place = agent.choose(visit)
        item = place if visit.items is None else int(visit.items[place])
        x = visit.features if visit.features.ndim == 1 else visit.features[place]
        regret.append(float(visit.means.max() - visit.means[place]))
        agent.update(item, x, float(visit.means[place]) + visit.noise)
    return regret


@dataclass(frozen=True)
class CatalogResult:
    """Mean regret of the first visitors of one catalog, and its standard error over visitors, by
    agent and window.
    """

    windows: list[int]
    num_items: int
    regret: dict[str, list[float]]
    error: dict[str, list[float]]


def summarized(
    regrets: dict[str, list[float]], windows: list[int], num_items: int
) -> CatalogResult:
    """Averages of the first values, and standard errors."""
    parts = {k: [np.array(v[:w]) for w in windows] for k, v in regrets.items()}
    return CatalogResult(
        windows,
        num_items,
        {k: [float(part.mean()) for part in v] for k, v in parts.items()},
        {k: [float(p.std(ddof=1) / np.sqrt(len(p))) for p in v] for k, v in parts.items()},
    )


def replayed(name: str, folder: Path | None, seed: int, *, quick: bool) -> CatalogResult:
    """One split of a data set: every prior at every temperature."""
    ratings = SOURCES[name](folder, seed)
    priors, likelihood = learned_priors(ratings, seed, quick=quick)
    catalog = ratings.replay(np.random.default_rng(seed + 1), MIN_CHOICES[name])
    regrets = {
        f"{prior}, {temperature:g}": regret_of(made, likelihood, catalog, temperature, seed)
        for prior, made in priors.items()
        for temperature in TEMPERATURES
    }
    regrets[RANDOM] = [float(v.means.max() - v.means.mean()) for v in catalog.visits()]
    length = len(regrets[RANDOM])
    windows = [w for w in WINDOWS if w < length] + [length]
    return summarized(regrets, windows, len(catalog.items))


class Generator(NamedTuple):
    """Catalogs whose items share two latent vectors: psi_2 ~ N(0, I), psi_1 ~ N(f_2(psi_2), I) and
    theta ~ N(f_1(psi_1), I) of each item. The functions are linear, with coefficients uniform from
    [-1, 1], or networks with a hidden layer of 60 rectified units; contexts are uniform from
    [-1, 1]^d, and noise has a standard deviation of one.

    References:
        Aouali (2023), Linear Diffusion Models Meet Contextual Bandits with Large Action Spaces.
        Weights of networks are ours: uniform, over the square root of a layer's inputs.
    """

    dim: int
    linear: bool
    seed: int

    def center(self, rng: np.random.Generator, count: int) -> Float[np.ndarray, "n d"]:
        """f_1(psi_1) of so many catalogs."""
        fixed = np.random.default_rng(self.seed)
        psi = rng.standard_normal((count, self.dim))
        for last in (False, True):
            psi = self._function(fixed, psi)
            psi = psi if last else psi + rng.standard_normal(psi.shape)
        return psi

    def _function(self, fixed: np.random.Generator, psi: np.ndarray) -> np.ndarray:
        if self.linear:
            return psi @ fixed.uniform(-1, 1, (self.dim, self.dim))
        inner, outer = (fixed.uniform(-1, 1, size) for size in ((self.dim, 60), (60, self.dim)))
        return np.maximum(psi @ inner, 0) @ outer / np.sqrt(self.dim)

    def catalog(self, center: np.ndarray, num_items: int, num_rounds: int, seed: int) -> Catalog:
        """The items of one catalog."""
        thetas = center + np.random.default_rng((seed, 0)).standard_normal((num_items, self.dim))

        def visits() -> Iterator[Visit]:
            rng = np.random.default_rng((seed, 1))
            for _ in range(num_rounds):
                x = rng.uniform(-1, 1, self.dim)
                yield Visit(x, None, thetas @ x, float(rng.standard_normal()))

        return Catalog(np.arange(num_items), None, visits)


def simulated(
    dim: int, num_items: int, linear: bool, *, num_runs: int, num_rounds: int, seed: int
) -> CatalogResult:
    """Priors learned from the items of other catalogs, or of the same one."""
    generator, rng = Generator(dim, linear, seed), np.random.default_rng(seed)
    past = generator.center(rng, 10_000)
    past = past + rng.standard_normal(past.shape)
    priors: dict[str, dp.AbstractPrior] = {
        "N(0, I)": dp.GaussianPrior(np.zeros(dim), np.eye(dim)),
        "Gaussian": dp.GaussianPrior.fit(past),
        "mixture": dp.MixturePrior.fit(past, seed=seed),
    }
    regrets: dict[str, list[float]] = {}
    for run, center in enumerate(generator.center(rng, num_runs)):
        same = center + rng.standard_normal((100, dim))
        own = {
            "Gaussian, 100 items of the catalog": dp.GaussianPrior.fit(same),
            "knows the latent vectors": dp.GaussianPrior(center, np.eye(dim)),
        }
        catalog = generator.catalog(center, num_items, num_rounds, seed + run)
        for name, prior in (priors | own).items():
            for temperature in (1.0, 0.0):
                found = regret_of(prior, dp.Linear(1.0), catalog, temperature, seed + run)
                regrets.setdefault(f"{name}, {temperature:g}", []).append(float(np.sum(found)))
        regrets.setdefault(RANDOM, []).append(
            float(np.sum([v.means.max() - v.means.mean() for v in catalog.visits()]))
        )
    found = summarized(regrets, [num_runs], num_items)
    return dataclasses.replace(found, windows=[num_rounds])  # regret after all of them, over runs


def table(name: str, found: CatalogResult) -> Table:
    """Regret by agent and window."""
    rows = [
        [agent, *(f"{m:.3f} ± {e:.3f}" for m, e in zip(means, found.error[agent], strict=True))]
        for agent, means in found.regret.items()
    ]
    columns = ("prior, temperature", *(f"first {w:,}" for w in found.windows))
    return Table(columns, rows, f"{name}, {found.num_items:,} items: regret.")


def _verdict(catalogs: dict[str, CatalogResult]) -> Callout:
    """The lowest regret on each catalog."""
    parts = []
    for name, found in catalogs.items():
        best = min(found.regret, key=lambda agent: found.regret[agent][-1])
        regret = plus_minus(found.regret[best][-1], found.error[best][-1])
        parts.append(f"{name}: {best}, {regret}")
    return Callout(f"Lowest regret: {'; '.join(parts)}.")


def run_items(
    results: Results,
    *,
    data: Folder = None,
    source: Annotated[
        list[str] | None, typer.Option(help="movielens, insteval or simulated; repeat for more.")
    ] = None,
    runs: Runs = None,
    quick: Quick = False,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Regret of choices among new items, on real ratings and in simulated catalogs."""
    runs, named = runs or 10, source or (*SOURCES, "simulated")
    parts: dict[str, tuple[dict[str, Any], Callable[[], CatalogResult]]] = {}
    for name in (name for name in named if name in SOURCES):
        for split in range(seed, seed + (1 if quick else NUM_SPLITS)):
            compute = functools.partial(replayed, name, data, split, quick=quick)
            parts[f"{name}, split {split}"] = {"split": split, "quick": quick}, compute
    if "simulated" in named:
        sizes = [(5, 100)] if quick else [(d, k) for d in (5, 20) for k in (100, 10_000)]
        effort = {"num_runs": min(runs, 2), "num_rounds": 100} if quick else {"num_runs": runs}
        for (dim, num_items), linear in itertools.product(sizes, (True, False)):
            about = {"num_rounds": 2000, **effort, "seed": seed}
            compute = functools.partial(simulated, dim, num_items, linear, **about)
            kind = "linear" if linear else "nonlinear"
            parts[f"{kind}, d = {dim}, K = {num_items:,}"] = about, compute
    with progress("", len(parts)) as shown:
        found = {}
        for name, (about, part) in parts.items():
            shown.describe(name)
            found[name] = results.numbers(CatalogResult, name, about, part)
            shown.advance()
    settings = {"splits": str(NUM_SPLITS), "runs": str(runs), "seed": str(seed)}
    tables = [table(name, each) for name, each in found.items()]
    blocks = [Text(_INTRODUCTION), *tables]
    results.report("Cold start of items", _verdict(found), blocks, settings, tables)
    return {"settings": settings, "catalogs": found}


_INTRODUCTION = (
    "Items have parameters of their own, and most of them are new. A prior is learned from the "
    "ratings of past items, with and without attributes; each visitor then chooses among new items "
    "that they rated, and the reward is the rating. Regret is against the visitor's best, per "
    "visitor. In simulated catalogs items share latent vectors, and regret is of all rounds."
)

if __name__ == "__main__":
    typer.run(command(run_items))
