"""Answers to what a stranger asks first: is it healthy, does the prior pay, which version wins."""

import time

import numpy as np

from ..version import Version
from .charts import fate_of
from .markup import Answer
from .prior_gain import PriorGain
from .statistics import Mean, task_mean
from .window import Window

MANY_LATE, MANY_FAILED, MANY_LOST = 0.05, 0.01, 0.5  # shares that are worth a look


def health(window: Window, database_answers: bool) -> Answer:
    """Whether anything of the service itself is wrong."""
    wrong = []
    if not database_answers:
        wrong.append("the database does not answer")
    if np.mean(window.failed) > MANY_FAILED:
        wrong.append(
            f"{np.mean(window.failed):.1%} of draws failed: features or rewards are of extreme "
            "scale"
        )
    late = window.late.sum() / max(len(window.rewarded) + window.late.sum(), 1)
    if late > MANY_LATE:
        wrong.append(f"{late:.1%} of rewards came too late: `reward_wait` is too short")
    lost = float(np.mean(fate_of(window)["no reward came"]))
    if lost > MANY_LOST:
        wrong.append(f"{lost:.0%} of decisions never got a reward: set `default_reward`")
    if wrong:
        return Answer("Is it healthy?", "Needs a look", "; ".join(wrong) + ".", "bad")
    why = (
        f"Last decision {_ago(time.time() - window.created[-1])} ago; {late:.1%} of rewards late, "
        f"{np.mean(window.failed):.1%} of draws failed."
    )
    return Answer("Is it healthy?", "Yes", why, "good")


def calibrated(window: Window) -> Answer:
    """Whether rewards are what was predicted."""
    question, known = "Are predictions right?", window.rewarded
    off = task_mean(known.reward - known.predicted, known.task)
    if not off.error > 0:
        return Answer(question, "Too early to say", "It takes rewards of several tasks.")
    why = (
        f"Obtained {np.mean(known.reward):.3g}, predicted {np.mean(known.predicted):.3g} a "
        f"decision; the difference is {off}."
    )
    if abs(off.value) <= 3 * off.error:
        return Answer(question, "Yes", why, "good")
    word = "Too low" if off.value > 0 else "Too high"
    return Answer(question, word, why + " Learn a new prior from the log.", "bad")


def prior_pays(gains: dict[int, PriorGain | None]) -> Answer:
    """Whether the newest prior that can be judged beats its Gaussian."""
    question = "Does the prior pay?"
    known = {v: g for v, g in gains.items() if g is not None and not g.problem}
    if not known:
        waits = any(gain is None for gain in gains.values())
        reasons = [f"Version {v}: {g.problem}." for v, g in gains.items() if g is not None]
        why = "Being computed; load the page again." if waits else " ".join(reasons)
        return Answer(question, "Not known yet", why)
    version, gain = next(iter(known.items()))
    why = (
        f"Version {version}: {gain} over a Gaussian of the same moments, on {gain.num_tasks} tasks "
        f"with {gain.num_rows:,} rewards."
    )
    if abs(gain.gain) <= 2 * gain.error:
        return Answer(question, "No difference so far", why)
    return Answer(question, *(("Yes", why, "good") if gain.gain > 0 else ("It costs", why, "bad")))


def better_version(window: Window, versions: list[Version]) -> Answer:
    """Which of the two newest versions earns more, while both served."""
    question, known = "Which version is better?", window.rewarded
    present = [v for v in known.versions if any(v == one.version for one in versions)][:2]
    if len(present) < 2:
        return Answer(question, "Only one serves", "Put a version on half of the traffic.")
    both = served_together(known, *present)
    new, old = (_earned(both, version) for version in present)
    gap = Mean(new.value - old.value, float(np.hypot(new.error, old.error)), new.count)
    why = (
        f"Version {present[0]} earns {new}, version {present[1]} {old} a decision while both "
        f"served; the difference is {gap}."
    )
    if not gap.error > 0 or abs(gap.value) <= 2 * gap.error:
        return Answer(question, "No difference so far", why)
    return Answer(question, f"Version {present[0 if gap.value > 0 else 1]}", why, "good")


def served_together(window: Window, first: int, second: int) -> Window:
    """Decisions of two versions from when both had begun until one of them stopped."""
    times = [window.created[window.version == version] for version in (first, second)]
    begin, end = max(t.min() for t in times), min(t.max() for t in times)
    own = (window.version == first) | (window.version == second)
    return window.where(own & (window.created >= begin) & (window.created <= end))


def _earned(window: Window, version: int) -> Mean:
    own = window.where(window.version == version)
    return task_mean(own.reward, own.task)


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} seconds"
