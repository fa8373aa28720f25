"""A Ray cluster of two nodes on this machine, which the tests start and stop."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = str(Path(__file__).parents[1])
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one core each; a node may be killed, and another added."""
    import warnings

    before = os.environ.get("PYTHONPATH")
    folders = [str(ROOT / "src"), str(ROOT), TESTS]  # for the workers
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        settings = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}
        node = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args={**node, "_system_config": settings})
        made.add_node(**node)
        made.wait_for_nodes()
    yield made
    import ray

    ray.shutdown()
    made.shutdown()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
