"""The ways to Redis: TLS and users by URL on a real Redis, Sentinels that change the master."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from pydantic import ValidationError

from ingest.commands import CommandListener
from pipeline.cli.checks.finding import Level
from pipeline.cli.checks.redis_server import check_redis
from pipeline.config.redis import RedisConfig
from pipeline.messages import CommandKind, CommandMessage, TrackPhase
from pipeline.queue.address import RedisAddress
from pipeline.queue.connect import async_blocking_client, async_client, block_ms, sync_client
from pipeline.queue.crops import CropReader, CropWriter
from pipeline.queue.hub import CameraHub
from pipeline.queue.tracks import TrackWriter
from tests.certificates import self_signed
from tests.pipeline.material import crop_of, jpeg_of, track_of
from tests.pipeline.waiting import until
from tests.redis_servers import (
    free_port,
    redis_binary,
    running,
    valkey_binary,
    wait_for_answer,
)

PASSWORD = "pw/with@all#of?it"
QUOTED = "pw%2Fwith%40all%23of%3Fit"


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[RedisConfig]:
    """A Redis that speaks TLS only, wants a client certificate, and knows one user who may touch ``ww:*`` only."""
    certificate, key = self_signed(tmp_path)
    port = free_port()
    settings = {
        "port": 0,
        "tls-port": port,
        "tls-cert-file": certificate,
        "tls-key-file": key,
        "tls-ca-cert-file": certificate,
        "tls-auth-clients": "yes",
        "save": '""',
        # No CONFIG, no FLUSHALL, no KEYS: what a managed server leaves its users.
        "user": f"watch on >{PASSWORD} ~ww:* &* +@all -@admin -@dangerous +info +ping",
    }
    with running(redis_binary(), tmp_path / "redis", settings):
        config = RedisConfig(
            url=f"rediss://watch:{QUOTED}@127.0.0.1:{port}/0",
            tls_ca_file=certificate,
            tls_cert_file=certificate,
            tls_key_file=key,
        )
        with sync_client(RedisAddress.configured(config)) as client:
            wait_for_answer(client)
        yield config


async def test_crops_go_over_tls_as_a_user_who_may_touch_nothing_else(secure):
    address = RedisAddress.configured(secure)
    with sync_client(address) as client:
        CropWriter(client, secure).publish(crop_of("c1"), jpeg_of())
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get("another's")
    reading, blocking = async_client(address), async_blocking_client(address)
    reader = CropReader(reading, blocking, secure, "d0")
    held = await asyncio.wait_for(reader.take(), 10)
    assert (held.message.crop_id, held.jpeg) == ("c1", jpeg_of())
    await reader.settle(held)
    hub = CameraHub(address, secure)
    stats = await hub.queue_stats()
    assert (stats.waiting, stats.pending) == (0, 0)
    assert await hub.eviction_policy() == "noeviction"
    await hub.close()
    for each in (reading, blocking):
        await each.aclose()


def test_check_goes_the_same_way_and_tells_a_wrong_password_from_a_certificate_nobody_vouches_for(secure):
    found = {finding.subject: finding for finding in check_redis(secure, 5.0)}
    assert found["redis"].level is Level.OK
    assert PASSWORD not in found["redis"].text

    url = secure.url.get_secret_value()
    wrong = secure.model_copy(update={"url": type(secure.url)(url.replace(QUOTED, "wrong"))})
    [finding] = check_redis(wrong, 5.0)
    assert finding.level is Level.PROBLEM and "refuses the user name or password" in finding.text

    [finding] = check_redis(secure.model_copy(update={"tls_ca_file": None}), 5.0)
    assert finding.level is Level.PROBLEM and "certificate verify failed" in finding.text.lower()


class Sentinels:
    """A master, a replica and two Sentinels: all with passwords."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = ExitStack()
        self.ports = {name: free_port() for name in ("master", "replica", "s0", "s1")}
        self.pids: dict[str, int] = {}
        self.config = RedisConfig(
            url="redis://:server-password@/0",
            sentinels=tuple(f"127.0.0.1:{self.ports[name]}" for name in ("s0", "s1")),
            sentinel_master="watch",
            sentinel_password="sentinel-password",
        )

    def __enter__(self) -> Sentinels:
        binary = valkey_binary()
        secrets = {"requirepass": "server-password", "masterauth": "server-password"}
        both = {"save": '""', "repl-diskless-sync-delay": 0, **secrets}
        for name in ("master", "replica"):
            settings = {**both, "port": self.ports[name]}
            if name == "replica":
                settings["replicaof"] = f"127.0.0.1 {self.ports['master']}"
            self.pids[name] = self._open.enter_context(running(binary, self._folder / name, settings))
            wait_for_answer(redis.Redis(port=self.ports[name], password="server-password"))
        for name in ("s0", "s1"):
            settings = {"port": self.ports[name], "requirepass": "sentinel-password", "sentinel": self._monitor()}
            pid = self._open.enter_context(running(binary, self._folder / name, settings, sentinel=True))
            self.pids[name] = pid
        for name in ("s0", "s1"):
            # A failover needs a Sentinel that knows the replica and the other Sentinel.
            sentinel = redis.Redis(port=self.ports[name], password="sentinel-password", decode_responses=True)
            wait_for_answer(sentinel)
            deadline = time.monotonic() + 60
            while not self._knows_all(sentinel):
                assert time.monotonic() < deadline, "the Sentinels don't find each other"
                time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _monitor(self) -> str:
        lines = (
            f"monitor watch 127.0.0.1 {self.ports['master']} 2",
            "auth-pass watch server-password",
            "down-after-milliseconds watch 1000",
            "failover-timeout watch 5000",
            "sentinel-pass sentinel-password",
        )
        return "\nsentinel ".join(lines)

    @staticmethod
    def _knows_all(sentinel: redis.Redis) -> bool:
        try:
            state = sentinel.sentinel_master("watch")
        except redis.RedisError:
            return False
        return state["num-slaves"] >= 1 and state["num-other-sentinels"] >= 1


