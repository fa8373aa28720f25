"""Compiled programs kept on disk, so that a new process need not compile them again."""

from pathlib import Path

import jax


def keep_compiled(folder: str | Path) -> None:
    """Keep every program that JAX compiles from now on in a folder, and look for them there.

    This is JAX's own persistent cache, told to keep small programs too. Call it before the first
    decision. Whoever can write to the folder can change what is run.

    Args:
        folder: Where to keep them; made if it does not exist.
    """
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
