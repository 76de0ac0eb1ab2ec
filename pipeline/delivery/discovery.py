"""Topics, and what tells Home Assistant which entities lie behind them (MQTT discovery). Pure.

Forms as in https://www.home-assistant.io/integrations/mqtt/#mqtt-discovery: one retained message an entity, which every
version with discovery knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.config.delivery import CHANGES, MqttConfig

MAX_STATE = 255
"""Home Assistant refuses longer states; the whole text is in the attributes."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Names of all topics. ``base`` is ``mqtt.topic``."""

    base: str

    @property
    def availability(self) -> str:
        """``online``, and ``offline`` as the last will; retained."""
        return f"{self.base}/availability"

    @property
    def events(self) -> str:
        """Every message, in the form of a webhook's body with its id; not retained."""
        return f"{self.base}/events"

    @property
    def test(self) -> str:
        return f"{self.base}/test"

    def camera_availability(self, camera: str) -> str:
        """``online`` while the camera gives pictures, else ``offline``; retained."""
        return f"{self.base}/{camera}/availability"

    def state(self, camera: str) -> str:
        """The camera's state, such as ``frozen``; retained."""
        return f"{self.base}/{camera}/state"

    def people(self, camera: str) -> str:
        """How many people are in view; retained."""
        return f"{self.base}/{camera}/person"

    def description(self, camera: str) -> str:
        """The newest description as JSON; retained."""
        return f"{self.base}/{camera}/description"

    def event(self, camera: str) -> str:
        """Each change of the camera's events as JSON with ``event_type``; not retained."""
        return f"{self.base}/{camera}/event"

    def image(self, camera: str) -> str:
        """The newest event's JPEG; retained."""
        return f"{self.base}/{camera}/image"


def discovery(
    config: MqttConfig, camera: str, name: str, version: str, public_url: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Topic and payload for each entity of a camera."""
    topics, node = Topics(config.topic), re.sub(r"[^a-zA-Z0-9_-]", "_", config.topic)
    device: dict[str, Any] = {
        "identifiers": [f"{node}_{camera}"],
        "name": name,
        "manufacturer": "Watchword",
        "model": "Camera",
        "sw_version": version,
    }
    if public_url:
        device["configuration_url"] = public_url
    shared: dict[str, Any] = {"device": device, "origin": {"name": "watchword", "sw_version": version}, "qos": 1}
    here = [{"topic": topics.availability}]
    seen = [*here, {"topic": topics.camera_availability(camera)}]
    for component, part, entity in _entities(config, topics, camera):
        needs_camera = part in ("people", "occupancy")
        yield (
            f"{config.discovery_prefix}/{component}/{node}_{camera}/{part}/config",
            {
                "unique_id": f"{node}_{camera}_{part}",
                "availability": seen if needs_camera else here,
                "availability_mode": "all",
                **shared,
                **entity,
            },
        )


def _entities(config: MqttConfig, topics: Topics, camera: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    people = topics.people(camera)
    yield (
        "sensor",
        "people",
        {"name": "People", "state_topic": people, "state_class": "measurement", "icon": "mdi:account-group"},
    )
    yield (
        "binary_sensor",
        "occupancy",
        {
            "name": "Occupancy",
            "state_topic": people,
            "device_class": "occupancy",
            "value_template": "{{ 'ON' if value | int(0) > 0 else 'OFF' }}",
        },
    )
    yield (
        "sensor",
        "description",
        {
            "name": "Description",
            "state_topic": topics.description(camera),
            "value_template": f"{{{{ value_json.description[:{MAX_STATE}] }}}}",
            "json_attributes_topic": topics.description(camera),
            "icon": "mdi:text-account",
        },
    )
    yield (
        "event",
        "event",
        {"name": "Event", "state_topic": topics.event(camera), "event_types": list(CHANGES), "icon": "mdi:walk"},
    )
    yield (
        "sensor",
        "state",
        {
            "name": "Camera state",
            "state_topic": topics.state(camera),
            "entity_category": "diagnostic",
            "icon": "mdi:cctv",
        },
    )
    if config.images:
        yield (
            "image",
            "image",
            {"name": "Person", "image_topic": topics.image(camera), "content_type": "image/jpeg"},
        )
