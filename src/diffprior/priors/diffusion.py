"""A prior learned as a diffusion model: Section 3 and Appendix B."""

import dataclasses
import functools
from typing import Any, NamedTuple, TypedDict, Unpack, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree
from numpy.typing import ArrayLike

from ..checks import choice, describe, positive_int, random_key
from ..denoisers.base import RESIDUAL_STAGES, AbstractDenoiser, exact_residual
from ..denoisers.network import CorrectedDenoiser, NetworkDenoiser, StagewiseDenoiser
from ..files.base import Serializable
from ..fitting.config import PRIOR_STAGES, FitConfig
from ..fitting.report import FitReport
from ..gaussian import Gaussian
from ..linalg import eigh, solve_lower
from ..schedule import Schedule, Stages
from ..threefry import unrolled
from .base import (
    AbstractPrior,
    PriorDenoiser,
    as_prior,
    checked_offset,
    natural_evidence,
    unit_coordinates,
)
from .conditional import ConditionalPrior

MOMENT_DRAWS = 1024  # of a prior whose network takes attributes, for its mean and covariance
LEARNED = (CorrectedDenoiser, NetworkDenoiser, StagewiseDenoiser)  # known to files
EXACT_DRAWS = 1024  # of prior samples, for the mean variance given by a prior's own denoiser


class ReverseProcess(NamedTuple):
    """The chain of Eqs. (4) and (5) on a grid of stages, T first: all that a sampler scans over."""

    stages: Stages
    denoiser_stages: PyTree
    residual: Float[Array, " t"]  # mean squared error of E[s_0 | s_t] per coordinate

    def variance(self, covariance: str) -> Float[Array, " t"]:
        """Sigma_t as a multiple of I: beta_tilde ("paper"), or with the residual ("fitted").

        Deviation: the paper's Sigma_1 is zero, so that its last stage ignores the evidence. The
        residual of the regression is the variance it lacks; see
        docs/explanation/notation.md#last-stage.
        """
        if covariance == "paper":
            return self.stages.beta_tilde
        return self.stages.beta_tilde + self.stages.weight_clean**2 * self.residual


@dataclasses.dataclass(frozen=True)
class Metadata(Serializable):
    """Data that is not compared, so that a program compiled for one prior serves every other of the
    same shape.
    """

    report: FitReport | None = dataclasses.field(compare=False)
    names: tuple[str, ...] = dataclasses.field(default=(), compare=False)  # of the parameters


class FitOptions(TypedDict, total=False):
    """Options of `DiffusionPrior.fit`, with and without attributes."""

    preset: str
    config: FitConfig | None
    seed: int
    progress: bool | None
    sample_weights: ArrayLike | None
    groups: ArrayLike | None
    hedge: float
    initial: "DiffusionPrior | None"


