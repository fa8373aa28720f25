"""Settings of every test: strict arithmetic, checked shapes and repeatable examples."""

import os

import hypothesis
import jax
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", os.environ.get("JAX_ENABLE_X64", "1") != "0")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Before the first import of the package: every annotation in it is checked from here on.
install_import_hook("diffprior", "beartype.beartype")

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")
