"""The experiments on the command line: `diffprior reproduce`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..checks import positive
from ..problems.datasets import VARIABLE
from ..problems.synthetic import SYNTHETIC
from ..terminal import console, refusals, watching
from .ablation import ablation_experiment
from .agents import NAMES, USUAL
from .data import PAPER_NOISE, mnist_data, movielens_data
from .output import REPORT
from .parts import Parts
from .posterior import NAMES as MIXTURES
from .posterior import posterior_experiment
from .real import Measures, real_effort, real_experiment
from .study import Effort
from .synthetic import synthetic_experiment

app = typer.Typer(no_args_is_help=True, help="Run the paper's experiments again.")

Out = Annotated[Path, typer.Option(help="Folder for figures, report and finished parts.")]
Json = Annotated[Path | None, typer.Option("--json", help="File for the numbers, as JSON.")]
Quick = Annotated[bool, typer.Option("--quick", help="A small version of everything.")]
Runs = Annotated[int | None, typer.Option(min=1, help="Runs of each agent; 512 unless quick.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Run finished parts again.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
Folder = Annotated[
    Path | None, typer.Option("--data", help=f"Folder of the data; {VARIABLE} unless given.")
]
Download = Annotated[bool, typer.Option("--download", help="Fetch data that are not there.")]
Problems = Annotated[list[str] | None, typer.Option("--problem", help="One; repeat for more.")]
Agents = Annotated[
    list[str] | None, typer.Option("--agent", help=f"One of {', '.join(NAMES)}; repeat for more.")
]


@app.command()
def synthetic(
    out: Out = Path("results/synthetic"),
    json_file: Json = None,
    quick: Quick = False,
    runs: Runs = None,
    problem: Problems = None,
    agent: Agents = None,
    logistic: Annotated[bool, typer.Option("--logistic", help="Rewards of 0 and 1.")] = False,
    fresh: Fresh = False,
    seed: Seed = 0,
) -> None:
    """Regret on the six synthetic problems (Section 6.2 and Appendix C.1)."""

    def run(parts: Parts) -> dict[str, Any]:
        return synthetic_experiment(
            out,
            parts,
            names=tuple(problem or SYNTHETIC),
            agents=tuple(agent or USUAL),
            effort=Effort.of(runs, quick),
            logistic=logistic,
            seed=seed,
        )

    conduct(run, out, json_file, fresh)


@app.command()
def ablation(
    out: Out = Path("results/ablation"),
    json_file: Json = None,
    quick: Quick = False,
    runs: Runs = None,
    fresh: Fresh = False,
    seed: Seed = 0,
) -> None:
    """Regret by training samples and by stages, and the time of stages (Appendix C.3)."""

    def run(parts: Parts) -> dict[str, Any]:
        effort = Effort.of(runs, quick)
        return ablation_experiment(out, parts, effort=effort, quick=quick, seed=seed)

    conduct(run, out, json_file, fresh)


@app.command()
def posterior(
    out: Out = Path("results/posterior"),
    json_file: Json = None,
    quick: Quick = False,
    problem: Problems = None,
    fresh: Fresh = False,
    seed: Seed = 0,
) -> None:
    """Distance of every sampler from the exact posterior (Appendix C.4)."""

    def run(parts: Parts) -> dict[str, Any]:
        names = tuple(problem or MIXTURES)
        return posterior_experiment(out, parts, names=names, quick=quick, seed=seed)

    conduct(run, out, json_file, fresh)


@app.command()
def movielens(
    data: Folder = None,
    out: Out = Path("results/movielens"),
    json_file: Json = None,
    quick: Quick = False,
    runs: Runs = None,
    noise: Annotated[
        str, typer.Option(help="Of linear rewards, or `estimated` from the ratings.")
    ] = str(PAPER_NOISE),
    download: Download = False,
    fresh: Fresh = False,
    seed: Seed = 0,
) -> None:
    """Regret on MovieLens 1M, and what a diffusion prior is worth there (Section 6.3)."""

    def run(parts: Parts) -> dict[str, Any]:
        noise_std = noise_of(noise)
        loaded = movielens_data(parts, data, noise_std=noise_std, seed=seed, download=download)
        effort, measures = real_effort(runs, quick), Measures.of(quick)
        return real_experiment(out, parts, loaded, effort=effort, measures=measures, seed=seed)

    conduct(run, out, json_file, fresh)


@app.command()
def mnist(
    data: Folder = None,
    out: Out = Path("results/mnist"),
    json_file: Json = None,
    quick: Quick = False,
    runs: Runs = None,
    download: Download = False,
    fresh: Fresh = False,
    seed: Seed = 0,
) -> None:
    """Regret on MNIST, and what a diffusion prior is worth there (Appendix C.2)."""

    def run(parts: Parts) -> dict[str, Any]:
        loaded = mnist_data(parts, data, seed=seed, download=download)
        effort, measures = real_effort(runs, quick), Measures.of(quick)
        return real_experiment(out, parts, loaded, effort=effort, measures=measures, seed=seed)

    conduct(run, out, json_file, fresh)


def noise_of(text: str) -> float | None:
    """A standard deviation, or None where it is to be estimated."""
    if text == "estimated":
        return None
    try:
        number = float(text)
    except ValueError:
        raise ValueError(
            f"`noise`: expected a number or estimated, got {text!r}; pass one of those"
        ) from None
    return float(positive("noise", number, "pass a standard deviation"))


def conduct(
    run: Callable[[Parts], dict[str, Any]], out: Path, json_file: Path | None, fresh: bool
) -> None:
    """Run an experiment, showing how far it is, and say where its results are."""
    with refusals(), watching() as watch:
        numbers = run(Parts(out / "parts", fresh=fresh, watch=watch))
        summary = numbers.pop("summary", "")
        if json_file is not None:
            json_file.write_text(json.dumps(numbers, indent=1), encoding="utf-8")
    if summary:
        console.print(summary, soft_wrap=True, markup=False)
    if json_file is not None:
        console.print(f"wrote {json_file}", soft_wrap=True, markup=False)
    console.print(f"the report is {out / REPORT}", soft_wrap=True, markup=False)
