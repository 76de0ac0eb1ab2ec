"""What can be wrong with a camera: set by tests at once, or by a script of times."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ingest.demo_camera.encoder import PIXEL_FORMATS, AccessUnit
from ingest.demo_camera.rtsp import METHODS, STATUS_TEXT


class FaultError(ValueError):
    """A fault that can't be read; the text says what is allowed."""


@dataclass(slots=True)
class Faults:
    """What is wrong with the camera at the moment. Attributes are set by any thread and read by the server's.

    Attributes:
        stalled: connections stay open and requests are answered, but nothing is encoded or sent.
        frozen: the same picture is encoded again and again, as by a camera whose sensor hangs.
        hang_at: requests of these methods are never answered.
        status_at: requests of these methods are refused with a status, e.g. ``{"SETUP": 461}``.
        corrupt: share of the pictures whose slice is damaged, 0 to 1.
        skip: share of the pictures, keyframes aside, that are encoded but not sent.
        loss: share of the RTP packets that are not sent, 0 to 1.
        time_shift_s: added to the RTP time, e.g. 3600 for a clock that jumps an hour ahead.
        late_keyframe_s: a new client gets no keyframe for so long, only what depends on one.
        max_viewers: a client beyond it is told that there is no room (453).
        size: width and height of the stream instead of the source's.
        pixel_format: one of ``PIXEL_FORMATS``.
        codec_name: as the session description names it.
        title: session name in the description; may be bytes that are no text.
    """

    stalled: bool = False
    frozen: bool = False
    hang_at: frozenset[str] = frozenset()
    status_at: Mapping[str, int] = field(default_factory=dict)
    corrupt: float = 0.0
    skip: float = 0.0
    loss: float = 0.0
    time_shift_s: float = 0.0
    late_keyframe_s: float = 0.0
    max_viewers: int | None = None
    size: tuple[int, int] | None = None
    pixel_format: str = PIXEL_FORMATS[0]
    codec_name: str = "H264"
    title: bytes = b"Watchword demo camera"


def damage(unit: AccessUnit, rng: random.Random) -> AccessUnit:
    """The access unit with noise in the middle third of every slice; parameter sets stay whole."""
    return AccessUnit(unit.index, tuple(_noisy(nal, rng) if nal[0] & 0x1F in (1, 5) else nal for nal in unit.nals))


