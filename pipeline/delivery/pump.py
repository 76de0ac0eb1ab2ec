"""Takes what is due for a target out of the outbox and delivers it: a loop a target, none waits for another."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from pipeline.clock import Clock
from pipeline.config.delivery import TargetConfig
from pipeline.delivery.message import message_body
from pipeline.delivery.transport import DeliveryFailed, Transport
from pipeline.logs import ThrottledLogger
from pipeline.store import EventRecord, EventStore
from pipeline.store.deliveries import Delivery
from pipeline.store.patience import StoreLink

log = logging.getLogger(__name__)
_throttled = ThrottledLogger(log)

LEASE_S = 20.0
RENEW_S = 5.0
"""A process that dies leaves its targets to the others for so long at most; one that comes back has them at once."""
LOOK_S = 1.0
"""Other processes write into the outbox too: it is looked at so often, and at once after a change of our own."""
AT_ONCE = 4
"""Messages, of different events, under way to one target."""
RELEASE_S = 1.0


class Pump:
    """Delivers to one target while this process holds it.

    Args:
        public_url: of links in messages.
    """

    def __init__(
        self,
        name: str,
        config: TargetConfig,
        transport: Transport,
        store: EventStore,
        public_url: str,
        clock: Clock,
    ) -> None:
        self.name = name
        self.transport = transport
        self._config = config
        self._outbox = store.deliveries
        self._owner = ""
        self._public_url = public_url
        self._clock = clock
        self._storing = StoreLink(f"delivery {name}")
        self._held_until = float("-inf")
        self._failures = 0
        self._woken = asyncio.Event()
        self._retry = asyncio.Event()

    @property
    def held(self) -> bool:
        """Whether this process is the one that delivers to the target."""
        return time.monotonic() < self._held_until

    def wake(self) -> None:
        """There may be something to deliver. From the event loop's thread."""
        self._woken.set()

    def retry_now(self) -> None:
        """The target answers again: a pause after failures ends. From the event loop's thread."""
        self._retry.set()

    async def run(self, owner: str) -> None:
        """Until cancelled. What is not delivered then stays in the outbox, and goes out again as the same message.

        Args:
            owner: this process's name; stable over restarts, used by no other living process.
        """
        self._owner = owner
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._hold(), name=f"hold-{self.name}")
                tasks.create_task(self._deliver(), name=f"deliver-{self.name}")
        finally:
            await self._release()

    async def _hold(self) -> None:
        while True:
            asked = time.monotonic()
            held = await self._storing.until_done(lambda: self._outbox.hold(self.name, self._owner, LEASE_S))
            # Counted from before the question, so that it never seems longer here than it is there.
            self._held_until = asked + LEASE_S if held else float("-inf")
            self._woken.set()
            await asyncio.sleep(RENEW_S)

    async def _release(self) -> None:
        if not self.held:
            return
        self._held_until = float("-inf")
        with suppress(Exception):  # the lease ends by itself soon
            async with asyncio.timeout(RELEASE_S):
                await asyncio.to_thread(self._outbox.release, self.name, self._owner)

    async def _deliver(self) -> None:
        while True:
            if not self.held or not self.transport.ready:
                await self._wait(LOOK_S)
                continue
            batch = await self._storing.until_done(self._due)
            if not batch:
                await self._wait(LOOK_S)
                continue
            pauses = await asyncio.gather(*(self._send(delivery) for delivery in batch))
            if (pause := max(pauses)) > 0:
                self._retry.clear()
                await _wait_for(self._retry, pause)

    def _due(self) -> list[Delivery]:
        return self._outbox.due(self.name, AT_ONCE, self._config.max_age_s, self._write)

    def _write(self, event: EventRecord, changes: Sequence[str], sequence: int, now: float) -> str:
        body = message_body(event, changes, sequence, now, self._public_url)
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False)

    async def _send(self, delivery: Delivery) -> float:
        """One attempt; how long the target is to be left alone after it, in seconds."""
        try:
            await self.transport.send(delivery)
        except DeliveryFailed as failure:
            return await self._note_failure(delivery, failure)
        except Exception as error:
            # Whatever is wrong with this message, the next ones must not suffer for it.
            _throttled.log(logging.ERROR, self.name, "delivery to %s failed: %s", self.name, type(error).__name__)
            log.debug("delivery to %s failed", self.name, exc_info=True)
            retry = self._clock.now() + self._pause(delivery.attempts)
            await self._store(partial(self._outbox.failed, delivery, type(error).__name__, retry))
            return 0.0
        await self._store(partial(self._outbox.delivered, delivery))
        if self._failures:
            log.info("delivery to %s works again after %d failures", self.name, self._failures)
            await self._store(partial(self._outbox.hurry, self.name))
        self._failures = 0
        return 0.0

    async def _note_failure(self, delivery: Delivery, failure: DeliveryFailed) -> float:
        _throttled.warning(f"{self.name} {failure.reason}", "delivery to %s failed: %s", self.name, failure)
        if failure.for_good:
            await self._store(partial(self._outbox.drop, delivery, failure.reason, str(failure)))
            return 0.0
        if not failure.all_alike:
            retry = self._clock.now() + self._pause(delivery.attempts)
            await self._store(partial(self._outbox.failed, delivery, str(failure), retry))
            return 0.0
        pause = self._pause(self._failures) if failure.retry_after is None else failure.retry_after
        self._failures += 1
        await self._store(partial(self._outbox.failed, delivery, str(failure), self._clock.now()))
        return pause

    def _pause(self, failures: int) -> float:
        """Doubled with each failure, and never the same twice, so that targets of many senders get room."""
        config = self._config
        return min(config.retry_max_s, config.retry_first_s * 2.0 ** min(failures, 30)) * random.uniform(0.75, 1.25)

    async def _store(self, work: Callable[[], object]) -> None:
        await self._storing.until_done(work)

    async def _wait(self, seconds: float) -> None:
        """Until woken, or so long."""
        await _wait_for(self._woken, seconds)
        self._woken.clear()


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
