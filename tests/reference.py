"""A slow float64 reference of the mathematics of diffusion posterior sampling.

The numbering follows the paper "Online Posterior Sampling with a Diffusion Prior":

* Eq. (3) linear posterior, (4) forward process, (5) reverse process, (6) key approximation,
  (7) initial posterior, (8) stage posterior, (13) and (14) conditional of the forward process;
* Lemma 1 chain posterior, Theorem 2 linear stages, Theorem 4 GLM stages, Lemma 5 Gaussian KL,
  Lemma 6 Gaussian product;
* Algorithm 1 IRLS, Algorithm 2 LaplaceDPS, Algorithm 4 DPS.

Conventions. Stages run t = 0..T, so arrays over stages have T + 1 entries and the entry at t = 0 is
the clean sample: ``alpha_bar[0] == 1``, every other quantity there is nan or ignored. The linear
evidence of a history is its precision ``P`` (Sigma-bar inverse) and shift ``q`` (Sigma-bar inverse
times theta-bar), so that ``p(h | theta)`` is proportional to ``exp(-theta'P theta/2 + q'theta)``;
an empty history is ``P = 0, q = 0``. Nothing here is meant to be fast.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

Array = NDArray[np.float64]

FAMILIES = ("gaussian", "logistic", "poisson")


def _array(values: ArrayLike) -> Array:
    return np.asarray(values, dtype=np.float64)


def _symmetric(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2


def _log_det(matrix: Array) -> float:
    sign, value = np.linalg.slogdet(matrix)
    if sign <= 0:
        raise ValueError("the matrix has no positive determinant")
    return float(value)


def _unit_weights(weights: ArrayLike | None, count: int) -> Array:
    return np.ones(count) if weights is None else _array(weights)


def _history(features: ArrayLike, rewards: ArrayLike, dim: int) -> tuple[Array, Array]:
    rewards = _array(rewards).reshape(-1)
    return _array(features).reshape(len(rewards), dim), rewards


# ---------------------------------------------------------------------------------------------
# Gaussians
# ---------------------------------------------------------------------------------------------


def gaussian_product(
    mean_1: ArrayLike, cov_1: ArrayLike, mean_2: ArrayLike, cov_2: ArrayLike
) -> tuple[Array, Array]:
    """Lemma 6: mean and covariance of the normalized product of two Gaussian densities."""
    inv_1 = np.linalg.inv(_array(cov_1))
    inv_2 = np.linalg.inv(_array(cov_2))
    cov = _symmetric(np.linalg.inv(inv_1 + inv_2))
    return cov @ (inv_1 @ _array(mean_1) + inv_2 @ _array(mean_2)), cov


def gaussian_kl(mean_1: ArrayLike, cov_1: ArrayLike, mean_2: ArrayLike, cov_2: ArrayLike) -> float:
    """Lemma 5: the divergence d(p, q) of p = N(mean_1, cov_1) from q = N(mean_2, cov_2)."""
    cov_1, cov_2 = _array(cov_1), _array(cov_2)
    gap = _array(mean_2) - _array(mean_1)
    inv_2 = np.linalg.inv(cov_2)
    log_ratio = _log_det(cov_1) - _log_det(cov_2)
    return float(gap @ inv_2 @ gap + np.trace(inv_2 @ cov_1) - log_ratio - len(gap)) / 2


def gaussian_log_density(points: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> Array:
    """log N(points; mean, cov), the density used throughout; points are (d,) or (..., d)."""
    cov = _array(cov)
    gap = _array(points) - _array(mean)
    quadratic = np.einsum("...i,ij,...j->...", gap, np.linalg.inv(cov), gap)
    return -0.5 * (quadratic + _log_det(cov) + gap.shape[-1] * math.log(2 * math.pi))


def condition_gaussian(
    mean: ArrayLike, cov: ArrayLike, precision: ArrayLike, shift: ArrayLike
) -> tuple[Array, Array]:
    """Eq. (3) with both sides multiplied by the prior covariance, which may then be singular.

    cov' = (I + cov P)^-1 cov and mean' = (I + cov P)^-1 (mean + cov q): for an invertible
    covariance this is Eq. (3), and for a zero covariance the prior stays where it is.
    """
    mean, cov = _array(mean), _array(cov)
    inverse = np.linalg.inv(np.eye(len(mean)) + cov @ _array(precision))
    return inverse @ (mean + cov @ _array(shift)), _symmetric(inverse @ cov)


def diffuse_gaussian(mean: ArrayLike, cov: ArrayLike, alpha_bar: float) -> tuple[Array, Array]:
    """Eq. (4) chained over t stages: the distribution of S_t when S_0 ~ N(mean, cov)."""
    mean, cov = _array(mean), _array(cov)
    return math.sqrt(alpha_bar) * mean, alpha_bar * cov + (1 - alpha_bar) * np.eye(len(mean))


# ---------------------------------------------------------------------------------------------
# Schedules
# ---------------------------------------------------------------------------------------------


def posterior_weights(alpha_bar_prev: float, alpha_bar: float) -> tuple[float, float, float]:
    """Eqs. (13), (14): q(s_{t-1} | s_t, s_0) = N(w0 s_0 + wt s_t, beta_tilde I).

    The stage's own rate is alpha_t = alpha_bar_t / alpha_bar_{t-1}. Returns w0, wt, beta_tilde.
    """
    alpha = alpha_bar / alpha_bar_prev
    beta = 1 - alpha
    weight_clean = math.sqrt(alpha_bar_prev) * beta / (1 - alpha_bar)
    weight_state = math.sqrt(alpha) * (1 - alpha_bar_prev) / (1 - alpha_bar)
    beta_tilde = (1 - alpha_bar_prev) / (1 - alpha_bar) * beta
    return weight_clean, weight_state, beta_tilde


def _schedule(alpha_bar: Array) -> dict[str, Array]:
    """Eqs. (4), (14): all rates from alpha_bar[0..T], nan at t = 0 except alpha_bar[0]."""
    alpha, beta, beta_tilde = (np.full(len(alpha_bar), np.nan) for _ in range(3))
    for t in range(1, len(alpha_bar)):
        alpha[t] = alpha_bar[t] / alpha_bar[t - 1]
        beta[t] = 1 - alpha[t]
        beta_tilde[t] = (1 - alpha_bar[t - 1]) / (1 - alpha_bar[t]) * beta[t]
    return {"alpha": alpha, "beta": beta, "alpha_bar": alpha_bar, "beta_tilde": beta_tilde}


def schedule_constant(num_stages: int, alpha: float = 0.97) -> dict[str, Array]:
    """Eq. (14) with the paper's constant alpha_t (Section 6.1); arrays of length T + 1."""
    alpha_bar = np.ones(num_stages + 1)
    for t in range(1, num_stages + 1):
        alpha_bar[t] = alpha_bar[t - 1] * alpha
    schedule = _schedule(alpha_bar)
    schedule["alpha"][1:] = alpha
    schedule["beta"][1:] = 1 - alpha
    return schedule


