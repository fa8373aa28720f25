"""Programs of these tests run once or twice: compile them quickly rather than well."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def quick_compilation() -> Iterator[None]:
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
