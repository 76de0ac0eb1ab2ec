"""Redis or Valkey: what lies between ingest and serve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, SecretStr, field_validator

from pipeline.config.base import Section


class RedisConfig(Section):
    """Connection and bounds. Only commands of Redis 7.0 are used."""

    url: SecretStr | None = Field(
        None,
        title="URL",
        description="redis://, rediss:// (TLS) or unix://, with user:password@ where the server asks for them; empty: "
        "`watchword up` and `demo` start an embedded Valkey.",
    )
    tls_ca_file: Path | None = Field(
        None, title="Authorities", description="PEM file that rediss:// certificates are checked against."
    )
    tls_cert_file: Path | None = Field(
        None, title="Own certificate", description="PEM file, where the server asks clients for one."
    )
    tls_key_file: Path | None = Field(None, title="Key of it", description="PEM file.")
    sentinels: tuple[str, ...] = Field(
        (),
        title="Sentinels",
        description="host:port of each. They are asked which server is the master; url then gives only its scheme, "
        "user, password and database.",
    )
    sentinel_master: str = Field("mymaster", title="Master", description="The Sentinels' name for the server.")
    sentinel_username: str | None = Field(None, title="Sentinel user", description="Where the Sentinels ask for one.")
    sentinel_password: SecretStr | None = Field(
        None, title="Sentinel password", description="Of the Sentinels, not of the server."
    )
    sentinel_tls: bool = Field(False, title="Sentinel TLS", description="The Sentinels speak TLS.")
    crops_per_camera: int = Field(
        64, title="Crops per camera", description="Bound of a camera's waiting crops.", ge=1, le=100_000
    )
    crop_mib_per_camera: float = Field(
        32.0, title="Crop MiB per camera", description="Bound of the pictures of a camera's waiting crops.", gt=0
    )
    picture_ttl_s: int = Field(900, title="Picture TTL", description="Seconds that a crop's JPEG is kept.", ge=10)
    status_ttl_s: int = Field(
        30, title="Status TTL", description="Seconds after which a silent camera's state is gone.", ge=5
    )
    events_maxlen: int = Field(
        2000, title="Event changes kept", description="For reconnecting server-sent-event clients.", ge=100
    )
    claim_idle_s: float = Field(
        60.0,
        title="Claim after",
        description="A crop whose describer gave no sign of life so long goes to another.",
        gt=1,
    )
    max_failures: int = Field(
        3, title="Failures until dead", description="Recorded failures before the dead letter.", ge=1
    )
    max_deliveries: int = Field(
        20, title="Deliveries until dead", description="Bound on deliveries, for crashes.", ge=1
    )
    dead_letters: int = Field(
        200, title="Dead letters", description="So many are kept with their pictures, the newest ones.", ge=1, le=10_000
    )
    buffer_crops: int = Field(
        64, title="Buffer", description="Newest crops that ingest keeps while Redis is away.", ge=1
    )

    @field_validator("sentinels")
    @classmethod
    def _with_ports(cls, sentinels: tuple[str, ...]) -> tuple[str, ...]:
        for number, sentinel in enumerate(sentinels):
            host, _, port = sentinel.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ValueError(f"entry {number} is {sentinel!r}, needed is host:port")
        return sentinels

    @property
    def is_named(self) -> bool:
        """Whether there is a server to connect to."""
        return self.url is not None or bool(self.sentinels)

    def sentinel_addresses(self) -> Iterator[tuple[str, int]]:
        """(host, port) of each Sentinel."""
        for sentinel in self.sentinels:
            host, _, port = sentinel.rpartition(":")
            yield host.strip("[]"), int(port)
