"""Compiled programs kept on disk, so that a new process need not compile them again."""

import os
from pathlib import Path
from typing import Any

import jax


def keep_compiled(folder: Any) -> None:
    """Keep every program that JAX compiles from now on in a folder, and look for them there.

    This is JAX's own persistent cache, told to keep small programs too. Call it before the first
    decision. Whoever can write to the folder can change what is run.

    Args:
        folder: where to keep them; made when the first program is kept.

    Raises:
        ValueError: if it is no path, or a file.
    """
    if not isinstance(folder, str | os.PathLike) or not str(folder) or Path(folder).is_file():
        raise ValueError(
            f"`folder`: expected the path of a folder, got {folder!r}; "
            'pass one such as "~/.cache/diffprior", expanded'
        )
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
