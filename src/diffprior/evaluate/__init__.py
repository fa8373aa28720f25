"""Evaluation of priors and samplers: on simulated tasks, where the truth is known, and on logs.

`coverage`, `rank_uniformity` and `earth_movers_distance` evaluate posteriors; `log_evidence` and
`compare` evaluate priors on tasks that they have not seen; `predictive_check` evaluates both by the
next rewards of logs, where no true parameters are known; `off_policy` estimates the reward that a
policy would have earned on the decisions of another.
"""

from ..logs.decisions import LoggedChoices, LoggedDecisions
from .calibration import (
    Coverage,
    PredictiveCheck,
    PredictiveRow,
    RankUniformity,
    coverage,
    predictive_check,
    rank_uniformity,
)
from .comparison import (
    Comparison,
    LogEvidence,
    cold_start,
    compare,
    estimate_log_evidence,
    first_rewards,
    log_evidence,
)
from .distances import (
    Distance,
    distance_over_floor,
    earth_movers_distance,
)
from .replay import Estimate, OffPolicy, off_policy
from .tasks import simulate_tasks

__all__ = [
    "Comparison",
    "Coverage",
    "Distance",
    "Estimate",
    "LogEvidence",
    "LoggedChoices",
    "LoggedDecisions",
    "OffPolicy",
    "PredictiveCheck",
    "PredictiveRow",
    "RankUniformity",
    "cold_start",
    "compare",
    "coverage",
    "distance_over_floor",
    "earth_movers_distance",
    "estimate_log_evidence",
    "first_rewards",
    "log_evidence",
    "off_policy",
    "predictive_check",
    "rank_uniformity",
    "simulate_tasks",
]
