"""The least that a draw can cost: its network's multiply-adds at the machine's matrix rate."""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from diffprior.denoisers.corrected import CorrectedDenoiser
from diffprior.denoisers.network import NetworkDenoiser
from diffprior.denoisers.stagewise import StagewiseDenoiser
from diffprior.executors import num_cores
from diffprior.samplers.base import AbstractSampler
from diffprior.samplers.dps import DPS
from diffprior.samplers.evidence_dps import EvidenceDPS
from diffprior.samplers.few_passes import FewPasses
from diffprior.samplers.laplace_dps import LaplaceDPS
from diffprior.samplers.twisted_smc import TwistedSMC


def matrix_rate(size: int = 2048, repeats: int = 7) -> float:
    """Multiply-adds a second of a product of two large single-precision matrices."""
    a = jnp.ones((size, size), jnp.float32)
    product = jax.jit(jnp.matmul)
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        product(a, a).block_until_ready()
        seconds.append(time.perf_counter() - begin)
    return size**3 / float(np.median(seconds[1:]))


def layer_rate(rows: int, width: int, depth: int = 50, repeats: int = 21) -> float:
    """The same of one core in a chain of products (rows, width) by (width, width)."""
    h, weights = jnp.ones((rows, width), jnp.float32), jnp.eye(width, dtype=jnp.float32)

    @jax.jit
    def chain(h: Array, weights: Array) -> Array:
        for _ in range(depth):
            h = jax.nn.relu(h @ weights)
        return h

    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        chain(h, weights).block_until_ready()
        seconds.append(time.perf_counter() - begin)
    return depth * rows * width**2 / float(np.median(seconds[1:]))


def layers_over(sampler: AbstractSampler, num_runs: int, seconds: float) -> float | str:
    """What a round of so many runs side by side spends in products of its network, of as many rows
    as a core has runs, over `seconds`: a limit closer than `over_limit`'s."""
    width = _width(sampler.prior.denoiser)  # type: ignore[attr-defined]
    if width == 0:
        return "no network"
    rows = -(-num_runs // num_cores())
    particles = sampler.num_particles if isinstance(sampler, TwistedSMC) else 1
    return rows * multiply_adds(sampler) / layer_rate(rows * particles, width) / seconds


def multiply_adds(sampler: AbstractSampler) -> int:
    """Multiply-adds of the network in one draw, with the derivatives that the sampler needs."""
    assert isinstance(sampler, EvidenceDPS | FewPasses | LaplaceDPS | TwistedSMC | DPS)
    stages = sampler.passes if isinstance(sampler, FewPasses) else sampler.schedule.num_stages
    dim = sampler.prior.dim
    once = _network(sampler.prior.denoiser)
    denoiser = sampler.prior.denoiser
    own = isinstance(denoiser, CorrectedDenoiser) and denoiser.draws_components
    with_derivatives = isinstance(sampler, EvidenceDPS | TwistedSMC) and not own
    chains = sampler.num_particles if isinstance(sampler, TwistedSMC) else 1
    return chains * stages * once * (1 + dim if with_derivatives else 1)


def over_limit(sampler: AbstractSampler, seconds: float, rate: float) -> float | str:
    """Seconds of a draw over the least that its network can cost; words where there is none."""
    least = multiply_adds(sampler) / rate
    return seconds / least if least > 0 else "no network"


def _network(denoiser: object) -> int:
    width = _width(denoiser)
    if isinstance(denoiser, CorrectedDenoiser) and denoiser.correction is not None:
        return width * (3 * denoiser.dim + denoiser.correction.bias_hidden.shape[0] * width)
    if isinstance(denoiser, NetworkDenoiser):
        return width * (2 * denoiser.dim + denoiser.bias_hidden.shape[0] * width)
    return width * (2 * denoiser.dim + width) if isinstance(denoiser, StagewiseDenoiser) else 0


def _width(denoiser: object) -> int:
    """Of its network; 0 where there is none."""
    if isinstance(denoiser, CorrectedDenoiser):
        return 0 if denoiser.correction is None else denoiser.correction.bias_hidden.shape[1]
    if isinstance(denoiser, NetworkDenoiser):
        return denoiser.bias_hidden.shape[1]
    return denoiser.weights_1.shape[2] if isinstance(denoiser, StagewiseDenoiser) else 0
