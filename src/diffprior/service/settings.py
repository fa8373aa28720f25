"""Settings of a model beside its prior: likelihood, rewards, and how decisions are drawn."""

import datetime
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pydantic

from ..bandits.agents import AbstractAgent, EpsilonGreedy, LinUCB, ThompsonSampling, Uniform
from ..bandits.updates import Forgetting
from ..checks import settings as likelihood_options
from ..evidence.base import AbstractLikelihood
from ..evidence.families import LIKELIHOODS, missing_likelihood
from ..evidence.linear import Linear
from ..evidence.response import Response
from ..learning.model import Model
from ..priors.base import AbstractPrior
from ..priors.conditional import of_average_task
from ..priors.gaussian import GaussianPrior
from ..samplers.base import AbstractSampler
from ..samplers.choose import best_sampler
from ..samplers.evidence_dps import EvidenceDPS
from ..samplers.exact import Exact
from ..samplers.laplace_dps import LaplaceDPS
from ..samplers.twisted_smc import TwistedSMC

SAMPLERS = {
    "best": best_sampler,
    "exact": Exact,
    "evidence-dps": EvidenceDPS,
    "laplace-dps": LaplaceDPS,
    "twisted-smc": TwistedSMC,
}


RESPONSE = "response:"  # before the name of one
FIXED = 1e-12  # covariance of a prior that is not to move, relative to that of the model


