"""Settings of every test: strict arithmetic, checked shapes and repeatable examples."""

import gc
import importlib.metadata
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

# Compiled programs are kept in one folder, which workers and the programs that tests start share;
# threads of linear algebra beside those of two workers would only wait for each other; and without
# its newer emitters XLA compiles in less than half the time, in one piece in an eighth less still
# (another jaxlib may not know the options, and then does not start).
PROGRAMS = (
    Path(__file__).parents[1] / ".pytest_cache" / f"jax-{importlib.metadata.version('jaxlib')}"
)
QUICK = (
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_backend_optimization_level=1"
)
JAXLIB = tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:2])
for name, value in {
    "XLA_FLAGS": QUICK if JAXLIB == (0, 10) else "",
    "JAX_COMPILATION_CACHE_DIR": str(PROGRAMS),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",  # programs that know no lines are made sooner
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}.items():
    os.environ.setdefault(name, value)

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

DOUBLE = os.environ.get("JAX_ENABLE_X64", "1") != "0"
jax.config.update("jax_enable_x64", DOUBLE)
jax.config.update("jax_disable_most_optimizations", True)  # programs run once or twice
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Before the first import of the package: every annotation in it is checked from here on. In single
# precision they are those that were checked in double; fuzzed calls pass whatever they like.
if DOUBLE and "FUZZ_EXAMPLES" not in os.environ:
    install_import_hook(["diffprior", "experiments", "benchmarks"], "typechecking.checked")

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


# The longest of all, with which two workers begin, so that neither waits for the other at the end.
LONGEST = ("test_docs", "test_crashes", "test_walk", "test_compilation", "test_choose_base")

# Every program holds some dozen memory maps, of which a process may have 65,530; they are counted
# after every so many tests, and programs forgotten when most are taken.
MOST_MAPS, COUNT_AFTER = 50_000, 10
_tests_done = itertools.count(1)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """In single precision files are not even imported unless they have a test for it."""
    if DOUBLE or not collection_path.name.startswith("test_"):
        return None
    return "mark.float32" not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection: they stay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    yield
    if next(_tests_done) % COUNT_AFTER == 0 and _memory_maps() > MOST_MAPS:
        jax.clear_caches()


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """The names of the programs compiled so far."""
    names: list[str] = []

    def listen(event: str, duration: float, **details: str) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(str(details.get("fun_name", "")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def _memory_maps() -> int:
    """Of this process; without a count, as on other systems than Linux, as if there were many."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return MOST_MAPS + 1
