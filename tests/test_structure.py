"""The shape of the package: import direction, exported names, and their documentation."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import diffprior

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "diffprior"

# A module imports only from above itself in this list.
ORDER = (
    "checks",
    "caching",
    "programs",
    "linalg",
    "gaussian",
    "schedule",
    "evidence.base",
    "evidence.linear",
    "evidence.newton",
    "evidence.glm",
    "evidence.families",
    "priors.base",
    "priors.gaussian",
    "priors.mixture",
    "priors.empirical",
    "priors.denoisers",
    "priors.training",
    "priors.files",
    "priors.report",
    "priors.whitening",
    "priors.residuals",
    "priors.stored",
    "priors.diffusion",
    "samplers.base",
    "samplers.exact",
    "samplers.chain",
    "samplers.evidence_dps",
    "samplers.laplace_dps",
    "samplers.twisted_smc",
    "samplers.dps",
    "samplers.particle_filter",
    "samplers.choose",
    "problems.base",
    "problems.synthetic",
    "problems.mixtures",
    "problems.datasets",
    "problems.rows",
    "problems.movielens",
    "problems.mnist",
    "bandits.agents",
    "bandits.baselines",
    "bandits.world",
    "bandits.result",
    "bandits.simulate",
    "bandits.decisions",
    "bandits.packing",
    "bandits.bandit",
    "evaluate.distances",
    "evaluate.calibration",
    "evaluate.posterior",
    "evaluate.tasks",
    "evaluate.held_out",
    "reproduce.plots",
    "reproduce.overlap",
    "reproduce.parts",
    "reproduce.report",
    "reproduce.output",
    "reproduce.agents",
    "reproduce.study",
    "reproduce.verdicts",
    "reproduce.synthetic",
    "reproduce.ablation",
    "reproduce.posterior",
    "reproduce.data",
    "reproduce.claims",
    "reproduce.real",
    "terminal",
    "bench.timing",
    "bench.rivals",
    "bench.arithmetic",
    "bench.decisions",
    "bench.suite",
    "bench.commands",
    "reproduce.commands",
    "cli",
)
RANK = {f"diffprior.{name}": rank for rank, name in enumerate(ORDER)}
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__init__.py"
}


def rank(name: str) -> int:
    """Rank a module; a package ranks with its last module, a name within a module with that."""
    inside = [r for module, r in RANK.items() if f"{module}.".startswith(f"{name}.")]
    return max(inside) if inside else rank(name.rpartition(".")[0])


def imports(module: str, tree: ast.AST) -> Iterator[str]:
    """Yield the full name of everything that a module's statements import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            source = ".".join([*parents, *filter(None, [node.module])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("module", MODULES)
def test_imports_come_from_above(module: str) -> None:
    assert module in RANK, f"give {module} its place in ORDER"
    found = list(imports(module, ast.parse(MODULES[module].read_text(encoding="utf-8"))))
    own = [name for name in found if name.split(".")[0] == "diffprior"]
    wrong = [name for name in own if rank(name) >= RANK[module]]
    assert not wrong, f"{module} imports from its own rank or below: {wrong}"


def test_all_is_what_is_exported() -> None:
    exported = {
        name
        for name, value in vars(diffprior).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert sorted(diffprior.__all__) == sorted(exported)


@pytest.mark.parametrize("name", diffprior.__all__)
def test_public_name_has_docstring(name: str) -> None:
    doc = inspect.cleandoc(getattr(diffprior, name).__doc__ or "")
    assert doc and not doc.startswith(f"{name}("), "a dataclass's own signature is no docstring"


def test_exported_names_are_the_documented_names() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    documented = re.findall(r"^### `(\w+)", page, flags=re.MULTILINE)
    assert sorted(documented) == sorted(diffprior.__all__)


@pytest.mark.parametrize("module", MODULES)
def test_no_module_unpickles(module: str) -> None:
    text = MODULES[module].read_text(encoding="utf-8")
    names = {name.split(".")[0] for name in imports(module, ast.parse(text))}
    assert not names & {"pickle", "cloudpickle", "dill", "joblib"}
    assert "allow_pickle=True" not in text
