"""The shape of the package: import direction, exported names, their types and documentation."""

import ast
import collections
import functools
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
    "progress",
    "files",
    "reporting",
    "linalg",
    "gaussian",
    "mixture",
    "schedule",
    "executors",
    "evidence",
    "tables",
    "feature_network",
    "encoders",
    "logs",
    "denoisers",
    "fitting",
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

# Temporary: how many lines of tests may still change a constant.
MOST_PATCHED = 9


@functools.cache
def trees() -> dict[str, ast.Module]:
    """The syntax trees of all modules."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def folder(name: str) -> str:
    """The folder of a module, or the module itself where it lies beside the folders."""
    return name.split(".")[1]


def module_of(name: str) -> str | None:
    """The module that an imported name is, or is defined in; None for a folder."""
    parts = name.split(".")
    found = [".".join(parts[:n]) for n in range(len(parts), 1, -1)]
    return next((module for module in found if module in MODULES), None)


def imports(module: str) -> Iterator[str]:
    """Yield the full name of everything that a module's statements import."""
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            source = ".".join([*parents, *filter(None, [node.module])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def own_imports(module: str) -> list[str]:
    """Imports of a module from the package."""
    return [name for name in imports(module) if re.match(r"diffprior\.", name)]


def test_folders_import_from_above() -> None:
    unknown = {folder(module) for module in MODULES} - set(FOLDERS)
    assert not unknown, f"give {unknown} their place in FOLDERS"
    wrong = [
        f"{module} imports {name}"
        for module in MODULES
        for name in own_imports(module)
        if FOLDERS.index(folder(name)) > FOLDERS.index(folder(module))
    ]
    assert not wrong


def test_files_import_in_one_direction() -> None:
    edges = {
        module: {found for name in own_imports(module) if (found := module_of(name))}
        for module in MODULES
    }
    graphlib.TopologicalSorter(edges).prepare()  # raises on a cycle, and names it


def test_all_is_what_is_exported() -> None:
    """For type checkers, who read the stub, as at run time."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: f".{node.module or ''}" for node in imported for alias in node.names}
    modules = {name for name, module in seen.items() if module == "."}
    assert sorted(diffprior.__all__) == sorted(seen.keys() - modules)
    assert {*seen, "__version__"} <= set(dir(diffprior))
    for name in diffprior.__all__:
        assert getattr(diffprior, name) is getattr(sys.modules[f"diffprior{seen[name]}"], name)
    with pytest.raises(AttributeError, match="no attribute 'Bandits'; did you mean 'Bandit'"):
        diffprior.Bandits  # noqa: B018


def test_nothing_slow_is_imported_before_it_is_used() -> None:
    """Neither by the package and its command line, nor training and statistics by decisions."""
    code = """import sys, diffprior.cli
    print(sorted({'jax', 'numpy', 'scipy'} & set(sys.modules)))
    import diffprior as dp
    dp.Bandit, dp.DiffusionPrior, dp.Linear, dp.Logistic
    slow = {'scipy', 'optax', 'sklearn', 'matplotlib', 'pandas', 'ray'}
    print(sorted(slow & set(sys.modules)))""".replace("    ", "")
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["[]", "[]"]


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


def undocumented(name: str, member: Any) -> str:
    """Where the docstring lacks Args, or Returns of functions that return something."""
    doc = inspect.getdoc(member) or ""
    if not doc or doc.startswith(f"{name}("):
        return "docstring"
    if inspect.isclass(member):
        if "__init__" not in vars(member) or issubclass(member, Warning):
            return ""  # made by a function, which is documented, or never
        doc += inspect.getdoc(vars(member)["__init__"]) or ""
    arguments = set(inspect.signature(member).parameters) - {"self", "cls"}
    listed = re.search(r"^ *(Args|Attributes):|as of `", doc, re.MULTILINE)
    if not listed and not all(f"`{argument}`" in doc for argument in arguments):
        return "Args"
    if inspect.isfunction(member) and "." not in name.removeprefix("evaluate."):
        returns = inspect.signature(member).return_annotation
        if returns not in (None, "None") and "Returns:" not in doc:
            return "Returns"
    return ""


def test_arguments_and_results_are_documented() -> None:
    missing = {name: undocumented(name, member) for name, member in documented_members()}
    assert not {name: part for name, part in missing.items() if part}


def test_exported_names_are_the_documented_names() -> None:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    documented = re.findall(r"^::: diffprior\.(\w+(?:\.\w+)?)$", text, flags=re.MULTILINE)
    wanted = [*diffprior.__all__, *(f"evaluate.{name}" for name in diffprior.evaluate.__all__)]
    wanted += [f"client.{name}" for name in diffprior.client.__all__]
    wanted += [f"executors.{name}" for name in diffprior.executors.__all__]
    assert sorted(documented) == sorted(wanted)


def test_no_module_unpickles() -> None:
    for module, path in MODULES.items():
        names = {name.split(".")[0] for name in imports(module)}
        assert not names & {"pickle", "cloudpickle", "dill", "joblib"}, module
        assert "allow_pickle=True" not in path.read_text(encoding="utf-8"), module


def public_functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions, and methods of classes, whose names begin with no underscore."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and (
                    method.name == "__init__" or not method.name.startswith("_")
                ):
                    yield f"{node.name}.{method.name}", method
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, node


def annotations(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """Of the parameters and the result."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += filter(None, [arguments.vararg, arguments.kwarg])
    yield from (argument.annotation for argument in every if argument.annotation)
    if function.returns:
        yield function.returns


def test_public_signatures_have_no_any() -> None:
    found = [
        f"{module}.{name}"
        for module, tree in trees().items()
        for name, function in public_functions(tree)
        for annotation in annotations(function)
        if any(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(annotation))
    ]
    assert not found


def test_no_class_name_is_defined_twice() -> None:
    counts = collections.Counter(
        node.name
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    assert not {name for name, count in counts.items() if count > 1}


def test_tests_patch_no_constants() -> None:
    """Numbers that a test wants to change are arguments, or fields of a configuration."""
    pattern = re.compile(r"monkeypatch\.setattr\([^)]*?\b_?[A-Z][A-Z0-9_]{2,}\b[^)]*\)")
    found = [
        f"{path.relative_to(ROOT)}: {patch}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != Path(__file__)
        for patch in pattern.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(found) <= MOST_PATCHED, found
