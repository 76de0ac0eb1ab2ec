"""From a change of an event to a signed request at a real HTTP server: retries, order, restarts, what is refused."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from standardwebhooks import Webhook, WebhookVerificationError

from pipeline.clock import SystemClock
from pipeline.config import WatchwordConfig
from pipeline.config.load import ConfigProblem, load_config, register_config_secrets
from pipeline.delivery.deliverer import Deliverer
from pipeline.delivery.transport import DeliveryFailed
from pipeline.messages import CropKind, TrackPhase
from pipeline.queue.hub import CameraHub
from pipeline.redaction import redact
from pipeline.store import DescriptionMeta, EventStore
from pipeline.store.outbox import Outbox
from tests.pipeline.material import crop_of, jpeg_of, track_of
from tests.pipeline.waiting import until
from tests.pipeline.webhook_target import WebhookTarget, webhook_target

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
META = DescriptionMeta("tiny", "ab" * 32, "stop", 100, 90, 12, 0.2, 0.9)
QUICK = {"retry_first_s": 0.02, "retry_max_s": 0.1}


@pytest.fixture
def target() -> Iterator[WebhookTarget]:
    with webhook_target() as server:
        yield server


def config_of(folder: Path, redis_url: str, *hooks: dict[str, Any], **sections: Any) -> WatchwordConfig:
    tree = {
        "store": {"data_dir": str(folder)},
        "redis": {"url": redis_url},
        "webhooks": [{**QUICK, **h} for h in hooks],
    }
    return WatchwordConfig.model_validate({**tree, **sections})


class Running:
    """One process's worth of delivery."""

    def __init__(self, config: WatchwordConfig) -> None:
        outbox = Outbox.of(config)
        assert outbox is not None
        self.store = EventStore(config.store, SystemClock(), outbox)
        self.hub = CameraHub(config.redis.url.get_secret_value(), config.redis)
        self.deliverer = Deliverer(config, self.store, self.hub, outbox)

    def counts(self, name: str) -> dict[str, int]:
        return dict(self.store.deliveries.state(name).counts or {})

    async def person(self, n: int = 1, words: str | None = None) -> None:
        """Off the loop, as the describer and the track keeper write."""
        await asyncio.to_thread(self.store.apply_track, track_of(TrackPhase.START, track=f"front/a-{n}"))
        if words is not None:
            await self.words(words, n)

    async def words(self, text: str, n: int = 1, kind: CropKind = CropKind.EARLY) -> None:
        crop = crop_of(f"front-{n}-{kind.value}", track=f"front/a-{n}", kind=kind)
        await asyncio.to_thread(self.store.add_crop, crop, jpeg_of())
        await asyncio.to_thread(self.store.finish_description, crop.crop_id, text, META)


@asynccontextmanager
async def running(config: WatchwordConfig, owner: str = "here:1") -> AsyncIterator[Running]:
    parts = Running(config)
    task = asyncio.create_task(parts.deliverer.run(owner))
    try:
        yield parts
        assert not task.done(), "delivery ended by itself"
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await parts.hub.close()
        parts.store.close()


async def test_a_message_is_signed_and_says_what_is_new_and_where_the_picture_is(target, tmp_path, redis_url) -> None:
    hook = {"name": "hook", "url": target.url, "secret": SECRET, "headers": {"Authorization": "Bearer abc-def-ghi"}}
    config = config_of(
        tmp_path,
        redis_url,
        hook,
        alerts=[{"name": "red", "words": {"any": ["red"]}}],
        server={"public_url": "https://cams.example.com/ww/"},
    )
    async with running(config) as parts:
        await parts.person()
        await until(lambda: len(target.received) == 1)
        await parts.words("Somebody in a red coat.")
        await until(lambda: len(target.received) == 2)
        await until(lambda: parts.counts("hook") == {"delivered": 2})

    first, second = target.received
    for request in target.received:
        assert Webhook(SECRET).verify(request.body, request.headers) == request.json
        with pytest.raises(WebhookVerificationError):
            Webhook(SECRET).verify(request.body.replace(b"front", b"frond"), request.headers)
        assert request.headers["authorization"] == "Bearer abc-def-ghi"
        assert request.headers["content-type"] == "application/json"
        assert request.path == "/hook/a-long-secret-path"
    assert [first.id, second.id] == ["front:a-1:1", "front:a-1:2"]
    assert (first.json["type"], second.json["type"]) == ("event.new", "event.update")
    assert first.data["notification"] == second.data["notification"] == "front.a-1"
    assert (first.data["changes"], second.data["changes"]) == (["started"], ["matched", "described"])
    assert (first.data["picture_url"], second.data["rules"]) == (None, ["red"])
    assert second.data["picture_url"] == "https://cams.example.com/ww/api/events/front.a-1/crop.jpg?crop=front-1-early"
    assert second.data["event"]["description"] == "Somebody in a red coat."