def cosine_alpha_bar(num_stages: int, minimum: float = 1e-4) -> Array:
    """The alpha-bar of Eq. (14) by the cosine rule of Nichol and Dhariwal (2021).

    f(t) = cos((t/T + 0.008) / 1.008 * pi/2)^2 and alpha_bar_t = max(f(t) / f(0), minimum): f(T) is
    zero, and only values below ``minimum`` are replaced. From T = 156 on more than one stage
    sits at the minimum; such a repeated stage has beta_t = 0 and leaves the chain where it is.
    """

    def signal(t: int) -> float:
        return math.cos((t / num_stages + 0.008) / 1.008 * math.pi / 2) ** 2

    return _array([max(signal(t) / signal(0), minimum) for t in range(num_stages + 1)])


def log_snr_alpha_bar(
    num_stages: int, log_snr_max: float = 9.0, log_snr_min: float = -7.0
) -> Array:
    """The alpha-bar of Eq. (14) with log(alpha_bar / (1 - alpha_bar)) uniform over the stages.

    It falls from ``log_snr_max`` at t = 1 to ``log_snr_min`` at t = T; needs two stages or more.
    """
    if num_stages < 2:
        raise ValueError("two ends need at least two stages")
    alpha_bar = np.ones(num_stages + 1)
    for t in range(1, num_stages + 1):
        log_snr = log_snr_max + (log_snr_min - log_snr_max) * (t - 1) / (num_stages - 1)
        alpha_bar[t] = 1 / (1 + math.exp(-log_snr))
    return alpha_bar


def strided_alpha_bar(alpha_bar: ArrayLike, indices: Sequence[int]) -> dict[str, Array]:
    """Eqs. (4), (14) on a sub-grid of stages 0 < i_1 < ... < i_K <= T, with stage 0 put in front.

    One step over several stages of the forward process is again of the form (4), with
    alpha = alpha_bar[i_k] / alpha_bar[i_{k-1}]. Returns arrays of length K + 1.
    """
    chosen = [0, *(int(i) for i in indices)]
    if any(b <= a for a, b in itertools.pairwise(chosen)):
        raise ValueError("the stages must increase, and start after stage 0")
    return _schedule(_array(alpha_bar)[chosen])


def clean_from_noise(state: ArrayLike, noise: ArrayLike, alpha_bar: float) -> Array:
    """Appendix B and Algorithm 4, lines 4 and 5: the clean sample from s_t and its noise.

    The score is -noise / sqrt(1 - alpha_bar); line 4 prints 1 - alpha_bar, which contradicts
    Appendix B.
    """
    score = -_array(noise) / math.sqrt(1 - alpha_bar)
    return (_array(state) + (1 - alpha_bar) * score) / math.sqrt(alpha_bar)


# ---------------------------------------------------------------------------------------------
# Linear model
# ---------------------------------------------------------------------------------------------


def linear_evidence(
    features: ArrayLike, rewards: ArrayLike, noise_std: float, weights: ArrayLike | None = None
) -> tuple[Array, Array]:
    """The evidence in Eq. (3): precision Sigma-bar^-1 and shift Sigma-bar^-1 theta-bar.

    ``weights`` multiply the log likelihood of each observation (0 drops it).
    """
    features, rewards = _array(features), _array(rewards)
    dim = features.shape[1]
    weights = _unit_weights(weights, len(rewards))
    precision, shift = np.zeros((dim, dim)), np.zeros(dim)
    for weight, feature, reward in zip(weights, features, rewards, strict=True):
        precision += weight * np.outer(feature, feature) / noise_std**2
        shift += weight * feature * reward / noise_std**2
    return precision, shift


