"""Listens for what serve asks of ingest."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import redis

from pipeline.logs import ThrottledLogger
from pipeline.messages import CommandMessage
from pipeline.queue.address import RedisAddress
from pipeline.queue.commands import CommandReader
from pipeline.queue.connect import sync_client

log = logging.getLogger(__name__)

BLOCK_MS = 500
PAUSE_S = 1.0


class CommandListener:
    """A thread that hands each command to ``handle``, one after the other; Redis may come and go."""

    def __init__(self, address: RedisAddress | str, handle: Callable[[CommandMessage], None]) -> None:
        self._client = sync_client(address)
        self._handle = handle
        self._reader: CommandReader | None = None
        self._stopping = threading.Event()
        self._failures = ThrottledLogger(log)
        self._thread = threading.Thread(target=self._run, name="commands", daemon=True)

    def listen_from_now(self) -> None:
        """Commands sent from now on will be handled once the thread runs. Waits for Redis a few seconds at most."""
        self._reader = CommandReader(self._client)

    def start(self) -> None:
        self._thread.start()

    def request_stop(self) -> None:
        """Returns at once; the thread ends within ``BLOCK_MS``, and handles nothing that comes from now on."""
        self._stopping.set()

    def join(self, timeout: float) -> None:
        """Waits for the thread and closes the connection; one that is still being read is left to the thread's end."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if not self._thread.is_alive():
            self._client.close()

    def _run(self) -> None:
        reader = self._reader or CommandReader(self._client)
        while not self._stopping.is_set():
            try:
                commands = reader.read(BLOCK_MS)
            except redis.RedisError as error:
                if not self._stopping.is_set():
                    name = type(error).__name__
                    self._failures.log(logging.WARNING, name, "commands: Redis can't be read (%s)", name)
                self._stopping.wait(PAUSE_S)
                continue
            for command in commands:
                if self._stopping.is_set():
                    return
                try:
                    self._handle(command)
                except Exception:  # one command must not end the listening
                    log.exception("commands: %s %s failed", command.kind.value, command.camera)
