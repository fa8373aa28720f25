"""Tables and sentences that say what a study found, also where it is not what one hoped for."""

from collections.abc import Sequence
from typing import Any

from .agents import NUM_ATOMS
from .report import Block, Heading, Table, Text, plus_minus
from .study import paired

METHODS = ("DiffTS", "DiffTS fitted")  # whose claims the paper makes; the first that is there
NOMINAL = 0.9
Study = dict[str, Any]


def study_sections(studies: Sequence[Study]) -> list[Block]:
    """All that a report says of some studies: tables, and what they come to in words."""
    words = [" ".join(verdict(study)) for study in studies]
    return [
        Heading("Regret"),
        regret_table(studies),
        difference_table(studies),
        Text(_EXACT),
        Heading("What it says"),
        *(Text(text) for text in words if text),
        Heading("Posteriors and regret"),
        Text(_POSTERIORS),
        *map(posterior_table, studies),
        Heading("Temperatures"),
        Text(_TEMPERATURES),
        *map(temperature_table, studies),
        Heading("Cost"),
        time_table(studies),
    ]


def regret_table(studies: Sequence[Study]) -> Table:
    """Regret of every agent on every problem; the lowest of each problem stands out."""
    names = _names(studies)
    rows = [
        [
            name,
            *(
                _of(study, name, lambda a: plus_minus(a["regret"], a["standard_error"]))
                for study in studies
            ),
        ]
        for name in names
    ]
    marked = {(names.index(short(lowest(study))), j + 1) for j, study in enumerate(studies)}
    caption = f"Regret after the last round, with its standard error over runs. {_runs(studies)}"
    return Table(("agent", *_titles(studies)), rows, caption, frozenset(marked))


def difference_table(studies: Sequence[Study]) -> Table:
    """How much more regret every agent has than the best one, run by run."""

    def cell(study: Study, agent: dict[str, Any]) -> str:
        best = study["agents"][lowest(study)]
        if agent is best:
            return "lowest"
        return plus_minus(*paired(agent["final"], best["final"]), signed=True)

    rows = [
        [name, *(_of(study, name, lambda a, study=study: cell(study, a)) for study in studies)]
        for name in _names(studies)
    ]
    caption = (
        "Regret less that of the lowest agent that has played all runs, paired over the runs that "
        "both have played. It was chosen by these same runs, so chance is on its side."
    )
    return Table(("agent", *_titles(studies)), rows, caption)


def posterior_table(study: Study) -> Table:
    """Posterior error, coverage and regret of the agents of one problem, side by side."""
    sizes = [f"N = {size}" for size in study["sizes"]]
    rows = []
    for name, agent in study["agents"].items():
        if "posterior" not in agent:
            continue
        found = agent["posterior"]
        errors = zip(found["ratio"], found["ratio_error"], strict=True)
        covered = plus_minus(100 * found["coverage"], 100 * found["coverage_error"]) + " %"
        regret = plus_minus(agent["regret"], agent["standard_error"])
        rows.append([name, *(plus_minus(*pair) for pair in errors), covered, regret])
    caption = (
        f"{study['name']}: earth mover's distance from the true posterior over that of exact draws "
        "from each other (1 is exact), after N random actions; how often 90 % intervals hold the "
        "truth; and regret."
    )
    return Table(("agent", *sizes, "90 % coverage", "regret"), rows, caption)


def temperature_table(study: Study) -> Table:
    """Regret of every Thompson-sampling agent of one problem at each temperature."""
    tempered = {n: a for n, a in study["agents"].items() if "temperatures" in a}
    columns = list(next(iter(tempered.values()))["temperatures"]) if tempered else []
    rows = [
        [
            name,
            plus_minus(agent["regret"], agent["standard_error"]),
            *(
                plus_minus(
                    agent["temperatures"][t]["regret"], agent["temperatures"][t]["standard_error"]
                )
                for t in columns
            ),
        ]
        for name, agent in tempered.items()
    ]
    caption = (
        f"{study['name']}: regret at temperatures 1 and below, where rewards count more often."
    )
    return Table(("agent", "1", *columns), rows, caption)


def time_table(studies: Sequence[Study]) -> Table:
    """Runs, and seconds of simulation and of compilation, on all problems together."""
    rows = []
    for name in _names(studies):
        found = [
            agent for study in studies for n, agent in study["agents"].items() if short(n) == name
        ]
        total = {
            key: sum(a[key] for a in found) for key in ("seconds", "compile_seconds", "failures")
        }
        runs = "/".join(sorted({str(len(a["final"])) for a in found}))
        row = [name, runs, f"{total['seconds']:.1f}", f"{total['compile_seconds']:.1f}"]
        rows.append([*row, str(total["failures"])])
    columns = ("agent", "runs", "seconds", "compilation", "failed draws")
    return Table(columns, rows, "Simulation at temperature 1, all problems; programs are shared.")


