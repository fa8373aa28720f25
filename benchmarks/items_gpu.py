"""Joint draws of 10^6 items on an accelerator, each item with evidence of its own.

`python -m benchmarks.items_gpu`; it imports nothing but NumPy, JAX and the package.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

import diffprior as dp
from diffprior.evidence.linear import LinearEvidence

DIM, NUM_COMPONENTS, NUM_DRAWS = 8, 8, 64
NUM_ROWS = 12  # of evidence per item
NUM_CHECKED = 1000  # items whose draws are compared with their posterior means
NUM_REPEATS = 5

Draws = Callable[[Key[Array, " n"], LinearEvidence], Float[Array, "n m d"]]


def joint_draws(sampler: dp.Exact | dp.FewPasses, num_draws: int, at_once: int) -> Draws:
    """Draws of items, some items at a time to bound the memory."""

    def one(pair: tuple[Key[Array, ""], LinearEvidence]) -> Float[Array, "m d"]:
        return sampler.sample_many(*pair, num_draws, throw=False)[0]

    return jax.jit(lambda keys, evidence: jax.lax.map(one, (keys, evidence), batch_size=at_once))


@jax.jit(static_argnums=1)
def evidence_of(key: Key[Array, ""], num_items: int) -> LinearEvidence:
    """Evidence of random rows, those of each item its own."""
    row_key, shift_key = jax.random.split(key)
    rows = jax.random.normal(row_key, (num_items, NUM_ROWS, DIM), jnp.float32)
    zeros = jnp.zeros(num_items, jnp.float32)
    return LinearEvidence(
        jnp.einsum("nri,nrj->nij", rows, rows),
        3.0 * jax.random.normal(shift_key, (num_items, DIM), jnp.float32),
        zeros,
        zeros + NUM_ROWS,
        zeros + 1.0,
    )


def mixture() -> dp.MixturePrior:
    """A prior of components with covariances of their own."""
    rng = np.random.default_rng(0)
    factors = 0.3 * rng.standard_normal((NUM_COMPONENTS, DIM, DIM))
    covs = factors @ factors.swapaxes(1, 2) + 0.1 * np.eye(DIM)
    weights = np.full(NUM_COMPONENTS, 1 / NUM_COMPONENTS)
    return dp.MixturePrior(weights, rng.standard_normal((NUM_COMPONENTS, DIM)), covs)


def network() -> dp.DiffusionPrior:
    """A mixture of 8 that a network corrects."""
    config = dp.FitConfig(max_components=NUM_COMPONENTS)  # of more, a network would not pay
    return dp.DiffusionPrior.fit(bent(DIM), config=config, progress=False)


def bent(dim: int) -> np.ndarray:
    """Samples half of whose parameters are squares of others, for a prior with a network."""
    rng = np.random.default_rng(2)
    first = rng.standard_normal((10_000, dim // 2))
    noise = 0.3 * rng.standard_normal(first.shape)
    return np.concatenate([first, (first**2 - 1) / 2**0.5 + noise], axis=1)


def worst_error(
    prior: dp.MixturePrior, evidence: LinearEvidence, draws: Float[Array, "n m d"]
) -> float:
    """Largest error of the mean of an item's draws, in standard errors, by another formula."""
    precision, shift = (
        np.asarray(a[:NUM_CHECKED], np.float64) for a in (evidence.precision, evidence.shift)
    )
    weights, means, covs = (
        np.asarray(a, np.float64) for a in (prior.weights, prior.means, prior.covs)
    )
    prior_precision = np.linalg.inv(covs)
    prior_shift = np.einsum("kij,kj->ki", prior_precision, means)
    inverse = np.linalg.inv(prior_precision[None] + precision[:, None])
    own = np.einsum("nkij,nkj->nki", inverse, prior_shift[None] + shift[:, None])
    explained = np.einsum("nki,nki->nk", own, prior_shift[None] + shift[:, None])
    known = np.einsum("ki,ki->k", means, prior_shift) + np.linalg.slogdet(covs)[1]
    log_weights = np.log(weights) + 0.5 * (explained + np.linalg.slogdet(inverse)[1] - known)
    shares = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    mean = np.einsum("nk,nki->ni", shares, own)
    second = np.einsum("nk,nki->ni", shares, np.einsum("nkii->nki", inverse) + own**2)
    found = np.asarray(draws[:NUM_CHECKED], np.float64)
    errors = np.sqrt((second - mean**2) / found.shape[1])
    return float(np.abs((found.mean(axis=1) - mean) / errors).max())


