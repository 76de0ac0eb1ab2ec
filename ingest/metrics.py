"""Ingest's metrics on a port of its own, for Prometheus."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingest.publisher import PublisherHealth
from pipeline.camera_metrics import camera_families, drop_family
from pipeline.clock import Clock
from pipeline.config import IngestConfig
from pipeline.messages import CameraStatus

log = logging.getLogger(__name__)


class IngestMetrics(Collector):
    """Reads the cameras' statuses anew for each request."""

    def __init__(
        self, statuses: Callable[[], list[CameraStatus]], health: Callable[[], PublisherHealth], clock: Clock
    ) -> None:
        self._statuses = statuses
        self._health = health
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not looked up before they are asked for."""
        return ()

    def collect(self) -> Iterator[Metric]:
        statuses = self._statuses()
        yield from camera_families(statuses, self._clock.now())
        yield drop_family(statuses)
        health = self._health()
        yield GaugeMetricFamily(
            "watchword_ingest_redis_up", "Whether ingest reaches Redis.", value=float(health.connected is True)
        )
        yield GaugeMetricFamily(
            "watchword_ingest_crops_waiting", "Crops kept while Redis is away.", value=health.crops_waiting
        )


class MetricsServer:
    """``http://HOST:PORT/metrics`` in a thread of its own; nothing where no port is configured."""

    def __init__(self, config: IngestConfig, metrics: IngestMetrics) -> None:
        self._config = config
        self._registry = CollectorRegistry()
        for collector in (metrics, PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            self._registry.register(collector)
        self._running: tuple[WSGIServer, Thread] | None = None

    @property
    def port(self) -> int | None:
        """On which it listens; None when it doesn't."""
        return self._running[0].server_port if self._running is not None else None

    def start(self) -> None:
        """A port that can't be had is told in the log: cameras matter more."""
        host, port = self._config.metrics_host, self._config.metrics_port
        if port is None:
            return
        try:
            self._running = start_http_server(port, host, self._registry)
        except OSError as error:
            log.error("metrics: ingest.metrics_host %s, ingest.metrics_port %d: %s", host, port, error.strerror)
            return
        log.info("metrics: http://%s:%d/metrics", host, self.port)

    def stop(self) -> None:
        """Closes the port."""
        if self._running is not None:
            server, thread = self._running
            server.shutdown()
            server.server_close()
            thread.join(1.0)
            self._running = None
