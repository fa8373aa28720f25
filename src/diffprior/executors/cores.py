"""How many cores this process may use, and how a worker is told of its share."""

import os

SHARE = "PJRT_NPROC"  # which XLA reads too, when it starts its threads


def num_cores() -> int:
    """Cores that this process may use, which is fewer than there are where it is confined."""
    share = os.environ.get(SHARE, "")
    if share.isdigit() and int(share) > 0:
        return int(share)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def confine(num_threads: int, cores: frozenset[int] = frozenset()) -> None:
    """Keep this process to so many threads, before XLA starts its own, and to some cores."""
    import threadpoolctl  # comes with scikit-learn

    os.environ[SHARE] = str(num_threads)
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    threadpoolctl.threadpool_limits(num_threads)
