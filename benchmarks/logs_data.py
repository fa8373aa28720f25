"""MovieLens and MNIST learned from rows instead of fitted parameters.

`python -m diffprior.bench.logs_data movielens --data FOLDER --report pages --json figures.json`
says how much of the gain over a Gaussian that clean parameters give is left when a prior is learned
from so many rows of each task, on tasks held out; and writes the page of each report.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from diffprior.logs.logs import Logs
    from diffprior.problems.rows import RowProblem

TARGET = 0.7  # of the clean gain, from 100 rows a task
HELD_OUT = 0.2


@dataclass(frozen=True)
class DataFigure:
    """Gains over the Gaussian of clean parameters, in nats a task held out, and their share.

    Attributes:
        data: name of the data.
        num_rows: rows of every task, of those learned from and of those judged on.
        clean: gain of the prior fitted to clean parameters.
        learned: gain of the prior learned from rows, its estimated noise included.
        error: standard error of that gain.
        gaussian: gain of the Gaussian learned from rows; negative where rows say less.
        mixture: gain of the best closed form learned from rows.
        share: learned over clean.
        target: the share to reach; None where it is only reported.
        chosen: what was learned.
        seconds: of learning.
    """

    data: str
    num_rows: int
    clean: float
    learned: float
    error: float
    gaussian: float
    mixture: float
    share: float
    target: float | None
    chosen: str
    seconds: float

    def __str__(self) -> str:
        """On one line."""
        mark = "" if self.target is None else (" ok" if self.share >= self.target else " MISS")
        return (
            f"{self.data}, {self.num_rows} rows a task: {self.learned:+.3f} +- {self.error:.3f} "
            f"from rows ({self.chosen}), {self.clean:+.3f} from clean parameters: share "
            f"{self.share:.2f}{mark}; Gaussian from rows {self.gaussian:+.3f}, closed form "
            f"{self.mixture:+.3f}; {self.seconds:.0f} s"
        )


def learn_from_rows(
    data: str, problem: "RowProblem", num_rows: int, options: argparse.Namespace
) -> DataFigure:
    """Both priors on the same tasks held out, after so many rows of each."""
    import jax

    from diffprior.evaluate.estimates import log_evidence
    from diffprior.evidence.linear import Linear
    from diffprior.learning.ladder import learn
    from diffprior.priors.diffusion import DiffusionPrior
    from diffprior.priors.gaussian import GaussianPrior

    seen, out = problem.split(jax.random.key(options.seed), HELD_OUT)
    rng = np.random.default_rng([options.seed, num_rows])
    logs, judged = (rows_of_problem(rng, part, num_rows) for part in (seen, out))
    judged = judged.select(np.arange(min(options.tasks, judged.num_tasks)))
    begin = time.perf_counter()
    learned = learn(logs, Linear(), seed=options.seed, up_to=options.up_to, progress=False)
    seconds = time.perf_counter() - begin
    if options.report is not None:
        options.report.mkdir(parents=True, exist_ok=True)
        learned.report.to_html(options.report / f"{data}-{num_rows}.html")
    parameters = np.asarray(seen.parameters, np.float64)
    base = log_evidence(GaussianPrior.fit(parameters), judged, problem.likelihood)
    clean_prior = DiffusionPrior.fit(parameters, seed=options.seed, progress=False)
    clean = log_evidence(clean_prior, judged, problem.likelihood) - base
    ours = {
        name: log_evidence(prior, judged, learned.likelihood) - base
        for name, prior in {**learned.families, "chosen": learned.prior}.items()
    }
    closed = [name for name in ours if name.startswith(("mixture", "kernels"))]
    gain = ours["chosen"]
    return DataFigure(
        data,
        num_rows,
        clean=float(clean.mean()),
        learned=float(gain.mean()),
        error=float(gain.std(ddof=1) / np.sqrt(len(gain))),
        gaussian=float(ours["Gaussian"].mean()),
        mixture=float(ours[closed[0] if closed else "Gaussian"].mean()),
        share=float(gain.mean() / clean.mean()),
        target=TARGET if num_rows >= 100 else None,
        chosen=learned.report.chosen,
        seconds=seconds,
    )


def rows_of_problem(rng: np.random.Generator, problem: "RowProblem", num_rows: int) -> "Logs":
    """Every task of a problem with linear rewards once, after so many random actions."""
    from diffprior.evidence.linear import Linear
    from diffprior.logs.logs import Logs

    assert isinstance(problem.likelihood, Linear) and problem.likelihood.noise_std is not None
    thetas = np.asarray(problem.parameters, np.float64)
    actions = np.asarray(problem.actions, np.float64)
    tasks = np.repeat(np.arange(len(thetas)), num_rows)
    x = actions[rng.integers(len(actions), size=len(tasks))]
    noise = float(problem.likelihood.noise_std) * rng.standard_normal(len(tasks))
    return Logs(tasks, x, np.sum(x * thetas[tasks], axis=1) + noise)


def main() -> None:
    """Learn from rows of each number, and print what is left of the gain."""
    from experiments.mnist import mnist
    from experiments.movielens import movielens

    problems: dict[str, Any] = {"movielens": movielens, "mnist": mnist}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=list(problems))
    parser.add_argument("--data", dest="folder", type=Path, default=None, help="of the files")
    parser.add_argument("--rows", type=int, nargs="+", default=[10, 100], help="of every task")
    parser.add_argument("--tasks", type=int, default=400, help="held out, to judge on")
    parser.add_argument("--up-to", default="diffusion", help="last rung of the ladder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, default=None, help="folder for the pages")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    problem = problems[options.data](options.folder, seed=options.seed)
    figures = []
    for num_rows in options.rows:
        figures.append(learn_from_rows(options.data, problem, num_rows, options))
        print(figures[-1], flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(f) for f in figures], indent=1))


if __name__ == "__main__":
    main()
