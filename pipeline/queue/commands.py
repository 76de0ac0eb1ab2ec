"""What serve asks of ingest: the reader's side of ``ww:commands``."""

from __future__ import annotations

import logging
from typing import cast

import redis

from pipeline.messages import CommandMessage, MalformedMessage
from pipeline.queue import keys
from pipeline.queue.connect import block_ms as bounded_block

Entries = list[tuple[bytes, dict[bytes, bytes]]]

log = logging.getLogger(__name__)

MAX_ENTRIES = 1000
"""Bound of ``ww:commands``; who comes later than so many commands reads the configuration anyway."""
_BATCH = 100


class CommandReader:
    """Reads commands that were sent after this reader was made. No group: every ingest gets every command."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._last: bytes | None = None
        try:
            self._last = self._newest()
        except redis.RedisError as error:
            # Redis may come up later than ingest: the first read that works fixes the position then.
            log.warning("commands: Redis can't be reached yet (%s)", type(error).__name__)

    def read(self, block_ms: int) -> list[CommandMessage]:
        """New commands in their order, or an empty list after ``block_ms`` milliseconds at the latest.

        The wait ends before the client's socket timeout. Entries that can't be read are skipped and logged.
        Raises ``redis.RedisError``; no command is lost then.
        """
        if self._last is None:
            self._last = self._newest()
        reply = cast(
            "list[tuple[bytes, Entries]] | None",
            self._client.xread({keys.COMMANDS: self._last}, count=_BATCH, block=bounded_block(self._client, block_ms)),
        )
        commands: list[CommandMessage] = []
        for _, entries in reply or ():
            for entry_id, fields in entries:
                self._last = entry_id
                try:
                    commands.append(CommandMessage.from_fields(fields))
                except MalformedMessage as error:
                    log.warning("commands: entry %s skipped: %s", entry_id.decode(), error)
        return commands

    def _newest(self) -> bytes:
        entries = cast("Entries", self._client.xrevrange(keys.COMMANDS, count=1))
        return entries[0][0] if entries else b"0-0"
