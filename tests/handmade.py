"""Results made by hand."""

import numpy as np

from experiments.experiment import AgentResult, PosteriorError, ProblemResult, Regret, paired


def regret(final: list[float] | float, noise: float = 0.0, runs: int = 50, seed: int = 0) -> Regret:
    """Regret of these runs, or of runs about a mean."""
    rng = np.random.default_rng(seed)
    runs_of = final if isinstance(final, list) else list(final + noise * rng.standard_normal(runs))
    error = paired(runs_of, [0.0] * len(runs_of))[1]
    mean = float(np.mean(runs_of))
    return Regret(
        mean, error, [float(x) for x in runs_of], [mean / 2, mean], [error] * 2, 1.0, 2.0, 0
    )


def problem(name: str = "rays", **agents: Regret) -> ProblemResult:
    """Agents of these regrets, each with a posterior and half its regret at temperature 0.5."""
    quality = PosteriorError([2.0, 1.04], [0.2, 0.04], 0.9, 0.02)
    found = {
        agent.replace("_", " ").replace("MixTSK", "MixTS(K)"): AgentResult(
            value, {"0.5": regret([x / 2 for x in value.final])}, quality
        )
        for agent, value in agents.items()
    }
    return ProblemResult(name, (5, 20), found)