def timed(call: Callable[[], Array], repeats: int = NUM_REPEATS) -> tuple[float, float]:
    """Seconds of the first call, and the median of the next."""
    times = []
    for _ in range(1 + repeats):
        begin = time.perf_counter()
        call().block_until_ready()
        times.append(time.perf_counter() - begin)
    return times[0], statistics.median(times[1:])


@jax.jit
def better(
    best: tuple[Array, Array], draws: Float[Array, "n m d"], x: Float[Array, " d"], first: Array
) -> tuple[Array, Array]:
    """For each joint draw, the highest score so far and its item."""
    scores = draws @ x
    place = scores.argmax(axis=0)
    score = jnp.take_along_axis(scores, place[None], axis=0)[0]
    is_higher = score > best[0]
    return jnp.where(is_higher, score, best[0]), jnp.where(is_higher, first + place, best[1])


def choices(draw: Draws, num_items: int, num_chunks: int) -> tuple[float, int]:
    """Seconds of `NUM_DRAWS` joint choices among the items of all chunks, and their item."""
    chunks = [
        (jax.random.split(jax.random.key(i), num_items), evidence_of(jax.random.key(i), num_items))
        for i in range(num_chunks)
    ]
    x = jax.random.normal(jax.random.key(1), (DIM,), jnp.float32)
    jax.block_until_ready(chunks)

    def choose() -> Array:
        best = (jnp.full(NUM_DRAWS, -jnp.inf, jnp.float32), jnp.zeros(NUM_DRAWS, jnp.int32))
        for i, chunk in enumerate(chunks):
            best = better(best, draw(*chunk), x, jnp.int32(i * num_items))
        return best[1]

    return timed(choose, 1)[1], len(np.unique(np.asarray(choose())))


def measure(
    name: str, sampler: dp.Exact | dp.FewPasses, sizes: Sequence[int], num_items: int, chunks: int
) -> None:
    """Time draws of all items by how many are drawn at once, and joint choices; print them."""
    keys = jax.random.split(jax.random.key(0), num_items)
    evidence = evidence_of(jax.random.key(3), num_items)
    jax.block_until_ready((keys, evidence))
    found: list[tuple[float, int]] = []
    for at_once in sorted({min(size, num_items) for size in sizes}):
        draw = joint_draws(sampler, NUM_DRAWS, at_once)
        first, median = timed(lambda draw=draw: draw(keys, evidence))  # type: ignore[misc]
        draws = draw(keys, evidence)
        check = f"finite {bool(jnp.isfinite(draws).all())}"
        if isinstance(sampler.prior, dp.MixturePrior):
            check += f", largest |z| {worst_error(sampler.prior, evidence, draws):.1f}"
        found.append((median, at_once))
        about = f"{name}: {num_items:,} items, {at_once:,} at once"
        print(f"{about}: {median:.4f} s, first {first:.1f} s, {check}", flush=True)
    took, distinct = choices(joint_draws(sampler, NUM_DRAWS, min(found)[1]), num_items, chunks)
    about = f"{name}: {chunks} x {num_items:,} items, drawn and chosen from"
    print(f"{about}: {took:.3f} s, {distinct} different choices", flush=True)


def main() -> None:
    """Time draws of a mixture, and of a network's two passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--chunks", type=int, default=10)
    parser.add_argument("--at-once", type=int, nargs="+", default=[2**15, 2**17, 2**20])
    parser.add_argument("--prior", help="file of a learned prior, d = 8; it is fitted otherwise")
    options = parser.parse_args()
    print(f"JAX {jax.__version__}, {jax.devices()[0].device_kind}; {NUM_DRAWS} draws per item")
    some = (options.items, options.chunks)
    measure("mixture of 8", dp.Exact(mixture()), options.at_once, *some)
    prior = network() if options.prior is None else dp.load(options.prior)
    assert isinstance(prior, dp.DiffusionPrior) and prior.denoiser.closed_form() is None
    sizes = [max(1, size // 16) for size in options.at_once]
    measure(f"network, two passes, {prior}", dp.FewPasses(prior), sizes, *some)


if __name__ == "__main__":
    main()
