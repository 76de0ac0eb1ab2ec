"""All targets of one serve process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.clock import Clock, SystemClock
from pipeline.config import WatchwordConfig
from pipeline.config.delivery import MQTT
from pipeline.delivery.mqtt import MqttTransport
from pipeline.delivery.pump import Pump
from pipeline.delivery.webhook import WebhookTransport
from pipeline.queue.hub import CameraHub
from pipeline.store import EventStore
from pipeline.store.deliveries import TargetState
from pipeline.store.outbox import Outbox, plans_of
from pipeline.store.patience import StoreLink

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """A target as it may be shown: without secrets."""

    name: str
    kind: str
    address: str
    events: Sequence[str]
    rules: Sequence[str]


class Deliverer:
    """Delivers what the outbox holds, each target by itself.

    Args:
        outbox: of the same store; wakes the loops after changes of this process.
    """

    def __init__(
        self,
        config: WatchwordConfig,
        store: EventStore,
        hub: CameraHub,
        outbox: Outbox,
        clock: Clock | None = None,
    ) -> None:
        """Raises OSError, ``ssl.SSLError`` for a ``tls_ca_file`` that can't be used."""
        clock = clock or SystemClock()
        self._config = config
        self._store = store
        self._outbox = outbox
        public_url = config.server.public_url
        self._mqtt = MqttTransport(config, store, hub, clock) if config.mqtt.enabled else None
        self._pumps = {
            hook.name: Pump(hook.name, hook, WebhookTransport(hook, clock), store, public_url, clock)
            for hook in config.webhooks
        }
        if self._mqtt is not None:
            self._pumps[MQTT] = Pump(MQTT, config.mqtt, self._mqtt, store, public_url, clock)

    async def run(self, owner: str) -> None:
        """Until cancelled. No target ends it or holds another up; what waits then stays in the outbox.

        Args:
            owner: this process's name; stable over restarts, used by no other living process.
        """
        loop = asyncio.get_running_loop()
        self._outbox.wake = lambda: _call_soon(loop, self._wake)
        storing = StoreLink("delivery")
        dropped = await storing.until_done(lambda: self._store.deliveries.forget_targets(list(self._pumps)))
        if dropped:
            log.warning("%d messages waited for targets that are not configured any more; they were dropped", dropped)
        try:
            async with asyncio.TaskGroup() as tasks:
                for pump in self._pumps.values():
                    tasks.create_task(pump.run(owner), name=f"pump-{pump.name}")
                if self._mqtt is not None:
                    tasks.create_task(self._run_mqtt(self._mqtt, self._pumps[MQTT], storing), name="mqtt")
        finally:
            for pump in self._pumps.values():
                await pump.transport.close()

    async def test(self, name: str) -> None:
        """Sends a test message now. Raises KeyError for an unknown target, :class:`DeliveryFailed`."""
        pump = self._pumps[name]
        await pump.transport.send_test()
        pump.retry_now()

    async def _run_mqtt(self, mqtt: MqttTransport, pump: Pump, storing: StoreLink) -> None:
        async def failed(error: str) -> None:
            await storing.until_done(lambda: self._store.deliveries.note_failure(MQTT, error))

        await mqtt.run(lambda: pump.held, failed)

    def _wake(self) -> None:
        for pump in self._pumps.values():
            pump.wake()
        if self._mqtt is not None:
            self._mqtt.wake()


def _call_soon(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(work)
    except RuntimeError:
        return  # the loop is closed: stopped meanwhile


def targets_of(config: WatchwordConfig) -> list[Target]:
    """All configured targets."""
    found = [Target(hook.name, "webhook", hook.host, hook.events, hook.rules) for hook in config.webhooks]
    if config.mqtt.enabled:
        found.append(Target(MQTT, "mqtt", config.mqtt.address, config.mqtt.events, config.mqtt.rules))
    return found


def states_of(config: WatchwordConfig, store: EventStore) -> dict[str, TargetState]:
    """How delivery to each configured target fares. Blocking; raises ``SQLAlchemyError``."""
    return {plan.name: store.deliveries.state(plan.name) for plan in plans_of(config)}
