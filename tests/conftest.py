"""Settings of every test: strict arithmetic, checked shapes and repeatable examples."""

import itertools
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

RUN_ONCE = "equal_the_twin"  # tests of single draws among them

FORGET_AFTER = 100  # tests: every program holds some dozen memory maps, of which there are 65,530
_tests_done = itertools.count(1)


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    yield
    if next(_tests_done) % FORGET_AFTER == 0:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def quick_compilation(request: pytest.FixtureRequest) -> Iterator[None]:
    before = jax.config.read("jax_disable_most_optimizations")
    runs_long = request.path.stem.endswith(RUN_LONG) and RUN_ONCE not in request.node.name
    jax.config.update("jax_disable_most_optimizations", not runs_long)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
