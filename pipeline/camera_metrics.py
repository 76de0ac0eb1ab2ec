"""Cameras' states and numbers as Prometheus metrics: of ingest's own port, and of serve's from what ingest reports.

Both have the same names for the same things, so whoever collects from both keeps one of them: docs/cameras.md says how.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pipeline.messages import CameraState, CameraStatus, CropKind

PREFIX = "watchword_camera_"
_CAMERA = ("camera",)
_GAUGES = {
    "fps_in": "Pictures a second that the camera sends.",
    "fps": "Pictures a second that are handed to the detector.",
    "fps_processed": "Pictures a second that the detector looked at.",
    "people": "People in view.",
    "detector_milliseconds": "The detector's time for one picture, a running mean.",
}
_COUNTERS = {
    "frames": "Pictures handed to the detector.",
    "detections": "People detected.",
    "reconnects": "Connections made anew.",
}
_FIELDS = {"people": "tracks", "detector_milliseconds": "detector_ms"}
"""Where the field of a status is called otherwise."""


def camera_families(statuses: Sequence[CameraStatus], now: float) -> Iterator[Metric]:
    """Every camera's state and numbers as its ingest reported them. ``now`` in seconds since the epoch."""
    state = GaugeMetricFamily(PREFIX + "state", "1 for the state the camera is in.", labels=("camera", "state"))
    report_age = GaugeMetricFamily(
        PREFIX + "report_age_seconds", "Since ingest last reported the camera.", labels=_CAMERA
    )
    frame_age = GaugeMetricFamily(PREFIX + "frame_age_seconds", "Since the newest frame arrived.", labels=_CAMERA)
    decoder = GaugeMetricFamily(
        PREFIX + "decoder", "1 for what decodes the stream: cpu or a device.", labels=("camera", "decoder")
    )
    crops = CounterMetricFamily(PREFIX + "crops", "Crops published.", labels=("camera", "kind"))
    numbers: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
        **{name: GaugeMetricFamily(PREFIX + name, text, labels=_CAMERA) for name, text in _GAUGES.items()},
        **{name: CounterMetricFamily(PREFIX + name, text, labels=_CAMERA) for name, text in _COUNTERS.items()},
    }
    for status in statuses:
        elapsed = max(0.0, now - status.updated)
        for candidate in CameraState:
            state.add_metric([status.camera, candidate.value], float(status.state is candidate))
        report_age.add_metric([status.camera], elapsed)
        if status.decoder:
            decoder.add_metric([status.camera, status.decoder], 1.0)
        if status.frame_age is not None:
            frame_age.add_metric([status.camera], status.frame_age + elapsed)
        for kind in CropKind:
            crops.add_metric([status.camera, kind.value], float(status.crops_by_kind.get(kind.value, 0)))
        for name, family in numbers.items():
            family.add_metric([status.camera], float(getattr(status, _FIELDS.get(name, name))))
    yield from (state, report_age, frame_age, decoder, crops, *numbers.values())


def drop_family(statuses: Sequence[CameraStatus]) -> Metric:
    """What ingest dropped of each camera since it started. Serve counts drops of all parts, over restarts, by another
    name (``watchword_drops_total``)."""
    family = CounterMetricFamily(
        PREFIX + "drops", "Frames, boxes and crops that ingest dropped since it started.", labels=("camera", "reason")
    )
    for status in statuses:
        for reason, count in status.drops.items():
            family.add_metric([status.camera, reason], count)
    return family
