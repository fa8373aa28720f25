"""What a reader of the report should be warned of: logs that may mislead whatever is learned."""

import numpy as np

from ..evidence.base import AbstractLikelihood
from ..logs.logs import Logs
from ..priors.from_tasks.components import Components
from ..priors.from_tasks.data import AnyLogs, blocks_of
from ..priors.from_tasks.noise import Noise
from .diagnostics import Reliability

FEW_TASKS = 200
HARDLY_SEEN = 0.1
SURE = 1e-4  # p-value below which a pattern is told
CUT_OFF = 1.9  # spread of the lowest tenth over that of the next two; about 5 for a bell


def cautions(
    logs: AnyLogs,
    likelihood: AbstractLikelihood,
    gaussian: Components,
    seen: Reliability,
    noise: Noise | None,
) -> tuple[str, ...]:
    """Warnings, each in one sentence or two."""
    found = [
        _few_tasks(logs),
        _few_residuals(noise),
        _unseen(seen, logs.feature_names),
        _threshold(logs),
        _survivors(logs),
        _informative_lengths(logs),
        _drift(logs, likelihood, gaussian),
    ]
    return tuple(text for text in found if text)


def _few_tasks(logs: AnyLogs) -> str:
    if logs.num_tasks >= FEW_TASKS:
        return ""
    return (
        f"too few tasks: {logs.num_tasks}; below {FEW_TASKS} only a Gaussian is learned, and its "
        "covariance is rough"
    )


def _few_residuals(noise: Noise | None) -> str:
    if noise is None or noise.how != "joint":
        return ""
    return (
        f"the noise rests on {noise.degrees_of_freedom:.0f} residual degrees of freedom, so it was "
        "estimated jointly with a Gaussian prior; give noise_std if you know it"
    )


def _unseen(seen: Reliability, names: tuple[str, ...]) -> str:
    hidden = np.flatnonzero(seen.values < HARDLY_SEEN)
    if len(hidden) == 0:
        return ""
    told = [
        " and ".join(names[j] for j in np.argsort(-np.abs(seen.directions[i]))[:2])
        if len(names) > 1
        else names[0]
        for i in hidden[:3]
    ]
    return (
        f"unseen directions: one task says next to nothing about {len(hidden)} of "
        f"{len(seen.values)} directions (mostly {'; '.join(told)}); there the prior is little more "
        "than its Gaussian start"
    )


def _threshold(logs: AnyLogs) -> str:
    counts = np.asarray(logs.counts)
    least = counts.min()
    if least < 5 or counts.max() == least or logs.num_tasks < 50:
        return ""
    return (
        f"selection: no task has fewer than {least:.0f} rows; if short or abandoned tasks were "
        "left out, the prior is that of the survivors; keep all tasks, also those with one row"
    )


def mean_rewards(logs: AnyLogs) -> np.ndarray:
    """Mean reward of every task with rows; for statistics, along the first feature."""
    if isinstance(logs, Logs):
        sums = np.bincount(logs.row_tasks, logs.rewards, minlength=logs.num_tasks)
        return sums / np.maximum(logs.counts, 1)
    return logs.xy[:, 0] / np.maximum(logs.xx[:, 0], 1e-300)


def _survivors(logs: AnyLogs) -> str:
    """Mean rewards cut off from below: noise alone would leave a lower tail.

    The lowest tenth of a tail is spread over several times the width of each of the next two; of
    what was cut off, over about the same. Means that several tasks share are of rewards with a
    natural bound, such as no click at all, and tell nothing.
    """
    if logs.num_tasks < FEW_TASKS:
        return ""
    means = np.sort(mean_rewards(logs))
    each = len(means) // 10
    lowest, next_ = means[each - 1] - means[0], (means[3 * each - 1] - means[each - 1]) / 2
    if means[1] == means[0] or lowest > CUT_OFF * next_:
        return ""
    return (
        "selection: mean rewards of tasks break off below as if only the better ones had been "
        "kept; a prior of survivors promises new tasks too much, so add the others"
    )


def _informative_lengths(logs: AnyLogs) -> str:
    from scipy import stats  # slow to import, and not needed to decide

    counts = np.asarray(logs.counts, float)
    if logs.num_tasks < 50 or counts.max() == counts.min():
        return ""
    rho, p = stats.spearmanr(counts, mean_rewards(logs))
    if not (p < SURE and abs(rho) > 0.1):
        return ""
    return (
        f"informative lengths: tasks with more rows pay {'more' if rho > 0 else 'less'} (rank "
        f"correlation {rho:+.2f}); fine if the policy or a stopping rule did that by looking at "
        "the rows, misleading if traffic follows quality for reasons that are not in the table"
    )


def _drift(logs: AnyLogs, likelihood: AbstractLikelihood, gaussian: Components) -> str:
    from scipy import stats  # slow to import, and not needed to decide

    if not isinstance(logs, Logs) or logs.times is None or logs.num_tasks < 100:
        return ""
    begin = logs.times[logs.starts[:-1][logs.counts > 0]]
    if len(begin) < logs.num_tasks or np.ptp(begin) == 0:
        return ""
    order = np.argsort(logs.hashes, kind="stable")
    z = np.empty((logs.num_tasks, logs.dim))
    parts = [b.condition(gaussian).mean_z[:, 0].T for b in blocks_of(logs, likelihood)]
    z[order] = np.concatenate(parts)
    late = begin > np.median(begin)
    if late.all() or not late.any():
        return ""
    worst = min(
        float(stats.ttest_ind(z[late, j], z[~late, j], equal_var=False).pvalue)
        for j in range(logs.dim)
    )
    if worst * logs.dim > SURE:
        return ""
    return (
        "drift: tasks that began later differ from earlier ones; learn from recent tasks alone if "
        "the next ones will be like them"
    )