async def test_r33_forty_two_pictures_of_one_track_are_one_notification_and_bounded_updates(
    target, tmp_path, redis_url
) -> None:
    """Each caption differs, so nothing can be told apart by text; the track is what counts."""
    async with running(config_of(tmp_path, redis_url, {"name": "hook", "url": target.url})) as parts:
        await parts.person()
        for n in range(42):
            update = track_of(TrackPhase.UPDATE, last_seen=time.time() + n / 100)
            await asyncio.to_thread(parts.store.apply_track, update)
        await parts.words("Version 1.")
        await parts.words("Version 2.", kind=CropKind.FINAL)
        await asyncio.to_thread(parts.store.apply_track, track_of(TrackPhase.END, final_crop=True))
        await until(lambda: parts.store.deliveries.state("hook").waiting == 0)
    assert [r.json["type"] for r in target.received].count("event.new") == 1
    assert 1 <= len(target.received) <= 4, "started, described, described, ended at most"
    assert len(set(target.ids)) == len(target.received)
    assert {request.data["notification"] for request in target.received} == {"front.a-1"}
    assert target.received[-1].data["event"]["description"] == "Version 2."
    assert target.received[-1].data["event"]["state"] == "ended"


async def test_three_failures_then_success_are_one_message_with_one_id(target, tmp_path, redis_url) -> None:
    target.answers = [500, 500, 503]
    async with running(config_of(tmp_path, redis_url, {"name": "hook", "url": target.url, "secret": SECRET})) as parts:
        await parts.person()
        await until(lambda: parts.counts("hook") == {"failed": 3, "delivered": 1})
        state = parts.store.deliveries.state("hook")
    assert target.ids == ["front:a-1:1"] * 4
    assert len({request.body for request in target.received}) == 1
    for request in target.received:
        Webhook(SECRET).verify(request.body, request.headers)
    assert (state.failures, state.waiting) == (0, 0)
    assert state.error is not None and "HTTP 503" in state.error


async def test_what_changes_during_an_outage_is_told_once_it_is_over_and_together(target, tmp_path, redis_url) -> None:
    target.answers = [503]
    target.headers = {"Retry-After": "1"}
    async with running(config_of(tmp_path, redis_url, {"name": "hook", "url": target.url})) as parts:
        await parts.person()
        await until(lambda: len(target.received) == 1)
        await parts.words("A draft.")
        await parts.words("The final words.", kind=CropKind.FINAL)
        await until(lambda: parts.counts("hook") == {"failed": 1, "delivered": 2})
    assert target.ids == ["front:a-1:1", "front:a-1:1", "front:a-1:2"]
    assert target.received[-1].data["event"]["description"] == "The final words."


