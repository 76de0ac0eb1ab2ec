"""The whole configuration: one tree of pydantic models, validated once."""

from __future__ import annotations

from pydantic import Field, model_validator

from pipeline.config.alerts import AlertRule
from pipeline.config.base import Section
from pipeline.config.camera import Blur, CameraConfig, PrivacyConfig
from pipeline.config.delivery import MqttConfig, WebhookConfig
from pipeline.config.detector import CropConfig, DetectorConfig, TrackingConfig
from pipeline.config.engine import DescriberConfig, EngineSection, StoreConfig
from pipeline.config.ingest import IngestConfig
from pipeline.config.motion import MotionConfig
from pipeline.config.pictures import PicturesConfig
from pipeline.config.redis import RedisConfig
from pipeline.config.retention import RetentionConfig
from pipeline.config.schedule import ScheduleConfig, ScheduleWindow
from pipeline.config.search import SearchConfig
from pipeline.config.server import ApiKeyConfig, ServerConfig
from pipeline.config.shapes import Polygon
from pipeline.config.zones import ZoneConfig

__all__ = [
    "AlertRule",
    "ApiKeyConfig",
    "Blur",
    "CameraConfig",
    "CropConfig",
    "DescriberConfig",
    "DetectorConfig",
    "EngineSection",
    "IngestConfig",
    "MotionConfig",
    "MqttConfig",
    "PicturesConfig",
    "Polygon",
    "PrivacyConfig",
    "RedisConfig",
    "RetentionConfig",
    "ScheduleConfig",
    "ScheduleWindow",
    "SearchConfig",
    "ServerConfig",
    "StoreConfig",
    "TrackingConfig",
    "WatchwordConfig",
    "WebhookConfig",
    "ZoneConfig",
]


class WatchwordConfig(Section):
    """The root of the YAML file."""

    cameras: tuple[CameraConfig, ...] = Field((), title="Cameras", description="Cameras to watch.")
    ingest: IngestConfig = Field(IngestConfig(), title="Ingest", description="The camera side as a process.")
    detector: DetectorConfig = Field(DetectorConfig(), title="Detector", description="Finding people.")
    tracking: TrackingConfig = Field(TrackingConfig(), title="Tracking", description="Following people.")
    crops: CropConfig = Field(CropConfig(), title="Crops", description="Choosing pictures.")
    redis: RedisConfig = Field(RedisConfig(), title="Redis", description="Between the processes.")
    engine: EngineSection = Field(EngineSection(), title="Engine", description="The vision-language model.")
    describer: DescriberConfig = Field(DescriberConfig(), title="Describer", description="From crops to words.")
    store: StoreConfig = Field(StoreConfig(), title="Store", description="Events and crops.")
    retention: RetentionConfig = Field(RetentionConfig(), title="Retention", description="How long events are kept.")
    search: SearchConfig = Field(SearchConfig(), title="Search", description="Finding events by meaning.")
    server: ServerConfig = Field(ServerConfig(), title="Server", description="HTTP.")
    pictures: PicturesConfig = Field(PicturesConfig(), title="Pictures", description="Pictures in requests.")
    alerts: tuple[AlertRule, ...] = Field((), title="Alerts", description="Rules for what is worth an alert.")
    webhooks: tuple[WebhookConfig, ...] = Field((), title="Webhooks", description="Who is told of events by HTTP.")
    mqtt: MqttConfig = Field(MqttConfig(), title="MQTT", description="A broker, and Home Assistant behind it.")

    @model_validator(mode="after")
    def _distinct_ids(self) -> WatchwordConfig:
        seen: set[str] = set()
        for camera in self.cameras:
            if camera.id in seen:
                raise ValueError(f"cameras: id {camera.id!r} is used twice")
            seen.add(camera.id)
        return self

    @model_validator(mode="after")
    def _known_rules(self) -> WatchwordConfig:
        for section, names in (("alerts", self.alerts), ("webhooks", self.webhooks)):
            given = [entry.name for entry in names]
            if double := next((name for name in given if given.count(name) > 1), None):
                raise ValueError(f"{section}: name {double!r} is used twice")
        rules = [rule.name for rule in self.alerts]
        for place, target in (*((f"webhooks: {hook.name}", hook) for hook in self.webhooks), ("mqtt", self.mqtt)):
            for name in target.rules:
                if name not in rules:
                    known = f"known are {', '.join(rules)}" if rules else "there are no alerts"
                    raise ValueError(f"{place}: rules names {name!r}, which is no alert; {known}")
        return self