def linear_posterior(
    prior_mean: ArrayLike,
    prior_cov: ArrayLike,
    features: ArrayLike,
    rewards: ArrayLike,
    noise_std: float,
    weights: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Eq. (3): posterior mean and covariance for the prior N(prior_mean, prior_cov)."""
    prior_mean = _array(prior_mean)
    features, rewards = _history(features, rewards, len(prior_mean))
    precision, shift = linear_evidence(features, rewards, noise_std, weights)
    prior_inverse = np.linalg.inv(_array(prior_cov))
    cov = _symmetric(np.linalg.inv(prior_inverse + precision))
    return cov @ (prior_inverse @ prior_mean + shift), cov


def linear_log_evidence(
    prior_mean: ArrayLike,
    prior_cov: ArrayLike,
    features: ArrayLike,
    rewards: ArrayLike,
    noise_std: float,
) -> float:
    """The normalizer of Eq. (2) in the linear model, in the space of the N rewards.

    log p(h) = log N(rewards; X mean, X cov X' + noise_std^2 I); zero for an empty history.
    """
    prior_mean = _array(prior_mean)
    features, rewards = _history(features, rewards, len(prior_mean))
    if len(rewards) == 0:
        return 0.0
    cov = features @ _array(prior_cov) @ features.T + noise_std**2 * np.eye(len(rewards))
    return float(gaussian_log_density(rewards, features @ prior_mean, cov))


# ---------------------------------------------------------------------------------------------
# Generalized linear models
# ---------------------------------------------------------------------------------------------


def family_cumulant(score: ArrayLike, family: str) -> Array:
    """The function b of Assumption 2, whose derivative is the mean function g."""
    score = _array(score)
    if family == "gaussian":
        return score**2 / 2
    if family == "logistic":
        return np.logaddexp(0.0, score)
    if family == "poisson":
        return np.exp(score)
    raise ValueError(f"unknown family {family!r}, not one of {FAMILIES}")


def family_mean(score: ArrayLike, family: str) -> Array:
    """The mean function g of Eq. (1)."""
    score = _array(score)
    if family == "gaussian":
        return score
    if family == "logistic":
        return special.expit(score)
    if family in ("poisson", "negative-binomial"):
        return np.exp(score)
    if family == "zero-inflated":
        return 2.0 * special.expit(score) * np.exp(0.5 * score + 0.5 * 0.7**2)
    raise ValueError(f"unknown family {family!r}, not one of {FAMILIES}")


def family_slope(score: ArrayLike, family: str) -> Array:
    """The derivative of the mean function g, as in Algorithm 1, lines 5 to 7."""
    score = _array(score)
    if family == "gaussian":
        return np.ones_like(score)
    if family == "logistic":
        return special.expit(score) * special.expit(-score)
    if family == "poisson":
        return np.exp(score)
    raise ValueError(f"unknown family {family!r}, not one of {FAMILIES}")


def family_base(rewards: ArrayLike, family: str, dispersion: float) -> Array:
    """The function c of Assumption 2, which makes it a normalized density."""
    rewards = _array(rewards)
    if family == "gaussian":
        return -(rewards**2) / (2 * dispersion) - 0.5 * math.log(2 * math.pi * dispersion)
    if family == "logistic":
        return np.zeros_like(rewards)
    if family == "poisson":
        return -special.gammaln(rewards + 1)
    raise ValueError(f"unknown family {family!r}, not one of {FAMILIES}")


def family_log_density(
    reward: ArrayLike, score: ArrayLike, family: str, dispersion: float = 1.0
) -> Array:
    """Log density of a reward given its linear predictor: Assumptions 1 and 2, and one family more.

    "negative-binomial" counts have mean m = exp(u) and variance m + m^2 / dispersion.
    "zero-inflated" rewards are positive with probability expit(u), and then log-normal with median
    2 exp(u / 2) and standard deviation `dispersion` of the logarithm.
    """
    reward, score = _array(reward), _array(score)
    if family == "zero-inflated":
        with np.errstate(divide="ignore"):
            amounts = stats.lognorm.logpdf(reward, dispersion, scale=2.0 * np.exp(0.5 * score))
        positive = special.log_expit(score) + amounts
        return np.where(reward > 0, positive, special.log_expit(-score))
    if family == "negative-binomial":
        chance = dispersion / (dispersion + np.exp(score))
        return _array(stats.nbinom.logpmf(reward, dispersion, chance))
    exponent = (reward * score - family_cumulant(score, family)) / dispersion
    return exponent + family_base(reward, family, dispersion)


def family_derivatives(
    reward: ArrayLike, score: ArrayLike, family: str, dispersion: float = 1.0
) -> tuple[Array, Array]:
    """First derivative of the log density in the linear predictor, and minus the second."""
    reward, score = _array(reward), _array(score)
    if family == "zero-inflated":
        positive, chance = _array(reward > 0), special.expit(score)
        left = np.log(np.where(reward > 0, reward, 1.0)) - math.log(2.0) - 0.5 * score
        first = positive - chance + positive * 0.5 * left / dispersion**2
        return first, chance * (1 - chance) + positive * 0.25 / dispersion**2
    if family == "negative-binomial":
        mean = np.exp(score)
        share = (reward + dispersion) * mean / (dispersion + mean)
        return reward - share, share * dispersion / (dispersion + mean)
    residual = reward - family_mean(score, family)
    return residual / dispersion, family_slope(score, family) / dispersion


def expected_expansion(
    mean: ArrayLike,
    cov: ArrayLike,
    features: ArrayLike,
    rewards: ArrayLike,
    family: str,
    dispersion: float = 1.0,
    weights: ArrayLike | None = None,
    num: int = 4001,
    rule: tuple[Array, Array] | None = None,
) -> tuple[Array, Array, float]:
    """Precision and shift whose score and curvature are averages over N(mean, cov), and the average
    log likelihood; each row by the trapezoidal rule over ten standard deviations either side, or
    by another `rule` of places and masses."""
    mean, cov = _array(mean), _array(cov)
    features, rewards = _history(features, rewards, len(mean))
    weights = _unit_weights(weights, len(rewards))
    precision, shift, total = np.zeros_like(cov), np.zeros_like(mean), 0.0
    places = np.linspace(-10.0, 10.0, num)
    places, density = (places, np.exp(-0.5 * places**2)) if rule is None else rule
    density = density / density.sum()
    for weight, feature, reward in zip(weights, features, rewards, strict=True):
        center, std = float(feature @ mean), math.sqrt(float(feature @ cov @ feature))
        scores = center + std * places
        derivatives = family_derivatives(reward, scores, family, dispersion)
        first, second = (float(density @ values) for values in derivatives)
        precision += weight * second * np.outer(feature, feature)
        shift += weight * (second * center + first) * feature
        fit = family_log_density(reward, scores, family, dispersion)
        total += weight * float(density @ fit)
    return precision, shift, total


def log_likelihood(
    theta: ArrayLike,
    features: ArrayLike,
    rewards: ArrayLike,
    family: str,
    dispersion: float = 1.0,
    weights: ArrayLike | None = None,
) -> float:
    """The sum over observations of the log density: (y u - b(u)) / dispersion + c(y) in
    Assumptions 1 and 2.

    Here u = feature'theta. "gaussian" has the identity link and noise variance ``dispersion``.
    A true log density, or log mass, for "gaussian" at any dispersion and for "logistic" and
    "poisson" at dispersion 1; at another dispersion the last two are quasi-likelihoods.
    ``weights`` multiply the whole term of each observation.
    """
    theta = _array(theta)
    features, rewards = _history(features, rewards, len(theta))
    weights = _unit_weights(weights, len(rewards))
    total = 0.0
    for weight, feature, reward in zip(weights, features, rewards, strict=True):
        term = family_log_density(reward, float(feature @ theta), family, dispersion)
        total += weight * float(term)
    return float(total)


def glm_expansion(
    point: ArrayLike,
    features: ArrayLike,
    rewards: ArrayLike,
    family: str,
    dispersion: float = 1.0,
    weights: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Algorithm 1, lines 5 to 7: the log likelihood to second order at ``point``.

    Returns the precision, the sum of g' phi phi', and the shift, the sum of g' phi z, both divided
    by the dispersion. The product g' z = g' u + y - g is formed without dividing by g'. Where the
    link is not canonical, g' is minus the second derivative of the log density and y - g the first.
    """
    point = _array(point)
    features, rewards = _history(features, rewards, len(point))
    weights = _unit_weights(weights, len(rewards))
    precision, shift = np.zeros((len(point), len(point))), np.zeros(len(point))
    for weight, feature, reward in zip(weights, features, rewards, strict=True):
        score = float(feature @ point)
        first, second = family_derivatives(float(reward), score, family, dispersion)
        precision += weight * float(second) * np.outer(feature, feature)
        shift += weight * float(second * score + first) * feature
    return precision, shift


def irls(
    prior_mean: ArrayLike,
    prior_cov: ArrayLike,
    features: ArrayLike,
    rewards: ArrayLike,
    family: str,
    dispersion: float = 1.0,
    weights: ArrayLike | None = None,
    start: ArrayLike | None = None,
    max_steps: int = 200,
    tolerance: float = 1e-12,
) -> tuple[Array, Array]:
    """Algorithm 1 with the dispersion carried and a safeguard; mode and Laplace covariance.

    Algorithm 1 has unit dispersion. Each update is halved until the log posterior does not fall,
    which changes nothing where the plain iteration converges. It starts at the prior mean, and the
    covariance is taken at the returned mode.
    """
    prior_mean = _array(prior_mean)
    prior_inverse = np.linalg.inv(_array(prior_cov))

    def log_posterior(theta: Array) -> float:
        gap = theta - prior_mean
        with np.errstate(over="ignore", invalid="ignore"):
            value = log_likelihood(theta, features, rewards, family, dispersion, weights)
        return value - 0.5 * float(gap @ prior_inverse @ gap)

    theta = prior_mean.copy() if start is None else _array(start).copy()
    current = log_posterior(theta)
    for _ in range(max_steps):
        precision, shift = glm_expansion(theta, features, rewards, family, dispersion, weights)
        cov = np.linalg.inv(prior_inverse + precision)
        update = cov @ (prior_inverse @ prior_mean + shift) - theta
        size = 1.0
        # Rounding alone may lower the objective by this much next to the mode.
        slack = 1e-13 * (1 + abs(current))
        while size > 1e-10 and not log_posterior(theta + size * update) >= current - slack:
            size /= 2
        theta = theta + size * update
        current = log_posterior(theta)
        if np.max(np.abs(update)) <= tolerance * (1 + np.max(np.abs(theta))):
            break
    precision, _ = glm_expansion(theta, features, rewards, family, dispersion, weights)
    return theta, _symmetric(np.linalg.inv(prior_inverse + precision))


def laplace_log_evidence(
    prior_mean: ArrayLike,
    prior_cov: ArrayLike,
    features: ArrayLike,
    rewards: ArrayLike,
    family: str,
    dispersion: float = 1.0,
    weights: ArrayLike | None = None,
) -> float:
    """The normalizer of Eq. (2) by the Laplace approximation of Section 2.2.

    log p(h | mode) + log p(mode) + d/2 log 2 pi + 1/2 log det cov, from Algorithm 1's output; exact
    for the "gaussian" family.
    """
    mode, cov = irls(prior_mean, prior_cov, features, rewards, family, dispersion, weights)
    fit = log_likelihood(mode, features, rewards, family, dispersion, weights)
    prior = float(gaussian_log_density(mode, prior_mean, prior_cov))
    return fit + prior + 0.5 * (len(mode) * math.log(2 * math.pi) + _log_det(cov))


def map_by_optimizer(
    prior_mean: ArrayLike,
    prior_cov: ArrayLike,
    features: ArrayLike,
    rewards: ArrayLike,
    family: str,
    dispersion: float = 1.0,
    weights: ArrayLike | None = None,
) -> Array:
    """The MAP estimate of Section 2.2, without Algorithm 1: quasi-Newton, then a root finder.

    It works in coordinates where the prior is standard, on the gradient of the log posterior.
    """
    prior_mean = _array(prior_mean)
    features, rewards = _history(features, rewards, len(prior_mean))
    weights = _unit_weights(weights, len(rewards))
    root = np.linalg.cholesky(_array(prior_cov))

    def loss(white: Array) -> float:
        theta = prior_mean + root @ white
        fit = log_likelihood(theta, features, rewards, family, dispersion, weights)
        return 0.5 * float(white @ white) - fit

    def gradient(white: Array) -> Array:
        scores = features @ (prior_mean + root @ white)
        first, _ = family_derivatives(rewards, scores, family, dispersion)
        return white - root.T @ (features.T @ (weights * first))

    with np.errstate(over="ignore", invalid="ignore"):
        start = np.zeros(len(prior_mean))
        rough = optimize.minimize(loss, start, jac=gradient, method="BFGS", tol=1e-9)
        fine = optimize.root(gradient, rough.x, method="hybr", tol=1e-14)
    candidates = [rough.x, fine.x]
    best = min(candidates, key=lambda white: float(np.linalg.norm(gradient(white))))
    return prior_mean + root @ best


# ---------------------------------------------------------------------------------------------
# Gaussian mixtures, atoms and grids
# ---------------------------------------------------------------------------------------------


def mixture_log_density(
    points: ArrayLike, weights: ArrayLike, means: ArrayLike, covs: ArrayLike
) -> Array:
    """The prior of Eq. (2) as a Gaussian mixture: its log density at points (d,) or (..., d)."""
    terms = [
        math.log(weight) + gaussian_log_density(points, mean, cov)
        for weight, mean, cov in zip(_array(weights), _array(means), _array(covs), strict=True)
        if weight > 0
    ]
    return special.logsumexp(np.stack(terms), axis=0)


def mixture_moments(weights: ArrayLike, means: ArrayLike, covs: ArrayLike) -> tuple[Array, Array]:
    """Mean and covariance of a Gaussian mixture, by the law of total covariance.

    This is the moment matching of the mixture posterior in Appendix C.4.
    """
    weights, means, covs = _array(weights), _array(means), _array(covs)
    mean = weights @ means
    cov = np.zeros_like(covs[0])
    for weight, component_mean, component_cov in zip(weights, means, covs, strict=True):
        gap = component_mean - mean
        cov += weight * (component_cov + np.outer(gap, gap))
    return mean, _symmetric(cov)


def mixture_posterior(
    weights: ArrayLike,
    means: ArrayLike,
    covs: ArrayLike,
    features: ArrayLike,
    rewards: ArrayLike,
    noise_std: float,
) -> tuple[Array, Array, Array, float]:
    """Eq. (2) for a mixture prior in the linear model: Eq. (3) in every component.

    The weights are multiplied by the components' evidences. Returns weights, means, covariances
    and the log evidence of the whole mixture.
    """
    new_means, new_covs, log_weights = [], [], []
    for weight, mean, cov in zip(_array(weights), _array(means), _array(covs), strict=True):
        new_mean, new_cov = linear_posterior(mean, cov, features, rewards, noise_std)
        log_evidence = linear_log_evidence(mean, cov, features, rewards, noise_std)
        new_means.append(new_mean)
        new_covs.append(new_cov)
        log_weights.append(math.log(weight) + log_evidence if weight > 0 else -math.inf)
    total = float(special.logsumexp(log_weights))
    return np.exp(_array(log_weights) - total), np.stack(new_means), np.stack(new_covs), total


def mixture_denoise(
    weights: ArrayLike,
    means: ArrayLike,
    covs: ArrayLike,
    precision: ArrayLike,
    shift: ArrayLike,
) -> tuple[Array, Array]:
    """Eq. (2) for a mixture prior and Gaussian evidence: mean and covariance of theta.

    The density is p(theta) exp(-theta'P theta/2 + q'theta), not normalized. ``precision`` may be
    singular, or zero. The integral of a component N(m, S) against the exponential is
    exp(q'm - m'P m/2 + r'S'r/2) / sqrt(det(I + S P)), with r = q - P m and S' the component's
    posterior covariance. With P = alpha_bar/(1 - alpha_bar) I and
    q = sqrt(alpha_bar)/(1 - alpha_bar) s_t it gives the moments of s_0 given s_t (Appendix B).
    """
    precision, shift = _array(precision), _array(shift)
    new_means, new_covs, log_weights = [], [], []
    for weight, mean, cov in zip(_array(weights), _array(means), _array(covs), strict=True):
        cov_inverse = np.linalg.inv(cov)
        new_cov = _symmetric(np.linalg.inv(cov_inverse + precision))
        residual = shift - precision @ mean
        new_means.append(mean + new_cov @ residual)
        new_covs.append(new_cov)
        log_integral = float(
            shift @ mean
            - 0.5 * mean @ precision @ mean
            + 0.5 * residual @ new_cov @ residual
            - 0.5 * _log_det(np.eye(len(mean)) + cov @ precision)
        )
        log_weights.append(math.log(weight) + log_integral if weight > 0 else -math.inf)
    new_weights = special.softmax(_array(log_weights))
    return mixture_moments(new_weights, np.stack(new_means), np.stack(new_covs))


def empirical_denoise(
    atoms: ArrayLike, precision: ArrayLike, shift: ArrayLike, weights: ArrayLike | None = None
) -> tuple[Array, Array]:
    """Eq. (2) for a prior of weighted atoms: mean and covariance under the Gaussian evidence."""
    atoms = _array(atoms)
    weights = _unit_weights(weights, len(atoms))
    log_weights = np.full(len(atoms), -np.inf)
    for i, atom in enumerate(atoms):
        if weights[i] > 0:
            exponent = float(_array(shift) @ atom - 0.5 * atom @ _array(precision) @ atom)
            log_weights[i] = math.log(weights[i]) + exponent
    new_weights = special.softmax(log_weights)
    mean = new_weights @ atoms
    cov = np.zeros((atoms.shape[1], atoms.shape[1]))
    for weight, atom in zip(new_weights, atoms, strict=True):
        cov += weight * np.outer(atom - mean, atom - mean)
    return mean, cov


def _grid_2d(low: ArrayLike, high: ArrayLike, num: int) -> tuple[Array, float]:
    """Centers (num^2, 2) and area of the cells that tile the box."""
    low, high = np.broadcast_to(_array(low), 2), np.broadcast_to(_array(high), 2)
    step = (high - low) / num
    axes = [low[i] + step[i] * (np.arange(num) + 0.5) for i in range(2)]
    first, second = np.meshgrid(axes[0], axes[1], indexing="ij")
    return np.stack([first.ravel(), second.ravel()], axis=1), float(step[0] * step[1])


def grid_moments_2d(
    log_density_function: Callable[[Array], Array], low: ArrayLike, high: ArrayLike, num: int
) -> tuple[Array, Array, float]:
    """Eq. (2) by brute force: mean, covariance and log normalizer on a num x num grid.

    ``log_density_function`` takes points (n, 2) and returns (n,) values, not normalized. ``low``
    and ``high`` bound the box, as numbers or pairs; mass outside is lost.
    """
    points, area = _grid_2d(low, high, num)
    values = _array(log_density_function(points))
    log_normalizer = float(special.logsumexp(values)) + math.log(area)
    mass = special.softmax(values)
    mean = mass @ points
    cov = (points - mean).T @ (mass[:, None] * (points - mean))
    return mean, cov, log_normalizer


def mixture_component_weights_on_grid(
    weights: ArrayLike,
    means: ArrayLike,
    covs: ArrayLike,
    log_likelihood_function: Callable[[Array], Array],
    low: ArrayLike,
    high: ArrayLike,
    num: int,
) -> Array:
    """Eq. (2) by brute force: posterior weights of the components of a 2-d mixture prior.

    Each is the prior weight times the integral of the component against the likelihood;
    ``log_likelihood_function`` takes points (n, 2) and returns (n,) values.
    """
    points, _ = _grid_2d(low, high, num)
    fit = _array(log_likelihood_function(points))
    log_weights = [
        math.log(weight) + special.logsumexp(fit + gaussian_log_density(points, mean, cov))
        for weight, mean, cov in zip(_array(weights), _array(means), _array(covs), strict=True)
    ]
    return special.softmax(_array(log_weights))


# ---------------------------------------------------------------------------------------------
# LaplaceDPS
# ---------------------------------------------------------------------------------------------


def stage_posterior_linear(
    reverse_mean: ArrayLike,
    reverse_cov: ArrayLike,
    precision: ArrayLike,
    shift: ArrayLike,
    alpha_bar_prev: float,
) -> tuple[Array, Array]:
    """Theorem 2, Eq. (8): mean and covariance of S_{t-1} given s_t and linear evidence.

    ``reverse_mean`` is mu_t(s_t), ``reverse_cov`` is Sigma_t as a (d, d) matrix. A singular
    Sigma_t gives the limit of Eq. (8): with Sigma_1 = 0 the result is mu_1(s_1).
    """
    scaled_precision = _array(precision) / alpha_bar_prev
    scaled_shift = _array(shift) / math.sqrt(alpha_bar_prev)
    return condition_gaussian(reverse_mean, reverse_cov, scaled_precision, scaled_shift)


def initial_posterior_linear(
    precision: ArrayLike, shift: ArrayLike, alpha_bar_last: float
) -> tuple[Array, Array]:
    """Theorem 2, Eq. (7): mean and covariance of S_T given linear evidence."""
    dim = len(_array(shift))
    cov = _symmetric(np.linalg.inv(np.eye(dim) + _array(precision) / alpha_bar_last))
    return cov @ (_array(shift) / math.sqrt(alpha_bar_last)), cov


def stage_posterior_glm(
    reverse_mean: ArrayLike,
    reverse_cov: ArrayLike,
    alpha_bar_prev: float,
    features: ArrayLike,
    rewards: ArrayLike,
    family: str,
    dispersion: float = 1.0,
    weights: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Theorem 4, second display: mean and covariance of S_{t-1} given s_t and a GLM history.

    A zero Sigma_t, which Algorithm 1 cannot invert, gives the limit: mu_t(s_t) and zero.
    """
    reverse_mean, reverse_cov = _array(reverse_mean), _array(reverse_cov)
    if not np.any(reverse_cov):
        return reverse_mean.copy(), reverse_cov.copy()
    scale = math.sqrt(alpha_bar_prev)
    mode, cov = irls(
        reverse_mean / scale,
        reverse_cov / alpha_bar_prev,
        features,
        rewards,
        family,
        dispersion,
        weights,
    )
    return scale * mode, alpha_bar_prev * cov


def laplace_dps_chain_law(
    denoiser_matrices: ArrayLike,
    denoiser_offsets: ArrayLike,
    stage_covs: ArrayLike,
    alpha_bar: ArrayLike,
    precision: ArrayLike,
    shift: ArrayLike,
) -> tuple[Array, Array]:
    """Algorithm 2 with Eqs. (7), (8) and affine mu_t(s) = A_t s + c_t: exact moments of S_0.

    All four first arguments are indexed by stage 0..T, with entry 0 of the first three ignored.
    Every stage is Gaussian with a mean affine in the one before, so S_0 is Gaussian: with
    gain G_t = (I + Sigma_t P / alpha_bar_{t-1})^-1,
    E S_{t-1} = G_t (A_t E S_t + c_t + Sigma_t q / sqrt(alpha_bar_{t-1})) and
    Cov S_{t-1} = G_t A_t Cov S_t A_t' G_t' + G_t Sigma_t.
    """
    alpha_bar, precision, shift = _array(alpha_bar), _array(precision), _array(shift)
    matrices, offsets, covs = (
        _array(denoiser_matrices),
        _array(denoiser_offsets),
        _array(stage_covs),
    )
    mean, cov = initial_posterior_linear(precision, shift, float(alpha_bar[-1]))
    for t in range(len(alpha_bar) - 1, 0, -1):
        gain = np.linalg.inv(np.eye(len(shift)) + covs[t] @ precision / alpha_bar[t - 1])
        evidence = covs[t] @ shift / math.sqrt(alpha_bar[t - 1])
        mean = gain @ (matrices[t] @ mean + offsets[t] + evidence)
        spread = gain @ matrices[t]
        cov = _symmetric(spread @ cov @ spread.T + gain @ covs[t])
    return mean, cov


# ---------------------------------------------------------------------------------------------
# Gaussian priors: exact denoiser and exact chains
# ---------------------------------------------------------------------------------------------


def gaussian_denoiser_affine(
    prior_mean: ArrayLike, prior_cov: ArrayLike, alpha_bar: float
) -> tuple[Array, Array, Array]:
    """Eq. (4) and Bayes' rule for S_0 ~ N(prior_mean, prior_cov), at one stage.

    E[s_0 | s_t] = M s_t + v and Cov[s_0 | s_t] = C, by regression of S_0 on S_t. Returns M, v, C.
    """
    prior_mean, prior_cov = _array(prior_mean), _array(prior_cov)
    state_mean, state_cov = diffuse_gaussian(prior_mean, prior_cov, alpha_bar)
    matrix = math.sqrt(alpha_bar) * prior_cov @ np.linalg.inv(state_cov)
    offset = prior_mean - matrix @ state_mean
    cov = prior_cov - math.sqrt(alpha_bar) * matrix @ prior_cov
    return matrix, offset, _symmetric(cov)


def reverse_mean_affine(
    prior_mean: ArrayLike, prior_cov: ArrayLike, alpha_bar_prev: float, alpha_bar: float
) -> tuple[Array, Array]:
    """Eq. (14) with the exact E[s_0 | s_t]: mu_t(s) = w0 (M s + v) + wt s = A s + c, one stage."""
    matrix, offset, _ = gaussian_denoiser_affine(prior_mean, prior_cov, alpha_bar)
    weight_clean, weight_state, _ = posterior_weights(alpha_bar_prev, alpha_bar)
    return weight_clean * matrix + weight_state * np.eye(len(offset)), weight_clean * offset


def gaussian_reverse_chain(
    prior_mean: ArrayLike, prior_cov: ArrayLike, alpha_bar: ArrayLike, fitted: bool = True
) -> tuple[Array, Array, Array]:
    """Eq. (5) for a Gaussian prior: A_t, c_t and Sigma_t of every stage, entry 0 nan.

    ``fitted`` gives the covariance of S_{t-1} given s_t, Sigma_t = beta_tilde_t I + w0^2 C_t; else
    the paper's literal Sigma_t = beta_tilde_t I (Section 3), which is zero at t = 1.
    """
    alpha_bar, dim = _array(alpha_bar), len(_array(prior_mean))
    matrices = np.full((len(alpha_bar), dim, dim), np.nan)
    offsets, covs = np.full((len(alpha_bar), dim), np.nan), matrices.copy()
    for t in range(1, len(alpha_bar)):
        previous, present = float(alpha_bar[t - 1]), float(alpha_bar[t])
        matrices[t], offsets[t] = reverse_mean_affine(prior_mean, prior_cov, previous, present)
        weight_clean, _, beta_tilde = posterior_weights(previous, present)
        covs[t] = beta_tilde * np.eye(dim)
        if fitted:
            covs[t] += weight_clean**2 * gaussian_denoiser_affine(prior_mean, prior_cov, present)[2]
    return matrices, offsets, covs


# ---------------------------------------------------------------------------------------------
# Steps that condition the clean sample
# ---------------------------------------------------------------------------------------------


def moment_matched_step(
    state: ArrayLike,
    denoised_mean: ArrayLike,
    denoised_cov: ArrayLike,
    precision: ArrayLike,
    shift: ArrayLike,
    alpha_bar_prev: float,
    alpha_bar: float,
) -> tuple[Array, Array]:
    """Eqs. (11), (13), (14) with p(s_0 | s_t) = N(denoised_mean, denoised_cov) in place of Eq. (6).

    The Gaussian is conditioned on linear evidence by Eq. (3), and s_0 integrated out of
    q(s_{t-1} | s_t, s_0): mean w0 m' + wt s_t, covariance beta_tilde I + w0^2 C'.
    """
    mean, cov = condition_gaussian(denoised_mean, denoised_cov, precision, shift)
    weight_clean, weight_state, beta_tilde = posterior_weights(alpha_bar_prev, alpha_bar)
    next_cov = beta_tilde * np.eye(len(mean)) + weight_clean**2 * cov
    return weight_clean * mean + weight_state * _array(state), next_cov


def moment_matched_chain_law(
    prior_mean: ArrayLike,
    prior_cov: ArrayLike,
    alpha_bar: ArrayLike,
    precision: ArrayLike,
    shift: ArrayLike,
    initial_mean: ArrayLike,
    initial_cov: ArrayLike,
) -> tuple[Array, Array]:
    """Lemma 1 for a Gaussian prior: the distribution of S_0 under steps of ``moment_matched_step``.

    S_T starts at N(initial_mean, initial_cov). The step is affine in s_t, so its matrix is read off
    its values at the unit vectors. It equals the posterior of Eq. (3) at any number of stages
    when S_T starts at the diffused posterior, ``diffuse_gaussian(mean, cov, alpha_bar[-1])``, and
    differs by a term that vanishes with alpha_bar[-1] when it starts at N(0, I).
    """
    alpha_bar, dim = _array(alpha_bar), len(_array(shift))
    mean, cov = _array(initial_mean), _array(initial_cov)
    for t in range(len(alpha_bar) - 1, 0, -1):
        previous, present = float(alpha_bar[t - 1]), float(alpha_bar[t])
        matrix, offset, denoised_cov = gaussian_denoiser_affine(prior_mean, prior_cov, present)
        images = [
            moment_matched_step(
                s, matrix @ s + offset, denoised_cov, precision, shift, previous, present
            )
            for s in (np.zeros(dim), *np.eye(dim))
        ]
        origin, step_cov = images[0]
        slope = np.stack([image - origin for image, _ in images[1:]], axis=1)
        mean, cov = slope @ mean + origin, _symmetric(slope @ cov @ slope.T + step_cov)
    return mean, cov


def evidence_dps_step(
    state: ArrayLike,
    denoise_function: Callable[[Array, Array], tuple[Array, Array]],
    precision: ArrayLike,
    shift: ArrayLike,
    alpha_bar_prev: float,
    alpha_bar: float,
) -> tuple[Array, Array]:
    """Eqs. (11), (13), (14) with the exact moments of p(s_0 | s_t, h) in place of Eq. (6).

    By Eq. (4) the state s_t is Gaussian evidence about s_0 and adds to that of the history:
    P = alpha_bar/(1 - alpha_bar) I + precision, q = sqrt(alpha_bar)/(1 - alpha_bar) s_t + shift.
    ``denoise_function(P, q)`` returns the mean and covariance of s_0 under p(s_0) and (P, q).
    """
    state = _array(state)
    total_precision = alpha_bar / (1 - alpha_bar) * np.eye(len(state)) + _array(precision)
    total_shift = math.sqrt(alpha_bar) / (1 - alpha_bar) * state + _array(shift)
    mean, cov = denoise_function(total_precision, total_shift)
    weight_clean, weight_state, beta_tilde = posterior_weights(alpha_bar_prev, alpha_bar)
    next_cov = beta_tilde * np.eye(len(state)) + weight_clean**2 * _array(cov)
    return weight_clean * _array(mean) + weight_state * state, next_cov


def dps_step(
    state: ArrayLike,
    denoise_function: Callable[[Array], Array],
    jacobian: Callable[[Array], Array],
    features: ArrayLike,
    rewards: ArrayLike,
    alpha_bar_prev: float,
    alpha_bar: float,
) -> tuple[Array, float]:
    """Algorithm 4, lines 4 to 7: mean and standard deviation of S_{t-1}.

    ``denoise_function`` maps s_t to the estimate of s_0 of line 5 with the corrected score (see
    ``clean_from_noise``) and ``jacobian`` to its derivative, rows by output. The gradient is with
    respect to s_t, through the denoiser, and the step size is that of Appendix D,
    zeta_t = 1 / sqrt(sum of squared residuals). A zero sum, as with no history, has no step.
    """
    state = _array(state)
    features, rewards = _history(features, rewards, len(state))
    clean = _array(denoise_function(state))
    weight_clean, weight_state, beta_tilde = posterior_weights(alpha_bar_prev, alpha_bar)
    mean = weight_clean * clean + weight_state * state
    residual = rewards - features @ clean
    squares = float(residual @ residual)
    if squares > 0:
        gradient = -2 * _array(jacobian(state)).T @ (features.T @ residual)
        mean = mean - gradient / math.sqrt(squares)
    return mean, math.sqrt(beta_tilde)


# ---------------------------------------------------------------------------------------------
# Resampling
# ---------------------------------------------------------------------------------------------


def systematic_resample(weights: ArrayLike, uniform: float) -> NDArray[np.int64]:
    """Systematic resampling, for the sequential Monte Carlo baseline of Appendix C.4.

    Point i of n lies at (i + uniform) / n, with uniform in [0, 1), and takes the first index whose
    cumulative weight exceeds it. Weights need not be normalized; a zero weight is never taken.
    """
    weights = _array(weights)
    cumulative = np.cumsum(weights) / np.sum(weights)
    last = int(np.flatnonzero(weights)[-1])
    indices = np.zeros(len(weights), dtype=np.int64)
    index = 0
    for i in range(len(weights)):
        while index < last and cumulative[index] <= (i + uniform) / len(weights):
            index += 1
        indices[i] = index
    return indices
