"""The largest batches, in compiled loops with several independent factorisations, must return.

Each runs in a process of its own, so that a program that waits for ever fails and stops nothing.
"""

import subprocess
import sys

import pytest

TIMEOUT = 240  # seconds; a few are needed

LINEAR = """
import jax, jax.numpy as jnp, numpy as np, diffprior as dp
dim, batch = {dim}, {batch}
rng = np.random.default_rng(0)
roots = rng.standard_normal((batch, dim, dim))
covs = roots @ roots.swapaxes(1, 2) / dim + np.eye(dim)
shifts = rng.standard_normal((batch, dim))

def one(mean, cov, shift):
    gaussian, evidence = dp.Gaussian(mean, cov), dp.LinearEvidence.from_natural(cov, shift)
    first, log_first = evidence.condition(gaussian)
    second, log_second = evidence.temper(2.0).condition(gaussian)
    third = first.product(second)
    return third.mean, log_first + log_second + first.kl(second)

@jax.jit
def loop(covs, shifts):
    def body(_, means):
        return jax.vmap(one)(means, covs, shifts)[0]
    return jax.lax.fori_loop(0, 2, body, jnp.zeros_like(shifts))

means = np.asarray(loop(covs, shifts))
assert means.shape == (batch, dim) and np.all(np.isfinite(means))
print("returned")
"""

LOGISTIC = """
import jax, jax.numpy as jnp, numpy as np, diffprior as dp
dim, batch = {dim}, {batch}
rng = np.random.default_rng(0)
features = rng.standard_normal((16, dim)) / np.sqrt(dim)
evidence = dp.Logistic().observe(features, rng.integers(0, 2, 16))

@jax.jit
def loop(means):
    def body(_, means):
        one = lambda mean: evidence.condition(dp.Gaussian(mean, jnp.eye(dim)))[0].mean
        return jax.vmap(one)(means)
    return jax.lax.fori_loop(0, 2, body, means)

means = np.asarray(loop(rng.standard_normal((batch, dim))))
assert np.all(np.isfinite(means))
print("returned")
"""


@pytest.mark.parametrize(
    ("script", "dim", "batch"),
    [(LINEAR, 5, 100_000), (LINEAR, 64, 2_000), (LOGISTIC, 5, 5_000)],
    ids=["linear-5", "linear-64", "logistic-5"],
)
def test_large_batches_return(script: str, dim: int, batch: int) -> None:
    program = script.format(dim=dim, batch=batch)
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert result.stdout == "returned\n", result.stderr
