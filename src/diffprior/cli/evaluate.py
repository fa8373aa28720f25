"""`diffprior evaluate`: a prior evaluated on a user's own tasks, or on the service's log."""

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from .options import (
    Dispersion,
    Features,
    Intercept,
    Json,
    Likelihood,
    NoiseStd,
    Reward,
    Seed,
    Task,
    Time,
    check_ending,
    check_output,
    friendly_errors,
    load_model,
    load_prior,
    say,
    split_names,
    write_json,
)

if TYPE_CHECKING:
    from ..evaluate.calibration import PredictiveCheck
    from ..evaluate.comparison import Comparison
    from ..reporting.page import Callout

NUM_SAMPLES = 5000  # of the prior, to which the Gaussian and the mixture beside it are fitted


class _PriorByDefault(TyperGroup):
    """Makes `evaluate PRIOR LOGS` mean `evaluate prior PRIOR LOGS`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = args and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if not args or known else ["prior", *args])


app = typer.Typer(
    cls=_PriorByDefault,
    no_args_is_help=True,
    help="Evaluate a prior on your own tasks (`evaluate PRIOR LOGS`).",
)


@app.command("prior")
def evaluate_prior(
    prior: Annotated[Path, typer.Argument(help="File of a model, or of a prior.")],
    logs: Annotated[Path, typer.Argument(help="Rows of tasks that it has not seen: .csv .parquet")],
    task: Task = "task",
    reward: Reward = "reward",
    features: Features = None,
    likelihood: Likelihood = None,
    noise_std: NoiseStd = None,
    dispersion: Dispersion = None,
    intercept: Intercept = None,
    time: Time = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="File of another model or prior; repeat for more.")
    ] = None,
    max_tasks: Annotated[
        int, typer.Option(min=2, help="Use at most this many tasks, chosen at random.")
    ] = 500,
    report: Annotated[Path | None, typer.Option(help="Also write the report as .html")] = None,
    json_file: Json = None,
    seed: Seed = 0,
) -> None:
    """Evaluate a prior on the logs of tasks that it has not seen.

    Prints held-out log evidence and rewards of first choices beside a cold start, and a Gaussian
    and a mixture fitted to draws from the prior; and how well the next reward is predicted, by
    length of history.
    """
    with friendly_errors():
        check_output("json", json_file, prior, logs)
        check_output("report", report, prior, logs)
        if report is not None:
            check_ending("report", report, (".html", ".htm"))
            from ..checks import require

            require("plot", "jinja2")
        import jax
        import numpy as np

        from ..evaluate import compare, predictive_check
        from ..files.atomic import write_atomic
        from ..logs.logs import Logs
        from ..priors.conditional import ConditionalPrior
        from ..progress import progress

        model = load_model(prior, likelihood, noise_std, dispersion)
        files = [prior, *(against or [])]
        same_names = len({path.stem for path in files}) < len(files)
        priors = {str(p) if same_names else p.stem: load_prior(p) for p in files}
        name, evaluated = next(iter(priors.items()))
        if features and model.encoder is not None:
            raise ValueError(
                f"`features`: expected none, because the model in {prior} knows its columns, got "
                f"{', '.join(features)}; leave out --features"
            )
        table = Logs.read(
            logs,
            task=task,
            reward=reward,
            features=split_names(features) or model.feature_names or None,
            time=time,
            intercept=bool(intercept),  # features are those of the prior
            encoder=model.encoder,
            attribute_encoder=model.attribute_encoder,
        )
        say(f"{table.num_tasks} tasks, {table.num_rows} rows, {table.dim} features")
        if table.num_tasks > max_tasks:
            say(f"using {max_tasks} tasks, chosen at random")
            chosen = np.random.default_rng(seed).permutation(table.num_tasks)[:max_tasks]
            table = table.select(np.sort(chosen))
        with progress("log evidence", 2) as shown:
            samples = np.asarray(evaluated.sample(jax.random.key(seed), NUM_SAMPLES))
            if isinstance(evaluated, ConditionalPrior) and table.attributes is not None:
                offsets = evaluated.offsets(table.attributes)
                samples = samples + np.resize(offsets, samples.shape)
            comparison = compare(priors, table, model.likelihood, samples=samples, seed=seed)
            shown.advance()
            shown.describe("next rewards")
            check = predictive_check(evaluated, table, model.likelihood, seed=seed)
            shown.advance()
        typer.echo(f"{comparison}\n\nnext reward under {name}\n{check}")
        if report is not None:
            write_atomic(report, _page(prior, name, comparison, check))
            say(f"wrote {report}")
        results = {"log_evidence": comparison.to_dict(), "next_reward": check.to_dict()}
        write_json(json_file, results)


def verdict(name: str, comparison: "Comparison") -> "Callout":
    """Whether a prior pays, in what it predicts and in what it chooses first."""
    from ..evaluate.comparison import COLD
    from ..reporting.page import Callout
    from ..reporting.tables import plus_minus

    gain, error = comparison.difference(name, COLD)
    reward, reward_error = comparison.reward_difference(name)
    about = f"{plus_minus(gain, error, signed=True)} nats per task over starting cold"
    if math.isfinite(reward):  # some tasks have more than one row
        about += f", {plus_minus(reward, reward_error, signed=True)} of reward per first choice"
    if abs(gain) <= 2 * error:
        return Callout(f"{name} makes no difference: {about}.")
    if gain * reward < 0 and abs(reward) > 2 * reward_error:
        return Callout(f"{name}: its predictions and its first choices disagree: {about}.")
    word, status = ("pays", "good") if gain > 0 else ("costs", "bad")
    return Callout(f"{name} {word}: {about}.", status)


def _page(prior: Path, name: str, comparison: "Comparison", check: "PredictiveCheck") -> str:
    """The report of an evaluation."""
    from ..reporting.page import Code, page

    tables = [
        replace(
            comparison.table(),
            caption=f"Mean log evidence of {len(comparison.num_observations)} tasks in nats, of "
            "which one makes the rewards e = 2.7 times as probable; first choices are among the "
            "rows of a task, with the rewards that were observed, over those of the cold start; "
            "differences have paired standard errors.",
        ),
        replace(
            check.table(),
            caption=f"Predictions of the next reward under {name}, after some rows of a task; "
            "90 % intervals are right if 90 % of the rewards are in them.",
        ),
    ]
    step = Code(f"diffprior serve --model {name}={prior}")
    return page(f"Does {name} pay on new tasks?", verdict(name, comparison), tables, step)


@app.command("off-policy")
def evaluate_policy(
    prior: Annotated[Path, typer.Argument(help="File of a model, or of a prior.")],
    log: Annotated[Path, typer.Argument(help="File written by `diffprior export`: .parquet")],
    likelihood: Likelihood = None,
    noise_std: NoiseStd = None,
    dispersion: Dispersion = None,
    num_draws: Annotated[int, typer.Option(min=1, help="Draws per decision.")] = 64,
    json_file: Json = None,
    seed: Seed = 0,
) -> None:
    """Estimate what a prior would have earned on the decisions of the service's log."""
    with friendly_errors():
        check_output("json", json_file, prior, log)
        from ..evaluate import LoggedChoices, LoggedDecisions, off_policy
        from ..progress import progress

        model = load_model(prior, likelihood, noise_std, dispersion)
        choices = log.is_file() and LoggedChoices.are_in(log)
        decisions = LoggedChoices.read(log) if choices else LoggedDecisions.read(log)
        with progress(f"replaying {len(decisions)} decisions", 1) as shown:
            found = off_policy(
                model.prior, decisions, model.likelihood, num_draws=num_draws, seed=seed
            )
            shown.advance()
        typer.echo(str(found))
        write_json(json_file, found.to_dict())
