"""Who is told of events: webhooks and an MQTT broker."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from pipeline.config.alerts import TargetName
from pipeline.config.base import Section

Change = Literal["started", "described", "ended", "failed", "updated", "matched"]
CHANGES: tuple[Change, ...] = ("started", "matched", "described", "ended", "failed", "updated")
MQTT = "mqtt"
"""The broker's name among the targets."""
_SECRET_BYTES = (24, 64)
_SECRET_FILE_BYTES = 4096


class TargetConfig(Section):
    """What webhooks and MQTT have in common."""

    events: tuple[Change, ...] = Field(
        ("started", "matched", "described", "ended", "failed"),
        title="Events",
        description="started: somebody is seen. matched: a rule holds. described: words, as a draft or final. ended: "
        "nobody there any more. failed: no words will come. updated: other zones, or in view again.",
        min_length=1,
    )
    rules: tuple[TargetName, ...] = Field(
        (),
        title="Rules",
        description="Names of `alerts`: only events that match one of them, from that moment on; empty: all events.",
    )
    timeout_s: float = Field(10.0, title="Timeout", description="Seconds for one message.", gt=0, le=60)
    retry_first_s: float = Field(
        2.0, title="First pause", description="Seconds after a failure; twice as long after each further one.", gt=0
    )
    retry_max_s: float = Field(300.0, title="Longest pause", description="Between two attempts, in seconds.", gt=0)
    max_age_s: float = Field(
        6 * 3600.0,
        title="Retries end",
        description="A message that could not be delivered for so long is dropped and counted.",
        gt=0,
        le=30 * 86_400,
    )
    max_waiting: int = Field(
        1000,
        title="Bound",
        description="Events that wait for this target; beyond it the oldest is dropped and counted.",
        ge=1,
        le=100_000,
    )


class TlsConfig(TargetConfig):
    """A target that may be reached by TLS."""

    tls_verify: bool = Field(True, title="Check the certificate", description="False accepts any certificate.")
    tls_ca_file: Path | None = Field(
        None, title="CA file", description="Certificates (PEM) trusted here, not the system's."
    )


class WebhookConfig(TlsConfig):
    """An address that is told of events by signed POST requests (Standard Webhooks); see docs/delivery.md."""

    name: TargetName = Field(title="Name", description="In metrics, on the page, in the API: a-z, 0-9, _ and -.")
    url: SecretStr = Field(
        title="URL",
        description="http:// or https://; shown by its host alone, because many such addresses are secrets. "
        "Private addresses are allowed; redirects are not followed.",
    )
    secret: SecretStr | None = Field(
        None,
        title="Secret",
        description="`whsec_` and 24 to 64 bytes in base64 (`echo whsec_$(openssl rand -base64 32)`). Without one, "
        "messages are not signed.",
    )
    secret_file: Path | None = Field(None, title="Secret file", description="In place of secret: a file that holds it.")
    headers: dict[str, SecretStr] = Field(
        {}, title="Headers", description="Sent with each message, such as {Authorization: Bearer ...}; never shown."
    )

    @field_validator("name")
    @classmethod
    def _not_the_broker(cls, name: str) -> str:
        if name == MQTT:
            raise ValueError(f"{MQTT!r} is the broker's name; choose another")
        return name

    @field_validator("url")
    @classmethod
    def _usable(cls, url: SecretStr) -> SecretStr:
        try:
            parts = urlsplit(url.get_secret_value())
            port_ok = parts.port is None or parts.port > 0
        except ValueError:
            parts, port_ok = urlsplit(""), False
        if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok:
            raise ValueError("must be http:// or https:// with a host")
        return url

    @field_validator("headers")
    @classmethod
    def _plain_headers(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            text = value.get_secret_value()
            if not name or not all(c.isalnum() or c in "-_" for c in name) or not name.isascii():
                raise ValueError("a header's name is letters, digits and hyphens")
            if not text.isascii() or not text.isprintable():
                raise ValueError(f"the value of header {name} may hold printable ASCII characters only")
            if name.lower() in ("content-type", "content-length", "host") or name.lower().startswith("webhook-"):
                raise ValueError(f"header {name} is set by watchword itself")
        return headers

    @model_validator(mode="after")
    def _usable_secret(self) -> WebhookConfig:
        self.read_secret()
        return self

    @property
    def host(self) -> str:
        """``https://host:port``: what may be shown."""
        parts = urlsplit(self.url.get_secret_value())
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def read_secret(self) -> str | None:
        """The signing secret, from the field or the file; None without one. Raises ValueError."""
        secret = secret_of("secret", self.secret, self.secret_file)
        if secret is None:
            return None
        encoded = secret.removeprefix("whsec_")
        try:
            size = len(base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True))
        except (binascii.Error, ValueError):
            size = 0
        low, high = _SECRET_BYTES
        if not secret.startswith("whsec_") or not low <= size <= high:
            raise ValueError(
                f"webhook {self.name!r}: secret must be 'whsec_' and {low} to {high} bytes in base64; "
                "`echo whsec_$(openssl rand -base64 32)` makes one"
            )
        return secret


