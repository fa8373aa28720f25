"""What the numbers on a data set say of the paper's claims, and of when a diffusion prior pays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .report import Block, Heading, Table, Text, plus_minus
from .study import paired
from .verdicts import difference_table, lowest, regret_table, temperature_table, time_table

BASELINES = ("TS", "TunedTS", "MixTS", "MixTS(10)", "LinUCB", "DPS")
METHOD = "DiffTS"  # of the paper
ACCURATE = "EvidenceDPS"  # whose posterior is close to that of its prior
CLOSED_FORM = ("TunedTS", "MixTS(10)")
BARELY = 0.05  # of regret
TITLES = {"paper": "diffusion, the paper's preset", "default": "diffusion, default"}
Study = dict[str, Any]


@dataclass(frozen=True)
class RealResult:
    """Numbers of an experiment on data, one result for each kind of rewards."""

    title: str
    rewards: Sequence[dict[str, Any]]
    distances: dict[str, Any]

    @property
    def studies(self) -> list[Study]:
        """Those of all tasks, then those of tasks held out."""
        return [result[key] for key in ("all", "held_out") for result in self.rewards]


def sections(found: RealResult) -> list[Block]:
    """All that a report says: tables, and what they come to in words."""
    return [
        Heading("Regret"),
        Text(_REGRET),
        regret_table(found.studies),
        difference_table(found.studies),
        Heading("The paper's claims"),
        *(Text(" ".join(paper_claims(study))) for study in found.studies),
        Heading("When the diffusion prior pays"),
        *(Text(" ".join(what_pays(result))) for result in found.rewards),
        Heading("Temperatures"),
        Text(_TEMPERATURES),
        *map(temperature_table, found.studies),
        Heading("Log evidence of tasks held out"),
        Text(_LOG_EVIDENCE),
        *(evidence_table(result) for result in found.rewards),
        Heading("Samples of the priors"),
        priors_table(found),
        Heading("Cost"),
        time_table(found.studies),
        *(long_table(result) for result in found.rewards if "long" in result),
    ]


def paper_claims(study: Study) -> list[str]:
    """Whether DiffTS has the lowest regret, and whether MixTS is barely better than TunedTS."""
    agents = study["agents"]
    rivals = [name for name in BASELINES if name in agents]
    if METHOD not in agents or not rivals:
        return []
    best = lowest(study, rivals)
    gap, error = paired(agents[best]["final"], agents[METHOD]["final"])
    margin = plus_minus(abs(gap), error)
    if gap > 2 * error:
        text = f"{METHOD} has a lower regret than all baselines, by {margin} (paired) than {best}"
    elif gap >= 0:
        text = f"{METHOD} is lowest, but not beyond chance: {best} is higher by {margin} (paired)"
    else:
        chance = ", within two standard errors" if -gap < 2 * error else ""
        text = f"{METHOD} does not have the lowest regret: {best} is lower by {margin}{chance}"
    leader = lowest(study)
    more = "" if leader in (METHOD, *rivals) else f" Of all agents, {leader} has the lowest regret."
    return [f"{study['name'].capitalize()}: {text}.{more}", *_mixtures(study)]


def _mixtures(study: Study) -> list[str]:
    agents = study["agents"]
    names = [name for name in ("MixTS", "MixTS(10)") if name in agents]
    if "TunedTS" not in agents or not names:
        return []
    return [
        " ".join(_mixture(name, agents[name], agents["TunedTS"]) for name in names),
    ]


def _mixture(name: str, mixture: dict[str, Any], tuned: dict[str, Any]) -> str:
    gap, error = paired(tuned["final"], mixture["final"])
    share = gap / tuned["regret"]
    saved = f"{name} saves {plus_minus(gap, error, signed=True)} of the regret of TunedTS"
    if abs(gap) <= 2 * error:
        return f"{saved}, nothing beyond chance."
    if gap < 0:
        return f"{saved}: it is worse."
    barely = "barely better, as the paper says" if share < BARELY else "more than barely"
    return f"{saved}, or {100 * share:.0f} %: {barely}."


def what_pays(result: dict[str, Any]) -> list[str]:
    """The prior compared at equal temperature, temperature alone, and log evidence."""
    everything, held_out = (
        [*_equal_temperature(study), *_temperature_alone(study)]
        for study in (result["all"], result["held_out"])
    )
    later = ["On tasks held out:", *held_out] if held_out else []
    name = f"{result['name'].capitalize()} rewards:"
    return [name, *everything, *later, evidence_verdict(result)]


def _equal_temperature(study: Study) -> list[str]:
    agents = study["agents"]
    rivals = [name for name in CLOSED_FORM if name in agents]
    if ACCURATE not in agents or not rivals:
        return []
    listed = "; ".join(_saved(name, agents[name], agents[ACCURATE]) for name in rivals)
    return [
        f"At equal temperature {ACCURATE}, which draws well from the posterior of the diffusion "
        f"prior, saves {listed}."
    ]


def _saved(name: str, rival: dict[str, Any], ours: dict[str, Any]) -> str:
    """What is saved over one rival at every temperature, and where that is beyond chance."""
    temperatures = ["1", *ours.get("temperatures", {})]
    saved = {t: paired(_final(rival, t), _final(ours, t)) for t in temperatures}
    listed = ", ".join(f"{plus_minus(*saved[t], signed=True)} at {t}" for t in temperatures)
    clear = [t for t, (gap, error) in saved.items() if gap > 2 * error]
    where = f"beyond chance at {_and(clear)}" if clear else "nowhere beyond chance"
    return f"over {name} {listed} ({where})"


def _temperature_alone(study: Study) -> list[str]:
    """What a lower temperature gives to TunedTS, beside what DiffTS gives at temperature 1."""
    agents = study["agents"]
    if METHOD not in agents or not agents.get("TunedTS", {}).get("temperatures"):
        return []
    tuned, method = agents["TunedTS"], agents[METHOD]
    best = min(tuned["temperatures"], key=lambda t: tuned["temperatures"][t]["regret"])
    gain = paired(tuned["final"], method["final"])
    cooled = paired(tuned["final"], _final(tuned, best))
    ahead, error = paired(_final(tuned, best), method["final"])
    text = (
        f"{METHOD} at temperature 1 saves {plus_minus(*gain, signed=True)} over TunedTS; a "
        f"temperature of {best} saves TunedTS {plus_minus(*cooled, signed=True)} with no diffusion "
        "model at all"
    )
    if ahead > 2 * error:
        return [f"{text}, which leaves {METHOD} {plus_minus(ahead, error)} ahead."]
    return [f"{text}, so that the gain of {METHOD} need not come from its prior."]


def evidence_verdict(result: dict[str, Any]) -> str:
    """Whether the diffusion prior explains tasks that were held out better than closed forms."""
    found = result["log_evidence"]
    rivals = ("Gaussian", "mixture of 10")
    gains = {
        (rival, size): paired(found["default"][size]["values"], found[rival][size]["values"])
        for size in found["default"]
        for rival in rivals
    }
    listed = "; ".join(
        f"{plus_minus(*gain, signed=True)} over the {rival} after {size} actions"
        for (rival, size), gain in gains.items()
    )
    pays = [
        rival
        for rival in rivals
        if any(gain > 2 * error for (r, _), (gain, error) in gains.items() if r == rival)
    ]
    verdict = f"a better prior than the {_and(pays)}" if pays else "no better prior than either"
    return (
        f"By log evidence per task held out, with no bandit involved, the diffusion prior gains "
        f"{listed}: {verdict}."
    )


def evidence_table(result: dict[str, Any]) -> Table:
    """Mean log evidence of every prior, and how much more it is than that of the Gaussian."""
    found = result["log_evidence"]
    sizes = list(found["Gaussian"])
    laplace = any("laplace" in found[name][size] for name in found for size in sizes)
    kinds = ("log p(h)", "less Gaussian", "estimation", *(["Laplace"] if laplace else []))
    columns = [f"N = {size}, {kind}" for size in sizes for kind in kinds]
    rows = [
        [
            TITLES.get(name, name),
            *(cell for size in sizes for cell in _evidence(found, name, size)[: len(kinds)]),
        ]
        for name in found
    ]
    caption = (
        f"{result['name']}: mean log evidence per task after N random actions with its standard "
        "error over tasks; the difference from the Gaussian, paired; what estimating adds to the "
        "standard error, and in brackets by how much the mean is low for it"
    )
    more = "; and Laplace's approximation of the mean." if laplace else "."
    return Table(("prior", *columns), rows, caption + more)


def _evidence(found: dict[str, Any], name: str, size: str) -> list[str]:
    row, gaussian = found[name][size], found["Gaussian"][size]
    gain = "" if name == "Gaussian" else paired(row["values"], gaussian["values"])
    estimated = f"± {row['estimation_error']:.3f} ({row['shortfall']:.3f})"
    return [
        plus_minus(row["mean"], row["standard_error"]),
        gain and plus_minus(*gain, signed=True),
        estimated if row["estimation_error"] else "exact",
        f"{row['laplace']:.2f}" if "laplace" in row else "",
    ]


def priors_table(found: RealResult) -> Table:
    """How far samples of each prior are from parameters that were held out."""
    rows = [
        [TITLES.get(name, name), plus_minus(row["ratio"], row["standard_error"])]
        for name, row in found.distances.items()
    ]
    floor = next(iter(found.distances.values()))["floor"]
    caption = (
        "Earth mover's distance of samples of a prior from parameters held out, over that of as "
        f"many parameters not held out, {floor:.3f}: 1 is as good as the parameters themselves."
    )
    return Table(("prior", "distance over floor"), rows, caption)


def long_table(result: dict[str, Any]) -> Table:
    """Regret and time of many rounds."""
    rows = [
        [
            name,
            str(len(row["final"])),
            plus_minus(row["regret"], row["standard_error"]),
            f"{row['milliseconds']:.2f}",
            f"{row['seconds']:.1f}",
            str(row["failures"]),
        ]
        for name, row in result["long"].items()
    ]
    columns = ("agent", "runs", "regret", "ms per round", "seconds", "failed draws")
    caption = f"{result['name']} rewards, a long run: milliseconds per round of one run."
    return Table(columns, rows, caption)


def _final(agent: dict[str, Any], temperature: str) -> list[float]:
    return agent["final"] if temperature == "1" else agent["temperatures"][temperature]["final"]


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


_REGRET = (
    "Held out means that the priors were learned from four tasks in five and that the agents act "
    "on the others, which is what a user will meet. DiffTS is the paper's preset to the letter; "
    "DiffTS fitted, EvidenceDPS and TwistedSMC share one prior of the default kind. MixTS has 2 "
    "components unless its name says otherwise; for logistic rewards each is conditioned by "
    "Laplace's approximation."
)
_TEMPERATURES = (
    "Compare priors within a column. Where a lower temperature helps every agent alike, what looks "
    "like a better method at temperature 1 may only explore less."
)
_LOG_EVIDENCE = (
    "How well a prior explains tasks that it has not seen asks nothing of exploration. All priors "
    "were learned without these tasks. The log evidence is exact for linear rewards under Gaussian "
    "and mixture; otherwise it is the log of the mean of unbiased estimates by TwistedSMC, under "
    "the stages that it runs through. The paper's preset is left out: each of its stages has a "
    "network of its own, whose errors are unrelated, so that the weights vary and the log of an "
    "estimate is too low (by more than what the priors differ in)."
)
