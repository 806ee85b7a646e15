"""Counters and timings of a service, in Prometheus's text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

MEDIA_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The metrics of a service.

    Attributes:
        refused: Requests refused because too many were waiting.
        queue: Requests waiting or being answered.
        reloads: Number of reloads by outcome, "swapped" or "failed".
        generation: Number of times the indexes were opened.
        texts: Number of texts by index.
    """

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self._requests = Counter("rkit_requests", "Requests answered.", ["path", "status"], registry=registry)
        self._seconds = Histogram(
            "rkit_request_seconds", "Time from request to answer.", ["path"], buckets=_SECONDS, registry=registry
        )
        self._batches = Histogram(
            "rkit_batch_requests", "Requests answered together.", ["kind"], buckets=_SIZES, registry=registry
        )
        self._batch_seconds = Histogram(
            "rkit_batch_seconds", "Time per batch.", ["kind"], buckets=_SECONDS, registry=registry
        )
        self.refused = Counter("rkit_refused", "Requests refused because too many were waiting.", registry=registry)
        self.queue = Gauge("rkit_queue_requests", "Requests waiting or being answered.", registry=registry)
        self.reloads = Counter("rkit_reloads", "Reloads of the indexes.", ["outcome"], registry=registry)
        self.generation = Gauge("rkit_generation", "Number of times the indexes were opened.", registry=registry)
        self.texts = Gauge("rkit_index_texts", "Texts of an index.", ["index"], registry=registry)
        ProcessCollector(registry=registry)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, kind: str, requests: int, seconds: float) -> None:
        """Count an answered batch."""
        self._batches.labels(kind).observe(requests)
        self._batch_seconds.labels(kind).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics."""
        return bytes(generate_latest(self._registry))
