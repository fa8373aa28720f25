"""First results in a fresh process where nothing is compiled: seconds, and programs compiled.

`python -m benchmarks.first_use --section bandits --json FILE`; with `--beside ../old/src` another
checkout is measured in turns.
"""

import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import numpy as np

EVENT = "/jax/core/compile/backend_compile_duration"
Case = Callable[[], Iterator[str]]  # yields the name of each step that it has done


def bandit_case(prior: str, likelihood: str) -> Iterator[str]:
    """Import, then a bandit's first decision, then one that follows an update."""
    import numpy as np

    import diffprior as dp

    make = {"Gaussian": dp.GaussianPrior, "mixture": dp.MixturePrior}[prior.split(",")[0]]
    rewards = dp.Linear(1.0) if likelihood == "linear" else dp.Logistic()
    dp.Bandit  # noqa: B018  (imported on first use)
    yield "import"
    rng = np.random.default_rng(0)
    k, d = (64, 8) if prior.endswith("d = 8") else (8, 2)
    means, covs = rng.standard_normal((k, d)), np.tile(np.eye(d), (k, 1, 1))
    parts = (means[0], covs[0]) if make is dp.GaussianPrior else (np.ones(k), means, covs)
    bandit = dp.Bandit(make(*parts), rewards, seed=0)
    features = rng.standard_normal((10, d))
    action = int(bandit.decide(features).action)
    yield "first decision"
    bandit.update(features[action], 1.0)
    bandit.decide(features)
    yield "update and decision"


def fit_case(name: str) -> Iterator[str]:
    """Import and fit, then a bandit's first decision, then a fit to other samples."""
    import numpy as np

    import diffprior as dp

    rng = np.random.default_rng(0)
    prior = dp.DiffusionPrior.fit(past_tasks(name, rng), seed=0, progress=False)
    yield "import and fit"
    dp.Bandit(prior, dp.Linear(1.0), seed=0).decide(np.eye(prior.dim))
    yield "first decision"
    dp.DiffusionPrior.fit(past_tasks(name, rng), seed=1, progress=False)
    yield "second fit"


def past_tasks(name: str, rng: "np.random.Generator", num_tasks: int = 10_000) -> "np.ndarray":
    """Parameters on a spiral in the plane, or in ten round clusters of eight."""
    import numpy as np

    if name == "clusters":
        means = 1.5 * np.random.default_rng(1).standard_normal((10, 8))
        return means[rng.integers(0, 10, num_tasks)] + 0.3 * rng.standard_normal((num_tasks, 8))
    u, v = rng.random((2, num_tasks))
    radius = 3.5 * u - u * (v - 0.5)
    return np.stack([np.sin(2 * np.pi * u) * radius, np.cos(2 * np.pi * u) * radius], axis=1)


SECTIONS: dict[str, dict[str, Case]] = {
    "bandits": {
        f"{prior}, {likelihood}": functools.partial(bandit_case, prior, likelihood)
        for prior in ("Gaussian, d = 2", "mixture, d = 2", "mixture, d = 8")
        for likelihood in ("linear", "logistic")
    },
    "fits": {
        "swirl, d = 2": functools.partial(fit_case, "swirl"),
        "clusters, d = 8": functools.partial(fit_case, "clusters"),
    },
}


def measure(section: str, case: str) -> None:
    """Print the seconds of every step of a case, and its programs, as JSON."""
    import jax

    programs = 0

    def count(event: str, *_: float, **__: str | int) -> None:
        nonlocal programs
        programs += event == EVENT

    jax.monitoring.register_event_duration_secs_listener(count)
    found: dict[str, float] = {}
    begin = time.perf_counter()
    for step in SECTIONS[section][case]():
        found[f"{step}, s"] = time.perf_counter() - begin
        found[f"programs of {step}"] = programs
        begin, programs = time.perf_counter(), 0
    found.pop("programs of import", None)
    print(json.dumps(found))


def in_fresh_process(source: Path, section: str, case: str) -> dict[str, float]:
    """Output of `measure` for the package in the folder `source`."""
    folders = os.pathsep.join([str(source), str(Path(__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": folders}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    code = f"from benchmarks.first_use import measure; measure({section!r}, {case!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(
    section: Annotated[str, typer.Option(help="Cases to measure.")] = "bandits",
    case: Annotated[str, typer.Option(help="Only cases whose names contain this.")] = "",
    beside: Annotated[Path | None, typer.Option(help="`src` of another checkout.")] = None,
    json: Annotated[Path | None, typer.Option(help="File for the numbers.")] = None,
    repetitions: Annotated[int, typer.Option(help="Processes per case.")] = 3,
) -> None:
    """Measure the cases of a section, each in processes of its own; medians."""
    from diffprior.cli.options import say_table

    from .harness import Measurement, as_numbers, table, write_json

    sources = {"": Path(__file__).parents[1] / "src", **({", beside": beside} if beside else {})}
    rows = []
    for name in (name for name in SECTIONS[section] if case in name):
        found: dict[str, list[dict[str, float]]] = {label: [] for label in sources}
        for _ in range(repetitions):
            for label, source in sources.items():
                found[label].append(in_fresh_process(source, section, name))
        for label, runs in found.items():
            medians = {step: statistics.median(run[step] for run in runs) for step in runs[0]}
            rows.append(Measurement(name + label, medians))
    say_table(table(f"First results in a fresh process: {section}.", rows))
    write_json(json, {section: as_numbers(rows)})


if __name__ == "__main__":
    typer.run(main)
