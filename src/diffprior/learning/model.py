"""A model: a prior with its likelihood and the encoders of raw columns, in one file."""

import dataclasses
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from ..bandits.bandit import Bandit
from ..bandits.items import Items
from ..bandits.online import MAX_ROWS
from ..checks import kind_of
from ..encoders import Encoder
from ..evidence.base import AbstractLikelihood
from ..evidence.linear import Linear
from ..evidence.response import Response
from ..files.base import Serializable
from ..logs.logs import Logs
from ..priors.base import AbstractPrior
from ..priors.conditional import ConditionalPrior
from ..reporting.figures import html
from ..reporting.tables import Table
from .adapt import adapted
from .report import LearningReport


@runtime_checkable
class GivenAttributes(Protocol):
    """A prior that depends on what is known of a task."""

    def given(self, attributes: Float[Array, " a"]) -> AbstractPrior:
        """The prior of tasks with these attributes."""
        ...


@dataclass(frozen=True, eq=False)
class Model(Serializable):
    """All that a new task needs: the prior, the likelihood, and how raw columns are encoded.

    `learn` returns one, `save` writes it to one file, and `load` reads it.

    Args:
        prior: Prior of the parameters.
        likelihood: Distribution of rewards, with its noise or dispersion.
        encoder: How raw columns become features; None if the prior was learned from arrays.
        attribute_encoder: How raw columns become attributes of a task, or None.
        feature_names: Names of the features; those of `encoder` if there is one.
        attribute_names: Names of the attributes of the logs that the prior was learned from.
        report: Report of learning, or None.
        families: Every prior that was learned, without hedge, by its name in the report. They are
            not saved.

    Example:
        >>> import diffprior as dp
        >>> prior = dp.GaussianPrior([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]])
        >>> model = dp.Model(prior, dp.Logistic())
        >>> bandit = model.bandit(seed=0)
    """

    max_bytes: ClassVar[int] = 2**30

    prior: AbstractPrior
    likelihood: AbstractLikelihood
    encoder: Encoder | None = None
    attribute_encoder: Encoder | None = None
    feature_names: tuple[str, ...] = ()
    attribute_names: tuple[str, ...] = ()
    report: LearningReport | None = dataclasses.field(default=None, compare=False)
    families: dict[str, AbstractPrior] = dataclasses.field(
        default_factory=dict, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        if not isinstance(self.prior, AbstractPrior):
            raise ValueError(
                f"`prior`: expected a prior, got {type(self.prior).__name__}; learn one from logs "
                "with dp.learn, or fit one to parameters"
            )
        if not isinstance(self.likelihood, AbstractLikelihood):
            raise ValueError(
                f"`likelihood`: expected a likelihood, got {kind_of(self.likelihood)}; "
                "pass dp.Linear(noise_std), dp.Logistic(), dp.Poisson() or another"
            )
        if isinstance(self.likelihood, Linear) and self.likelihood.noise_std is None:
            raise ValueError(
                "`likelihood`: expected the noise of linear rewards, got none; pass "
                "dp.Linear(noise_std), or learn it with dp.learn"
            )
        names = self.feature_names
        if self.encoder is not None:
            names = self.encoder.names
            object.__setattr__(self, "feature_names", names)
        dim = self.likelihood.num_features(self.prior.dim)
        if names and len(names) != dim:
            raise ValueError(
                f"`feature_names`: expected {dim} names, those of the likelihood, got "
                f"{len(names)}; pass the names, or the encoder, of the logs it was learned from"
            )

    def encode(self, rows: object) -> Float[np.ndarray, "..."]:
        """Features of raw rows: a table, a list of dicts, or one dict.

        Args:
            rows: As of `Encoder.encode`.

        Returns:
            Features (n, d), or (d,) of one dict.

        Raises:
            ValueError: The prior was learned from arrays, or as for `Encoder.encode`.
        """
        if self.encoder is None:
            raise ValueError(
                "`rows`: expected a model with an encoder, got one that was learned from arrays; "
                "pass arrays of features, or learn from a table with dp.Logs.read"
            )
        return self.encoder.encode(rows)

    def prior_given(self, attributes: object = None) -> AbstractPrior:
        """The prior of a task with these attributes.

        Attributes that `learn` left out because they do not pay are ignored.

        Args:
            attributes: What is known of the task: a dict of raw columns, or an array (a,), NaN
                where one is not known; None for the average task.

        Returns:
            The prior.

        Raises:
            ValueError: The prior does not depend on attributes, or a column is missing or wrong.
        """
        encoder = self.attribute_encoder
        if isinstance(attributes, Mapping) and encoder is not None:
            attributes = encoder.encode(attributes)
        elif attributes is not None and encoder is not None and not _is_vector(attributes):
            raise ValueError(
                "`attributes`: expected a dict of raw columns, or an array of numbers, got "
                f"{attributes!r:.60}; pass None for the average task"
            )
        if not isinstance(self.prior, GivenAttributes):
            if attributes is not None and not self.attribute_names:
                raise ValueError(
                    "`attributes`: expected none, because the prior was learned without, got "
                    f"{attributes!r:.60}; learn it from logs with attributes, or leave them out"
                )
            return self.prior
        return self.prior.given(attributes)  # type: ignore[arg-type]

    def bandit(
        self,
        attributes: object = None,
        *,
        seed: int | None = None,
        temperature: ArrayLike | None = None,
        max_rows: int | None = MAX_ROWS,
        half_life: ArrayLike | datetime.timedelta | None = None,
    ) -> Bandit:
        """Start a new task: a bandit that takes raw rows as well as arrays of features.

        `attributes` are as of `prior_given`; `seed`, `temperature`, `max_rows` and `half_life` as
        of `Bandit`, as are errors.
        """
        return Bandit(
            self.prior_given(attributes),
            self.likelihood,
            seed=seed,
            temperature=temperature,
            max_rows=max_rows,
            half_life=half_life,
            encoder=self.encoder,
        )

    def items(
        self,
        *,
        num_draws: int = 64,
        seed: int | None = None,
        temperature: ArrayLike | None = None,
        max_rows: int | None = MAX_ROWS,
        half_life: ArrayLike | datetime.timedelta | None = None,
        unknown: str = "add",
    ) -> Items:
        """Start a catalog of items that each have parameters of their own.

        Args:
            num_draws: As of `Items`.
            seed: As of `Items`.
            temperature: As of `Items`.
            max_rows: As of `Items`.
            half_life: As of `Items`.
            unknown: As of `Items`.

        Returns:
            A catalog without items, which takes raw rows as contexts and attributes, as well as
            arrays.

        Raises:
            ValueError: As for `Items`.
        """
        prior = self.prior
        if self.attribute_encoder is not None and not isinstance(prior, GivenAttributes):
            unused = np.zeros(self.attribute_encoder.dim)  # since they do not pay
            prior = ConditionalPrior(prior, np.zeros((len(unused), prior.dim)), unused)
        return Items(
            prior,
            self.likelihood,
            num_draws=num_draws,
            seed=seed,
            temperature=temperature,
            max_rows=max_rows,
            half_life=half_life,
            encoder=self.encoder,
            attribute_encoder=self.attribute_encoder,
            unknown=unknown,
        )

    def adapt(self, logs: Logs) -> "Model":
        """Trust the prior more or less, by the tasks that came after it was learned.

        `learn` mixes a hedge into the prior: a cold start and a wide Gaussian, of a weight that is
        fixed. Here the weights are estimated again. Where new tasks are like past ones, the hedge
        fades; where they are not, it takes over within about ten tasks, and new tasks begin almost
        cold until a prior is learned again from all logs. Cheap: a closed form per task.

        Args:
            logs: All tasks since the prior was learned, with its features and attributes.

        Returns:
            The model with its prior reweighted.

        Raises:
            ValueError: The prior has no hedge or no closed form, or the logs have other features.
        """
        if self.report is None or not self.report.hedge:
            raise ValueError(
                "`adapt`: expected a prior learned with a hedge, got one without; learn it with "
                "dp.learn(..., hedge=0.02)"
            )
        if isinstance(self.likelihood, Response):
            raise ValueError(
                "`adapt`: expected linear rewards or those of a family, got a Response; learn its "
                "prior again from all logs"
            )
        if logs.dim != self.prior.dim:
            raise ValueError(
                f"`logs`: expected {self.prior.dim} features, those of the prior, got {logs.dim}; "
                "read them with encoder=model.encoder"
            )
        prior = adapted(self.prior, self.report.hedge, logs, self.likelihood)
        return dataclasses.replace(self, prior=prior)

    @classmethod
    def file_hints(cls) -> dict[str, object]:
        return {name: hint for name, hint in super().file_hints().items() if name != "families"}

    def _repr_html_(self) -> str | None:
        names = ", ".join(self.feature_names) or f"{self.prior.dim} features"
        parts = [("prior", repr(self.prior)), ("likelihood", repr(self.likelihood))]
        parts += [("features", names)]
        if self.attribute_encoder is not None:
            parts += [("attributes", ", ".join(self.attribute_encoder.names))]
        if self.report is not None:
            parts += [("report", self.report.verdict)]
        return html([Table((), parts, words=True)])

    def __repr__(self) -> str:
        names = f", features={list(self.feature_names)}" if self.feature_names else ""
        return f"Model({self.prior!r}, {self.likelihood!r}{names})"


def _is_vector(values: object) -> bool:
    array = np.asarray(values)
    return array.ndim == 1 and array.dtype.kind in "biuf"
