"""A cancelled task ends, also when redis-py swallows the cancellation (seen with Python 3.11)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import redis.asyncio

from pipeline.config.redis import RedisConfig
from pipeline.queue.connect import async_blocking_client, async_client
from pipeline.queue.crops import CropReader
from pipeline.queue.health import Link
from pipeline.queue.hub import CameraHub
from pipeline.queue.track_reader import TrackReader


class Swallowing(redis.asyncio.Connection):
    """A connection that loses a cancellation while it sends, as ``asyncio.wait_for`` may."""

    async def send_command(self, *args: object, **options: object) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)
        await super().send_command(*args, **options)


def swallowing(client: redis.asyncio.Redis) -> redis.asyncio.Redis:
    client.connection_pool.connection_class = Swallowing
    return client


@pytest.mark.parametrize("user", ["crops", "tracks", "changes", "until_done"])
async def test_a_lost_cancellation_still_ends_the_loop(redis_url, user):
    client, blocking = swallowing(async_client(redis_url)), swallowing(async_blocking_client(redis_url))
    hub = CameraHub(redis_url, RedisConfig())
    swallowing(hub._blocking)
    swallowing(hub._client)

    async def refuse() -> None:
        await client.ping()
        raise redis.exceptions.ConnectionError("for the test")

    users = {
        "crops": lambda: CropReader(client, blocking, RedisConfig(), "d0").take(),
        "tracks": lambda: TrackReader(client, blocking, RedisConfig(), "d0").read(),
        "changes": lambda: anext(hub.changes()),
        "until_done": lambda: Link("test").until_done(refuse),
    }
    tasks = [asyncio.create_task(_forever(users[user])) for _ in range(20)]
    for task in tasks:
        await asyncio.sleep(0.02)
        task.cancel()
    await asyncio.wait(tasks, timeout=5)
    assert [task.cancelled() for task in tasks] == [True] * 20
    for each in (client, blocking):
        await each.aclose()
    await hub.close()


async def _forever(step) -> None:
    while True:
        await step()
