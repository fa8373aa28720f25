"""Prometheus metrics of the service."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .requests import Choose, Decide, Request, Reward, ServiceError

LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT")
PROPENSITY = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"diffprior_{name}", about, labels, registry=registry)

        def histogram(name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"diffprior_{name}", about, buckets=buckets, registry=registry)

        def gauge(name: str, about: str) -> Gauge:
            return Gauge(f"diffprior_{name}", about, registry=registry)

        self._decisions = counter("decisions", "Decisions made", "model")
        self._rewards = counter("rewards", "Rewards by status", "status")
        self._refused = counter("refused", "Rejected requests by HTTP status", "status")
        self._failed = counter("failed_draws", "Random decisions because a draw failed")
        self._settled = counter("settled", "Decisions whose wait for a reward has ended")
        self.rolled_back = counter("rolled_back", "Versions that were rolled back", "model")
        self._http = counter("http_requests", "HTTP requests", "method", "status")
        self._latency = histogram("http_seconds", "Seconds from request to reply", LATENCY)
        self.batch_seconds = histogram("batch_seconds", "Seconds per transaction", LATENCY)
        sizes = tuple(2.0**i for i in range(8))
        self.batch_size = histogram("batch_size", "Requests per transaction", sizes)
        self._propensity = histogram("propensity", "Propensity of the action taken", PROPENSITY)
        self.tasks_in_memory = gauge("tasks_in_memory", "Tasks in memory")
        sizes = tuple(4.0**i for i in range(10))
        self._evidence = histogram("evidence_size", "Rewards that a task has learned from", sizes)
        # Gauges, because rewards may be negative. The two grow alike if predictions are calibrated.
        self._reward_sum = gauge("learned_reward_sum", "Sum of the rewards learned from")
        self._predicted_sum = gauge("learned_predicted_sum", "Sum of their predictions")

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def http(self, method: str, status: int, seconds: float) -> None:
        self._http.labels(method if method in METHODS else "other", str(status)).inc()
        self._latency.observe(seconds)

    def learned(self, observations: Iterable[tuple[float, float, int]]) -> None:
        """Record rewards, their predictions, and the numbers that their tasks have learned from."""
        for reward, predicted, num_learned in observations:
            self._evidence.observe(num_learned)
            self._reward_sum.inc(reward)
            self._predicted_sum.inc(predicted)

    def served(self, request: Request, result: object) -> None:
        if isinstance(result, ServiceError):
            self._refused.labels(str(result.status)).inc()
        elif isinstance(request, Decide | Choose) and isinstance(result, dict):
            self._decisions.labels(request.model).inc()
            self._failed.inc(result["failed"])
            if result["propensity"] is not None:
                self._propensity.observe(result["propensity"])
        elif isinstance(request, Reward) and isinstance(result, dict):
            self._rewards.labels(result["status"]).inc()
        elif isinstance(result, int):
            self._settled.inc(result)
