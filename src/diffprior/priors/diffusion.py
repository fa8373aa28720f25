"""A prior learned as a diffusion model: Section 3 and Appendix B."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..checks import positive_int
from ..files.base import Serializable
from ..gaussian import Gaussian
from ..linalg import eigh, solve_lower
from ..representation import describe
from ..schedule import Schedule, Stages
from ..threefry import written_out
from .adaptor import PriorDenoiser, as_prior, unit_coordinates
from .base import AbstractPrior, checked_samples, natural_evidence
from .corrected import CorrectedDenoiser
from .denoisers import AbstractDenoiser
from .network import NetworkDenoiser
from .report import FitReport
from .residuals import PRIOR_STAGES, RESIDUAL_STAGES, exact_residual
from .stagewise import StagewiseDenoiser

DISTILLED_DRAWS = 20_000  # of a mixture learned from logs, to train on
LEARNED = (CorrectedDenoiser, NetworkDenoiser, StagewiseDenoiser)  # known to files
EXACT_DRAWS = 1024  # of prior samples, for the mean variance given by a prior's own denoiser


class ReverseProcess(NamedTuple):
    """The chain of Eqs. (4) and (5) on a grid of stages, T first: all that a sampler scans over."""

    stages: Stages
    denoiser_stages: Any
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
    """What is carried along but not compared, so that a compiled program that serves one prior
    serves every other of the same shape."""

    former_kinds: ClassVar[tuple[str, ...]] = ("Aside",)

    report: FitReport | None = dataclasses.field(compare=False)
    names: tuple[str, ...] = dataclasses.field(default=(), compare=False)  # of the parameters


def _hedged(samples: Any, share: float, seed: int, weights: Any, groups: Any) -> np.ndarray:
    if weights is not None or groups is not None:
        raise ValueError(
            "`hedge`: expected samples without weights and groups, got some; leave one of them out"
        )
    from .from_tasks.fit import with_hedge

    return with_hedge(checked_samples(samples, at_least=20), share, seed)


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

    @staticmethod
    def fit(
        samples: Any,
        *,
        preset: str = "default",
        schedule: Any = None,
        seed: Any = 0,
        progress: bool | None = None,
        sample_weights: Any = None,
        groups: Any = None,
        initial: Any = None,
        num_steps: Any = None,
        width: Any = None,
        depth: Any = None,
        fast: bool = False,
        hedge: float = 0.0,
        likelihood: Any = None,
    ) -> "DiffusionPrior":
        """Learn the prior from the parameters of past tasks.

        Args:
            samples: (n, d), one row of parameters per past task; at least 20 rows. Or `Logs` or
                `TaskStatistics`: a mixture is learned from them and distilled into a
                diffusion model.
            preset: "default" is one denoiser for all Gaussian evidence: a Gaussian or a mixture,
                and a network for what that leaves, as held-out samples justify; "paper" is one
                regressor per stage (Appendix B).
            schedule: the stages of the reverse process: a `Schedule` or "log_snr", "cosine" or
                "constant"; by default 64 uniform in log SNR, and with the paper's preset 100 with
                alpha = 0.97.
            seed: of the held-out rows, the weights and the batches.
            progress: False shows none; by default a bar on a terminal, elsewhere a line every
                ten seconds.
            sample_weights: (n,), how many times each row counts; by default once.
            groups: (n,), labels; rows of one label are held out together. For several draws of each
                task's parameters, where they are not known for certain.
            initial: a prior to start from: its coordinates and weights (warm start).
            num_steps: of the optimizer; by default by the number of parameters, with the paper's
                preset 1,250.
            width: of the hidden layers; by default by the number of parameters.
            depth: number of hidden layers; by default chosen by the number of parameters.
            fast: whether to stand on a mixture wherever samples justify one, even if a Gaussian and
                a network denoise a little better: `FewPasses` then draws from it.
            hedge: share of a wide Gaussian mixed into what is learned, so that a task unlike any
                before is learned instead of denied.
            likelihood: how the rewards of logs arise; `Linear()` has its noise estimated.

        Returns:
            The prior; `report` says how learning went. A second fit of the same shapes compiles
            nothing.

        Raises:
            ValueError: an argument that cannot be, before anything is learned.

        Warns:
            FitWarning: samples that are few, repeated, constant, dependent, far from the others, or
                beyond the precision of draws.
        """
        # Slow to import, and not needed to decide.
        from .fitting import checked_options, fit_model
        from .from_tasks.data import is_logs
        from .from_tasks.fit import draws_from, mixture_from_logs

        start = None if initial is None else _frame(initial)
        if initial is not None and schedule is None:
            schedule = initial.schedule
        options = checked_options(preset, schedule, seed, progress, num_steps, width, depth, fast)
        if is_logs(samples):
            found = mixture_from_logs(samples, likelihood, seed=int(seed))
            samples = draws_from(found, DISTILLED_DRAWS, int(seed))
        if hedge:
            samples = _hedged(samples, hedge, int(seed), sample_weights, groups)
        model = fit_model(samples, sample_weights, groups, start, options)
        return DiffusionPrior(*model[:-1], Metadata(model.report))

    @staticmethod
    def from_prior(prior: Any, schedule: Schedule | None = None) -> "DiffusionPrior":
        """Any prior as a diffusion model whose denoiser is the prior's own `denoise`.

        With a closed form it is exact: the oracle of tests.

        Args:
            prior: an `AbstractPrior`, or any object with `dim`, `sample`, `denoise` and `moments`.
                A `DiffusionPrior` is returned as it is, with another schedule if one is given.
            schedule: the stages that `sample` goes through; 64, uniform in log SNR, by default.

        Raises:
            ValueError: if a member of the prior is missing.

        Returns:
            A diffusion prior of the same law, without training error.
        """
        prior = as_prior(prior)
        if isinstance(prior, DiffusionPrior):
            return prior if schedule is None else dataclasses.replace(prior, schedule=schedule)
        offset, scale = unit_coordinates(prior.moments())
        denoiser = PriorDenoiser.of(prior, offset, scale)
        grid = Schedule.log_snr(RESIDUAL_STAGES)
        draws = prior.sample(jax.random.key(0), EXACT_DRAWS)
        unit = solve_lower(scale, (jnp.asarray(draws, offset.dtype) - offset[None]).T).T
        residual = exact_residual(denoiser, grid, unit)
        log_snr = jnp.asarray(np.log(grid.snr[::-1]))
        schedule = schedule or Schedule.log_snr(PRIOR_STAGES)
        return DiffusionPrior(offset, scale, denoiser, log_snr, residual, schedule, Metadata(None))

    from_denoiser = from_prior  # its name before any prior would do

    @classmethod
    def upgrade(cls, fields: dict[str, Any], version: int) -> dict[str, Any]:
        """In version 0.1.0 the metadata had another name."""
        return {"metadata" if name == "about" else name: v for name, v in fields.items()}

    def validate(self) -> None:
        """Refuse residuals, scales or a denoiser that do not fit together."""
        super().validate()
        steps, residual = np.diff(self.residual_log_snr), np.asarray(self.residual)
        if not (residual.size and np.all(residual > 0) and np.all(steps > 0)):
            raise ValueError("`residual`: expected positive numbers at increasing log_snr")
        if not np.all(np.diagonal(self.scale) > 0) or self.denoiser.dim != self.dim:
            raise ValueError("`scale`: expected a triangular matrix as wide as the denoiser")

    @property
    def dim(self) -> int:
        """Number of parameters d."""
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
    def denoise(self, precision: Any, shift: Any) -> Gaussian:
        """Mean and covariance under Gaussian evidence, in the samples' own units."""
        evidence = natural_evidence(precision, shift, self.dim)
        local = evidence.reparameterize(self.offset, self.scale)
        unit = self.denoiser.denoise(eigh(local.precision).nonnegative(), local.shift)
        return Gaussian(self.offset + self.scale @ unit.mean, self.scale @ unit.cov @ self.scale.T)

    @eqx.filter_jit
    def moments(self) -> Gaussian:
        """The mean and covariance of the samples that the prior was learned from."""
        return Gaussian(self.offset, self.scale @ self.scale.T)

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        """Draws from the prior by its reverse process, Eq. (5)."""
        return _sample(self, key, positive_int("num_samples", num_samples))

    @property
    def has_own_grid(self) -> bool:
        """Whether the prior can be followed only on the stages it was learned for."""
        return self.denoiser.has_own_grid

    def sample_unit(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        """Draws of z, where theta = offset + scale z; for use inside compiled programs.

        Args:
            key: Of the random numbers.
            num_samples: How many draws n.

        Returns:
            Draws (n, d).
        """
        return _sample_unit(self, key, num_samples)

    def reverse_process(self, schedule: Schedule | None = None) -> ReverseProcess:
        """The reverse process on the stages of `schedule`, by default the prior's own.

        A prior that `has_own_grid` takes part of that grid only: `schedule.stride` gives it.

        Args:
            schedule: The stages.

        Returns:
            What every step of the reverse process needs, the noisiest first.

        References:
            Kveton et al. (2024), Eq. (5).
        """
        schedule = schedule or self.schedule
        stages = schedule.stages(self.offset.dtype)
        log_residual = jnp.interp(
            jnp.log(stages.snr), self.residual_log_snr, jnp.log(self.residual)
        )
        return ReverseProcess(stages, self.denoiser.stages(schedule), jnp.exp(log_residual))


def _frame(prior: Any) -> Any:
    """Where another fit starts from, in double precision: a `Frame`."""
    from .fitting import Frame

    if not isinstance(prior, DiffusionPrior):
        raise ValueError(
            f"`initial`: expected a DiffusionPrior, got {type(prior).__name__}; fit without it"
        )
    offset, scale = (np.asarray(part, np.float64) for part in (prior.offset, prior.scale))
    return Frame(offset, scale, prior.denoiser)


@eqx.filter_jit
def _sample(prior: DiffusionPrior, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
    return prior.offset[None] + _sample_unit(prior, key, num_samples) @ prior.scale.T


@eqx.filter_jit
def _sample_unit(
    prior: DiffusionPrior, key: Key[Array, ""], num_samples: int
) -> Float[Array, "n d"]:
    process = prior.reverse_process()
    start_key, chain_key = jax.random.split(written_out(key))
    s_T = jax.random.normal(start_key, (num_samples, prior.dim), prior.offset.dtype)
    keys = jax.random.split(chain_key, process.residual.shape[0])
    step = _paper_step if prior.has_own_grid else _moment_step

    def all_chains(s: Float[Array, "n d"], inputs: Any) -> tuple[Float[Array, "n d"], None]:
        stage, stage_inputs, key = inputs
        noise = jax.random.normal(key, s.shape, s.dtype)
        uniforms = jax.random.uniform(jax.random.fold_in(key, 1), s.shape[:1], s.dtype)
        chains = jax.vmap(lambda *random: step(prior, stage, stage_inputs, *random))
        return chains(s, noise, uniforms), None

    return jax.lax.scan(all_chains, s_T, (process.stages, process.denoiser_stages, keys))[0]


def _paper_step(
    prior: DiffusionPrior, stage: Stages, stage_inputs: Any, s_t: Array, noise: Array, _: Array
) -> Float[Array, " d"]:
    """Eq. (5) with Sigma_t = beta_tilde I, to the letter."""
    mean = stage.weight_clean * prior.denoiser.mean_at(stage_inputs, s_t) + stage.weight_noisy * s_t
    return mean + jnp.sqrt(stage.beta_tilde) * noise


def _moment_step(
    prior: DiffusionPrior,
    stage: Stages,
    stage_inputs: Any,
    s_t: Array,
    noise: Array,
    uniform: Array,
) -> Float[Array, " d"]:
    """Eq. (5) with s_0 as random as it is given s_t."""
    return prior.denoiser.step_at(stage_inputs, stage, s_t, noise, uniform)