class DiffusionPrior(AbstractPrior):
    """p(theta) as a diffusion model over z, where theta = offset + scale z has unit covariance.

    `fit` learns one, `from_prior` makes one of any other prior.

    Attributes:
        offset: (d,), the mean of theta.
        scale: (d, d), a factor of its covariance.
        denoiser: what gives the mean and covariance of z under Gaussian evidence.
        residual_log_snr: (r,), log signal-to-noise ratios at which `residual` is known.
        residual: (r,), mean squared error of the denoised mean there.
        schedule: the stages of the reverse process.
        metadata: how the prior was learned; numbers do not depend on it.

    References:
        Kveton et al. (2024), Section 3, Eq. (5); here one denoiser, a mixture and a network that
        corrects it, serves all stages and evidence.
    """

    offset: Float[Array, " d"]
    scale: Float[Array, "d d"]
    denoiser: AbstractDenoiser
    residual_log_snr: Float[Array, " r"]
    residual: Float[Array, " r"]
    schedule: Schedule = eqx.field(static=True)
    metadata: Metadata = eqx.field(static=True)

    @overload
    @staticmethod
    def fit(
        samples: ArrayLike, *, attributes: None = None, **options: Unpack[FitOptions]
    ) -> "DiffusionPrior": ...

    @overload
    @staticmethod
    def fit(
        samples: ArrayLike, *, attributes: ArrayLike, **options: Unpack[FitOptions]
    ) -> ConditionalPrior: ...

    @staticmethod
    def fit(
        samples: ArrayLike,
        *,
        preset: str = "default",
        config: FitConfig | None = None,
        seed: int = 0,
        progress: bool | None = None,
        sample_weights: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        hedge: float = 0.0,
        initial: "DiffusionPrior | None" = None,
        attributes: ArrayLike | None = None,
    ) -> "DiffusionPrior | ConditionalPrior":
        """Learn the prior from the parameters of past tasks.

        Args:
            samples: (n, d), one row of parameters per past task; at least 20 rows.
            preset: "default" is one denoiser for all Gaussian evidence: a Gaussian or a mixture,
                and a network for what that leaves, as held-out samples justify; "paper" is one
                regressor per stage (Appendix B).
            config: Settings, in place of a preset; `FitConfig()` and `FitConfig.paper()` are the
                presets.
            seed: Of the held-out rows, the weights and the batches.
            progress: False shows none; by default a bar on a terminal, elsewhere a line every
                ten seconds.
            sample_weights: (n,), how many times each row counts; by default once.
            groups: (n,), labels; rows of one label are held out together. For several draws of each
                task's parameters, where they are not known for certain.
            hedge: Share of a wide Gaussian mixed into what is learned, so that the posterior of a
                task unlike any before is not ruled out.
            initial: A prior to start from: its coordinates and weights (warm start), and its
                schedule unless the config has one.
            attributes: (n, a), what is known of each task, for a prior given attributes: their
                mean moves by B z, and the shape of the rest depends on z through the network where
                held-out samples justify that.

        Returns:
            The prior, or with attributes a `ConditionalPrior`; `report` says how learning went. A
            second fit of the same shapes compiles nothing.

        Raises:
            ValueError: Arguments that are invalid or do not fit together, before anything is
                learned.

        Warns:
            FitWarning: Samples that are few, repeated, constant, dependent, far from the others, or
                beyond the precision of draws.
        """
        fit = functools.partial(
            fit_residuals,
            config=_config(preset, config),
            seed=seed,
            progress=progress,
            sample_weights=sample_weights,
            groups=groups,
            hedge=hedge,
            initial=initial,
        )
        if attributes is not None:
            return ConditionalPrior.fit(samples, attributes, fit, seed)
        return fit(samples, None)

    @staticmethod
    def from_prior(prior: object, schedule: Schedule | None = None) -> "DiffusionPrior":
        """Any prior as a diffusion model whose denoiser is the prior's own `denoise`.

        With a closed form it is exact: the oracle of tests.

        Args:
            prior: an `AbstractPrior`, or any object with `dim`, `sample`, `denoise` and `moments`.
                A `DiffusionPrior` is returned as it is, with another schedule if one is given.
            schedule: the stages that `sample` goes through; 64, uniform in log SNR, by default.

        Raises:
            ValueError: if a member of the prior is missing.

        Returns:
            A diffusion prior of the same distribution, without training error.
        """
        prior = as_prior(prior)
        if isinstance(prior, DiffusionPrior):
            return prior if schedule is None else dataclasses.replace(prior, schedule=schedule)
        offset, scale = unit_coordinates(prior.moments())
        denoiser = PriorDenoiser.of(prior, offset, scale)
        draws = prior.sample(jax.random.key(0), EXACT_DRAWS)
        unit = solve_lower(scale, (jnp.asarray(draws, offset.dtype) - offset[None]).T).T
        return exact_model(offset, scale, denoiser, unit, schedule)

    def moved(self, offset: ArrayLike) -> "DiffusionPrior":
        by = checked_offset(offset, self.dim)
        return eqx.tree_at(lambda prior: prior.offset, self, self.offset + by)

    def validate(self) -> None:
        super().validate()
        steps, residual = np.diff(self.residual_log_snr), np.asarray(self.residual)
        if not (residual.size and np.all(residual > 0) and np.all(steps > 0)):
            raise ValueError("`residual`: expected positive numbers at increasing log_snr")
        if not np.all(np.diagonal(self.scale) > 0) or self.denoiser.dim != self.dim:
            raise ValueError("`scale`: expected a triangular matrix as wide as the denoiser")

    @property
    def dim(self) -> int:
        return self.offset.shape[0]

    def __repr__(self) -> str:
        if isinstance(self.denoiser, PriorDenoiser):
            return describe(self, self.denoiser.prior)
        report = {} if self.report is None else {"num_samples": self.report.num_samples}
        return describe(self, type(self.denoiser).__name__, dim=self.dim, **report)

    @property
    def report(self) -> FitReport | None:
        """How the prior was fitted, or None if it was made from another prior."""
        return self.metadata.report

    @eqx.filter_jit
    def denoise(self, precision: ArrayLike, shift: ArrayLike) -> Gaussian:
        evidence = natural_evidence(precision, shift, self.dim)
        local = evidence.reparameterize(self.offset, self.scale)
        unit = self.denoiser.denoise(eigh(local.precision).nonnegative(), local.shift)
        return Gaussian(self.offset + self.scale @ unit.mean, self.scale @ unit.cov @ self.scale.T)

    @eqx.filter_jit
    def moments(self) -> Gaussian:
        """The mean and covariance of the samples that the prior was learned from; of draws, if its
        network takes attributes.
        """
        if not self.denoiser.takes_attributes:
            return Gaussian(self.offset, self.scale @ self.scale.T)
        unit = self.sample_unit(jax.random.key(0), MOMENT_DRAWS)
        mean, draws = jnp.mean(unit, axis=0), unit @ self.scale.T
        return Gaussian(self.offset + self.scale @ mean, jnp.cov(draws.T).reshape(self.scale.shape))

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        return _sample(self, random_key(key), positive_int("num_samples", num_samples))

    @property
    def has_own_grid(self) -> bool:
        """Whether the prior can be followed only on the stages it was learned for."""
        return isinstance(self.denoiser, StagewiseDenoiser)

    @eqx.filter_jit
    def sample_unit(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        """`num_samples` draws (n, d) of z from `key`, where theta = offset + scale z; for use
        inside compiled programs.
        """
        process = self.reverse_process()
        start_key, chain_key = jax.random.split(unrolled(key))
        s_T = jax.random.normal(start_key, (num_samples, self.dim), self.offset.dtype)
        keys = jax.random.split(chain_key, process.residual.shape[0])
        step = jax.vmap(self.denoiser.step_at, in_axes=(None, None, 0, 0, 0))

        def all_chains(s: Float[Array, "n d"], inputs: Any) -> tuple[Float[Array, "n d"], None]:
            stage, stage_inputs, key = inputs
            noise = jax.random.normal(key, s.shape, s.dtype)
            uniforms = jax.random.uniform(jax.random.fold_in(key, 1), s.shape[:1], s.dtype)
            return step(stage_inputs, stage, s, noise, uniforms), None

        return jax.lax.scan(all_chains, s_T, (process.stages, process.denoiser_stages, keys))[0]

    def reverse_process(self, schedule: Schedule | None = None) -> ReverseProcess:
        """Inputs of every step, noisiest first, on the stages of `schedule`, by default its own.

        A prior that `has_own_grid` takes part of that grid only: `schedule.stride` gives it.

        References:
            Kveton et al. (2024), Eq. (5).
        """
        schedule = schedule or self.schedule
        stages = schedule.stages(self.offset.dtype)
        log_residual = jnp.interp(
            jnp.log(stages.snr), self.residual_log_snr, jnp.log(self.residual)
        )
        return ReverseProcess(stages, self.denoiser.stages(schedule), jnp.exp(log_residual))


def fit_residuals(
    samples: ArrayLike,
    attributes: Float[np.ndarray, "n a"] | None,
    *,
    config: FitConfig,
    initial: DiffusionPrior | None = None,
    seed: int = 0,
    progress: bool | None = False,
    sample_weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    hedge: float = 0.0,
) -> DiffusionPrior:
    """Learn the prior of parameters, or of what their means given attributes leave of them, whose
    network may take these standardized attributes.
    """
    from ..fitting.fit import Start, fit_model  # slow to import, and not needed to decide

    start = None
    if initial is not None:
        if not isinstance(initial, DiffusionPrior):
            raise ValueError(
                f"`initial`: expected a DiffusionPrior, got {type(initial).__name__}; "
                "fit without it"
            )
        offset, scale = (np.asarray(a, np.float64) for a in (initial.offset, initial.scale))
        start = Start(offset, scale, initial.denoiser)
        if config.schedule is None:
            config = dataclasses.replace(config, schedule=initial.schedule)
    about = (config, seed, progress, sample_weights, groups, hedge, start)
    found, report = fit_model(samples, attributes, *about)
    fields: dict[str, Any] = found
    return DiffusionPrior(**fields, metadata=Metadata(report))


def exact_model(
    offset: Float[Array, " d"],
    scale: Float[Array, "d d"],
    denoiser: AbstractDenoiser,
    draws: Float[Array, "n d"],
    schedule: Schedule | None = None,
) -> DiffusionPrior:
    """The diffusion model of a denoiser that needs no training, given draws in unit coordinates."""
    grid = Schedule.log_snr(RESIDUAL_STAGES)
    log_snr = jnp.asarray(np.log(grid.snr[::-1]))
    residual = exact_residual(denoiser, grid, draws)
    schedule = schedule or Schedule.log_snr(PRIOR_STAGES)
    return DiffusionPrior(offset, scale, denoiser, log_snr, residual, schedule, Metadata(None))


def _config(preset: str, config: FitConfig | None) -> FitConfig:
    choice("preset", preset, ("default", "paper"))
    if config is None:
        return FitConfig.paper() if preset == "paper" else FitConfig()
    if not isinstance(config, FitConfig):
        raise ValueError(
            f"`config`: expected a FitConfig, got {type(config).__name__}; "
            "pass FitConfig(num_steps=...)"
        )
    if preset != "default":
        raise ValueError(
            f"`preset`: expected none beside `config`, got {preset!r}; change FitConfig.paper() "
            "with dataclasses.replace"
        )
    return config


@eqx.filter_jit
def _sample(prior: DiffusionPrior, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
    return prior.offset[None] + prior.sample_unit(key, num_samples) @ prior.scale.T
