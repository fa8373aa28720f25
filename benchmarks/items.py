"""Cost of choices among items, beside a bare product and disjoint arms of other libraries.

`OPENBLAS_NUM_THREADS=1 taskset -c 0 python -m benchmarks.items`
"""

import functools
import time
from collections.abc import Callable

import numpy as np

import diffprior as dp
from diffprior.bandits.best import Mixtures, best_probabilities

from .harness import Bench, Calls, Measurement, command, resident, timed
from .items_gpu import bent

DIM, NUM_COMPONENTS, NUM_DRAWS = 20, 8, 64
SIZES = (1_000, 10_000, 100_000)


def choices(bench: Bench) -> list[Measurement]:
    """One choice among items of d = 20, beside the bare product and argmax on the same panel."""
    found = []
    for size in SIZES[: 2 if bench.quick else 3]:
        items, contexts = catalog(size), Contexts()
        panel = items._panel.draws
        calls: Calls = {
            f"{size:,} items": lambda items=items, x=contexts: items.choose(x()),  # type: ignore[misc]
            f"{size:,} items, bare product": lambda panel=panel, x=contexts, size=size: (  # type: ignore[misc]
                panel[x.count % NUM_DRAWS][:size] @ x()
            ).argmax(),
        }
        found += timed(calls, 300)
    return found


def peers(bench: Bench) -> list[Measurement]:
    """One choice among 1,000 arms with parameters of their own, d = 20, and one update."""
    size, contexts = SIZES[0], Contexts()
    items = catalog(size)
    calls: Calls = {"Items": lambda: items.choose(contexts())}
    updates: Calls = {"Items": lambda: items.update(contexts.count % size, contexts(), 1.0)}
    for name, make in PEERS.items():
        try:
            choose, update = make(size)
        except ImportError:
            continue
        calls[name] = functools.partial(lambda call, x: call(x()), choose, contexts)
        updates[name] = functools.partial(
            lambda call, x: call(x.count % size, x()), update, contexts
        )
    few = 3 if bench.quick else 20
    return timed(calls, few) + timed({f"{k}, update": v for k, v in updates.items()}, few)


def updates(bench: Bench) -> list[Measurement]:
    """Learning rewards, draws included: one, and 1,000 of different items; d = 20."""
    found = []
    for name, items in (
        ("mixture of 8", catalog(SIZES[0])),
        ("mixture of 4", catalog(SIZES[0], mixture(4))),
        ("network", catalog(SIZES[0], bench.learned("bent", bent(DIM)))),
    ):
        contexts, rewards = Contexts(), np.zeros(SIZES[0])
        one = functools.partial(
            lambda items, x: items.update(x.count % SIZES[0], x(), 1.0), items, contexts
        )
        many = functools.partial(items.update, range(SIZES[0]), contexts.all, rewards)
        found += timed({f"{name}, 1 reward": one}, 20 if bench.quick else 200)
        found += timed({f"{name}, 1,000 rewards": many}, 3 if bench.quick else 10)
    return found


def quadrature(bench: Bench) -> list[Measurement]:
    """Exact propensities of 1,000 items of 8 components."""
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(NUM_COMPONENTS), SIZES[0])
    shape, stds = weights.shape, 0.3 + 0.2 * rng.random(weights.shape)
    items, contexts = catalog(SIZES[0]), Contexts()

    def chosen() -> object:
        return items.choose(contexts(), propensity="exact").propensity

    calls: Calls = {
        f"spread {spread:g}": functools.partial(
            best_probabilities, Mixtures(weights, spread * rng.standard_normal(shape), stds)
        )
        for spread in (0.1, 1.0)
    }
    return timed(calls | {"of a choice": chosen}, 5 if bench.quick else 50)


