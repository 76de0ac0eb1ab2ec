"""One camera, and how its pictures are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import Field, SecretStr, StringConstraints, field_validator, model_validator

from pipeline.config.base import Section
from pipeline.config.detector import ClassNames, Quantize
from pipeline.config.motion import MotionConfig
from pipeline.config.output_schema import OutputSchema
from pipeline.config.prompt_template import PromptTemplate
from pipeline.config.raw import read_secret_file
from pipeline.config.schedule import ScheduleConfig
from pipeline.config.shapes import Polygon
from pipeline.config.zones import ZoneConfig
from pipeline.redaction import register_secret

Decode = Literal[
    "auto",
    "cpu",
    "cuda",
    "qsv",
    "vaapi",
    "vdpau",
    "drm",
    "amf",
    "vulkan",
    "opencl",
    "videotoolbox",
    "mediacodec",
    "dxva2",
    "d3d11va",
    "d3d12va",
]
"""libav's names; which of them a build of PyAV has, ``av.codec.hwaccel.hwdevices_available()`` says where it runs."""
SCHEMES = ("rtsp", "rtsps", "http", "https")
CameraId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,64}$")]


Blur = Literal["none", "head", "person"]


class PrivacyConfig(Section):
    """What of people leaves ingest."""

    blur: Blur = Field(
        "none",
        title="Blur",
        description="What is made unrecognisable, of everybody, in pictures of people and previews: nothing, the head "
        "(top quarter of the box) or the whole person. The model sees the same pictures.",
    )


