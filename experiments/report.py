"""Tables of agents on problems, a line for each agent or problem, and who is ahead."""

from collections.abc import Sequence

from diffprior.reporting.page import Callout
from diffprior.reporting.tables import Table, plus_minus

from .experiment import REFERENCE, ProblemResult, Regret, beyond_chance

OURS = "EvidenceDPS"  # the default of the package
PAPER = "DiffTS"
LEARNED_BASELINES = ("TS", "TunedTS", "MixTS", "MixTS(K)")
BASELINES = (*LEARNED_BASELINES, "LinUCB", "EpsilonGreedy", "DPS")  # and the mixture to beat


def verdict(results: Sequence[ProblemResult]) -> Callout:
    """On how many problems the learned prior is ahead of others, and behind, beyond chance."""
    parts = []
    for name in LEARNED_BASELINES:
        gains = [gain for r in results if (gain := _gain(r, OURS, name)) is not None]
        clear = [gain > 0 for gain, error in gains if beyond_chance(abs(gain), error)]
        if gains:
            parts.append(f"{name} on {sum(clear)} of {len(gains)} (behind on {clear.count(False)})")
    return Callout(f"Beyond chance, {OURS} has less regret than {', '.join(parts)}.")


def findings_table(results: Sequence[ProblemResult]) -> Table:
    """Findings, a line for each problem."""
    baselines = [name for name in LEARNED_BASELINES if any(name in r.agents for r in results)]
    rows, marked = [], set()
    for i, result in enumerate(results):
        gains = [_gain(result, OURS, baseline) for baseline in baselines]
        cells = ["" if gain is None else plus_minus(*gain, signed=True) for gain in gains]
        rows.append([result.name, *_standing(result), *cells])
        marked |= {(i, 3 + j) for j, gain in enumerate(gains) if gain and beyond_chance(*gain)}
        marked |= {(i, 1)} if result.winner else set()
    columns = ("problem", "lowest regret", "the next has", *(f"saved over {r}" for r in baselines))
    caption = (
        "The agent of the lowest regret, bold where it is ahead of every other beyond chance; by "
        f"how much the next is above it; and what the learned prior ({OURS}) saves. Bold is more "
        "than two standard errors, paired over the same runs."
    )
    return Table(columns, rows, caption, frozenset(marked))


def regret_table(results: Sequence[ProblemResult]) -> Table:
    """Regret of every agent on every problem; a winner beyond chance stands out."""
    names = _names(results)
    rows = [
        [name, *(regret_text(r.agents[name].regret) if name in r.agents else "" for r in results)]
        for name in names
    ]
    marked = {(names.index(r.winner), j + 1) for j, r in enumerate(results) if r.winner}
    counts = {name: len(a.regret.final) for r in results for name, a in r.agents.items()}
    most = max(counts.values())
    fewer = [f"{name} {count}" for name, count in counts.items() if count < most]
    caption = (
        "Regret after the last round, with its standard error over runs. Bold: ahead of every "
        f"other agent beyond chance ({REFERENCE}, which knows the truth, does not compete). "
        f"{most} runs each{', but ' if fewer else ''}{', '.join(fewer)}."
    )
    return Table(("agent", *(r.name for r in results)), rows, caption, frozenset(marked))


def posterior_table(result: ProblemResult) -> Table:
    """Posterior error, coverage and regret of the agents of one problem, side by side."""
    rows = []
    for name, agent in result.agents.items():
        found = agent.posterior
        if found is not None:
            pairs = zip(found.ratio, found.ratio_error, strict=True)
            covered = plus_minus(100 * found.coverage, 100 * found.coverage_error) + " %"
            rows.append(
                [name, *(plus_minus(*p) for p in pairs), covered, regret_text(agent.regret)]
            )
    columns = ("agent", *(f"N = {size}" for size in result.sizes), "90 % coverage", "regret")
    return Table(columns, rows, f"{result.name}: posteriors after N random actions, and regret.")


