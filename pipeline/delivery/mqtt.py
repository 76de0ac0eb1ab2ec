"""MQTT: messages from the outbox, and retained topics that say how things stand, for Home Assistant and others."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from importlib.metadata import version
from typing import Any

import aiomqtt

from pipeline.clock import Clock
from pipeline.config import WatchwordConfig
from pipeline.config.delivery import MQTT, MqttConfig
from pipeline.delivery.discovery import Topics, discovery
from pipeline.delivery.message import message_id, test_body
from pipeline.delivery.transport import DeliveryFailed
from pipeline.delivery.webhook import tls_context
from pipeline.logs import ThrottledLogger
from pipeline.messages import CameraState
from pipeline.queue.health import QueueUnavailable, checkpoint
from pipeline.queue.hub import CameraHub
from pipeline.reasons import Reason
from pipeline.store import EventRecord, EventStore
from pipeline.store.deliveries import Delivery
from pipeline.store.patience import StoreLink

log = logging.getLogger(__name__)
_throttled = ThrottledLogger(log)

ONLINE, OFFLINE = "online", "offline"
LOOK_S = 1.0
STATES_EVERY_S = 5.0
DESCRIPTIONS_EVERY_S = 60.0
GOODBYE_S = 1.0
_AUTH_CODES = (4, 5, 134, 135)
"""CONNACK: bad user name or password, not authorised (MQTT 3.1.1, then 5)."""
_EVENT_FIELDS = (
    "description",
    "description_state",
    "state",
    "reason",
    "zones",
    "attributes",
    "first_seen",
    "last_seen",
)


class _Lost(Exception):
    """Another process holds the broker now."""


def mqtt_client(config: MqttConfig, client_id: str, *, will: aiomqtt.Will | None = None) -> aiomqtt.Client:
    """Not connected yet. Raises OSError, ``ssl.SSLError`` for ``tls_ca_file``, ValueError for ``password_file``."""
    return aiomqtt.Client(
        config.host,
        config.used_port,
        username=config.username,
        password=config.read_password(),
        identifier=client_id,
        will=will,
        keepalive=config.keep_alive_s,
        timeout=config.timeout_s,
        tls_context=tls_context(config) if config.tls else None,
        logger=logging.getLogger("pipeline.delivery.paho"),
    )


def failure_of(error: BaseException) -> DeliveryFailed:
    """What an error of the client means. Its text holds no password."""
    code = getattr(error, "rc", None)
    if getattr(code, "value", code) in _AUTH_CODES:
        return DeliveryFailed(Reason.TARGET_AUTH)
    text = str(error)
    if "SSL" in text or "certificate" in text.lower():
        return DeliveryFailed(Reason.TARGET_TLS, text[:200])
    if "timed out" in text.lower():
        return DeliveryFailed(Reason.TARGET_TIMEOUT)
    return DeliveryFailed(Reason.TARGET_UNREACHABLE, text[:200])


class MqttTransport:
    """One connection to the broker, for as long as this process holds it; a lost one is made anew, ever more slowly."""

    def __init__(self, config: WatchwordConfig, store: EventStore, hub: CameraHub, clock: Clock) -> None:
        self._config = config.mqtt
        self._public_url = config.server.public_url.rstrip("/")
        self._names = {camera.id: camera.title for camera in config.cameras}
        self._store = store
        self._hub = hub
        self._clock = clock
        self._topics = Topics(config.mqtt.topic)
        self._storing = StoreLink("delivery mqtt")
        self._client: aiomqtt.Client | None = None
        self._dirty = asyncio.Event()
        self._retained: dict[str, str] = {}
        self._pictures: dict[str, str] = {}

    @property
    def ready(self) -> bool:
        return self._client is not None

    # -- messages ------------------------------------------------------------------------------------------------

    async def send(self, delivery: Delivery) -> None:
        client = self._client
        if client is None:
            raise DeliveryFailed(Reason.TARGET_UNREACHABLE)
        body = json.loads(delivery.body)
        body = {"id": message_id(delivery.event_id, delivery.sequence), **body}
        event_topic = self._topics.event(delivery.camera)
        try:
            await self._send_picture(client, delivery.camera, body["data"]["event"])
            await _publish(client, self._topics.events, _json(body))
            for change in body["data"]["changes"]:
                await _publish(client, event_topic, _json(_event_payload(change, body)))
        except aiomqtt.MqttError as error:
            raise failure_of(error) from None
        self._dirty.set()

    async def send_test(self) -> None:
        try:
            # A name of its own: the broker would end the connection of another client with the same.
            async with mqtt_client(
                self._config, f"{self._config.client_id}-test-{random.randrange(1 << 30)}"
            ) as client:
                await client.publish(self._topics.test, _json(test_body(MQTT, self._clock.now())), qos=1)
        except (aiomqtt.MqttError, OSError) as error:
            raise failure_of(error) from None

    async def close(self) -> None:
        """Nothing: the connection ends with :meth:`run`."""

    def wake(self) -> None:
        """Something may have changed. From the event loop's thread."""
        self._dirty.set()

    async def _send_picture(self, client: aiomqtt.Client, camera: str, event: Mapping[str, Any]) -> None:
        """The event's picture, once; a newer event's takes its place."""
        crop = event["crop_id"]
        if not self._config.images or crop is None or self._pictures.get(camera) == crop:
            return
        jpeg = await self._picture(event["id"], crop)
        if jpeg is None:
            return
        self._pictures[camera] = crop
        if len(jpeg) > self._config.max_image_bytes:
            await self._storing.until_done(lambda: self._store.deliveries.count(MQTT, Reason.PICTURE_TOO_LARGE.value))
            return
        await _publish(client, self._topics.image(camera), jpeg, retain=True)

    async def _picture(self, event_id: str, crop_id: str) -> bytes | None:
        """From the store, or while the crop waits for a describer from Redis; None when it is gone."""

        def stored() -> bytes | None:
            sha256 = self._store.crop(event_id)
            return self._store.read_picture(sha256) if sha256 is not None else None

        jpeg = await self._storing.until_done(stored)
        if jpeg is None:
            with suppress(QueueUnavailable):
                jpeg = await self._hub.picture(crop_id)
        return jpeg

    # -- connection ----------------------------------------------------------------------------------------------

    async def run(self, held: Callable[[], bool], failed: Callable[[str], Awaitable[None]]) -> None:
        """Until cancelled. ``held``: whether this process may connect; ``failed`` is told why it could not."""
        failures = 0
        while True:
            if not held():
                await asyncio.sleep(LOOK_S)
                continue
            begun = time.monotonic()
            try:
                await self._connect(held)
            except* _Lost:
                failures = 0
                log.info("another process talks to the MQTT broker now")
            except* (aiomqtt.MqttError, OSError) as group:
                failure = failure_of(_first(group))
                failures = 0 if time.monotonic() - begun > self._config.retry_max_s else failures + 1
                _throttled.warning(str(failure.reason), "MQTT broker %s: %s", self._config.address, failure)
                await failed(str(failure))
            if failures:
                config = self._config
                pause = min(config.retry_max_s, config.retry_first_s * 2.0 ** min(failures - 1, 30))
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))

    async def _connect(self, held: Callable[[], bool]) -> None:
        """One connection to its end, which is always an exception."""
        will = aiomqtt.Will(self._topics.availability, OFFLINE, qos=1, retain=True)
        cancelled = False
        try:
            async with mqtt_client(self._config, self._config.client_id, will=will) as client:
                log.info("connected to the MQTT broker %s", self._config.address)
                self._retained.clear()
                self._pictures.clear()
                try:
                    await self._use(client, held)
                except asyncio.CancelledError:
                    cancelled = True
                    raise
                finally:
                    self._client = None
                    with suppress(aiomqtt.MqttError, TimeoutError):
                        # A clean end makes no last will.
                        async with asyncio.timeout(GOODBYE_S):
                            await client.publish(self._topics.availability, OFFLINE, qos=1, retain=True)
        except aiomqtt.MqttError:
            if cancelled:  # an error of the goodbye must not take its place
                raise asyncio.CancelledError from None
            raise

    async def _use(self, client: aiomqtt.Client, held: Callable[[], bool]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(client), name="mqtt-listen")
            tasks.create_task(self._follow(client), name="mqtt-follow")
            tasks.create_task(self._publish_states(client), name="mqtt-states")
            tasks.create_task(_watch(held), name="mqtt-held")

    async def _listen(self, client: aiomqtt.Client) -> None:
        """Home Assistant says when it starts: then it is told of the entities again."""
        await client.subscribe(f"{self._config.discovery_prefix}/status", qos=1)
        checkpoint()
        async for message in client.messages:
            if message.payload == ONLINE.encode() and not message.retain:
                self._retained.clear()
                self._dirty.set()

    async def _follow(self, client: aiomqtt.Client) -> None:
        """Event changes of all serve processes: descriptions as they come, and the sign to count again."""
        async with aclosing(self._hub.changes()) as changes:
            async for _, change in changes:
                self._dirty.set()
                event = change.event
                if event.get("description") and event.get("description_state") in ("draft", "final"):
                    await self._tell_description(client, event)

    # -- how things stand ----------------------------------------------------------------------------------------

    async def _publish_states(self, client: aiomqtt.Client) -> None:
        """Everything retained: at once, then what changed."""
        next_descriptions = 0.0
        while True:
            self._dirty.clear()
            await self._publish_cameras(client)
            if time.monotonic() >= next_descriptions:
                await self._publish_descriptions(client)
                next_descriptions = time.monotonic() + DESCRIPTIONS_EVERY_S
            await self._retain(client, self._topics.availability, ONLINE)
            # Messages go out once it is said who sends them.
            self._client = client
            with suppress(TimeoutError):
                async with asyncio.timeout(STATES_EVERY_S):
                    await self._dirty.wait()

    async def _publish_cameras(self, client: aiomqtt.Client) -> None:
        states: dict[str, str] = {}
        with suppress(QueueUnavailable):
            for status in await self._hub.statuses():
                states[status.camera] = status.state.value
                self._names.setdefault(status.camera, status.name or status.camera)
        people = await self._storing.until_done(self._store.deliveries.people)
        for camera, name in list(self._names.items()):
            state = states.get(camera, "")
            online = state == CameraState.ONLINE
            if self._config.discovery:
                await self._announce(client, camera, name)
            await self._retain(client, self._topics.camera_availability(camera), ONLINE if online else OFFLINE)
            await self._retain(client, self._topics.state(camera), state or "unknown")
            await self._retain(client, self._topics.people(camera), str(people.get(camera, 0)))

    async def _announce(self, client: aiomqtt.Client, camera: str, name: str) -> None:
        for topic, payload in discovery(self._config, camera, name, version("watchword"), self._public_url):
            await self._retain(client, topic, _json(payload))

    async def _publish_descriptions(self, client: aiomqtt.Client) -> None:
        for camera in list(self._names):
            record: EventRecord | None = await self._storing.until_done(
                lambda camera=camera: self._store.deliveries.last_described(camera)  # type: ignore[misc]
            )
            if record is not None:
                await self._tell_description(client, record.to_api())

    async def _tell_description(self, client: aiomqtt.Client, event: Mapping[str, Any]) -> None:
        """Only of the newest event: words for an older one may come later."""
        camera = str(event["camera"])
        topic = self._topics.description(camera)
        shown = json.loads(self._retained.get(topic, "{}"))
        if shown.get("first_seen", "") > event["first_seen"]:
            return
        picture = f"{self._public_url}{event['crop_url']}" if self._public_url and event["crop_url"] else None
        payload = {
            "description": event["description"],
            "description_state": event["description_state"],
            "event_id": event["id"],
            "first_seen": event["first_seen"],
            "last_seen": event["last_seen"],
            "zones": event["zones"],
            "attributes": event["attributes"],
            "rules": event.get("rules", []),
            "picture_url": picture,
        }
        await self._retain(client, topic, _json(payload))

    async def _retain(self, client: aiomqtt.Client, topic: str, payload: str) -> None:
        """Publishes what is not there yet."""
        if self._retained.get(topic) != payload:
            await _publish(client, topic, payload, retain=True)
            self._retained[topic] = payload


async def _publish(client: aiomqtt.Client, topic: str, payload: str | bytes, *, retain: bool = False) -> None:
    """At least once; ends a task whose cancellation the client lost."""
    await client.publish(topic, payload, qos=1, retain=retain)
    checkpoint()


async def _watch(held: Callable[[], bool]) -> None:
    while held():
        await asyncio.sleep(LOOK_S)
    raise _Lost


def _event_payload(change: str, body: Mapping[str, Any]) -> dict[str, Any]:
    data, event = body["data"], body["data"]["event"]
    return {
        "event_type": change,
        "event_id": event["id"],
        "message_id": body["id"],
        "new": body["type"] == "event.new",
        "rules": data["rules"],
        "picture_url": data["picture_url"],
        **{name: event[name] for name in _EVENT_FIELDS},
    }


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
