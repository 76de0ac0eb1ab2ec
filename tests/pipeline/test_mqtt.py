"""What a real MQTT broker hears: messages, retained topics, discovery for Home Assistant, and the last will."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from pydantic import ValidationError

from pipeline.config import WatchwordConfig
from pipeline.config.delivery import MqttConfig
from pipeline.config.redis import RedisConfig
from pipeline.delivery.discovery import discovery
from pipeline.delivery.transport import DeliveryFailed
from pipeline.messages import CameraState, CameraStatus, TrackPhase
from pipeline.queue.status import StatusWriter
from pipeline.reasons import Reason
from tests.pipeline.material import crop_of, jpeg_of, track_of
from tests.pipeline.mqtt_broker import free_port, listening, mqtt_broker, mqtt_passwords
from tests.pipeline.test_webhook import certificate, running
from tests.pipeline.waiting import until

QUICK = {"retry_first_s": 0.05, "retry_max_s": 0.2, "keep_alive_s": 5}
CAMERAS = [{"id": "front", "name": "Haustür", "url": "rtsp://10.0.0.2/"}, {"id": "yard", "url": "rtsp://10.0.0.3/"}]


def config_of(folder: Path, redis_url: str, port: int, mqtt: dict[str, Any] | None = None, **sections: Any):
    tree = {
        "store": {"data_dir": str(folder)},
        "redis": {"url": redis_url},
        "cameras": CAMERAS,
        "mqtt": {"host": "127.0.0.1", "port": port, **QUICK, **(mqtt or {})},
    }
    return WatchwordConfig.model_validate({**tree, **sections})


@asynccontextmanager
async def broker(port: int | None = None, **options: Any) -> AsyncIterator[int]:
    with mqtt_broker(port, **options) as used:
        yield used


def report(client, camera: str, state: CameraState) -> None:
    now = time.time()
    status = CameraStatus(camera=camera, name=camera, state=state, reason=Reason.NONE, since=now, updated=now)
    StatusWriter(client, RedisConfig()).write(status)


async def test_an_event_is_heard_on_its_topics_and_what_stands_is_retained(tmp_path, redis_url, client) -> None:
    report(client, "front", CameraState.ONLINE)
    report(client, "yard", CameraState.FROZEN)
    rules = [{"name": "red", "words": {"any": ["red"]}}]
    async with broker() as port, listening(port) as heard:
        config = config_of(tmp_path, redis_url, port, {"images": True}, alerts=rules)
        async with running(config) as parts:
            await until(lambda: heard.last("watchword/availability") == "online", 20)
            assert heard.last("watchword/front/availability") == "online"
            assert heard.last("watchword/yard/availability") == "offline"
            assert heard.last("watchword/yard/state") == "frozen"
            assert heard.last("watchword/front/person") == "0"

            await parts.person()
            await until(lambda: heard.last("watchword/front/person") == "1")
            await parts.words("Somebody in a red coat.")
            await until(lambda: len(heard.json("watchword/events")) == 2)
            await asyncio.to_thread(parts.store.apply_track, track_of(TrackPhase.END))
            await until(lambda: heard.last("watchword/front/person") == "0" and len(heard.of("watchword/events")) == 3)
        await until(lambda: heard.last("watchword/availability") == "offline")  # a clean end says so too

        messages = heard.json("watchword/events")
        assert [message["id"] for message in messages] == ["front:a-1:1", "front:a-1:2", "front:a-1:3"]
        assert [message["type"] for message in messages] == ["event.new", "event.update", "event.update"]
        kinds = heard.json("watchword/front/event")
        assert [event["event_type"] for event in kinds] == [
            "started", "matched", "described", "described", "ended",  # the draft's words are final when nobody is there
        ]  # fmt: skip
        assert kinds[1]["rules"] == ["red"] and kinds[2]["description"] == "Somebody in a red coat."
        pictures = [payload for topic, payload in heard.messages if topic == "watchword/front/image"]
        assert pictures == [jpeg_of()], "once, not with every message"

        async with listening(port) as later:
            await until(lambda: later.last("watchword/availability") == "offline")
            await until(lambda: "watchword/front/image" in {topic for topic, _ in later.messages})
            topics = {topic for topic, _ in later.messages}
        assert not topics & {"watchword/events", "watchword/front/event"}, "not retained: news is no state"


async def test_the_newest_description_is_retained_and_comes_back_after_a_restart(tmp_path, redis_url) -> None:
    async with broker() as port:
        config = config_of(tmp_path, redis_url, port)
        async with running(config) as parts:
            await parts.person(words="A tall person.")
        async with listening(port, "watchword/front/description") as heard, running(config):
            await until(lambda: heard.of("watchword/front/description"), 20)
        [shown] = heard.json("watchword/front/description")[-1:]
    assert (shown["description"], shown["event_id"]) == ("A tall person.", "front.a-1")


async def test_a_cancellation_that_the_client_loses_ends_delivery(tmp_path, redis_url, monkeypatch) -> None:
    """Before Python 3.12 ``asyncio.wait_for``, which the client awaits, drops one that comes as it is done."""
    publish, lost = aiomqtt.Client.publish, []

    async def losing(self: aiomqtt.Client, topic: str, *args: Any, **options: Any) -> None:
        await publish(self, topic, *args, **options)
        if topic.endswith("/availability") and args and args[0] == "online" and not lost:
            reached.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost.append(topic)

    reached = asyncio.Event()
    monkeypatch.setattr(aiomqtt.Client, "publish", losing)
    async with broker() as port, asyncio.timeout(60), running(config_of(tmp_path, redis_url, port)):
        await reached.wait()
    assert lost == ["watchword/availability"]


async def test_a_broker_that_is_away_gets_everything_when_it_is_back(tmp_path, redis_url) -> None:
    port = free_port()
    async with running(config_of(tmp_path, redis_url, port)) as parts:
        await parts.person(1)
        await until(
            lambda: (parts.store.deliveries.state("mqtt").error or "").startswith("The target can't be reached")
        )
        async with broker(port), listening(port) as heard:
            await until(lambda: heard.of("watchword/events"), 20)
            await parts.person(2)
            await until(lambda: len(heard.of("watchword/events")) == 2)
        await parts.person(3)
        async with broker(port), listening(port) as heard:
            await until(lambda: heard.of("watchword/events") and heard.last("watchword/availability") == "online", 20)
            assert heard.json("watchword/events")[-1]["id"] == "front:a-3:1"
        state = parts.store.deliveries.state("mqtt")
    assert (state.counts or {})["delivered"] == 3


async def test_home_assistant_is_told_of_the_entities_and_again_when_it_starts(tmp_path, redis_url) -> None:
    async with broker() as port, listening(port, "homeassistant/#") as heard:
        async with running(config_of(tmp_path, redis_url, port, server={"public_url": "https://cams.example.com"})):
            topic = "homeassistant/event/watchword_front/event/config"
            await until(lambda: heard.of(topic), 20)
            async with aiomqtt.Client("127.0.0.1", port) as home_assistant:
                await until(lambda: len(heard.of("homeassistant/sensor/watchword_yard/state/config")) >= 1)
                await home_assistant.publish("homeassistant/status", "online", qos=1)
                await until(lambda: len(heard.of(topic)) == 2, 20)
        [entity, _] = heard.json(topic)
    assert entity["event_types"] == ["started", "matched", "described", "ended", "failed", "updated"]
    assert entity["state_topic"] == "watchword/front/event"
    assert entity["device"]["name"] == "Haustür"
    assert entity["device"]["configuration_url"] == "https://cams.example.com"


def test_discovery_names_each_entity_once_and_only_topics_that_exist() -> None:
    """What Home Assistant requires of the messages: unique ids, a device, an origin, state topics."""
    config = MqttConfig(host="broker", topic="home/ww", images=True)
    found = list(discovery(config, "front", "Front", "0.1", ""))
    assert [topic.split("/")[1] for topic, _ in found] == [
        "sensor", "binary_sensor", "sensor", "event", "sensor", "image",
    ]  # fmt: skip
    payloads = [payload for _, payload in found]
    assert len({payload["unique_id"] for payload in payloads}) == len({topic for topic, _ in found}) == len(found)
    assert all(topic.startswith("homeassistant/") and topic.endswith("/config") for topic, _ in found)
    for payload in payloads:
        assert payload["device"]["identifiers"] == ["home_ww_front"] and payload["origin"]["name"]
        assert payload.get("state_topic", payload.get("image_topic", "")).startswith("home/ww/front/")
        assert payload["availability"][0] == {"topic": "home/ww/availability"}
    [occupancy] = [payload for payload in payloads if payload.get("device_class") == "occupancy"]
    assert len(occupancy["availability"]) == 2, "without pictures nobody knows whether somebody is there"


PROCESS = """
import asyncio, sys
from pathlib import Path
from tests.pipeline.test_mqtt import config_of
from tests.pipeline.test_webhook import running
async def main():
    async with running(config_of(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))) as parts:
        await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_the_broker_says_offline_when_the_process_is_killed(tmp_path, redis_url) -> None:
    async with broker() as port, listening(port, "watchword/availability") as heard:
        command = [sys.executable, "-c", PROCESS, str(tmp_path), redis_url, str(port)]
        process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
        try:
            await until(lambda: heard.of("watchword/availability") == ["online"], 60)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(10)
        await until(lambda: heard.of("watchword/availability") == ["online", "offline"], 20)


