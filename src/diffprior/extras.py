"""Optional libraries: asked for before any work, by the name of the extra that brings them."""

import importlib.util


def require(extra: str, *modules: str) -> None:
    """Check that the libraries of an extra are installed.

    Args:
        extra: Name of the extra in `pip install 'diffprior[...]'`.
        modules: The modules that will be imported.

    Raises:
        ImportError: Some are missing; the message names them and the command that brings them.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ImportError(
            f"`{extra}`: expected {', '.join(missing)} to be installed, found nothing; "
            f"`pip install 'diffprior[{extra}]'` brings it"
        )
