"""Settings of a fit and of learning: how a network is trained, what decides between candidates."""

import dataclasses
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..checks import choice, positive_int, whole_number
from ..schedule import Schedule
from .search import SearchConfig

PRIOR_STAGES, PAPER_STAGES = 64, 100  # of the reverse process, where a schedule is given by name
SCHEDULES = {name: getattr(Schedule, name) for name in ("log_snr", "cosine", "constant")}
MAY_BE_ZERO = ("num_steps", "target_samples", "warm_up_steps")

# What chooses between candidates, by their held-out losses.
TOLERANCE = 0.5  # standard errors of the loss within which the simpler of two is kept
MIN_RELATIVE_GAIN = 1e-3  # share of the loss that the richer one must take off in any case
NEGLIGIBLE_GAIN = 0.03  # share up to which a network is a small correction: two passes draw from it
# Shares of the Gaussian's loss that a mixture takes off: below the first only the Gaussian is worth
# a network, above the second only the mixture; but one that takes off much in all is worth it too,
# for with many parameters a small share is much.
MIXTURE_GAIN_RANGE, MIN_ABSOLUTE_GAIN = (0.10, 0.25), 2.0
MAX_BASE_SIZE = 2**18  # numbers in a mixture's covariances beyond which training is too slow


class Training(NamedTuple):
    """The settings of one training, each with a value; see `FitConfig`."""

    width: int
    depth: int
    num_steps: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    target_samples: int
    log_precision_range: tuple[float, float]
    optimizer: str
    stopping_tolerance: float
    evaluate_every: int = 250
    patience: int = 6
    warm_up_steps: int = 100
    averaging: float = 0.995


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Settings of `DiffusionPrior.fit`; the defaults serve 1 to 64 parameters.

    A fit compares candidates on held-out samples under random Gaussian evidence: a Gaussian, a
    mixture, and either with a network that corrects its mean. The loss is the squared error of the
    denoised mean, in units in which the posterior of a unit Gaussian has variance 1. Fields that
    are None depend on the number of parameters and of components: see `training`.

    Attributes:
        denoiser: "corrected" for a Gaussian or mixture and a network for all Gaussian evidence;
            "stagewise" for the paper's one regressor per stage (Appendix B).
        schedule: Stages of the reverse process: a `Schedule`, or "log_snr", "cosine" or
            "constant"; by default 64 uniform in log SNR, stagewise 100 with alpha = 0.97.
        width: Of the hidden layers.
        depth: Number of hidden layers, at least 2.
        num_steps: Of the optimizer, at most; 0 trains no network.
        batch_size: Samples per step.
        learning_rate: The highest, after the warm-up; it decays along a cosine.
        weight_decay: Share of the weights that a step takes off, per unit of learning rate.
        target_samples: Samples drawn per step that share in the posterior means to regress on.
        log_precision_range: Log precisions of most of the evidence that training draws.
        optimizer: "muon" (steps of matrices made orthogonal), stagewise "adam".
        stopping_tolerance: Standard errors of the held-out loss by which earlier weights must be
            better to be preferred to later ones.
        evaluate_every: Steps between evaluations of the held-out loss.
        patience: Evaluations without improvement before training stops; half as many where none
            has been better than no network.
        warm_up_steps: Steps until the learning rate is at its highest.
        averaging: Decay of the running mean of the weights.
        num_neighbors: Nearest samples that share in a target, with at most 3 parameters.
        evidence_pool: Pieces of random evidence in memory at a time, at most.
        validation_draws: Draws of held-out samples that a candidate is scored on.
        validation_evidence: Pieces of evidence that candidates are scored under.
        residual_draws: Draws of held-out samples for the error at each noise level.
        search: What decides between mixtures.
        max_components: Of a mixture; 256 by default, 64 with at most 2 parameters; 1 for none.
        prefer_mixture: Keep a mixture wherever held-out likelihood favors one, even if a Gaussian
            and a network denoise a little better: `FewPasses` then draws from it.
    """

    denoiser: Literal["corrected", "stagewise"] = "corrected"
    schedule: Schedule | str | None = None

    width: int | None = None
    depth: int | None = None
    num_steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    target_samples: int | None = None
    log_precision_range: tuple[float, float] | None = None
    optimizer: Literal["muon", "adam"] | None = None
    stopping_tolerance: float | None = None
    evaluate_every: int = 250
    patience: int = 6
    warm_up_steps: int = 100
    averaging: float = 0.995
    num_neighbors: int = 64
    evidence_pool: int = 4096

    validation_draws: int = 8192
    validation_evidence: int = 512
    residual_draws: int = 2048

    search: SearchConfig = dataclasses.field(default_factory=SearchConfig)
    max_components: int | None = None
    prefer_mixture: bool = False

    def __post_init__(self) -> None:
        choice("denoiser", self.denoiser, ("corrected", "stagewise"))
        if self.optimizer is not None:
            choice("optimizer", self.optimizer, ("muon", "adam"))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and "int" in str(field.type):
                check = whole_number if field.name in MAY_BE_ZERO else positive_int
                check(field.name, value)
        if self.depth == 1:
            raise ValueError("`depth`: expected at least 2 hidden layers, got 1; leave it out")
        if self.stagewise and self.prefer_mixture:
            raise ValueError(
                "`prefer_mixture`: expected False with a stagewise denoiser, which has no mixture, "
                "got True; leave it out"
            )
        if self.stagewise and self.depth not in (None, 2):
            raise ValueError(
                f"`depth`: expected None with the paper's two layers, got {self.depth}; "
                "leave it out"
            )
        self.reverse_schedule()

    @staticmethod
    def paper() -> "FitConfig":
        """One regressor of two layers per stage, T = 100 and alpha = 0.97.

        Returns:
            The settings of Appendix B and Section 6.1.

        References:
            Kveton et al. (2024), Appendix B, Eq. (15).
        """
        return FitConfig(denoiser="stagewise")

    @staticmethod
    def tiny() -> "FitConfig":
        """A network so small and so little training that a fit takes about a second.

        Returns:
            Settings for tests, not for use.
        """
        return FitConfig(
            width=8,
            depth=2,
            num_steps=20,
            batch_size=32,
            learning_rate=2e-2,
            weight_decay=0.0,
            target_samples=16,
            log_precision_range=(-4.0, 3.0),
            optimizer="adam",
            stopping_tolerance=0.0,
            warm_up_steps=5,
            averaging=0.9,
            num_neighbors=8,
            evidence_pool=64,
            validation_draws=256,
            validation_evidence=64,
            residual_draws=256,
            max_components=4,
        )

    @property
    def stagewise(self) -> bool:
        """Whether there is one regressor per stage."""
        return self.denoiser == "stagewise"

    def reverse_schedule(self) -> Schedule:
        """The reverse process.

        Returns:
            The schedule itself, or the one of that name.
        """
        if isinstance(self.schedule, Schedule):
            return self.schedule
        usual = "constant" if self.stagewise else "log_snr"
        name = usual if self.schedule is None else self.schedule
        if not isinstance(name, str) or name not in SCHEDULES:
            raise ValueError(
                "`schedule`: expected a Schedule or one of 'log_snr', 'cosine', 'constant', got "
                f"{name!r}; pass a name, or Schedule.cosine(num_stages=...)"
            )
        return SCHEDULES[name](PAPER_STAGES if self.stagewise else PRIOR_STAGES)

    def training(self, dim: int, num_components: int = 1) -> Training:
        """The settings of a training, with a number in place of every None.

        A mixture knows what weak evidence leaves open, so that its network is trained on stronger
        evidence; with up to 3 parameters on evidence of any strength, for there histories long
        enough to need it are common. A Gaussian leaves most to a wide network; many components
        leave little, and each step goes through all of them.

        Args:
            dim: Number of parameters.
            num_components: Of the mixture that the network corrects; 1 for a Gaussian.
        """
        large = num_components * dim**2 >= MAX_BASE_SIZE // 4
        defaults = PAPER if self.stagewise else _defaults(dim, num_components > 1, large)
        own = {name: getattr(self, name) for name in Training._fields}
        return defaults._replace(**{name: v for name, v in own.items() if v is not None})


PAPER = Training(100, 2, 1250, 256, 3e-3, 0.0, 0, (0.0, 0.0), "adam", 0.0)


def _defaults(dim: int, mixed: bool, large: bool) -> Training:
    """Defaults found by experiment, for a network on a mixture or on one Gaussian."""
    if dim <= 3:
        evidence = (-4.0, 9.0 if mixed else 6.0)
        return Training(64, 4, 1500, 512, 1.5e-2, 0.0, 512, evidence, "muon", 1.0)
    evidence, rate = (-4.0, 6.0 if mixed else 3.0), 7e-3 if mixed else 2e-2
    usual = Training(128, 4, 3500, 1024, rate, 0.0, 1024, evidence, "muon", 0.0)
    if dim <= 8:
        return usual
    steps = 1500 if mixed and large else 3000 if mixed or dim > 16 else 8000
    decay = 0.1 if mixed or dim > 16 else 0.0  # where past tasks are soon overfitted
    if dim <= 16:
        size = {"width": 192, "target_samples": 2048}
    else:
        size = {"width": 256} if mixed else {"width": 384, "depth": 3}
    rates = {} if mixed and dim > 32 else {"learning_rate": 2e-2, "weight_decay": decay}
    return usual._replace(num_steps=steps, **size, **rates)  # type: ignore[arg-type]


LOGS_SEARCH = SearchConfig(
    max_components=24,
    max_tied=0,
    pooling_per_parameter=0.5,
    tasks_per_component=20.0,
    num_folds=3,
)


@dataclass(frozen=True)
class LearningConfig:
    """Settings of `learn` that few users change."""

    min_tasks: int = 10  # to learn from
    # With fewer only a Gaussian is learned, and the report is cross-validated.
    min_held_out_tasks: int = 200
    report_share: float = 0.1  # of the tasks, that only the report sees
    # Smallest learnable order of structure, ln n / ln(1 / B), at which mixtures are tried; two
    # modes need about 4.
    min_order: float = 4.0
    search: SearchConfig = LOGS_SEARCH
    sample_tasks: int = 50_000  # of shards in memory, by which families are chosen and scored
    sample_numbers: int = 50_000_000  # in the rows of that sample, at most
    num_folds: int = 9  # of the tasks learned from, one of which scores the diffusion model
    scoring_tasks: int = 500  # of that fold, at most
    max_rounds: int = 8  # of EM of the diffusion model
    round_steps: int = 1000  # of the optimizer per round, a quarter of a first fit's
    round_draws: int = 4000  # of posteriors in a round, at least; of few tasks, several each
    round_tasks: int = 200_000