async def test_user_password_and_tls(tmp_path, redis_url) -> None:
    key, cert = certificate(tmp_path)
    passwords, secret = mqtt_passwords(tmp_path / "passwords", "ww", "S3cretWord"), tmp_path / "secret"
    secret.write_text("S3cretWord\n")
    good = {"tls": True, "tls_ca_file": str(cert), "username": "ww", "password_file": str(secret)}
    async with broker(password_file=passwords, tls=(key, cert)) as port:
        for change, reason in (
            ({}, None),
            ({"password_file": None, "password": "wrong"}, Reason.TARGET_AUTH),
            ({"tls_ca_file": None}, Reason.TARGET_TLS),
        ):
            async with running(config_of(tmp_path, redis_url, port, good | change)) as parts:
                if reason is None:
                    await parts.person()
                    await until(lambda: parts.counts("mqtt").get("delivered") == 1, 20)
                    await parts.deliverer.test("mqtt")
                    continue
                with pytest.raises(DeliveryFailed) as failure:
                    await parts.deliverer.test("mqtt")
                assert failure.value.reason == reason
                assert "S3cretWord" not in str(failure.value)


async def test_a_picture_over_the_bound_is_left_out_and_counted(tmp_path, redis_url) -> None:
    async with broker() as port, listening(port) as heard:
        config = config_of(tmp_path, redis_url, port, {"images": True, "max_image_bytes": 1024})
        async with running(config) as parts:
            large = os.urandom(2000)  # what it shows does not matter to whoever passes it on
            await asyncio.to_thread(parts.store.add_crop, crop_of("front-1-early"), large)
            await asyncio.to_thread(parts.store.apply_track, track_of(TrackPhase.END))
            await until(lambda: parts.counts("mqtt").get("picture_too_large") == 1)
            await until(lambda: parts.store.deliveries.state("mqtt").waiting == 0)
        assert not [topic for topic, _ in heard.messages if topic.endswith("/image")]