class CameraConfig(Section):
    """A camera to watch. ``username`` and ``password`` may be given beside the URL and are quoted into it."""

    id: CameraId = Field(title="Id", description="Short name in URLs and keys: a-z, 0-9, _ and -, at most 64.")
    name: str = Field("", title="Name", description="What people read; any text. Default: the id.", max_length=200)
    url: str = Field(
        title="URL",
        description="rtsp://, rtsps://, http:// or https:// (MJPEG), webcam:0 (this machine's), or a file path.",
        min_length=1,
        max_length=2000,
    )
    substream_url: str | None = Field(
        None,
        title="Sub-stream URL",
        description="A smaller stream with the same view: people are looked for on it, and cut out of url's pictures.",
        min_length=1,
        max_length=2000,
    )
    substream_apart_s: float = Field(
        0.3,
        title="Sub-stream apart",
        description="Pictures of both streams that arrive within so many seconds count as the same moment.",
        gt=0,
        le=5,
    )
    username: str | None = Field(None, title="User name", description="Put into the URL, quoted.")
    password: SecretStr | None = Field(None, title="Password", description="Put into the URL, quoted; never shown.")
    password_file: Path | None = Field(
        None,
        title="Password file",
        description="Holds the password in place of `password`, where ingest runs; read at each connection.",
    )
    transport: Literal["tcp", "udp"] = Field("tcp", title="Transport", description="RTP over TCP (default) or UDP.")
    tls_verify: bool = Field(
        True, title="Check the certificate", description="For rtsps and https; most cameras' own needs tls_ca_file."
    )
    tls_ca_file: Path | None = Field(
        None, title="CA file", description="Certificates (PEM) trusted for this camera, not the system's."
    )
    decode: Decode = Field(
        "auto",
        title="Decoder",
        description="auto: a device if one can be used, else the CPU, told by one warning and in the metrics. "
        "cpu or a device: that one or nothing.",
    )
    enabled: bool = Field(True, title="Enabled", description="False keeps the camera in the list but disconnected.")
    schedule: ScheduleConfig | None = Field(
        None,
        title="Schedule",
        description="Hours in which the camera is watched (`timezone`, `windows`); without one, always.",
    )
    fps: float = Field(
        5.0, title="Frames per second", description="How many frames a second are looked at.", gt=0, le=60
    )
    open_timeout_s: float = Field(5.0, title="Open timeout", description="Longest wait for a connection.", gt=0, le=120)
    first_frame_timeout_s: float = Field(
        10.0,
        title="First-frame timeout",
        description="Longest wait for the first picture after connecting.",
        gt=0,
        le=300,
    )
    stall_timeout_s: float = Field(
        5.0, title="Stall timeout", description="A camera without a new picture for so long is STALLED.", gt=0, le=300
    )
    frozen_after_s: float = Field(
        60.0,
        title="Frozen after",
        description="The very same picture for so long, and across frozen_keyframes, is FROZEN. 0: never.",
        ge=0,
        le=86_400,
    )
    frozen_keyframes: int = Field(
        2,
        title="Keyframes until frozen",
        description="A still scene repeats itself between keyframes too, so at least two of them must be the same.",
        ge=2,
        le=1000,
    )
    idle_after_s: float = Field(
        0.0,
        title="Idle after",
        description="Without motion for so long, only keyframes are decoded until something moves. 0: never. "
        "Needs motion.enabled.",
        ge=0,
        le=86_400,
    )
    confidence: float | None = Field(
        None,
        title="Confidence",
        description="Least detection score for this camera; default: the detector's.",
        gt=0,
        lt=1,
    )
    privacy: PrivacyConfig = Field(PrivacyConfig(), title="Privacy", description="Of the people this camera sees.")
    classes: ClassNames | None = Field(
        None, title="Classes", description="What is looked for here; default: the detector's classes."
    )
    imgsz: int | None = Field(
        None,
        title="Image size",
        description="Longer side of the detector's input here; default: the detector's.",
        ge=160,
        le=1920,
    )
    quantize: Quantize | None = Field(
        None, title="Precision", description="The detector's precision here; default: the detector's."
    )
    weights: str | None = Field(
        None, title="Weights", description="Another network for this camera; default: the detector's.", min_length=1
    )
    motion: MotionConfig = Field(
        MotionConfig(), title="Motion", description="Frames in which nothing moves are not given to the detector."
    )
    zones: tuple[ZoneConfig, ...] = Field(
        (), title="Zones", description="Named areas; events tell in which of them somebody has been."
    )
    masks: tuple[Polygon, ...] = Field(
        (),
        title="Privacy masks",
        description="Polygons of points [x, y], shares of the picture: black before a frame leaves the reader.",
    )
    prompt: PromptTemplate | None = Field(
        None,
        title="Prompt",
        description="Question asked about each person here, with the describer's placeholders; default: its question.",
    )
    output_schema: OutputSchema | None = Field(
        None,
        title="Output schema",
        description="JSON schema of structured answers about this camera, or the path of a file; default: the "
        "describer's.",
    )

    @field_validator("url", "substream_url")
    @classmethod
    def _known_scheme(cls, url: str | None) -> str | None:
        if url is None:
            return None
        if url.startswith("webcam:"):
            if not url.removeprefix("webcam:").isdigit():
                raise ValueError("a webcam is named by its number, such as webcam:0")
            return url
        scheme = urlsplit(url).scheme.lower() if "://" in url else "file"
        if scheme not in (*SCHEMES, "file"):
            raise ValueError(
                f"scheme {scheme!r} is not supported; allowed are {', '.join(SCHEMES)}, webcam: and file paths"
            )
        return url

    @model_validator(mode="after")
    def _sound_zones(self) -> CameraConfig:
        names = [zone.name for zone in self.zones]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"zones: the name {name!r} is used twice")
        for zone in self.zones:
            strange = [name for name in zone.classes if self.classes is not None and name not in self.classes]
            if strange:
                known = ", ".join(self.classes or ())
                raise ValueError(f"zones: {zone.name!r} asks for {strange[0]!r}, the camera looks for {known}")
        if self.idle_after_s and not self.motion.enabled:
            raise ValueError(
                f"idle_after_s is {self.idle_after_s:g} but motion.enabled is false: nothing would wake it"
            )
        return self

    @model_validator(mode="after")
    def _one_password(self) -> CameraConfig:
        if self.password is not None and self.password_file is not None:
            raise ValueError("give password or password_file, not both")
        if self.username is None and (self.password is not None or self.password_file is not None):
            raise ValueError("a password needs a username")
        return self

    @property
    def title(self) -> str:
        """The name for people."""
        return self.name or self.id

    @property
    def source(self) -> str:
        """What is opened: the URL with user name and password quoted into it. A secret: never log it.

        Raises OSError or ValueError when ``password_file`` can't be read.
        """
        if self.username is None or "://" not in self.url:
            return self.url
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        login = f"{quote(self.username, safe='')}:{quote(self._secret(), safe='')}"
        return urlunsplit(parts._replace(netloc=f"{login}@{host}"))

    def _secret(self) -> str:
        if self.password_file is None:
            return self.password.get_secret_value() if self.password else ""
        secret = read_secret_file(self.password_file)
        register_secret(secret)
        return secret
