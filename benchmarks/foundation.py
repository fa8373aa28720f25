"""How fast `condition` is in a compiled loop, and whether it returns.

Batches of conditioning are timed against the same mathematics on JAX's LAPACK-backed routines. Each
contender lives in a process of its own, because several batched factorizations in one compiled loop
can wait for each other for ever on a CPU; one that does not answer in time is said to hang. Rounds
take turns, so that whatever else the machine does falls on all of them alike.
"""

import os
import selectors
import statistics
import subprocess
import sys

from .section import Bench, Measurement

SIZES = ((5, 100_000), (64, 2_000))
NUM_LOOPS = 3  # iterations of the compiled loop in one measurement
TIMEOUT = 60.0  # seconds before a contender is said to hang
SAFE_FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
NAMES = ("diffprior", "LAPACK", "LAPACK, safe scheduler")

WORKER = '''
import sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.scipy.linalg import solve_triangular
import diffprior as dp

kind, dim, batch, loops = sys.argv[1], *map(int, sys.argv[2:])
rng = np.random.default_rng(0)
roots = rng.standard_normal((batch, dim, dim))
covs = jnp.asarray(roots @ roots.swapaxes(1, 2) / dim + np.eye(dim))
shifts = jnp.asarray(rng.standard_normal((batch, dim)))

def ours(mean, cov, precision, shift):
    evidence = dp.LinearEvidence.from_natural(precision, shift)
    posterior, log_evidence = evidence.condition(dp.Gaussian(mean, cov))
    return posterior.mean, posterior.cov, log_evidence

def lapack(mean, cov, precision, shift):
    prior_tril = jnp.linalg.cholesky(cov)
    tril = jnp.linalg.cholesky(jnp.eye(dim) + prior_tril.T @ precision @ prior_tril)
    half_cov = solve_triangular(tril, prior_tril.T, lower=True)
    gradient = shift - precision @ mean
    half_step = half_cov @ gradient
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(tril)))
    log_mass = 0.5 * (mean @ (shift + gradient) + half_step @ half_step - log_det)
    return mean + half_cov.T @ half_step, half_cov.T @ half_cov, log_mass

condition = ours if kind == "diffprior" else lapack

def both(mean, cov, shift):
    """Two conditionings that do not depend on each other, as a sampler has them."""
    first = condition(mean, cov, cov, shift)
    second = condition(mean, cov, 0.5 * cov, 0.5 * shift)
    return 0.5 * (first[0] + second[0]) + 1e-9 * (first[2] + second[2]) + 1e-9 * first[1][0]

@jax.jit
def loop(means, covs, shifts):
    body = lambda _, means: jax.vmap(both)(means, covs, shifts)
    return jax.lax.fori_loop(0, loops, body, means)

for _ in sys.stdin:
    start = time.perf_counter()
    result = float(jnp.sum(loop(jnp.zeros_like(shifts), covs, shifts)))
    print(time.perf_counter() - start, result, flush=True)
'''


class Contender:
    """A process that measures one round whenever it is asked."""

    def __init__(self, name: str, dim: int, batch: int) -> None:
        kind, _, safe = name.partition(", ")
        flags = f"{os.environ.get('XLA_FLAGS', '')} {SAFE_FLAG}"
        self.seconds: list[float] = []
        self.result: float | None = None
        self.note = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, kind, str(dim), str(batch), str(NUM_LOOPS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ({"XLA_FLAGS": flags} if safe else {}),
        )

    def measure(self, timeout: float) -> None:
        """Run one round; a contender that does not answer is stopped and never asked again."""
        asked, answers = self.process.stdin, self.process.stdout
        if self.note or asked is None or answers is None:
            return
        asked.write("go\n")
        asked.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(answers, selectors.EVENT_READ)
            answered = selector.select(timeout)
        if not answered:
            self.note = f"no answer in {timeout:g} s: it hangs"
            self.process.kill()
            return
        line = answers.readline()
        if not line:
            self.note = "it stopped with an error"
            return
        seconds, self.result = map(float, line.split())
        self.seconds.append(seconds / NUM_LOOPS)

    def close(self) -> None:
        """Stop the process."""
        self.process.communicate()


def foundation(bench: Bench) -> list[Measurement]:
    """Milliseconds of one pass over a batch; the first round, which compiles, does not count."""
    sizes = ((5, 1_000),) if bench.quick else SIZES
    return [row for dim, batch in sizes for row in compete(dim, batch, 3 if bench.quick else 7)]


def compete(dim: int, batch: int, rounds: int, timeout: float = TIMEOUT) -> list[Measurement]:
    """Rounds of all contenders in turn, at one size."""
    contenders = {name: Contender(name, dim, batch) for name in NAMES}
    for _ in range(rounds + 1):
        for contender in contenders.values():
            contender.measure(timeout)
    for contender in contenders.values():
        contender.close()
    results = [c.result for c in contenders.values() if c.result is not None]
    if max(results) - min(results) > 1e-3 * abs(results[0]) + 1e-3 * batch:
        raise RuntimeError(f"the contenders do not agree: {results}")
    return [
        Measurement(f"{name}, d = {dim}, {2 * batch:,} calls", _quantities(contender, batch))
        for name, contender in contenders.items()
    ]


def _quantities(contender: Contender, batch: int) -> dict[str, float | str]:
    times = contender.seconds[1:]
    if not times:
        return {"note": contender.note}
    median = statistics.median(times)
    return {
        "median, ms": 1e3 * median,
        "fastest, ms": 1e3 * min(times),
        "slowest, ms": 1e3 * max(times),
        "a call, us": 1e6 * median / (2 * batch),
        "note": contender.note,
    }
