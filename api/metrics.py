"""``/metrics``: Prometheus text. Everything is read at the time of the scrape; nothing is counted twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from api.services import Provided
from pipeline.camera_metrics import camera_families
from pipeline.config import WatchwordConfig
from pipeline.delivery.deliverer import states_of
from pipeline.image_ladder import ImageLadder
from pipeline.queue.health import QueueUnavailable
from pipeline.queue.hub import CameraHub
from pipeline.queue.stats import QueueStats
from pipeline.store import EventStore
from pipeline.store.deliveries import DELIVERED, FAILED
from vlm_engine.engine import EngineState, VLMEngine
from vlm_engine.metrics import SPECS, EngineMetrics, Histogram

PREFIX = "watchword_"
REDIS_TIMEOUT_S = 2.0
STORE_TIMEOUT_S = 2.0

router = APIRouter(tags=["health"])


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(services: Provided) -> Response:
    families: list[Metric] = []
    if services.engine is not None:
        families += engine_state(services.engine)
        families += engine_families(services.engine.metrics)
    if services.hub is not None:
        families += await hub_families(services.hub, time.time())
    if services.ladder is not None:
        families += ladder_families(services.ladder)
    if services.store is not None:
        families += await delivery_families(services.config, services.store)
    if services.describing is not None:
        families += services.describing.collect()
    for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        families += collector.collect()
    return Response(generate_latest(_Gathered(tuple(families))), media_type=CONTENT_TYPE_LATEST)


@dataclass(frozen=True, slots=True)
class _Gathered(Collector):
    """What was read, in the shape that ``generate_latest`` asks for (a registry of its own would read again)."""

    families: tuple[Metric, ...]

    def collect(self) -> Iterable[Metric]:
        return self.families


def engine_state(engine: VLMEngine) -> Iterator[Metric]:
    """1 for the state the engine is in, 0 for the others."""
    family = GaugeMetricFamily(PREFIX + "engine_state", "The engine's state.", labels=("state",))
    for state in EngineState:
        family.add_metric([state.value], float(engine.state is state))
    yield family


def engine_families(metrics: EngineMetrics) -> Iterator[Metric]:
    """The engine's registry as it stands now."""
    values, histograms = metrics.snapshot()
    for name, spec in SPECS.items():
        if spec.kind == "histogram":
            histogram_family = HistogramMetricFamily(PREFIX + name, spec.help, labels=spec.labels)
            for (found, labels), histogram in histograms.items():
                if found == name:
                    histogram_family.add_metric(
                        [value for _, value in labels], _buckets(histogram), sum_value=histogram.total
                    )
            yield histogram_family
            continue
        kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
        family = kind(PREFIX + name, spec.help, labels=spec.labels)
        for (found, labels), value in values.items():
            if found == name:
                family.add_metric([value for _, value in labels], value)
        yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Prometheus wants cumulative counts with upper bounds as text, the last for everything."""
    bounds = [*(str(float(bound)) for bound in histogram.buckets), "+Inf"]
    cumulative = 0
    out = []
    for bound, count in zip(bounds, histogram.counts, strict=True):
        cumulative += count
        out.append((bound, float(cumulative)))
    return out


async def hub_families(hub: CameraHub, now: float) -> list[Metric]:
    """Cameras, queue and drops; just ``redis_up 0`` while Redis is away."""
    up = GaugeMetricFamily(PREFIX + "redis_up", "Whether Redis answers.")
    try:
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            statuses, stats, drops = await hub.statuses(), await hub.queue_stats(), await hub.drops()
    except (QueueUnavailable, TimeoutError):
        up.add_metric([], 0.0)
        return [up]
    up.add_metric([], 1.0)
    return [up, *camera_families(statuses, now), *queue_families(stats, drops)]


def ladder_families(ladder: ImageLadder) -> Iterator[Metric]:
    """Where the ladder of crops' image tokens stands, and its steps."""
    yield GaugeMetricFamily(
        PREFIX + "describer_image_tokens",
        "Most image tokens of a crop now; 0: no bound but the engine's own.",
        value=ladder.tokens or 0,
    )
    yield GaugeMetricFamily(
        PREFIX + "describer_image_step", "Steps down on the ladder of image tokens; 0: none.", value=ladder.step
    )
    changes = CounterMetricFamily(
        PREFIX + "describer_image_step_changes", "Steps taken on the ladder of image tokens.", labels=("direction",)
    )
    for change, count in ladder.changes.items():
        changes.add_metric([change.value], count)
    yield changes


async def delivery_families(config: WatchwordConfig, store: EventStore) -> list[Metric]:
    """Messages by target and outcome, what waits, and how often rules matched; nothing while the database is away."""
    if not config.webhooks and not config.alerts and not config.mqtt.enabled:
        return []
    try:
        async with asyncio.timeout(STORE_TIMEOUT_S):
            states, alerts = await asyncio.to_thread(
                lambda: (states_of(config, store), store.deliveries.alert_counts())
            )
    except (SQLAlchemyError, TimeoutError):
        return []
    deliveries = CounterMetricFamily(
        PREFIX + "deliveries",
        "Messages: delivered, failed (attempts), or dropped, by reason.",
        labels=("target", "outcome"),
    )
    waiting = GaugeMetricFamily(
        PREFIX + "deliveries_waiting", "Events of which a target is still to be told.", labels=("target",)
    )
    oldest = GaugeMetricFamily(
        PREFIX + "deliveries_oldest_age_seconds", "Since the oldest of that; 0 when nothing waits.", labels=("target",)
    )
    for name, state in states.items():
        waiting.add_metric([name], state.waiting)
        oldest.add_metric([name], max(0.0, time.time() - state.oldest) if state.oldest is not None else 0.0)
        for outcome in sorted({DELIVERED, FAILED, *(state.counts or {})}):
            deliveries.add_metric([name, outcome], (state.counts or {}).get(outcome, 0))
    matches = CounterMetricFamily(
        PREFIX + "alerts",
        "Events that matched a rule: matched, or cooldown when another had just before.",
        labels=("rule", "camera", "outcome"),
    )
    for alert in alerts:
        matches.add_metric([alert.rule, alert.camera, "matched"], alert.matched)
        matches.add_metric([alert.rule, alert.camera, "cooldown"], alert.cooled)
    return [deliveries, waiting, oldest, matches]


def queue_families(stats: QueueStats, drops: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
    """How full the queue is, and every drop by camera and reason."""
    depth = GaugeMetricFamily(PREFIX + "queue_depth", "Crops that wait.", labels=("camera",))
    for camera, waiting in stats.depth.items():
        depth.add_metric([camera], waiting)
    yield depth
    yield GaugeMetricFamily(
        PREFIX + "queue_oldest_age_seconds",
        "Since the oldest waiting crop's frame; 0 when none waits.",
        value=stats.oldest_age or 0.0,
    )
    yield GaugeMetricFamily(PREFIX + "queue_pending", "Crops that are being described.", value=stats.pending)
    yield GaugeMetricFamily(PREFIX + "queue_dead", "Crops put aside after failing too often.", value=stats.dead)
    dropped = CounterMetricFamily(PREFIX + "drops", "Everything dropped.", labels=("camera", "reason"))
    for camera, reasons in drops.items():
        for reason, count in reasons.items():
            dropped.add_metric([camera, reason], count)
    yield dropped
