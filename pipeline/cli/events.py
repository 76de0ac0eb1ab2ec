"""`watchword events`: looks after what is stored."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline.cli.errors import UsageProblem
from pipeline.config import RetentionConfig
from pipeline.config.load import load_config
from pipeline.housekeeper import Housekeeper, Tally
from pipeline.store import EventStore
from pipeline.store.pruning import Doomed

MIB = 2**20


def run_prune(path: Path | None, *, dry_run: bool, days: float | None, max_gib: float | None) -> int:
    """0: done. Raises ConfigProblem, UsageProblem, and what opening the store raises."""
    config = load_config(path)
    changes = {"days": days, "max_gib": max_gib}
    retention = config.retention.model_copy(update={key: value for key, value in changes.items() if value is not None})
    if not config.store.url and not (config.store.data_dir / "watchword.db").exists():
        raise UsageProblem(f"there are no events in {config.store.data_dir.absolute()}; name the right --config")
    store = EventStore(config.store)
    try:
        asyncio.run(_prune(store, retention, dry_run=dry_run))
    finally:
        store.close()
    return 0


async def _prune(store: EventStore, retention: RetentionConfig, *, dry_run: bool) -> None:
    keeper = Housekeeper(store, retention)
    doomed = await keeper.plan()
    _print_table(doomed)
    tally = Tally()
    if dry_run:
        await keeper.sweep_orphans(tally, dry_run=True)
        print(f"would delete {len(doomed)} events and {tally.orphans} stray files; nothing was deleted")
        return
    await keeper.prune(doomed, tally)
    await keeper.sweep_orphans(tally)
    print(f"deleted {tally.events} events and {tally.orphans} stray files, {tally.bytes / MIB:.1f} MiB")


def _print_table(doomed: list[Doomed]) -> None:
    if not doomed:
        return
    events: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for event in doomed:
        key = (event.label, event.reason.value)
        events[key] += 1
        sizes[key] += event.bytes
    table = Table("label", "because of", "events", "MiB", box=None, padding=(0, 2, 0, 0), header_style="")
    for label, reason in sorted(events):
        table.add_row(label, reason, str(events[label, reason]), f"{sizes[label, reason] / MIB:.1f}")
    Console().print(table)
