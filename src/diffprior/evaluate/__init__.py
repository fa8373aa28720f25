"""How good a prior or a sampler is: on simulated tasks, where the truth is known, and on your own.

`coverage`, `rank_uniformity` and `earth_movers_distance` judge posteriors; `log_evidence` and
`compare` judge priors on tasks that they have not seen; `predictive_check` judges both by the next
rewards of your own logs, where no true parameters are known; `off_policy` estimates what a policy
would have earned on the decisions of another.
"""

from ..logs.decisions import LoggedDecisions
from .calibration import (
    Coverage,
    PredictiveCheck,
    PredictiveRow,
    RankUniformity,
    coverage,
    predictive_check,
    rank_uniformity,
)
from .comparison import Comparison, LogEvidence, compare, estimate_log_evidence, log_evidence
from .distances import (
    Distance,
    PosteriorQuality,
    distance_over_floor,
    earth_movers_distance,
    posterior_quality,
    prior_distances,
)
from .off_policy import Estimate, OffPolicy, off_policy
from .tasks import Tasks

__all__ = [
    "Comparison",
    "Coverage",
    "Distance",
    "Estimate",
    "LogEvidence",
    "LoggedDecisions",
    "OffPolicy",
    "PosteriorQuality",
    "PredictiveCheck",
    "PredictiveRow",
    "RankUniformity",
    "Tasks",
    "compare",
    "coverage",
    "distance_over_floor",
    "earth_movers_distance",
    "estimate_log_evidence",
    "log_evidence",
    "off_policy",
    "posterior_quality",
    "predictive_check",
    "prior_distances",
    "rank_uniformity",
]
