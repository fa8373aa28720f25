"""The shape of the package: import direction, exported names, and their documentation."""

import ast
import graphlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import diffprior
import diffprior.client

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "diffprior"

# A folder imports only from folders above it in this list.
FOLDERS = (
    "threefry",
    "checks",
    "representation",
    "extras",
    "progress",
    "files",
    "reporting",
    "linalg",
    "gaussian",
    "mixture",
    "schedule",
    "caching",
    "partition",
    "executors",
    "evidence",
    "logs",
    "priors",
    "samplers",
    "problems",
    "bandits",
    "evaluate",
    "learning",
    "client",
    "integrations",
    "service",
    "cli",
)
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__init__.py"
}


def folder(name: str) -> str:
    """The folder of a module, or the module itself where it lies beside the folders."""
    first = name.split(".")[1]
    return first


def module_of(name: str) -> str | None:
    """The module that an imported name is, or is defined in; None for a folder."""
    parts = name.split(".")
    found = [".".join(parts[:n]) for n in range(len(parts), 1, -1)]
    return next((module for module in found if module in MODULES), None)


def imports(module: str, tree: ast.AST) -> Iterator[str]:
    """Yield the full name of everything that a module's statements import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            source = ".".join([*parents, *filter(None, [node.module])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def own_imports(module: str) -> list[str]:
    """What a module imports from the package."""
    found = imports(module, ast.parse(MODULES[module].read_text(encoding="utf-8")))
    return [name for name in found if name.split(".")[0] == "diffprior" and "." in name]


@pytest.mark.parametrize("module", MODULES)
def test_folders_import_from_above(module: str) -> None:
    assert folder(module) in FOLDERS, f"give {folder(module)} its place in FOLDERS"
    own = FOLDERS.index(folder(module))
    wrong = [name for name in own_imports(module) if FOLDERS.index(folder(name)) > own]
    assert not wrong, f"{module} imports from below its folder: {wrong}"


def test_files_import_in_one_direction() -> None:
    edges = {
        module: {found for name in own_imports(module) if (found := module_of(name))}
        for module in MODULES
    }
    graphlib.TopologicalSorter(edges).prepare()  # raises on a cycle, and names it


def test_all_is_what_is_exported() -> None:
    """In three places: for `import *`, for whoever reads types, and for the first use."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: f".{node.module}"
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    assert seen == diffprior._MODULES
    assert sorted(diffprior.__all__) == sorted(seen)
    assert set(diffprior.__all__) | {"evaluate", "__version__"} <= set(dir(diffprior))
    for name, module in seen.items():
        assert getattr(diffprior, name) is getattr(sys.modules[f"diffprior{module}"], name)
    with pytest.raises(AttributeError, match="no attribute 'Bandits'"):
        diffprior.Bandits  # noqa: B018


@pytest.mark.parametrize("without", ["diffprior", "diffprior.cli"])
def test_nothing_slow_is_imported_before_it_is_used(without: str) -> None:
    code = f"import sys, {without}; print(sorted({{'jax', 'numpy', 'scipy'}} & set(sys.modules)))"
    assert _printed(code) == "[]"


def test_decisions_need_neither_training_nor_statistics() -> None:
    code = "import sys, diffprior as dp; dp.Bandit, dp.DiffusionPrior, dp.Linear, dp.Logistic"
    slow = "{'scipy', 'optax', 'sklearn', 'matplotlib', 'pandas'}"
    assert _printed(f"{code}; print(sorted({slow} & set(sys.modules)))") == "[]"


def _printed(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize("name", diffprior.__all__)
def test_public_name_has_docstring(name: str) -> None:
    doc = inspect.cleandoc(getattr(diffprior, name).__doc__ or "")
    assert doc and not doc.startswith(f"{name}("), "a dataclass's own signature is no docstring"


def documented_members() -> Iterator[tuple[str, Any]]:
    """Public functions and classes, and the methods that no contract of ours describes already."""
    rooms = (
        ("", diffprior),
        ("evaluate.", diffprior.evaluate),
        ("client.", diffprior.client),
        ("executors.", diffprior.executors),
    )
    for prefix, room in rooms:
        for name in room.__all__:
            value = getattr(room, name)
            yield prefix + name, value
            if inspect.isclass(value):
                inherited = {n for base in value.__mro__[1:] for n in vars(base)}
                own = set(vars(value)) - inherited
                methods = ((n, inspect.unwrap(getattr(value, n))) for n in sorted(own))
                yield from (
                    (f"{prefix}{name}.{n}", method)
                    for n, method in methods
                    if not n.startswith("_") and inspect.isfunction(method)
                )


MEMBERS = dict(documented_members())


@pytest.mark.parametrize("name", MEMBERS)
def test_arguments_and_results_are_documented(name: str) -> None:
    """Args where there are arguments, Returns of functions that return something else than self."""
    member = MEMBERS[name]
    doc = inspect.getdoc(member) or ""
    if inspect.isclass(member):
        if "__init__" not in vars(member) or issubclass(member, Warning):
            return  # made by a function, which is documented, or never
        doc += inspect.getdoc(vars(member)["__init__"]) or ""
    arguments = set(inspect.signature(member).parameters) - {"self", "cls"}
    listed = re.search(r"^ *(Args|Attributes):|as of `", doc, re.MULTILINE)
    assert listed or all(f"`{argument}`" in doc for argument in arguments)
    if inspect.isfunction(member) and "." not in name.removeprefix("evaluate."):
        returns = inspect.signature(member).return_annotation
        assert returns in (None, "None") or "Returns:" in doc


def test_exported_names_are_the_documented_names() -> None:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    documented = re.findall(r"^::: diffprior\.(\w+(?:\.\w+)?)$", text, flags=re.MULTILINE)
    wanted = [*diffprior.__all__, *(f"evaluate.{name}" for name in diffprior.evaluate.__all__)]
    wanted += [f"client.{name}" for name in diffprior.client.__all__]
    wanted += [f"executors.{name}" for name in diffprior.executors.__all__]
    assert sorted(documented) == sorted(wanted)


@pytest.mark.parametrize("module", MODULES)
def test_no_module_unpickles(module: str) -> None:
    text = MODULES[module].read_text(encoding="utf-8")
    names = {name.split(".")[0] for name in imports(module, ast.parse(text))}
    assert not names & {"pickle", "cloudpickle", "dill", "joblib"}
    assert "allow_pickle=True" not in text
