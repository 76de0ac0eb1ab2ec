"""``watchword ingest``: the camera side as a process."""

from __future__ import annotations

import os
from pathlib import Path
from queue import SimpleQueue

from pipeline.cli.errors import UsageProblem
from pipeline.cli.signals import leave_at_once, on_stop_signals
from pipeline.config.load import load_config


def run_ingest(path: Path) -> int:
    """Runs until a signal comes. Raises ConfigProblem, UsageProblem, WeightsUnavailable, DetectorError."""
    config = load_config(path)
    from pipeline.queue.address import RedisAddress

    address = RedisAddress.configured(config.redis)
    if address is None:
        raise UsageProblem(
            "ingest alone needs redis.url (or WATCHWORD_REDIS__URL), the same as serve; "
            "`watchword up` brings a Valkey of its own"
        )
    # Loading takes seconds and nothing is open yet, so a signal may simply end the process.
    with on_stop_signals(lambda: os._exit(0)):
        from ingest.worker import IngestWorker

        worker = IngestWorker(config, address)
        worker.start()
    stops: SimpleQueue[None] = SimpleQueue()
    with on_stop_signals(lambda: stops.put(None), again=leave_at_once):
        stops.get()
        worker.stop()
    return 0
