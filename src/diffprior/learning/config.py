"""Settings of learning from logs."""

from dataclasses import dataclass

from ..fitting.search import SearchConfig

LOGS_SEARCH = SearchConfig(
    max_components=24,
    max_tied=0,
    pooling_per_parameter=0.5,
    tasks_per_component=20.0,
    num_folds=3,
)


@dataclass(frozen=True)
class LearningConfig:
    """Settings of `learn` that few users change.

    Attributes:
        min_tasks: Fewest tasks to learn from.
        min_held_out_tasks: Fewest tasks from which some are held out for the report; with fewer
            only a Gaussian is learned, and the report is cross-validated.
        report_share: Share of tasks that only the report sees.
        min_order: Smallest learnable order of structure, ln n / ln(1 / B), at which mixtures are
            tried; two modes need about 4.
        search: Mixtures that are tried.
        sample_tasks: Tasks of shards in memory, by which families are chosen and scored.
        sample_numbers: Most numbers in the rows of that sample.
        num_folds: Of the tasks learned from, one fold scores the diffusion model.
        scoring_tasks: Most tasks of that fold.
        max_rounds: Most rounds of EM of the diffusion model.
        round_steps: Optimizer steps per round, a quarter of a first fit's.
        round_draws: Fewest posterior draws to train on in a round; with fewer tasks, several draws
            are taken per task.
        round_tasks: Tasks that a round draws from; a fresh share of them if there are more.
    """

    min_tasks: int = 10
    min_held_out_tasks: int = 200
    report_share: float = 0.1
    min_order: float = 4.0
    search: SearchConfig = LOGS_SEARCH
    sample_tasks: int = 50_000
    sample_numbers: int = 50_000_000
    num_folds: int = 9
    scoring_tasks: int = 500
    max_rounds: int = 8
    round_steps: int = 1000
    round_draws: int = 4000
    round_tasks: int = 200_000
