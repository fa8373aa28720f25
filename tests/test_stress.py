"""Large batches in compiled loops with several factorizations, and fits in threads, must return.

They run in a process of their own, so that a deadlock fails and stops nothing else.
"""

import subprocess
import sys

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

MIXTURE = """
import jax, jax.numpy as jnp, numpy as np, diffprior as dp
dim, batch, count = {dim}, {batch}, 256
rng = np.random.default_rng(0)
roots = rng.standard_normal((count, dim, dim))
covs = roots @ roots.swapaxes(1, 2) / dim + np.eye(dim)
prior = dp.MixturePrior(np.ones(count), rng.standard_normal((count, dim)), covs)
other = dp.MixturePrior(np.ones(count), rng.standard_normal((count, dim)), covs)
precisions, keys = jnp.asarray(covs[:batch]), jax.random.split(jax.random.key(0), batch)

@jax.jit
def loop(shifts):
    def one(precision, shift, key):
        evidence = dp.LinearEvidence.from_natural(precision, shift)
        draws = [dp.Exact(one).draw(key, evidence)[0] for one in (prior, other)]
        return draws[0] + draws[1]
    return jax.lax.fori_loop(0, 2, lambda _, x: jax.vmap(one)(precisions, x, keys), shifts)

shifts = np.asarray(loop(rng.standard_normal((batch, dim))))
assert np.all(np.isfinite(shifts))
print("returned")
"""

FITS = """
import threading, numpy as np
from diffprior.fitting.em import CovarianceModel
from diffprior.fitting.search import MixtureCandidate, fit_samples
dim, batch = {dim}, {batch}
samples = np.random.default_rng(0).standard_normal((1024, dim))
candidate = MixtureCandidate(64, CovarianceModel(2.0, 4))

def fit(seed):
    found = fit_samples(samples, None, candidate, seed=seed)
    assert np.all(np.isfinite(found.covs))

threads = [threading.Thread(target=fit, args=(seed,)) for seed in range(batch)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("returned")
"""


PROGRAMS = (
    (LINEAR, 5, 30_000),
    (LOGISTIC, 5, 2_000),
    (MIXTURE, 16, 64),
    (FITS, 16, 4),
)


def test_large_batches_return() -> None:
    program = "".join(script.format(dim=dim, batch=batch) for script, dim, batch in PROGRAMS)
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert result.stdout == len(PROGRAMS) * "returned\n", result.stderr
