"""Posterior draws that need no trust: importance weights and Metropolis-Hastings steps.

Each function is for one task; none uses what a sampler or a learned prior would.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

import diffprior as dp
from diffprior.linalg import cholesky, log_det_from_tril, solve_lower

WIDER = 1.3  # times the standard deviations of proposals
KEPT = 0.1  # share of the prior's own weights in those that components are proposed by
SWEEPS, SHELF = 40, 32  # of Gibbs sampling; atoms are drawn by shelves of so many, then in one
LATENT_STEPS, SHORTEST = 300, 0.02  # steps in latent space, and the least length of one

LogDensity = Callable[[Float[Array, "m d"]], Float[Array, " m"]]


def in_the_plane(
    key: Key[Array, ""],
    log_prior: LogDensity,
    atoms: Float[Array, "n 2"],
    precision: Float[Array, "2 2"],
    shift: Float[Array, " 2"],
    num_draws: int,
) -> tuple[Float[Array, "m 2"], Float[Array, ""]]:
    """Draws under Gaussian evidence, and the effective number of points they are chosen from.

    Half of the points are `atoms`, draws of the prior p, half are draws of a Gaussian g close to
    the likelihood L, all weighted by p L / (p + g): the first are dense enough under weak evidence,
    the second under strong.
    """
    noise_key, pick_key = jax.random.split(key)
    sharper = precision + 0.05 * jnp.eye(2, dtype=shift.dtype)
    tril = cholesky(sharper)
    inverse = solve_lower(tril, jnp.eye(2, dtype=shift.dtype))
    noise = jax.random.normal(noise_key, atoms.shape, atoms.dtype)
    mean = inverse.T @ (inverse @ shift)
    points = jnp.concatenate([atoms, mean[None] + noise @ inverse])
    away = (points - mean[None]) @ tril
    log_near = 0.5 * log_det_from_tril(tril) - jnp.log(2 * jnp.pi) - 0.5 * jnp.sum(away**2, axis=1)
    log_atom = log_prior(points)
    log_likelihood = points @ shift - 0.5 * jnp.sum((points @ precision) * points, axis=1)
    weights = jax.nn.softmax(log_atom + log_likelihood - jnp.logaddexp(log_atom, log_near))
    uniforms = jax.random.uniform(pick_key, (num_draws,), points.dtype)
    return points[pick(weights, uniforms)], 1.0 / jnp.sum(weights**2)


def in_latent_space(
    key: Key[Array, ""],
    log_likelihood: LogDensity,
    atoms: Float[Array, "n k"],
    num_draws: int,
) -> Float[Array, "m k"]:
    """Draws of latent variables with prior N(0, I): atoms by their weights, then moved.

    A step to sqrt(1 - b^2) z + b noise leaves N(0, I) as it is, so that it is taken or not by the
    likelihood alone; lengths b of all orders are tried.
    """
    keys = jax.random.split(key, 1 + LATENT_STEPS)
    weights = jax.nn.softmax(log_likelihood(atoms))
    z = atoms[pick(weights, jax.random.uniform(keys[0], (num_draws,), atoms.dtype))]

    def step(state: tuple[Array, Array], key: Key[Array, ""]) -> tuple[tuple[Array, Array], None]:
        z, value = state
        noise_key, length_key, accept_key = jax.random.split(key, 3)
        column = (num_draws, 1)
        length = SHORTEST ** jax.random.uniform(length_key, column, z.dtype)
        noise = jax.random.normal(noise_key, z.shape, z.dtype)
        moved = jnp.sqrt(1.0 - length**2) * z + length * noise
        return _accepted(accept_key, (z, value), moved, log_likelihood(moved)), None

    return jax.lax.scan(step, (z, log_likelihood(z)), keys[1:])[0][0]


def in_blocks(
    key: Key[Array, ""],
    atoms: Float[Array, "blocks n 2"],
    precision: Float[Array, "d d"],
    shift: Float[Array, " d"],
    start: Float[Array, "m d"],
) -> Float[Array, "m d"]:
    """Chains over atoms of independent pairs of parameters, by Gibbs sampling from `start`."""
    indices = jnp.arange(atoms.shape[0])

    def block(theta: Array, inputs: Any) -> tuple[Array, None]:
        i, key = inputs
        return _from_atoms(key, atoms[i], i, precision, shift, theta), None

    def sweep(theta: Array, key: Key[Array, ""]) -> tuple[Array, None]:
        return jax.lax.scan(block, theta, (indices, jax.random.split(key, len(indices))))[0], None

    return jax.lax.scan(sweep, start, jax.random.split(key, SWEEPS))[0]


def _from_atoms(
    key: Key[Array, ""],
    atoms: Float[Array, "n 2"],
    i: Int[Array, ""],
    precision: Float[Array, "d d"],
    shift: Float[Array, " d"],
    theta: Float[Array, "m d"],
) -> Float[Array, "m d"]:
    """Pair i of every chain drawn from the atoms, given the other pairs."""
    rows = jax.lax.dynamic_slice_in_dim(precision, 2 * i, 2)
    own = jax.lax.dynamic_slice_in_dim(rows, 2 * i, 2, axis=1)
    old = jax.lax.dynamic_slice_in_dim(theta, 2 * i, 2, axis=1)
    pull = jax.lax.dynamic_slice_in_dim(shift, 2 * i, 2)[None] - theta @ rows.T + old @ own
    logs = pull @ atoms.T - 0.5 * jnp.sum((atoms @ own) * atoms, axis=1)[None]
    weights = jnp.exp(logs - jnp.max(logs, axis=1, keepdims=True))
    shelves = weights.reshape(len(theta), -1, SHELF)
    shelf_key, place_key = jax.random.split(key)
    shelf = _pick_each(shelf_key, jnp.sum(shelves, axis=2))
    place = _pick_each(place_key, shelves[jnp.arange(len(theta)), shelf])
    new = atoms[SHELF * shelf + place]
    return jax.lax.dynamic_update_slice_in_dim(theta, new, 2 * i, axis=1)


def pick(weights: Float[Array, " n"], uniforms: Float[Array, " m"]) -> Int[Array, " m"]:
    """Indices by their weights, one for each uniform number."""
    return jnp.minimum(jnp.searchsorted(jnp.cumsum(weights), uniforms), weights.shape[0] - 1)


def _pick_each(key: Key[Array, ""], weights: Float[Array, "m n"]) -> Int[Array, " m"]:
    """An index of every row by its weights."""
    total = jnp.cumsum(weights, axis=1)
    uniform = jax.random.uniform(key, (len(total), 1), total.dtype)
    chosen = jnp.sum(total < uniform * total[:, -1:], axis=1)
    return jnp.minimum(chosen, total.shape[1] - 1)


def of_a_mixture(
    key: Key[Array, ""],
    prior: dp.MixturePrior,
    evidence: dp.AbstractEvidence,
    num_proposals: int,
    num_draws: int,
) -> tuple[Float[Array, "m d"], Float[Array, ""]]:
    """Draws under any likelihood, and the effective number of proposals they are chosen from.

    Proposed by Gaussians wider than Laplace's approximation of each component, and by the prior's
    own weights now and then; resampled by weight.
    """
    which_key, noise_key, pick_key = jax.random.split(key, 3)
    near, log_evidence = jax.vmap(lambda m, c: evidence.condition(dp.Gaussian(m, c)))(
        prior.means, prior.covs
    )
    shares = jax.nn.softmax(jnp.log(prior.weights) + jnp.nan_to_num(log_evidence, nan=-jnp.inf))
    shares, covs = (1.0 - KEPT) * shares + KEPT * prior.weights, WIDER**2 * near.cov
    which = pick(shares, jax.random.uniform(which_key, (num_proposals,), shares.dtype))
    noise = jax.random.normal(noise_key, (num_proposals, prior.dim), shares.dtype)
    thetas = near.mean[which] + jnp.einsum("nij,nj->ni", cholesky(covs)[which], noise)
    log_target = _log_mixture(thetas, prior.weights, prior.means, prior.covs)
    log_target = log_target + jax.vmap(evidence.log_likelihood)(thetas)
    weights = jax.nn.softmax(log_target - _log_mixture(thetas, shares, near.mean, covs))
    chosen = pick(weights, jax.random.uniform(pick_key, (num_draws,), weights.dtype))
    return thetas[chosen], 1.0 / jnp.sum(weights**2)


def _log_mixture(
    thetas: Float[Array, "m d"],
    weights: Float[Array, " k"],
    means: Float[Array, "k d"],
    covs: Float[Array, "k d d"],
) -> Float[Array, " m"]:
    def log_density(mean: Array, cov: Array) -> Array:
        tril = cholesky(cov)
        inverse = solve_lower(tril, jnp.eye(len(mean), dtype=mean.dtype))
        z = (thetas - mean[None]) @ inverse.T
        return -0.5 * jnp.sum(z**2, axis=1) - 0.5 * log_det_from_tril(tril)

    logs = jax.vmap(log_density)(means, covs)
    return jax.scipy.special.logsumexp(logs, axis=0, b=weights[:, None])


def _accepted(
    key: Key[Array, ""],
    state: tuple[Float[Array, "m d"], Float[Array, " m"]],
    moved: Float[Array, "m d"],
    value: Float[Array, " m"],
) -> tuple[Float[Array, "m d"], Float[Array, " m"]]:
    old, old_value = state
    accept = jnp.log(jax.random.uniform(key, value.shape, value.dtype)) < value - old_value
    return jnp.where(accept[:, None], moved, old), jnp.where(accept, value, old_value)
