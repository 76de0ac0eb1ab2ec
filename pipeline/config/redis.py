"""Redis or Valkey: what lies between ingest and serve."""

from __future__ import annotations

from pydantic import Field, SecretStr

from pipeline.config.base import Section


class RedisConfig(Section):
    """Connection and bounds. Only commands of Redis 7.0 are used."""

    url: SecretStr | None = Field(
        None,
        title="URL",
        description="redis://, rediss:// or unix://; empty: `watchword up` and `demo` start an embedded Valkey.",
    )
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
