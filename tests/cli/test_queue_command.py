"""`watchword queue`, run as a command against a real Valkey."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from pipeline.config import RedisConfig
from pipeline.embedded_redis import EmbeddedValkey
from pipeline.queue import keys
from pipeline.queue.connect import async_blocking_client, async_client, sync_client
from pipeline.queue.crops import CropReader, CropWriter
from pipeline.reasons import Reason
from tests.pipeline.material import crop_of, jpeg_of

COMMAND = [sys.executable, "-m", "pipeline.cli", "queue"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with EmbeddedValkey() as valkey:
        yield valkey.url


@pytest.fixture
def client(url: str) -> Iterator[redis.Redis]:
    """A queue with one crop that waits, one that is held, and one dead letter."""
    with sync_client(url) as connected:
        connected.flushall()
        writer = CropWriter(connected, RedisConfig())
        for n, camera in enumerate(("back", "front")):
            writer.publish(crop_of(f"c{n}", camera=camera, track=f"{camera}/{n}", time=time.time() - 30), jpeg_of(n))
        asyncio.run(_bury_one_hold_one(url))
        writer.publish(crop_of("c2", camera="front", track="front/2", time=time.time() - 30), jpeg_of(2))
        yield connected


async def _bury_one_hold_one(url: str) -> None:
    reading, blocking = async_client(url), async_blocking_client(url)
    reader = CropReader(reading, blocking, RedisConfig(), "host:8000")
    await reader.bury(await asyncio.wait_for(reader.take(), 10), Reason.ENGINE_TIMEOUT)
    await asyncio.wait_for(reader.take(), 10)
    await reading.aclose()
    await blocking.aclose()


def run(url: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"COLUMNS": "200"} | ({"WATCHWORD_REDIS__URL": url} if url else {})
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False, env=environ)


def test_the_queue_is_shown_by_camera_with_who_works_on_it(url: str, client: redis.Redis) -> None:
    shown = run(url)
    assert shown.returncode == 0, shown.stderr
    lines = [line.split() for line in shown.stdout.splitlines()]
    front = next(line for line in lines if line[:1] == ["front"])
    assert front[1:3] == ["1", "1"] and 30 <= float(front[3]) < 200
    assert next(line for line in lines if line[:1] == ["all"])[1:3] == ["1", "1"]
    assert next(line for line in lines if line[:1] == ["host:8000"])[1] == "1"
    assert ["back", "failed_too_often", "1"] in lines
    assert "1 dead letters" in shown.stdout

    told = json.loads(run(url, "--json").stdout)
    assert (told["waiting"], told["pending"], told["dead"]) == (1, 1, 1)
    assert {queue["camera"]: queue["waiting"] for queue in told["cameras"]} == {"back": 0, "front": 1}
    assert told["consumers"][0]["name"] == "host:8000"
    assert told["drops"] == {"back": {"failed_too_often": 1}}


def test_watching_goes_on_until_it_is_ended(url: str, client: redis.Redis) -> None:
    environ = os.environ | {"WATCHWORD_REDIS__URL": url}
    with subprocess.Popen([*COMMAND, "--watch", "--json"], stdout=subprocess.PIPE, text=True, env=environ) as watching:
        assert watching.stdout is not None
        first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
        assert first["time"] < second["time"]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 0


def test_dead_letters_are_listed_shown_replayed_and_dropped(url: str, client: redis.Redis, tmp_path: Path) -> None:
    [letter] = json.loads(run(url, "dead", "list", "--json").stdout)
    assert (letter["crop_id"], letter["reason"], letter["has_picture"]) == ("c0", "engine_timeout", True)
    assert letter["id"] in run(url, "dead", "list").stdout

    picture = tmp_path / "dead.jpg"
    shown = run(url, "dead", "show", letter["id"], "--picture", str(picture))
    assert json.loads(shown.stdout) == letter
    assert picture.read_bytes() == jpeg_of(0)

    replayed = run(url, "dead", "replay", letter["id"])
    assert (replayed.returncode, replayed.stdout.strip()) == (0, f"{letter['id']} queued")
    assert client.xlen(keys.crops("back")) == 1 and client.xlen(keys.DEAD) == 0
    again = run(url, "dead", "replay", letter["id"])
    assert (again.returncode, again.stdout.strip()) == (1, f"{letter['id']} unknown")

    asyncio.run(_bury_one_hold_one(url))
    dropped = run(url, "dead", "drop", "--all")
    assert dropped.returncode == 0 and "dropped" in dropped.stdout
    assert "no dead letters" in run(url, "dead", "list").stdout


def test_what_can_not_be_done_is_said_with_the_reason(url: str, client: redis.Redis) -> None:
    nobody = run("redis://:a-secret-word@127.0.0.1:1/0")
    assert nobody.returncode == 2 and "redis_down" in nobody.stderr and "a-secret-word" not in nobody.stderr
    unnamed = run(None)
    assert unnamed.returncode == 2 and "redis.url" in unnamed.stderr
    for arguments in (("dead", "replay"), ("dead", "drop", "1-1", "--all")):
        asked = run(url, *arguments)
        assert asked.returncode == 2 and "--all" in asked.stderr
    assert "no dead letter 1-1" in run(url, "dead", "show", "1-1").stderr
