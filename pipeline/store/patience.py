"""The store for async callers: in a thread, and patient while the database or the disk fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
_LOG_EVERY = 20
TRANSIENT = (OperationalError, InterfaceError, OSError)
"""Not the fault of what is being stored: no connection, locked, disk full. Other errors would come again."""


class StoreLink:
    """Runs one user's store calls, each until it is done, and knows whether the last one worked."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failures = 0

    @property
    def ok(self) -> bool:
        """Whether the store took the last call."""
        return self._failures == 0

    async def until_done(self, work: Callable[[], T]) -> T:
        """Repeats an idempotent call while the store fails. Raises what is the call's own fault."""
        while True:
            try:
                result = await asyncio.to_thread(work)
            except TRANSIENT as error:
                if self._failures % _LOG_EVERY == 0:
                    log.error("%s: the store fails (%d in a row): %s", self._name, self._failures + 1, error)
                self._failures += 1
                await asyncio.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures, 16)))
            else:
                if self._failures:
                    log.info("%s: the store works again", self._name)
                self._failures = 0
                return result