def verdict(study: Study) -> list[str]:
    """What the numbers of one problem say about the paper's method, the prior and temperature."""
    method = next((name for name in METHODS if name in study["agents"]), None)
    about = [] if method is None else [_ranking(study, method), *_narrowness(study, method)]
    return [*about, *_prior_or_temperature(study)]


def lowest(study: Study, among: Sequence[str] | None = None) -> str:
    """The agent of the lowest regret, of those that have played the most runs."""
    agents = study["agents"]
    names = among if among is not None else list(agents)
    most = max(len(agents[name]["final"]) for name in names)
    whole = [name for name in names if len(agents[name]["final"]) == most]
    return min(whole, key=lambda name: agents[name]["regret"])


def short(name: str) -> str:
    """An agent's name without what stands for the true prior."""
    return name.partition(" (")[0]


def _ranking(study: Study, method: str) -> str:
    agents, best = study["agents"], lowest(study)
    own = plus_minus(agents[method]["regret"], agents[method]["standard_error"])
    if best == method:
        others = [name for name in agents if name != method]
        if not others:
            return f"On {study['name']}, {method} has regret {own}."
        next_best = lowest(study, others)
        margin = plus_minus(*paired(agents[next_best]["final"], agents[method]["final"]))
        return (
            f"On {study['name']}, {method} has the lowest regret, {own}; the next is {next_best}, "
            f"higher by {margin} (paired)."
        )
    gap, error = paired(agents[method]["final"], agents[best]["final"])
    text = (
        f"On {study['name']}, {method} does not win: its regret is {own}, and {best} is lower by "
        f"{plus_minus(gap, error)} (paired)"
    )
    return text + (", within two standard errors." if gap < 2 * error else ".")


def _narrowness(study: Study, method: str) -> list[str]:
    """Whether the method's posterior is narrow, which lowers regret at short horizons."""
    found = study["agents"][method].get("posterior")
    if found is None:
        return []
    short_of, error = NOMINAL - found["coverage"], found["coverage_error"]
    covered = f"{100 * found['coverage']:.0f} ± {100 * error:.0f} %"
    if short_of > 2 * error:
        return [
            f"Its posterior is too narrow: nominal 90 % intervals hold the truth in {covered} of "
            "tasks. Such a posterior explores less, as one at a lower temperature does, and that "
            "alone lowers regret at this horizon."
        ]
    return [f"Its nominal 90 % intervals hold the truth in {covered} of tasks."]


def _prior_or_temperature(study: Study) -> list[str]:
    """How much of the gain over TS a true prior explains, and how much a low temperature."""
    agents = study["agents"]
    exact = next((name for name in agents if short(name) == "Exact"), None)
    if exact is None or "TS" not in agents or not agents[exact].get("temperatures"):
        return []
    prior_gain = plus_minus(*paired(agents["TS"]["final"], agents[exact]["final"]))
    cooled = agents[exact]["temperatures"]
    best = min(cooled, key=lambda t: cooled[t]["regret"])
    gain, error = paired(agents[exact]["final"], cooled[best]["final"])
    text = (
        f"Knowing the true prior saves {prior_gain} of the regret of TS at temperature 1; lowering "
        f"the temperature of that exact posterior to {best} saves {plus_minus(gain, error)} more"
    )
    return [text + (", which is not beyond chance." if gain < 2 * error else ".")]


def _of(study: Study, name: str, cell: Any) -> str:
    found = [agent for full, agent in study["agents"].items() if short(full) == name]
    return cell(found[0]) if found else ""


def _names(studies: Sequence[Study]) -> list[str]:
    names: dict[str, None] = {}
    for study in studies:
        names.update(dict.fromkeys(short(name) for name in study["agents"]))
    return list(names)


def _titles(studies: Sequence[Study]) -> list[str]:
    return [study["name"] for study in studies]


def _runs(studies: Sequence[Study]) -> str:
    """Which agents have played fewer runs than the others."""
    most = max(len(a["final"]) for study in studies for a in study["agents"].values())
    fewer = {
        short(name): len(agent["final"])
        for study in studies
        for name, agent in study["agents"].items()
        if len(agent["final"]) < most
    }
    listed = "".join(f"; {name}, which is slow, {runs}" for name, runs in fewer.items())
    return f"Each has played {most} runs{listed}."


CAPTION = (
    "Above: samples of the true prior (blue) and of learned ones (red). Below: regret, with bands "
    "of one standard error."
)
_EXACT = (
    "Exact draws from the true posterior: in closed form where there is one, elsewhere under "
    f"{NUM_ATOMS:,} fresh samples of the true prior (fewer where rewards are not linear). DiffTS "
    "is the paper's preset to the letter; DiffTS fitted, EvidenceDPS and TwistedSMC share one "
    "prior of the default kind."
)
_POSTERIORS = (
    "Regret does not tell a good posterior from a narrow one. These tables put the distance from "
    "the true posterior, the coverage of its intervals, and regret side by side."
)
_TEMPERATURES = (
    "Compare priors within a column. Where a lower temperature helps every agent alike, what looks "
    "like a better method at temperature 1 may only explore less."
)
