"""``watchword queue``: how full the queue is and who works on it, and the crops that were put aside."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.cli.console import stdout_console
from pipeline.cli.errors import UsageProblem
from pipeline.cli.signals import on_stop_signals
from pipeline.clock import iso
from pipeline.config import WatchwordConfig
from pipeline.config.load import load_config
from pipeline.redaction import redact

if TYPE_CHECKING:
    from pipeline.queue.dead_letters import DeadLetter
    from pipeline.queue.hub import CameraHub
    from pipeline.queue.stats import QueueStats

T = TypeVar("T")

WATCH_EVERY_S = 1.0


def run_queue(path: Path | None, *, as_json: bool, watch: bool) -> int:
    """0: shown. Raises ConfigProblem, UsageProblem (no Redis, or it can't be reached)."""
    config = load_config(path)
    if watch:
        return _with_hub(config, lambda hub: _watch(hub, as_json=as_json))

    async def show(hub: CameraHub) -> int:
        stats, drops = await hub.queue_stats(), await hub.drops()
        if as_json:
            print(json.dumps(queue_json(stats, drops)))
        else:
            _print(queue_tables(stats, drops))
        return 0

    return _with_hub(config, show)


async def _watch(hub: CameraHub, *, as_json: bool) -> int:
    """Until Ctrl-C. Redis may go and come back meanwhile."""
    from pipeline.queue.health import QueueUnavailable

    # A cancelled task can lose its cancellation in what it awaits; a flag can't be lost.
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def end() -> None:
        loop.call_soon_threadsafe(ended.set)

    with on_stop_signals(end), Live(console=Console(highlight=False), auto_refresh=False) as live:
        while not ended.is_set():
            try:
                stats, drops = await hub.queue_stats(), await hub.drops()
            except QueueUnavailable as error:
                live.update(Text(f"Redis is away ({error.reason})"), refresh=True)
            else:
                if as_json:
                    print(json.dumps(queue_json(stats, drops)), flush=True)
                else:
                    live.update(queue_tables(stats, drops), refresh=True)
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), WATCH_EVERY_S)
    return 0


def queue_json(stats: QueueStats, drops: dict[str, dict[str, int]]) -> dict[str, Any]:
    """Counts, seconds and bytes; one shape for scripts."""
    return {
        "time": iso(time.time()),
        "waiting": stats.waiting,
        "pending": stats.pending,
        "oldest_age": stats.oldest_age,
        "dead": stats.dead,
        "cameras": [asdict(queue) for queue in stats.cameras],
        "consumers": [asdict(consumer) for consumer in stats.consumers],
        "drops": drops,
    }


def queue_tables(stats: QueueStats, drops: dict[str, dict[str, int]]) -> RenderableType:
    """Cameras, then consumers, then drops."""
    cameras = _table("camera", "waiting", "held", "oldest", "MiB")
    for queue in stats.cameras:
        cells = (queue.camera, str(queue.waiting), str(queue.held), _seconds(queue.oldest_age))
        cameras.add_row(*cells, f"{queue.bytes / 2**20:.1f}")
    cameras.add_row("all", str(stats.waiting), str(stats.pending), _seconds(stats.oldest_age), "")
    consumers = _table("describer", "held", "idle")
    for consumer in stats.consumers:
        consumers.add_row(consumer.name, str(consumer.held), _seconds(consumer.idle))
    dropped = _table("dropped", "because", "crops")
    for camera, reasons in sorted(drops.items()):
        for reason, count in sorted(reasons.items()):
            dropped.add_row(camera, reason, str(count))
    parts: list[RenderableType] = [cameras]
    parts += [Text(), consumers] if stats.consumers else [Text("\nno describer has taken anything yet")]
    parts += [Text(), dropped] if drops else []
    parts.append(Text(f"\n{stats.dead} dead letters (watchword queue dead list)" if stats.dead else ""))
    return Group(*parts)


