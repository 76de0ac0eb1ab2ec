"""Follows what a running Watchword sees and says it, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

from pipeline.cli.story import Story
from pipeline.config import RedisConfig
from pipeline.queue.health import QueueUnavailable
from pipeline.queue.hub import CameraHub

LOOK_S = 0.5
MODEL_LOOK_S = 1.0
READY_LOOK_S = 5.0


class Narrator:
    """Reads camera states and event changes from Redis and readiness from the API; Redis and serve may come and go.

    Args:
        redis_url: with the password; it is not shown.
        say: called with one line at a time, from the narrator's thread.
    """

    def __init__(self, redis_url: str, config: RedisConfig, api_url: str, say: Callable[[str], None]) -> None:
        self._redis_url = redis_url
        self._config = config
        self._api_url = api_url
        self._say = say
        self._story = Story()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._main, name="narrator", daemon=True)

    def start(self) -> None:
        """Once per object."""
        self._thread.start()
        self._begun.wait()

    def stop(self, timeout: float = 2.0) -> None:
        """Idempotent."""
        if self._loop is not None and self._task is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it ended by itself meanwhile
                self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(timeout)

    def _main(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._begun.set()
        hub = CameraHub(self._redis_url, self._config)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_cameras(hub))
                tasks.create_task(self._follow_events(hub))
                tasks.create_task(self._follow_model())
        finally:
            await hub.close()

    async def _follow_cameras(self, hub: CameraHub) -> None:
        while True:
            with contextlib.suppress(QueueUnavailable):
                for status in await hub.statuses():
                    self._tell(self._story.of_camera(status))
            await asyncio.sleep(LOOK_S)

    async def _follow_events(self, hub: CameraHub) -> None:
        async for _, change in hub.changes():
            self._tell(self._story.of_change(change))

    async def _follow_model(self) -> None:
        """Says once per life of serve that its model is ready; while it loads there is the operator's patience."""
        ready = False
        while True:
            now_ready = await asyncio.to_thread(_is_ready, self._api_url)
            if now_ready and not ready:
                self._say("model: ready")
            ready = now_ready
            await asyncio.sleep(READY_LOOK_S if ready else MODEL_LOOK_S)

    def _tell(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._say(line)


def _is_ready(api_url: str) -> bool:
    """Of the engine; the other parts say themselves how they are."""
    try:
        with urllib.request.urlopen(f"{api_url}/health/ready", timeout=2.0) as answer:
            health: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            try:
                health = json.load(error)
            except ValueError:
                return False
    except (OSError, ValueError):
        return False
    return bool(health.get("parts", {}).get("engine", {}).get("ok"))
