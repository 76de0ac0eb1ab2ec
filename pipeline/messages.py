"""What goes between the processes, as frozen dataclasses, and their form in Redis (flat string fields).

Every message knows its own fields: ``to_fields`` gives the mapping for XADD/HSET, ``from_fields`` reads one back and
raises :class:`MalformedMessage` for anything that does not fit, so that one bad entry never stops a reader.
Times are seconds since the epoch (UTC). Boxes are ``(x1, y1, x2, y2)`` in pixels of the frame.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self, get_type_hints

from pipeline.reasons import Reason

Box = tuple[float, float, float, float]
Names = tuple[str, ...]
Numbers = tuple[int, ...]


class MalformedMessage(ValueError):
    """An entry lacks a field or holds a value of the wrong kind; the text names the field, never the content."""


class CameraState(StrEnum):
    """Where a camera stands."""

    DISABLED = "disabled"
    CONNECTING = "connecting"
    ONLINE = "online"
    STALLED = "stalled"
    FROZEN = "frozen"
    AUTH_FAILED = "auth_failed"
    UNREACHABLE = "unreachable"
    TRANSPORT_REFUSED = "transport_refused"
    UNSUPPORTED = "unsupported"
    STOPPING = "stopping"


class CropKind(StrEnum):
    """EARLY is sent while the person is still in view, FINAL when the track has ended or a clearly better shot came."""

    EARLY = "early"
    FINAL = "final"


class TrackPhase(StrEnum):
    START = "start"
    UPDATE = "update"
    END = "end"


class CommandKind(StrEnum):
    """What serve asks of ingest. CAMERAS: look at ``ww:camera-changes``, which has changed."""

    CAMERAS = "cameras"
    WATCH = "watch"
    UNWATCH = "unwatch"


class EventState(StrEnum):
    ACTIVE = "active"
    ENDED = "ended"
    INTERRUPTED = "interrupted"


class DescriptionState(StrEnum):
    """QUEUED -> RUNNING -> (DRAFT ->) FINAL; or EXPIRED (not in time) or FAILED (its reason is kept, never as text)."""

    QUEUED = "queued"
    RUNNING = "running"
    DRAFT = "draft"
    FINAL = "final"
    EXPIRED = "expired"
    FAILED = "failed"


class ChangeKind(StrEnum):
    """What happened to an event; also the ``event:`` name of a server-sent event."""

    CREATED = "event.created"
    UPDATED = "event.updated"
    ENDED = "event.ended"
    PARTIAL = "description.partial"
    DESCRIBED = "description.final"
    FAILED = "description.failed"


class _Message:
    """Flat conversion shared by the messages: str, int, float, bool, Enum, Box, tuple and mapping fields."""

    def to_fields(self) -> dict[str, str]:
        """The mapping that goes into Redis; None fields are left out."""
        out: dict[str, str] = {}
        for spec in fields(self):  # type: ignore[arg-type]
            value = getattr(self, spec.name)
            if value is None:
                continue
            out[spec.name] = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        return out

    @classmethod
    def from_fields(cls, raw: Mapping[bytes, bytes]) -> Self:
        """Reads what ``to_fields`` wrote. Unknown fields are ignored (a newer writer). Raises MalformedMessage."""
        hints = get_type_hints(cls)
        values: dict[str, Any] = {}
        for spec in fields(cls):  # type: ignore[arg-type]
            data = raw.get(spec.name.encode())
            if data is not None:
                values[spec.name] = _parse(spec.name, hints[spec.name], data)
        try:
            return cls(**values)
        except TypeError as error:
            raise MalformedMessage(f"{cls.__name__}: {error}") from None


def _parse(name: str, kind: Any, data: bytes) -> Any:
    options = [k for k in getattr(kind, "__args__", ()) if k is not type(None)]
    target = options[0] if type(None) in getattr(kind, "__args__", ()) else kind
    try:
        text = data.decode()
        if isinstance(target, type) and issubclass(target, StrEnum):
            return target(text)
        if target is str:
            return text
        value = json.loads(text)
        if target is float:
            return float(value)
        if target is int:
            return int(value)
        if target is bool:
            if not isinstance(value, bool):
                raise ValueError
            return value
        if target == Box:
            x1, y1, x2, y2 = (float(v) for v in value)
            return (x1, y1, x2, y2)
        if target == Names:
            if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                raise ValueError
            return tuple(value)
        if target == Numbers:
            if not isinstance(value, list) or not all(type(v) is int for v in value):
                raise ValueError
            return tuple(value)
        return value
    except (ValueError, TypeError):
        raise MalformedMessage(f"field {name!r} is not a {getattr(target, '__name__', target)}") from None


@dataclass(frozen=True, slots=True)
class CropMessage(_Message):
    """One crop on its way to a describer (``ww:crops:{camera}``); the JPEG lies under ``picture_key``.

    Attributes:
        crop_id: unique; storing is idempotent by it.
        track: ``camera/seq``, unique over restarts.
        time: when the frame arrived; ``box`` and ``score`` belong to that very frame ``frame_id``.
        quality: best-shot score, 0 to 1, higher is better.
        deadline: after this a description is no longer worth anything; the crop is dropped and counted.
        width, height: of the JPEG, in pixels.
        frame_width, frame_height: of the frame that ``box`` refers to.
        zones: names of the camera's zones that the person was in on that frame.
        extra_keys: further pictures of the same track (its first and its last one), oldest first, for a model that
            takes several; they may be gone like the crop's own. ``extra_frames`` are the frames they were cut out of.
    """

    crop_id: str
    camera: str
    track: str
    kind: CropKind
    time: float
    box: Box
    score: float
    quality: float
    frame_id: int
    picture_key: str
    label: str
    deadline: float
    width: int
    height: int
    frame_width: int
    frame_height: int
    zones: Names = ()
    extra_keys: Names = ()
    extra_frames: Numbers = ()


@dataclass(frozen=True, slots=True)
class TrackMessage(_Message):
    """Start, update or end of a track (``ww:tracks``).

    Attributes:
        last_seen: the true time of the last detection.
        crop_id: the newest crop that was published for the track, so that its picture can be shown while it waits.
        final_crop: at END: whether a FINAL crop was published; without one the early crop's description stands.
        zones: names of the camera's zones that the person has been in so far.
    """

    track: str
    camera: str
    phase: TrackPhase
    label: str
    time: float
    first_seen: float
    last_seen: float
    box: Box
    score: float
    reason: Reason = Reason.NONE
    final_crop: bool = False
    crop_id: str | None = None
    zones: Names = ()


@dataclass(frozen=True, slots=True)
class CameraStatus(_Message):
    """A camera's state as ingest sees it (``ww:camera:{id}``), with counters since that ingest started.

    Attributes:
        since: when the state began; ``updated``: when this was written (stale = ingest is gone).
        frame_age: seconds since the newest frame arrived, None before the first.
        next_retry: when the next connection attempt is due, None when none is.
        source: the URL without credentials.
        tracks: people in view now.
        drops: reason -> count of dropped frames, boxes and crops.
        crops_by_kind: ``crops`` by the value of their :class:`CropKind`.
        decoder: ``cpu`` or the device that decodes the stream; empty before the first connection.
        next_change: when its schedule switches the camera on or off next, None without a schedule.
        fps_in: pictures a second that come from the stream; ``fps``: those that are handed on; ``fps_processed``: those
            that the detector has looked at.
    """

    camera: str
    name: str
    state: CameraState
    reason: Reason
    since: float
    updated: float
    source: str = ""
    fps: float = 0.0
    frame_age: float | None = None
    width: int = 0
    height: int = 0
    next_retry: float | None = None
    reconnects: int = 0
    frames: int = 0
    detections: int = 0
    tracks: int = 0
    crops: int = 0
    detector_ms: float = 0.0
    drops: Mapping[str, int] = field(default_factory=dict)
    decoder: str = ""
    next_change: float | None = None
    fps_in: float = 0.0
    fps_processed: float = 0.0
    crops_by_kind: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommandMessage(_Message):
    """What serve asks of ingest (``ww:commands``). ``camera`` is empty for CAMERAS, which concerns all of them."""

    kind: CommandKind
    camera: str
    time: float


@dataclass(frozen=True, slots=True)
class EventChange(_Message):
    """A change of an event for everyone who watches (``ww:events``). ``event`` is the event as the API shows it."""

    kind: ChangeKind
    event_id: str
    time: float
    event: Mapping[str, Any] = field(default_factory=dict)


def event_id_of(track: str) -> str:
    """The id of a track's event: ``front/t5k3a-12`` -> ``front.t5k3a-12`` (fit for a URL; camera ids hold no dot)."""
    return track.replace("/", ".")