class MqttConfig(TlsConfig):
    """An MQTT broker, with topics and discovery for Home Assistant; off without a host. See docs/delivery.md."""

    host: str = Field("", title="Host", description="Name or address of the broker; empty: no MQTT.")
    port: int | None = Field(None, title="Port", description="Default: 1883, with TLS 8883.", ge=1, le=65535)
    tls: bool = Field(False, title="TLS", description="Encrypt the connection.")
    username: str | None = Field(None, title="User name", description="For the broker.")
    password: SecretStr | None = Field(None, title="Password", description="For the broker; never shown.")
    password_file: Path | None = Field(
        None, title="Password file", description="In place of password: a file that holds it."
    )
    client_id: str = Field(
        "watchword", title="Client id", description="Known to the broker; of one installation only.", min_length=1
    )
    topic: str = Field(
        "watchword",
        title="Topic",
        description="Beginning of all topics.",
        pattern=r"^[^+#\s/][^+#\s]*[^+#\s/]$",
        max_length=200,
    )
    discovery: bool = Field(True, title="Discovery", description="Tell Home Assistant which entities there are.")
    discovery_prefix: str = Field(
        "homeassistant",
        title="Discovery prefix",
        description="As configured in Home Assistant.",
        pattern=r"^[^+#\s/][^+#\s]*$",
    )
    images: bool = Field(False, title="Pictures", description="Publish each event's JPEG on the camera's image topic.")
    max_image_bytes: int = Field(
        512 * 1024, title="Largest picture", description="In bytes; a larger one is left out and counted.", ge=1024
    )
    keep_alive_s: int = Field(
        30,
        title="Keep-alive",
        description="Seconds; the broker says `offline` after one and a half of it.",
        ge=5,
        le=600,
    )

    @model_validator(mode="after")
    def _usable_password(self) -> MqttConfig:
        if self.read_password() is not None and self.username is None:
            raise ValueError("mqtt.password is given without mqtt.username")
        return self

    @property
    def enabled(self) -> bool:
        return bool(self.host)

    @property
    def address(self) -> str:
        """``mqtts://host:port``: what may be shown."""
        return f"mqtt{'s' if self.tls else ''}://{self.host}:{self.used_port}"

    @property
    def used_port(self) -> int:
        return self.port or (8883 if self.tls else 1883)

    def read_password(self) -> str | None:
        """From the field or the file. Raises ValueError."""
        return secret_of("password", self.password, self.password_file)


def secret_of(name: str, value: SecretStr | None, path: Path | None) -> str | None:
    """The secret itself, or what its file holds without the closing line break. Raises ValueError."""
    if value is not None and path is not None:
        raise ValueError(f"give {name} or {name}_file, not both")
    if path is None:
        return value.get_secret_value() if value is not None else None
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_SECRET_FILE_BYTES).rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"{name}_file {str(path)!r} can't be read: {reason}") from None
    if not text:
        raise ValueError(f"{name}_file {str(path)!r} is empty")
    return text
