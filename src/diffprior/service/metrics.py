"""Counters for Prometheus: what came in, what became of it, how long it took."""

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .errors import ServiceError
from .learned import Learned
from .requests import Decide, Request, Reward

LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT")
PROPENSITY = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


class Metrics:
    """The metrics of one service."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"diffprior_{name}", about, labels, registry=registry)

        def histogram(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"diffprior_{name}", about, buckets=buckets, registry=registry)

        self._decisions = counter("decisions", "Decisions taken", "model")
        self._rewards = counter("rewards", "Rewards by what became of them", "status")
        self._refused = counter("refused", "Requests refused, by HTTP status", "status")
        self._failed = counter("failed_draws", "Decisions at random because a draw failed")
        self._settled = counter("settled", "Decisions whose wait for a reward is over")
        self._http = counter("http_requests", "HTTP requests", "method", "status")
        self._latency = histogram("http_seconds", "Seconds from request to reply", LATENCY)
        self._batch_seconds = histogram("batch_seconds", "Seconds of a transaction", LATENCY)
        sizes = tuple(2.0**i for i in range(8))
        self._batch_size = histogram("batch_size", "Requests of a transaction", sizes)
        self._propensity = histogram("propensity", "Propensity of the action taken", PROPENSITY)
        self._tasks = Gauge("diffprior_tasks_in_memory", "Tasks in memory", registry=registry)
        sizes = tuple(4.0**i for i in range(10))
        self._evidence = histogram("evidence_size", "Rewards that a task has learned from", sizes)
        self._calibration = {  # gauges, because rewards may be negative
            name: Gauge(f"diffprior_learned_{name}_sum", about, registry=registry)
            for name, about in {
                "reward": "Sum of the rewards learned from",
                "predicted": "Sum of what was predicted for them; calibrated if about equal",
            }.items()
        }

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def http(self, method: str, status: int, seconds: float) -> None:
        """One HTTP request."""
        self._http.labels(method if method in METHODS else "other", str(status)).inc()
        self._latency.observe(seconds)

    def batch(self, size: int, seconds: float) -> None:
        """One transaction."""
        self._batch_size.observe(size)
        self._batch_seconds.observe(seconds)

    def tasks_in_memory(self, count: int) -> None:
        """Tasks whose evidence is in memory."""
        self._tasks.set(count)

    def learned(self, observations: Iterable[Learned]) -> None:
        """What was learned in one transaction."""
        for observation in observations:
            self._evidence.observe(observation.size)
            self._calibration["reward"].inc(observation.reward)
            self._calibration["predicted"].inc(observation.predicted)

    def served(self, request: Request, result: Any) -> None:
        """What became of one request."""
        if isinstance(result, ServiceError):
            self._refused.labels(str(result.status)).inc()
        elif isinstance(request, Decide):
            self._decisions.labels(request.model).inc()
            self._failed.inc(result["failed"])
            if result["propensity"] is not None:
                self._propensity.observe(result["propensity"])
        elif isinstance(request, Reward):
            self._rewards.labels(result["status"]).inc()
        elif isinstance(result, int):
            self._settled.inc(result)
