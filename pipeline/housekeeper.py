"""Deletes what is kept for longer than asked, in the background of `serve` or at a command."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeVar

from pipeline.clock import Clock, SystemClock
from pipeline.config.retention import RetentionConfig
from pipeline.store import EventStore
from pipeline.store.patience import StoreLink
from pipeline.store.pruning import Doomed

log = logging.getLogger(__name__)

T = TypeVar("T")

ORPHANS_EVERY_S = 86_400.0
REST = 0.25
"""A pause after each step, as a multiple of the step's own time: at least a fifth of the time is the writers' alone."""
LEAST_REST_S = 0.002
MEASURE = 1000


@dataclass(slots=True)
class Tally:
    """What went: events, orphaned files, bytes of pictures."""

    events: int = 0
    orphans: int = 0
    bytes: int = 0


class Housekeeper:
    """Applies the retention now and then, in small steps with pauses between them.

    Several serve processes may do so side by side: what one has deleted the other doesn't find.
    """

    def __init__(self, store: EventStore, config: RetentionConfig, clock: Clock | None = None) -> None:
        self._store = store
        self._config = config
        self._clock = clock or SystemClock()
        self._storing = StoreLink("retention")

    async def run(self) -> NoReturn:
        """Until cancelled. Pictures that no event names are looked for at the start and once a day (R69)."""
        next_orphans = 0.0
        while True:
            tally = Tally()
            if time.monotonic() >= next_orphans:
                await self.sweep_orphans(tally)
                next_orphans = time.monotonic() + ORPHANS_EVERY_S
            await self.prune(await self.plan(), tally)
            if tally.events or tally.orphans:
                mib = tally.bytes / 2**20
                log.info("retention: %d events and %d stray files went, %.1f MiB", tally.events, tally.orphans, mib)
            await asyncio.sleep(self._config.every_s)

    async def plan(self) -> list[Doomed]:
        """What is to go now. Pictures from before sizes were kept are measured first."""
        pruner = self._store.pruner
        while await self._step(lambda: pruner.measure_pictures(MEASURE)) == MEASURE:
            pass
        return await self._step(lambda: pruner.plan(self._config, self._clock.now()))

    async def prune(self, doomed: Sequence[Doomed], tally: Tally) -> None:
        """Deletes the listed events in batches."""
        for batch in _batches(doomed, self._config.batch):
            ids = [event.id for event in batch]
            pruned = await self._step(partial(self._store.pruner.delete, ids, self._clock.now()))
            tally.events += pruned.events
            tally.bytes += pruned.bytes

    async def sweep_orphans(self, tally: Tally, *, dry_run: bool = False) -> None:
        """Deletes stray files, or only counts them."""
        pruner = self._store.pruner
        folders = pruner.orphans()
        while (files := await self._step(lambda: next(folders, None))) is not None:
            for batch in _batches(files, self._config.batch):
                tally.orphans += len(batch)
                if dry_run:
                    tally.bytes += sum(file.size for file in batch)
                else:
                    tally.bytes += await self._step(partial(pruner.delete_orphans, batch))

    async def _step(self, work: Callable[[], T]) -> T:
        begun = time.monotonic()
        result = await self._storing.until_done(work)
        await asyncio.sleep(max(LEAST_REST_S, REST * (time.monotonic() - begun)))
        return result


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
