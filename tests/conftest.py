"""Settings of every test: strict arithmetic, checked shapes and repeatable examples."""

import os
from collections.abc import Iterator

import hypothesis
import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", os.environ.get("JAX_ENABLE_X64", "1") != "0")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Before the first import of the package: every annotation in it is checked from here on.
install_import_hook("diffprior", "beartype.beartype")

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


# Where programs run long; elsewhere they run once or twice, and are compiled quickly, not well.
RUN_LONG = (
    "test_stress",
    "test_training",
    "test_diffusion",
    "_dps",
    "_smc",
    "_filter",
    "test_exact",
)


@pytest.fixture(autouse=True)
def quick_compilation(request: pytest.FixtureRequest) -> Iterator[None]:
    before = jax.config.read("jax_disable_most_optimizations")
    quick = not request.path.stem.endswith(RUN_LONG)
    jax.config.update("jax_disable_most_optimizations", quick)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