async def test_two_processes_are_one_client_of_the_broker(tmp_path, redis_url, monkeypatch) -> None:
    monkeypatch.setattr("pipeline.delivery.pump.RENEW_S", 0.1)
    async with broker() as port, listening(port) as heard:
        config = config_of(tmp_path, redis_url, port)
        async with running(config, "a:1") as first:
            await until(lambda: heard.last("watchword/availability") == "online", 20)
            async with running(config, "b:1") as second:
                for n in range(4):
                    await (first if n % 2 else second).person(n)
                await until(lambda: len(heard.of("watchword/events")) == 4, 20)
        assert sorted(m["id"] for m in heard.json("watchword/events")) == [f"front:a-{n}:1" for n in range(4)]
        await until(lambda: heard.of("watchword/availability") == ["online", "offline"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"topic": "a/#"}, "pattern"),
        ({"topic": "/a"}, "pattern"),
        ({"password": "x"}, "without mqtt.username"),
        ({"password": "x", "password_file": "/nowhere", "username": "u"}, "not both"),
        ({"port": 0}, "greater than or equal to 1"),
    ],
)
def test_a_broker_that_can_not_work_is_refused_when_it_is_read(change, text) -> None:
    with pytest.raises(ValidationError, match=text):
        MqttConfig.model_validate({"host": "broker", **change})
