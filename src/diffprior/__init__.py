"""diffprior: posterior sampling with a diffusion-model prior, and Thompson sampling built on it.

Names are imported when they are first used, so that a program waits only for what it uses. The stub
beside this file lists them, for type checkers too.
"""

import difflib
import importlib
import re
from pathlib import Path

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_MODULES = {n: m for m, n in re.findall(r"^from (\S+) import \w+ as (\w+)$", _STUB, re.MULTILINE)}
_SUBMODULES = sorted(name for name, module in _MODULES.items() if module == ".")
__all__ = sorted(_MODULES.keys() - _SUBMODULES)


def __getattr__(name: str) -> object:
    """Import a public name and store it (PEP 562)."""
    if name == "__version__":
        from importlib import metadata

        try:
            value = metadata.version(__name__)
        except metadata.PackageNotFoundError:  # run from its source, not installed
            value = "unknown"
    elif name in _SUBMODULES:
        value = importlib.import_module(f".{name}", __name__)
    elif name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name], __name__), name)
    else:
        similar = difflib.get_close_matches(name, [*__all__, *_SUBMODULES], 1, 0.6)
        hint = f"; did you mean {similar[0]!r}?" if similar else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List all public names, imported or not."""
    return sorted({*globals(), *__all__, "__version__", *_SUBMODULES})
