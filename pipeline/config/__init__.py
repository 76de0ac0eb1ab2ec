"""The whole configuration: one tree of pydantic models, validated once."""

from __future__ import annotations

from pydantic import Field, model_validator

from pipeline.config.base import Section
from pipeline.config.camera import Blur, CameraConfig, PrivacyConfig
from pipeline.config.detector import CropConfig, DetectorConfig, TrackingConfig
from pipeline.config.engine import DescriberConfig, EngineSection, StoreConfig
from pipeline.config.pictures import PicturesConfig
from pipeline.config.redis import RedisConfig
from pipeline.config.retention import RetentionConfig
from pipeline.config.server import ApiKeyConfig, ServerConfig

__all__ = [
    "ApiKeyConfig",
    "Blur",
    "CameraConfig",
    "CropConfig",
    "DescriberConfig",
    "DetectorConfig",
    "EngineSection",
    "PicturesConfig",
    "PrivacyConfig",
    "RedisConfig",
    "RetentionConfig",
    "ServerConfig",
    "StoreConfig",
    "TrackingConfig",
    "WatchwordConfig",
]


class WatchwordConfig(Section):
    """The root of the YAML file."""

    cameras: tuple[CameraConfig, ...] = Field((), title="Cameras", description="Cameras to watch.")
    detector: DetectorConfig = Field(DetectorConfig(), title="Detector", description="Finding people.")
    tracking: TrackingConfig = Field(TrackingConfig(), title="Tracking", description="Following people.")
    crops: CropConfig = Field(CropConfig(), title="Crops", description="Choosing pictures.")
    redis: RedisConfig = Field(RedisConfig(), title="Redis", description="Between the processes.")
    engine: EngineSection = Field(EngineSection(), title="Engine", description="The vision-language model.")
    describer: DescriberConfig = Field(DescriberConfig(), title="Describer", description="From crops to words.")
    store: StoreConfig = Field(StoreConfig(), title="Store", description="Events and crops.")
    retention: RetentionConfig = Field(RetentionConfig(), title="Retention", description="How long events are kept.")
    server: ServerConfig = Field(ServerConfig(), title="Server", description="HTTP.")
    pictures: PicturesConfig = Field(PicturesConfig(), title="Pictures", description="Pictures in requests.")

    @model_validator(mode="after")
    def _distinct_ids(self) -> WatchwordConfig:
        seen: set[str] = set()
        for camera in self.cameras:
            if camera.id in seen:
                raise ValueError(f"cameras: id {camera.id!r} is used twice")
            seen.add(camera.id)
        return self