@pytest.fixture(scope="module")
def sentinels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sentinels]:
    with Sentinels(tmp_path_factory.mktemp("sentinels")) as running_ones:
        yield running_ones


async def test_when_the_sentinels_change_the_master_the_flow_goes_on(sentinels: Sentinels):
    config = sentinels.config
    address = RedisAddress.configured(config)
    writing = sync_client(address)
    writer, tracks = CropWriter(writing, config), TrackWriter(writing)
    reading, blocking = async_client(address), async_blocking_client(address)
    assert block_ms(blocking, 60_000) == 9000, "R62 holds here too"
    reader, hub = CropReader(reading, blocking, config, "d0"), CameraHub(address, config)
    heard: list[CommandKind] = []
    listener = CommandListener(address, lambda command: heard.append(command.kind))
    listener.listen_from_now()
    listener.start()
    try:
        writer.publish(crop_of("before", track="front/a-1"), jpeg_of(1))
        held = await asyncio.wait_for(reader.take(), 20)
        assert held.message.crop_id == "before"
        assert writing.wait(1, 5000) == 1, "the replica has it"

        os.kill(sentinels.pids["master"], signal.SIGKILL)
        waiting = asyncio.create_task(reader.take())
        await until(lambda: published(writer, "after"), 90)
        tracks.publish(track_of(TrackPhase.START))
        again = await asyncio.wait_for(waiting, 60)
        assert again.message.crop_id == "after"
        await asyncio.wait_for(reader.settle(held), 60)
        await reader.settle(again)
        await hub.send(CommandMessage(CommandKind.WATCH, "front", time.time()))
        await until(lambda: heard == [CommandKind.WATCH], 30)
        stats = await hub.queue_stats()
        assert (stats.waiting, stats.pending) == (0, 0)
        assert writing.connection_pool.get_master_address()[1] == sentinels.ports["replica"]
    finally:
        listener.request_stop()
        listener.join(5)
        await hub.close()
        for each in (reading, blocking):
            await each.aclose()
        writing.close()


def published(writer: CropWriter, crop_id: str) -> bool:
    """Publishing as ingest does it: again and again until it's answered."""
    try:
        writer.publish(crop_of(crop_id, track="front/a-2"), jpeg_of(2))
    except redis.RedisError:
        return False
    return True


@pytest.mark.parametrize("entry", ["redis-1", "redis-1:", ":26379", "redis-1:99999", "redis-1:port"])
def test_a_sentinel_without_host_and_port_is_refused_with_what_is_needed(entry):
    with pytest.raises(ValidationError, match=r"entry 0 is .*needed is host:port"):
        RedisConfig(sentinels=(entry,))


def test_an_address_shows_no_password(secure):
    shown = repr(RedisAddress.configured(secure.model_copy(update={"sentinel_password": secure.url})))
    assert QUOTED not in shown and PASSWORD not in shown