def memory(bench: Bench) -> list[Measurement]:
    """Resident memory of 10^6 names, d = 2 and 2 draws, a tenth with a reward; and of 100,000
    items with linear rewards, d = 20, each with a reward."""
    found = []
    for name, size, dim, num_draws in (
        ("10^6 names", 1_000_000, 2, 2),  # first, as memory is not returned at once
        ("100,000 items", 100_000, DIM, NUM_DRAWS),
    ):
        count = size // 10 if bench.quick else size
        before, begin = resident(), time.perf_counter()
        items = dp.Items(mixture(dim=dim), dp.Linear(1.0), num_draws=num_draws, seed=0)
        items.add(range(count))
        added = time.perf_counter() - begin
        learned = count if dim == DIM else count // 10
        for start in range(0, learned, 1000):
            items.update(range(start, start + 1000), np.ones((1000, dim)), np.ones(1000))
        quantities = {"resident, MB": resident() - before, "added in, s": added}
        found.append(
            Measurement(name, quantities | {"updated in, s": time.perf_counter() - begin - added})
        )
    return found


class Contexts:
    """Contexts, one after the other."""

    def __init__(self) -> None:
        self.all = np.random.default_rng(1).standard_normal((1000, DIM)).astype(np.float32)
        self.count = 0

    def __call__(self) -> np.ndarray:
        """The next one."""
        self.count += 1
        return self.all[self.count % len(self.all)]


def mixture(num_components: int = NUM_COMPONENTS, dim: int = DIM) -> dp.MixturePrior:
    """A prior of overlapping components."""
    means = np.random.default_rng(0).standard_normal((num_components, dim))
    weights = np.full(num_components, 1.0 / num_components)
    return dp.MixturePrior(weights, means, np.stack([0.5 * np.eye(dim)] * num_components))


def catalog(size: int, prior: dp.AbstractPrior | None = None) -> dp.Items:
    """So many items, all new."""
    items = dp.Items(prior or mixture(), dp.Linear(1.0), num_draws=NUM_DRAWS, seed=0)
    items.add(range(size))
    return items


Peer = tuple[Callable[[np.ndarray], object], Callable[[int, np.ndarray], object]]


def bayesianbandits_peer(size: int) -> Peer:
    """A Gaussian regression per arm."""
    from bayesianbandits import Arm, ContextualAgent, NormalRegressor, ThompsonSampling

    arms = [Arm(i, learner=NormalRegressor(alpha=1.0, beta=1.0)) for i in range(size)]
    agent = ContextualAgent(arms, ThompsonSampling(), random_seed=0)
    one = np.ones(1)
    return lambda x: agent.pull(x[None]), lambda a, x: agent.select_for_update(a).update(
        x[None], one
    )


def contextualbandits_peer(size: int) -> Peer:
    """Linear Thompson sampling per arm."""
    from contextualbandits.online import LinTS

    agent = LinTS(nchoices=size, random_state=1, fit_intercept=False)
    rows = np.random.default_rng(0).standard_normal((size, DIM))
    agent.fit(rows, np.arange(size), rows[:, 0])
    one = np.ones(1)
    return (
        lambda x: agent.predict(x[None].astype(float)),
        lambda arm, x: agent.partial_fit(x[None].astype(float), np.array([arm]), one),
    )


def mabwiser_peer(size: int) -> Peer:
    """Linear Thompson sampling per arm."""
    from mabwiser.mab import MAB, LearningPolicy

    agent = MAB(list(range(size)), LearningPolicy.LinTS(alpha=1.0), seed=0)
    rows = np.random.default_rng(0).standard_normal((size, DIM))
    agent.fit(list(range(size)), rows[:, 0], rows)
    return (
        lambda x: agent.predict(x[None].astype(float)),
        lambda arm, x: agent.partial_fit([arm], [1.0], x[None].astype(float)),
    )


PEERS: dict[str, Callable[[int], Peer]] = {
    "bayesianbandits": bayesianbandits_peer,
    "contextualbandits": contextualbandits_peer,
    "MABWiser": mabwiser_peer,
}

if __name__ == "__main__":
    command({f.__name__: f for f in (choices, peers, updates, quadrature, memory)})
