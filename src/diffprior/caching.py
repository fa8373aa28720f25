"""Compiled programs stored on disk, so that a new process need not compile them again."""

import os
from pathlib import Path

import jax


def keep_compiled(folder: str | os.PathLike[str]) -> None:
    """Store every program that JAX compiles from now on in a folder, and look for them there.

    This is JAX's own persistent cache, set to store small programs too. Call it before the first
    decision. Whoever can write to the folder can change what is run.

    Args:
        folder: Where to store them; created with the first program.

    Raises:
        ValueError: If it is no path, or a file.
    """
    if not isinstance(folder, str | os.PathLike) or not str(folder) or Path(folder).is_file():
        raise ValueError(
            f"`folder`: expected the path of a folder, got {folder!r}; "
            'pass one such as "~/.cache/diffprior", expanded'
        )
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
