"""How fast is `condition` in a compiled loop, and does it return?

Batches of `Linear` conditioning are timed against the same mathematics on JAX's LAPACK-backed
routines, `jnp.linalg.cholesky` and `solve_triangular`. Each contender lives in a process of its
own, because several batched factorisations in one compiled loop can wait for each other for ever
on a CPU; a contender that does not answer in time is reported as hanging. Rounds are interleaved,
so that whatever else the machine does falls on all of them alike.

    python benchmarks/foundation.py [--rounds 7] [--timeout 60] [--json FILE]
"""

import argparse
import json
import os
import selectors
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass

SIZES = ((5, 100_000), (64, 2_000))
NUM_LOOPS = 3  # iterations of the compiled loop in one measurement
SAFE_FLAG = "--xla_cpu_enable_concurrency_optimized_scheduler=false"

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


@dataclass
class Row:
    """Seconds for one pass over the batch."""

    contender: str
    dim: int
    batch: int
    median: float | None = None
    fastest: float | None = None
    slowest: float | None = None
    note: str = ""


class Contender:
    """A process that measures one round whenever it is asked."""

    def __init__(self, name: str, dim: int, batch: int) -> None:
        kind, _, safe = name.partition(", ")
        flags = f"{os.environ.get('XLA_FLAGS', '')} {SAFE_FLAG}" if safe else None
        self.row, self.seconds, self.result = Row(name, dim, batch), [], None
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, kind, str(dim), str(batch), str(NUM_LOOPS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ({"XLA_FLAGS": flags} if flags else {}),
        )

    def measure(self, timeout: float) -> None:
        """Run one round; a contender that does not answer is stopped and never asked again."""
        if self.row.note:
            return
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            answered = selector.select(timeout)
        if not answered:
            self.row.note = f"no answer in {timeout:g} s: it hangs"
            self.process.kill()
            return
        line = self.process.stdout.readline()
        if not line:
            self.row.note = "it stopped with an error"
            return
        seconds, self.result = map(float, line.split())
        self.seconds.append(seconds / NUM_LOOPS)

    def finish(self) -> Row:
        """Stop the process; the first round, which compiles, does not count."""
        self.process.stdin.close()
        self.process.wait()
        if self.seconds[1:]:
            self.row.median = statistics.median(self.seconds[1:])
            self.row.fastest, self.row.slowest = min(self.seconds[1:]), max(self.seconds[1:])
        return self.row


def compete(dim: int, batch: int, rounds: int, timeout: float) -> list[Row]:
    """Interleaved rounds of all contenders at one size."""
    names = ("diffprior", "LAPACK", "LAPACK, safe scheduler")
    contenders = [Contender(name, dim, batch) for name in names]
    for _ in range(rounds + 1):
        for contender in contenders:
            contender.measure(timeout)
    results = [c.result for c in contenders if c.result is not None]
    if max(results) - min(results) > 1e-3 * abs(results[0]) + 1e-3 * batch:
        raise SystemExit(f"the contenders do not agree: {results}")
    return [contender.finish() for contender in contenders]


def show(row: Row) -> str:
    """One line of the table; times for one pass over the batch in milliseconds."""
    head = f"{row.dim:4d} {2 * row.batch:9,d}  {row.contender:23}"
    if row.median is None:
        return f"{head} {row.note}"
    times = (row.median, row.fastest, row.slowest)
    per_item = row.median / (2 * row.batch)
    return head + "".join(f"{1e3 * t:10.1f}" for t in times) + f"{1e6 * per_item:12.3f} {row.note}"


def main() -> None:
    """Measure, print a table, and write it as JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each contender")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds before it hangs")
    parser.add_argument("--json", metavar="FILE", help="where to write the table as JSON")
    options = parser.parse_args()
    print("   d      calls  contender               median ms   fastest   slowest  us per call")
    rows = []
    for dim, batch in SIZES:
        for row in compete(dim, batch, options.rounds, options.timeout):
            print(show(row), flush=True)
            rows.append(row)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in rows], file, indent=2)


if __name__ == "__main__":
    main()