async def test_a_target_that_does_not_answer_holds_up_nobody_else(target, tmp_path, redis_url) -> None:
    with webhook_target() as dead:
        dead.hold.clear()
        hooks = {"name": "dead", "url": dead.url, "timeout_s": 0.5}, {"name": "hook", "url": target.url}
        async with running(config_of(tmp_path, redis_url, *hooks)) as parts:
            begun = time.monotonic()
            for n in range(20):
                await parts.person(n)
            stored = time.monotonic() - begun
            await until(lambda: parts.counts("hook").get("delivered") == 20)
            await until(lambda: parts.counts("dead").get("failed", 0) > 0)
            state = parts.store.deliveries.state("dead")
            assert state.waiting == 20 and "in time" in (state.error or "")
            dead.hold.set()
            await until(lambda: parts.store.deliveries.state("dead").waiting == 0, 20)
    assert len(set(dead.ids)) == 20
    assert stored < 10, "events are stored whatever targets do"


async def test_redirects_are_not_followed(target, tmp_path, redis_url) -> None:
    with webhook_target() as elsewhere:
        target.answers = [302] * 100
        target.headers = {"Location": elsewhere.url}
        async with running(config_of(tmp_path, redis_url, {"name": "hook", "url": target.url})) as parts:
            await parts.person()
            await until(lambda: parts.counts("hook").get("failed", 0) >= 2)
            error = parts.store.deliveries.state("hook").error
    assert elsewhere.received == []
    assert error == "The target answers with a redirect, which is not followed; configure its new address. (HTTP 302)"


async def test_a_message_that_a_target_refuses_is_put_off_and_the_others_go_on(target, tmp_path, redis_url) -> None:
    target.answers = [422]
    hook = {"name": "hook", "url": target.url, "retry_first_s": 30, "retry_max_s": 30}
    async with running(config_of(tmp_path, redis_url, hook)) as parts:
        await parts.person(1)
        await until(lambda: parts.counts("hook") == {"failed": 1})
        await parts.person(2)
        await until(lambda: parts.counts("hook") == {"failed": 1, "delivered": 1})
        assert parts.store.deliveries.state("hook").waiting == 1
    assert target.ids == ["front:a-1:1", "front:a-2:1"]


async def test_gone_for_good_is_a_drop_with_its_reason(target, tmp_path, redis_url) -> None:
    target.answers = [410]
    async with running(config_of(tmp_path, redis_url, {"name": "hook", "url": target.url})) as parts:
        await parts.person()
        await until(lambda: parts.counts("hook") == {"target_gone": 1})
        assert parts.store.deliveries.state("hook").waiting == 0


async def test_a_restart_in_between_sends_the_same_message_again(target, tmp_path, redis_url) -> None:
    """The first process ends while the target keeps it waiting: nobody knows whether the message arrived."""
    config = config_of(tmp_path, redis_url, {"name": "hook", "url": target.url, "timeout_s": 30})
    target.hold.clear()
    async with running(config) as parts:
        await parts.person()
        await until(lambda: len(target.received) == 1)
        await parts.words("Written meanwhile.")
        begun = time.monotonic()
    assert time.monotonic() - begun < 3, "the end does not wait for a slow target"
    target.hold.set()
    async with running(config, owner="another:1") as parts:
        await until(lambda: parts.counts("hook").get("delivered") == 2)
    assert target.ids == ["front:a-1:1", "front:a-1:1", "front:a-1:2"]
    assert target.received[0].body == target.received[1].body


async def test_two_processes_deliver_each_change_once_and_one_takes_over_from_the_other(
    target, tmp_path, redis_url, monkeypatch
) -> None:
    monkeypatch.setattr("pipeline.delivery.pump.RENEW_S", 0.1)
    config = config_of(tmp_path, redis_url, {"name": "hook", "url": target.url})
    async with running(config, "a:1") as first:
        await until(lambda: first.store.deliveries.state("hook").owner == "a:1")
        async with running(config, "b:1") as second:
            for n in range(6):
                await (first if n % 2 else second).person(n)
            await until(lambda: first.counts("hook").get("delivered") == 6)
            assert first.store.deliveries.state("hook").owner == "a:1"
    assert sorted(target.ids) == [f"front:a-{n}:1" for n in range(6)]
    async with running(config, "b:1") as second:
        await second.person(6)
        await until(lambda: second.counts("hook").get("delivered") == 7)
    assert len(target.received) == 7


