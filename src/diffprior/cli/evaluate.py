"""`diffprior evaluate`: a prior evaluated on a user's own tasks."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from .options import Json, Seed, check_output
from .terminal import friendly_errors, say

if TYPE_CHECKING:
    from ..evaluate import Comparison, PredictiveCheck, Tasks
    from ..evidence.base import AbstractLikelihood
    from ..priors.base import AbstractPrior

NUM_DRAWN = 5000  # samples of a prior, of which its Gaussian and mixture are made


class _PriorByDefault(TyperGroup):
    """`evaluate PRIOR LOGS` is `evaluate prior PRIOR LOGS`."""

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]
        """Name the command where the first word is a file or an option of it."""
        known = args and (args[0] in self.commands or args[0] == "--help")
        return super().parse_args(ctx, args if not args or known else ["prior", *args])


app = typer.Typer(
    cls=_PriorByDefault,
    no_args_is_help=True,
    help="Evaluate a prior on your own tasks (`evaluate PRIOR LOGS`).",
)


@app.command("prior")
def judge_prior(
    prior: Annotated[Path, typer.Argument(help="File of a prior.")],
    logs: Annotated[Path, typer.Argument(help="Rows of tasks that it has not seen: .csv .parquet")],
    task: Annotated[str, typer.Option(help="Column of task labels.")],
    reward: Annotated[str, typer.Option(help="Column of rewards.")],
    features: Annotated[
        list[str],
        typer.Option(help="Columns of features: names or patterns; repeat, or use commas."),
    ],
    likelihood: Annotated[
        str, typer.Option(help="linear, logistic, poisson or negative-binomial.")
    ] = "linear",
    noise_std: Annotated[float | None, typer.Option(help="Noise of linear rewards.")] = None,
    dispersion: Annotated[float | None, typer.Option(help="Of negative-binomial rewards.")] = None,
    intercept: Annotated[bool, typer.Option("--intercept", help="A feature that is 1.")] = False,
    time: Annotated[str | None, typer.Option(help="Column to sort the rows of a task by.")] = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="File of another prior; repeat for more.")
    ] = None,
    max_tasks: Annotated[int, typer.Option(min=2, help="Judge by so many, at random.")] = 500,
    json_file: Json = None,
    seed: Seed = 0,
) -> None:
    """Judge a prior on the logs of tasks that it has not seen.

    Held-out log evidence beside a Gaussian and a mixture fitted to draws from the prior, and, by
    length of history, how well the next reward is foreseen.
    """
    with friendly_errors():
        if json_file is not None:
            check_output("json", json_file, prior, logs)
        from ..files.atomic import write_whole
        from ..logs.logs import Logs

        model = _likelihood(likelihood, noise_std, dispersion)
        priors = {path.stem: _load(path) for path in [prior, *(against or [])]}
        names = [name for some in features for name in some.split(",")]
        table = Logs.read(
            logs, task=task, reward=reward, features=names, time=time, intercept=intercept
        )
        say(f"{table.num_tasks} tasks, {table.num_rows} rows, {table.dim} features")
        tasks = _some_tasks(table, model, max_tasks, seed)
        comparison, check = _judge(priors, prior.stem, tasks, seed)
        typer.echo(f"{comparison}\n\nnext reward under {prior.stem}\n{check}")
        if json_file is not None:
            found = {"log_evidence": comparison.to_dict(), "next_reward": check.to_dict()}
            write_whole(json_file, json.dumps(found, indent=1) + "\n")
            say(f"wrote {json_file}")


@app.command("off-policy")
def judge_policy(
    prior: Annotated[Path, typer.Argument(help="File of a prior.")],
    log: Annotated[Path, typer.Argument(help="What `diffprior export` wrote: .parquet")],
    likelihood: Annotated[
        str, typer.Option(help="linear, logistic, poisson or negative-binomial.")
    ] = "logistic",
    noise_std: Annotated[float | None, typer.Option(help="Noise of linear rewards.")] = None,
    dispersion: Annotated[float | None, typer.Option(help="Of negative-binomial rewards.")] = None,
    num_draws: Annotated[int, typer.Option(min=1, help="Draws at each decision.")] = 64,
    json_file: Json = None,
    seed: Seed = 0,
) -> None:
    """Estimate what a prior would have earned on the decisions of the service's log."""
    with friendly_errors():
        if json_file is not None:
            check_output("json", json_file, prior, log)
        from ..extras import require

        require("logs", "pyarrow")
        from ..evaluate import LoggedDecisions, off_policy
        from ..files.atomic import write_whole

        model = _likelihood(likelihood, noise_std, dispersion)
        found = off_policy(
            _load(prior), LoggedDecisions.read(log), model, num_draws=num_draws, seed=seed
        )
        typer.echo(str(found))
        if json_file is not None:
            write_whole(json_file, json.dumps(found.to_dict(), indent=1) + "\n")
            say(f"wrote {json_file}")


def _judge(
    priors: "dict[str, AbstractPrior]", name: str, tasks: "Tasks", seed: int
) -> "tuple[Comparison, PredictiveCheck]":
    import jax
    import numpy as np

    from ..evaluate import compare, predictive_check
    from ..progress import progress

    with progress("judging the prior", 2) as shown:
        samples = np.asarray(priors[name].sample(jax.random.key(seed), NUM_DRAWN))
        comparison = compare(priors, tasks, samples=samples, seed=seed)
        shown.advance()
        check = predictive_check(priors[name], tasks, seed=seed)
        shown.advance()
    return comparison, check


def _likelihood(
    name: str, noise_std: float | None, dispersion: float | None
) -> "AbstractLikelihood":
    from ..checks import choice
    from ..evidence.families import LIKELIHOODS

    kind = LIKELIHOODS[choice("likelihood", name, tuple(LIKELIHOODS))]
    given = {"linear": ("noise-std", noise_std), "negative-binomial": ("dispersion", dispersion)}
    if name not in given:
        return kind()
    option, value = given[name]
    if value is None:
        raise ValueError(
            f"`{option}`: expected a number with {name} rewards, got none; pass --{option}"
        )
    return kind(value)


def _load(path: Path) -> "AbstractPrior":
    from ..files.base import load
    from ..priors.base import AbstractPrior

    prior = load(path)
    if not isinstance(prior, AbstractPrior):
        raise ValueError(
            f"`prior`: expected the file of a prior, got {type(prior).__name__} in {path}; "
            "pass what `diffprior learn`, `fit` or `prior.save` wrote"
        )
    return prior


def _some_tasks(
    table: "object", likelihood: "AbstractLikelihood", max_tasks: int, seed: int
) -> "Tasks":
    import numpy as np

    from ..evaluate.tasks import as_tasks

    tasks = as_tasks(table, likelihood)
    if len(tasks) <= max_tasks:
        return tasks
    say(f"judged by {max_tasks} of them, chosen at random")
    chosen = np.random.default_rng(seed).permutation(len(tasks))[:max_tasks]
    return tasks.select(np.sort(chosen))