def _noisy(nal: bytes, rng: random.Random) -> bytes:
    start = len(nal) // 3
    length = min(max(4, len(nal) // 3), len(nal) - start)
    # No zeros: they could look like a start code.
    noise = bytes(rng.randrange(1, 256) for _ in range(length))
    return nal[:start] + noise + nal[start + length :]


class Faulty(Protocol):
    """A camera, as a scheduled fault needs it."""

    @property
    def faults(self) -> Faults: ...

    def close_clients(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """A fault with its time.

    Attributes:
        start: seconds after the camera's start.
        seconds: how long; None is for good.
    """

    name: str
    value: Any
    start: float = 0.0
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> ScheduledFault:
        """Reads ``NAME[=VALUE][@START[+SECONDS]]``, e.g. ``stall@10+5``. Raises FaultError."""
        match = _SYNTAX.fullmatch(text.strip())
        if match is None:
            raise FaultError(f"fault {text!r} is not of the form NAME[=VALUE][@START[+SECONDS]], e.g. stall@10+5")
        kind = FAULTS.get(match["name"])
        if kind is None:
            raise FaultError(f"fault {match['name']!r} is unknown; there are {', '.join(sorted(FAULTS))}")
        try:
            value = kind.read(match["value"])
        except ValueError as error:
            raise FaultError(f"fault {match['name']}={match['value'] or ''}: {error}; {kind.help}") from None
        seconds = match["seconds"]
        return cls(match["name"], value, float(match["start"] or 0), None if seconds is None else float(seconds))

    def begin(self, camera: Faulty) -> None:
        """Makes it so."""
        attribute = FAULTS[self.name].attribute
        if attribute:
            setattr(camera.faults, attribute, self.value)
        else:
            camera.close_clients()

    def end(self, camera: Faulty) -> None:
        """All is well again."""
        attribute = FAULTS[self.name].attribute
        if attribute:
            setattr(camera.faults, attribute, getattr(Faults(), attribute))


@dataclass(frozen=True, slots=True)
class FaultKind:
    """``attribute`` of :class:`Faults`, empty for a deed; ``read`` raises ValueError."""

    attribute: str
    read: Callable[[str | None], Any]
    help: str


def _switch(text: str | None) -> bool:
    if text is not None:
        raise ValueError("takes no value")
    return True


def _required(text: str | None) -> str:
    if not text:
        raise ValueError("needs a value")
    return text


def _share(text: str | None) -> float:
    share = float(_required(text))
    if not 0 <= share <= 1:
        raise ValueError("a share is 0 to 1")
    return share


def _seconds(text: str | None) -> float:
    return float(_required(text))


def _count(text: str | None) -> int:
    count = int(_required(text))
    if count < 0:
        raise ValueError("a count is 0 or more")
    return count


def _size(text: str | None) -> tuple[int, int]:
    width, _, height = _required(text).partition("x")
    size = int(width), int(height)
    if not all(16 <= side <= 8192 and side % 2 == 0 for side in size):
        raise ValueError("sides are even, 16 to 8192")
    return size


def _format(text: str | None) -> str:
    if _required(text) not in PIXEL_FORMATS:
        raise ValueError(f"there are {', '.join(PIXEL_FORMATS)}")
    return str(text)


def _method(text: str) -> str:
    if text.upper() not in METHODS:
        raise ValueError(f"{text!r} is not one of {', '.join(METHODS)}")
    return text.upper()


def _methods(text: str | None) -> frozenset[str]:
    return frozenset(_method(part) for part in _required(text).split(","))


def _statuses(text: str | None) -> dict[str, int]:
    statuses: dict[str, int] = {}
    for part in _required(text).split(","):
        method, _, status = part.partition(":")
        if int(status) not in STATUS_TEXT:
            raise ValueError(f"status {status} is not one of {', '.join(map(str, STATUS_TEXT))}")
        statuses[_method(method)] = int(status)
    return statuses


_SYNTAX = re.compile(
    r"(?P<name>[a-z-]+)(?:=(?P<value>[^@]*))?(?:@(?P<start>\d+(?:\.\d+)?)(?:\+(?P<seconds>\d+(?:\.\d+)?))?)?"
)
FAULTS: Mapping[str, FaultKind] = {
    "stall": FaultKind("stalled", _switch, "stall: nothing is sent"),
    "freeze": FaultKind("frozen", _switch, "freeze: the same picture over and over"),
    "close": FaultKind("", _switch, "close: all connections are closed, once"),
    "hang": FaultKind("hang_at", _methods, "hang=DESCRIBE,SETUP: no answer to these methods"),
    "status": FaultKind("status_at", _statuses, "status=SETUP:461: these methods are refused"),
    "corrupt": FaultKind("corrupt", _share, "corrupt=0.4: this share of the pictures is damaged"),
    "skip": FaultKind("skip", _share, "skip=0.1: this share of the pictures is left out"),
    "loss": FaultKind("loss", _share, "loss=0.05: this share of the RTP packets is not sent"),
    "jump": FaultKind("time_shift_s", _seconds, "jump=3600: RTP time jumps by so many seconds"),
    "late-keyframe": FaultKind("late_keyframe_s", _seconds, "late-keyframe=5: no keyframe for so many seconds"),
    "max-viewers": FaultKind("max_viewers", _count, "max-viewers=2: further clients are told 453"),
    "size": FaultKind("size", _size, "size=640x368: the stream's size changes"),
    "format": FaultKind("pixel_format", _format, "format=yuv444p: the stream's pixel format changes"),
}