def temperature_table(result: ProblemResult) -> Table:
    """Regret of Thompson sampling on one problem at each temperature."""
    tempered = {name: agent for name, agent in result.agents.items() if agent.tempered}
    columns = list(next(iter(tempered.values())).tempered) if tempered else []
    rows = [
        [name, *(regret_text(r) for r in (agent.regret, *agent.tempered.values()))]
        for name, agent in tempered.items()
    ]
    return Table(("agent", "1", *columns), rows, f"{result.name}: regret by temperature.")


def equal_temperature_table(results: Sequence[ProblemResult]) -> Table:
    """Regret that the learned prior saves over baselines at the same temperature."""
    played = [r for r in results if OURS in r.agents]
    columns = ["1", *(played[0].agents[OURS].tempered if played else {})]
    rows: list[list[str]] = []
    marked = set()
    for result in played:
        for baseline in (name for name in LEARNED_BASELINES if name in result.agents):
            gains = [result.saved(OURS, baseline, t) for t in columns]
            marked |= {(len(rows), 2 + j) for j, gain in enumerate(gains) if beyond_chance(*gain)}
            cells = [plus_minus(*gain, signed=True) for gain in gains]
            rows.append([result.name, f"over {baseline}", *cells])
    caption = (
        f"Regret that {OURS} saves, paired over runs, by temperature; bold beyond chance. A lower "
        "temperature explores less, which lowers regret at short horizons with any prior: so "
        "compare priors within a column."
    )
    return Table(("rewards", "saves", *columns), rows, caption, frozenset(marked))


def claims_table(results: Sequence[ProblemResult]) -> Table:
    """The paper's claim, a line for each: DiffTS against the best baseline."""
    rows: list[list[str]] = []
    marked = set()
    for result in results:
        baselines = [name for name in BASELINES if name in result.agents]
        if PAPER not in result.agents or not baselines:
            continue
        best = min(baselines, key=lambda name: result.agents[name].regret.mean)
        gain = result.saved(PAPER, best)
        if beyond_chance(*gain):
            marked.add((len(rows), 3))
        own, other = (regret_text(result.agents[name].regret) for name in (PAPER, best))
        rows.append([result.name, own, f"{other} ({best})", plus_minus(*gain, signed=True)])
    columns = ("rewards", PAPER, "best baseline", f"{PAPER} saves")
    caption = f"The paper's claim, that {PAPER} is the lowest; bold where it holds beyond chance."
    return Table(columns, rows, caption, frozenset(marked))


def cost_table(results: Sequence[ProblemResult]) -> Table:
    """Runs, and seconds of simulation and of compilation, on all problems together."""
    rows = []
    for name in _names(results):
        found = [r.agents[name].regret for r in results if name in r.agents]
        runs = "/".join(sorted({str(len(regret.final)) for regret in found}))
        seconds, compiling = (
            sum(getattr(regret, key) for regret in found) for key in ("seconds", "compile_seconds")
        )
        failures = str(sum(regret.failures for regret in found))
        rows.append([name, runs, f"{seconds:.1f}", f"{compiling:.1f}", failures])
    columns = ("agent", "runs", "seconds", "compilation", "failed draws")
    return Table(columns, rows, "Simulation at temperature 1, all problems; programs are shared.")


def _standing(result: ProblemResult) -> tuple[str, str]:
    """The lowest agent, and what the next has more."""
    best = result.lowest
    others = [name for name in result.competitors if name != best]
    text = f"{best} {regret_text(result.agents[best].regret)}"
    if not others:
        return text, ""
    following = min(others, key=lambda name: result.agents[name].regret.mean)
    return text, f"{following} {plus_minus(*result.saved(best, following), signed=True)}"


def _gain(result: ProblemResult, agent: str, baseline: str) -> tuple[float, float] | None:
    present = agent in result.agents and baseline in result.agents
    return result.saved(agent, baseline) if present else None


def regret_text(regret: Regret) -> str:
    return plus_minus(regret.mean, regret.standard_error)


def _names(results: Sequence[ProblemResult]) -> list[str]:
    return list(dict.fromkeys(name for result in results for name in result.agents))