async def test_a_test_message_tells_of_nothing_and_says_what_is_wrong(target, tmp_path, redis_url) -> None:
    async with running(config_of(tmp_path, redis_url, {"name": "hook", "url": target.url, "secret": SECRET})) as parts:
        await parts.deliverer.test("hook")
        [request] = target.received
        assert Webhook(SECRET).verify(request.body, request.headers)["type"] == "test"
        target.answers = [401]
        with pytest.raises(DeliveryFailed, match="HTTP 401"):
            await parts.deliverer.test("hook")
        with pytest.raises(KeyError):
            await parts.deliverer.test("other")
        assert parts.counts("hook") == {}


async def test_tls_is_checked_unless_it_is_said_that_it_need_not_be(tmp_path, redis_url) -> None:
    key, cert = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with webhook_target(wrap=lambda plain: context.wrap_socket(plain, server_side=True)) as target:
        hooks = (
            {"name": "strict", "url": target.url},
            {"name": "own-ca", "url": target.url, "tls_ca_file": str(cert)},
            {"name": "lax", "url": target.url, "tls_verify": False},
        )
        async with running(config_of(tmp_path, redis_url, *hooks)) as parts:
            for name in ("own-ca", "lax"):
                await parts.deliverer.test(name)
            with pytest.raises(DeliveryFailed, match="certificate is not trusted"):
                await parts.deliverer.test("strict")
    assert len(target.received) == 2


def certificate(folder: Path) -> tuple[Path, Path]:
    """Key and self-signed certificate of 127.0.0.1."""
    import subprocess

    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return key, cert


async def test_no_secret_of_a_webhook_reaches_a_log(target, tmp_path, redis_url, caplog) -> None:
    hook = {
        "name": "hook",
        "url": "http://user:Pa55w0rd@127.0.0.1:1/hook/SecretPath123",
        "secret": SECRET,
        "headers": {"X-Token": "T0pSecretToken"},
    }
    config = config_of(tmp_path, redis_url, hook)
    register_config_secrets(config)
    with caplog.at_level(logging.DEBUG):
        async with running(config) as parts:
            await parts.person()
            await until(lambda: parts.counts("hook").get("failed", 0) >= 2)
            error = parts.store.deliveries.state("hook").error or ""
    everything = caplog.text + error + repr(config)
    assert "delivery to hook failed" in caplog.text
    for secret in ("Pa55w0rd", "SecretPath123", SECRET.removeprefix("whsec_"), "T0pSecretToken"):
        assert secret not in error and secret not in repr(config)
        assert secret not in redact(everything), "as the log handlers write it"


@pytest.mark.parametrize(
    ("hook", "text"),
    [
        ({"url": "ftp://x/y"}, "http:// or https://"),
        ({"url": "https://"}, "http:// or https://"),
        ({"secret": "whsec_abc"}, "24 to 64 bytes"),
        ({"secret": "aGVsbG8"}, "whsec_"),
        ({"secret": SECRET, "secret_file": "/nowhere"}, "not both"),
        ({"secret_file": "/nowhere"}, "can't be read"),
        ({"name": "mqtt"}, "broker's name"),
        ({"headers": {"webhook-id": "1"}}, "set by watchword"),
        ({"headers": {"X": "a\nb"}}, "printable"),
        ({"rules": ["nobody"]}, "no alert; known are red"),
        ({"events": []}, "at least 1"),
    ],
)
def test_a_webhook_that_can_not_work_is_refused_when_it_is_read(hook, text, tmp_path) -> None:
    tree = {"alerts": [{"name": "red"}], "webhooks": [{"name": "a", "url": "https://x.example/", **hook}]}
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigProblem, match=text) as error:
        load_config(tmp_path / "w.yaml", {})
    assert "aGVsbG8" not in str(error.value) and "whsec_abc" not in str(error.value)


def test_a_secret_may_lie_in_a_file(tmp_path) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    config = WatchwordConfig(webhooks=[{"name": "a", "url": "https://x.example/", "secret_file": path}])
    assert config.webhooks[0].read_secret() == SECRET
