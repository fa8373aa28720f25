"""Processes that were forked from one in which JAX had begun to work, where it never answers.

JAX runs threads; a forked child has their locks but not the threads, so the first computation in it
waits for ever. There is no way to repair that, so it is noticed and said.
"""

import os
import sys

_MESSAGE = (
    "`{}`: expected a process that was started afresh, got one forked after JAX had begun to work, "
    "in which it would never answer; start workers with multiprocessing's 'spawn' or 'forkserver', "
    "or with Gunicorn without --preload, and make or load the bandit in each worker"
)

_forked = False


def refuse_after_fork(name: str) -> None:
    """Raise if this process was forked from one in which JAX had begun to work."""
    if _forked:
        raise RuntimeError(_MESSAGE.format(name))


def _after_fork() -> None:
    global _forked
    _forked = _forked or _jax_has_begun()


def _jax_has_begun() -> bool:
    """Whether JAX has a backend; where a version of it does not tell, whether it is imported."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    tell = getattr(bridge, "backends_are_initialized", None)
    return bool(tell()) if tell is not None else "jax" in sys.modules


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)
