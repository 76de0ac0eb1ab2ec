"""One camera, and how its pictures are read."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import Field, SecretStr, StringConstraints, field_validator

from pipeline.config.base import Section

CameraId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,64}$")]


class CameraConfig(Section):
    """A camera to watch. ``username`` and ``password`` may be given beside the URL and are quoted into it."""

    id: CameraId = Field(title="Id", description="Short name in URLs and keys: a-z, 0-9, _ and -, at most 64.")
    name: str = Field("", title="Name", description="What people read; any text. Default: the id.", max_length=200)
    url: str = Field(title="URL", description="rtsp://, rtsps://, or a file path.", min_length=1, max_length=2000)
    username: str | None = Field(None, title="User name", description="Put into the URL, quoted.")
    password: SecretStr | None = Field(None, title="Password", description="Put into the URL, quoted; never shown.")
    transport: Literal["tcp", "udp"] = Field("tcp", title="Transport", description="RTP over TCP (default) or UDP.")
    enabled: bool = Field(True, title="Enabled", description="False keeps the camera in the list but disconnected.")
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
    confidence: float | None = Field(
        None,
        title="Confidence",
        description="Least detection score for this camera; default: the detector's.",
        gt=0,
        lt=1,
    )
    prompt: str | None = Field(
        None,
        title="Prompt",
        description="Question asked about each person here; default: the describer's.",
        max_length=4000,
    )

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: str) -> str:
        scheme = urlsplit(url).scheme.lower() if "://" in url else "file"
        if scheme not in ("rtsp", "rtsps", "file"):
            raise ValueError(f"scheme {scheme!r} is not supported; allowed are rtsp, rtsps and file paths")
        return url

    @property
    def title(self) -> str:
        """The name for people."""
        return self.name or self.id

    @property
    def source(self) -> str:
        """What is opened: the URL with user name and password quoted into it. A secret: never log it."""
        if self.username is None or "://" not in self.url:
            return self.url
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        secret = self.password.get_secret_value() if self.password else ""
        return urlunsplit(parts._replace(netloc=f"{quote(self.username, safe='')}:{quote(secret, safe='')}@{host}"))