class Settings(pydantic.BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Settings of one version of a model.

    A decision waits `reward_wait` seconds for its reward, forever if None. Of several rewards,
    `aggregation` selects the first, learned at once, or the last or the sum, learned when
    the wait ends. A decision without a reward by then is learned with `default_reward`, or not at
    all if that is None. With a `half_life`, evidence fades and the posterior returns to the prior.
    """

    likelihood: str | None = pydantic.Field(
        None, description="linear, logistic, poisson, ...; null for that of the model"
    )
    likelihood_options: dict[str, float] = pydantic.Field(
        default_factory=dict, description="options of the likelihood, such as noise_std"
    )
    sampler: Literal[
        "best",
        "exact",
        "evidence-dps",
        "laplace-dps",
        "twisted-smc",
        "linucb",
        "epsilon-greedy",
        "random",
        "prior-mean",
    ] = pydantic.Field(
        "best",
        description="linucb, epsilon-greedy: agents of a Gaussian prior that do not sample; "
        "random: actions at random, as a control; prior-mean: a holdout, which takes the best "
        "action on average over tasks, and neither learns nor explores",
    )
    guard: float | None = pydantic.Field(
        None,
        gt=0,
        lt=0.5,
        description="roll the version back by itself if it earns less than the one before; the "
        "probability of that for a version that earns the same, such as 0.05",
    )
    temperature: float = pydantic.Field(1.0, gt=0, le=1e6)
    reward_wait: float | None = pydantic.Field(None, gt=0, le=1e9, description="seconds")
    default_reward: float | None = None
    half_life: float | datetime.timedelta | None = pydantic.Field(
        None,
        description="after which a reward counts half: a number of decisions of its task, or a "
        "duration in ISO 8601, such as P7D",
    )
    aggregation: Literal["first", "last", "sum"] = "first"
    propensity_draws: int = pydantic.Field(
        256, ge=0, le=4096, description="most draws for a propensity; they end at 16 wins"
    )
    panel_draws: int = pydantic.Field(
        64, ge=2, le=4096, description="joint draws of all items, which choices use in turn"
    )
    unknown_items: Literal["add", "reject"] = pydantic.Field(
        "add", description="what an unknown item in a choice does: start at the prior, or 404"
    )
    quota_gb: float | None = pydantic.Field(
        None,
        gt=0,
        description="gigabytes of the model's log, above which decisions get 507 until it is "
        "pruned; that of the newest version counts",
    )
    max_rows: int = pydantic.Field(1024, ge=128, le=65536)

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> "Settings":
        named = self.likelihood is not None and self.likelihood.startswith(RESPONSE)
        if self.likelihood is not None and self.likelihood not in LIKELIHOODS and not named:
            raise ValueError(
                f"`likelihood`: expected one of {', '.join(LIKELIHOODS)}, got {self.likelihood!r}"
            )
        if self.reward_wait is None and self.aggregation != "first":
            raise ValueError(
                f"`reward_wait`: expected seconds, because {self.aggregation!r} rewards are learned"
                " when the wait ends, got null; set it"
            )
        if self.reward_wait is None and self.default_reward is not None:
            raise ValueError(
                "`reward_wait`: expected seconds after which the default reward counts, got null; "
                "set it"
            )
        self.make_forgetting()
        likelihood = None if self.likelihood is None else self.make_likelihood()
        if self.default_reward is not None and likelihood is not None:
            check_rewards(likelihood, np.asarray([self.default_reward]))
        return self

    def make_likelihood(self) -> AbstractLikelihood:
        if self.likelihood is None:
            raise missing_likelihood("a prior")
        if self.likelihood.startswith(RESPONSE):
            name = self.likelihood.removeprefix(RESPONSE)
            return Response.registered(name, self.likelihood_options)
        try:
            found = LIKELIHOODS[self.likelihood](**self.likelihood_options)
            if isinstance(found, Linear) and found.noise_std is None:
                raise ValueError(
                    "`likelihood_options`: expected noise_std, on which posteriors depend, got "
                    "none; write linear:noise_std=0.5, or serve a model of `diffprior learn`"
                )
            return found
        except TypeError as error:
            raise ValueError(
                f"`likelihood_options`: expected those of {self.likelihood}, got "
                f"{self.likelihood_options} ({error})"
            ) from error

    def with_likelihood_of(self, saved: object) -> "Settings":
        """These settings with the likelihood of a model; a prior has none."""
        if not isinstance(saved, Model):
            self.make_likelihood()
            return self
        own = saved.likelihood
        name = next((name for name, kind in LIKELIHOODS.items() if type(own) is kind), None)
        if isinstance(own, Response) and own.function.name is not None:
            name, own = RESPONSE + own.function.name, own.family
        if name is None:
            raise ValueError(
                f"`likelihood`: expected one of {', '.join(LIKELIHOODS)}, got "
                f"{type(own).__name__} in the model; the service knows no others"
            )
        options = {key: float(np.asarray(value)) for key, value in likelihood_options(own).items()}
        found = self.model_copy(update={"likelihood": name, "likelihood_options": options})
        if self.likelihood is not None and found != self:
            raise ValueError(
                f"`likelihood`: expected none, because the model has its own, {own!r}, got "
                f"{self.likelihood} {self.likelihood_options}; leave it out"
            )
        return Settings.model_validate(found.model_dump())

    def make_forgetting(self) -> Forgetting | None:
        return None if self.half_life is None else Forgetting.of(self.half_life)

    def make_sampler(self, prior: AbstractPrior) -> AbstractSampler:
        maker: Any = SAMPLERS.get(self.sampler, best_sampler)
        about = {"likelihood": self.make_likelihood()} if maker is best_sampler else {}
        return maker(of_average_task(prior), temperature=self.temperature, **about)

    def make_agent(self, prior: AbstractPrior) -> AbstractAgent:
        """The agent that decides, for the average task."""
        prior = of_average_task(prior)
        likelihood = self.make_likelihood()
        if self.sampler == "random":
            return Uniform(likelihood, dim=prior.dim)
        if self.sampler == "prior-mean":
            moments = prior.moments()  # rewards do not move a prior that is this narrow
            fixed = GaussianPrior(moments.mean, FIXED * moments.cov)
            return ThompsonSampling(best_sampler(fixed), likelihood)
        if self.sampler == "linucb":
            return LinUCB(prior, likelihood)
        if self.sampler == "epsilon-greedy":
            return EpsilonGreedy(prior, likelihood)
        return ThompsonSampling(self.make_sampler(prior), likelihood)


def checked_settings(about: Mapping[str, object]) -> Settings:
    """Settings from user input."""
    try:
        return Settings.model_validate(about)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ").partition(", unable to")[0]
        message = message.replace("Input should be", "expected")
        if not first["loc"]:
            raise ValueError(message) from error
        name = str(first["loc"][0])
        meaning = Settings.model_fields[name].description
        fix = f"; {meaning}" if meaning else ""
        raise ValueError(f"`{name}`: {message}, got {first['input']!r}{fix}") from error


def parse_likelihood(text: str) -> dict[str, object]:
    """Settings from `logistic`, `linear:noise_std=0.5` or `negative-binomial:dispersion=2`."""
    name, _, rest = text.partition(":")
    options = {}
    for item in filter(None, rest.split(",")):
        key, _, value = item.partition("=")
        try:
            options[key.strip()] = float(value)
        except ValueError as error:
            raise ValueError(
                f"`likelihood`: expected options such as noise_std=0.5, got {item!r}; "
                "write linear:noise_std=0.5"
            ) from error
    return {"likelihood": name, "likelihood_options": options}


def check_rewards(likelihood: AbstractLikelihood, rewards: np.ndarray) -> None:
    """Reject rewards outside the support; faster than the bound method of an Equinox module."""
    type(likelihood).check_rewards(likelihood, rewards)
