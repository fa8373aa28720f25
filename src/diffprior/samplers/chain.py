"""What samplers that run a reverse process share."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float, Key

from ..checks import positive_int
from ..evidence.base import AbstractEvidence
from ..gaussian import Gaussian
from ..linalg import cholesky
from ..priors.diffusion import DiffusionPrior, ReverseProcess
from ..schedule import Schedule
from ..threefry import written_out


def chosen_schedule(
    prior: DiffusionPrior, steps: int | None, default: int, spread: Callable[[int], Schedule]
) -> Schedule:
    """`steps` stages: of the prior's own grid if it has one, all of them unless told; otherwise
    `default` stages unless told, spread as the sampler likes them."""
    steps = None if steps is None else positive_int("steps", steps)
    if prior.has_own_grid:
        return prior.schedule if steps is None else prior.schedule.stride(steps)
    return spread(default if steps is None else steps)


def to_unit(prior: DiffusionPrior, evidence: AbstractEvidence) -> AbstractEvidence:
    """The evidence as a function of z, where theta = offset + scale z."""
    return evidence.reparameterize(prior.offset, prior.scale)


def from_unit(prior: DiffusionPrior, z: Float[Array, " d"]) -> Float[Array, " d"]:
    """theta = offset + scale z."""
    return prior.offset + prior.scale @ z


def first_belief(local: AbstractEvidence) -> Gaussian:
    """What a likelihood that is not quadratic is first expanded under: its Laplace posterior under
    N(0, I)."""
    standard = Gaussian.standard(local.dim)
    return standard if local.quadratic else local.condition(standard)[0]


def chain_noise(key: Key[Array, ""], process: ReverseProcess, dim: int) -> tuple[Array, Array]:
    """All the normal numbers of one chain at once: for its start, and for each stage."""
    num_stages = process.residual.shape[0]
    noise = jax.random.normal(written_out(key), (num_stages + 1, dim), process.residual.dtype)
    return noise[0], noise[1:]


def draw_from(law: Gaussian, noise: Float[Array, " d"]) -> Float[Array, " d"]:
    """The draw of `law` that standard normal `noise` stands for."""
    return law.mean + cholesky(law.cov) @ noise
