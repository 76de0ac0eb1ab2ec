"""``watchword ingest``: the camera side as a process."""

from __future__ import annotations

import os
from pathlib import Path
from queue import SimpleQueue

from pipeline.cli.errors import UsageProblem
from pipeline.cli.signals import leave_at_once, on_stop_signals
from pipeline.config.file_watch import ConfigFile
from pipeline.config.load import load_config


def run_ingest(path: Path) -> int:
    """Runs until a signal comes. Raises ConfigProblem, UsageProblem, WeightsUnavailable, DetectorError."""
    config = load_config(path)
    file = ConfigFile(path, config)
    from pipeline.queue.address import RedisAddress

    address = RedisAddress.configured(config.redis)
    if address is None:
        raise UsageProblem(
            "ingest alone needs redis.url (or WATCHWORD_REDIS__URL), the same as serve; "
            "`watchword up` brings a Valkey of its own"
        )
    wishes: SimpleQueue[bool] = SimpleQueue()  # True: read the file again; False: stop

    def reload() -> None:
        wishes.put(True)

    # Loading takes seconds and nothing is open yet, so a signal may simply end the process.
    with on_stop_signals(lambda: os._exit(0), reload):
        from ingest.worker import IngestWorker

        worker = IngestWorker(config, address, file=file)
        worker.start()
    with on_stop_signals(lambda: wishes.put(False), reload, again=leave_at_once):
        while wishes.get():
            worker.reload()
        worker.stop()
    return 0
