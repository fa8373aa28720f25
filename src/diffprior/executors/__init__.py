"""Where maps over shards run: in this process, in processes of this machine, on a Ray cluster."""

from .base import AbstractExecutor, InProcess, ShardError
from .cluster import Ray
from .processes import Processes

__all__ = ["AbstractExecutor", "InProcess", "Processes", "Ray", "ShardError"]
