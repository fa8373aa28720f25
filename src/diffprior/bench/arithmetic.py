"""The least that a draw can cost: its network's multiply-adds at the machine's matrix rate."""

import time

import jax
import jax.numpy as jnp
import numpy as np

from ..priors.corrected import CorrectedDenoiser
from ..priors.network import NetworkDenoiser
from ..priors.stagewise import StagewiseDenoiser
from ..samplers.base import AbstractSampler
from ..samplers.dps import DPS
from ..samplers.evidence_dps import EvidenceDPS
from ..samplers.few_passes import FewPasses
from ..samplers.laplace_dps import LaplaceDPS
from ..samplers.twisted_smc import TwistedSMC


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
    if isinstance(denoiser, CorrectedDenoiser):
        if denoiser.correction is None:
            return 0
        depth, width = denoiser.correction.bias_hidden.shape
        return width * (3 * denoiser.dim + depth * width)
    if isinstance(denoiser, NetworkDenoiser):
        depth, width = denoiser.bias_hidden.shape
        return width * (2 * denoiser.dim + depth * width)
    assert isinstance(denoiser, StagewiseDenoiser)
    _, dim, width = denoiser.weights_1.shape
    return width * (2 * dim + width)