def list_dead(path: Path | None, *, limit: int, as_json: bool) -> int:
    """Newest first. Raises as :func:`run_queue`."""

    async def show(hub: CameraHub) -> int:
        letters = await hub.dead_letters.newest(limit)
        if as_json:
            print(json.dumps([letter_json(letter) for letter in letters]))
            return 0
        table = _table("id", "camera", "crop", "put aside", "because", "deliveries", "picture")
        for letter in letters:
            picture = "yes" if letter.has_picture else "gone"
            cells = (letter.id, letter.message.camera, letter.message.crop_id, iso(letter.buried), letter.reason)
            table.add_row(*cells, str(letter.deliveries), picture)
        _print(table if letters else Text("no dead letters"))
        return 0

    return _with_hub(load_config(path), show)


def show_dead(path: Path | None, letter_id: str, out: Path | None) -> int:
    """All that is known of one, as JSON; with ``out`` its picture goes into that file."""

    async def show(hub: CameraHub) -> int:
        letter = await hub.dead_letters.get(letter_id)
        if letter is None:
            raise _unknown(letter_id)
        print(json.dumps(letter_json(letter), indent=2))
        if out is not None:
            picture = await hub.dead_letters.picture(letter_id)
            if picture is None:
                raise UsageProblem(f"the picture of {letter_id} is no longer kept")
            await asyncio.to_thread(out.write_bytes, picture)
        return 0

    return _with_hub(load_config(path), show)


def replay_dead(path: Path | None, letter_ids: list[str], *, every: bool) -> int:
    """Queues them once more. 1 when some could not be."""
    config = load_config(path)

    async def replay(hub: CameraHub) -> int:
        failed = 0
        for letter_id in await _wanted(hub, config, letter_ids, every=every):
            done = await hub.dead_letters.replay(letter_id, config.describer.on_demand_deadline_s)
            failed += done != "queued"
            print(f"{letter_id} {done}")
        return 1 if failed else 0

    return _with_hub(config, replay)


def drop_dead(path: Path | None, letter_ids: list[str], *, every: bool) -> int:
    """Throws them away. 1 when some were not there."""
    config = load_config(path)

    async def drop(hub: CameraHub) -> int:
        failed = 0
        for letter_id in await _wanted(hub, config, letter_ids, every=every):
            done = await hub.dead_letters.drop(letter_id)
            failed += not done
            print(f"{letter_id} {'dropped' if done else 'unknown'}")
        return 1 if failed else 0

    return _with_hub(config, drop)


async def _wanted(hub: CameraHub, config: WatchwordConfig, letter_ids: list[str], *, every: bool) -> list[str]:
    if bool(letter_ids) == every:
        raise UsageProblem("name the dead letters, or say --all")
    return [letter.id for letter in await hub.dead_letters.newest(config.redis.dead_letters)] if every else letter_ids


def letter_json(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter in plain JSON types; times in ISO 8601."""
    message = letter.message
    return {
        "id": letter.id,
        "camera": message.camera,
        "crop_id": message.crop_id,
        "track": message.track,
        "kind": message.kind.value,
        "time": iso(message.time),
        "put_aside": iso(letter.buried),
        "reason": letter.reason,
        "deliveries": letter.deliveries,
        "has_picture": letter.has_picture,
        "width": message.width,
        "height": message.height,
    }


def _with_hub(config: WatchwordConfig, work: Callable[[CameraHub], Awaitable[int]]) -> int:
    from pipeline.queue.address import RedisAddress
    from pipeline.queue.health import QueueUnavailable
    from pipeline.queue.hub import CameraHub

    address = RedisAddress.configured(config.redis)
    if address is None:
        raise UsageProblem(
            "name the Redis that ingest and serve use: redis.url in the --config, or WATCHWORD_REDIS__URL. An embedded "
            "Valkey is not open to other commands; ask serve: GET /api/queue"
        )

    async def main() -> int:
        hub = CameraHub(address, config.redis)
        try:
            return await work(hub)
        finally:
            await hub.close()

    try:
        return asyncio.run(main())
    except QueueUnavailable as error:
        raise UsageProblem(f"Redis can't be used ({error.reason}): {redact(str(error.__cause__))}") from None
    except KeyboardInterrupt:
        return 0


def _unknown(letter_id: str) -> UsageProblem:
    return UsageProblem(f"there is no dead letter {letter_id}")


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        number = column in ("waiting", "held", "oldest", "MiB", "idle", "crops", "deliveries")
        table.add_column(column, justify="right" if number else "left")
    return table


def _print(what: RenderableType) -> None:
    console = stdout_console()
    console.print(what)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"
