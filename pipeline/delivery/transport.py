"""What a way of delivery has to do, and how it says that it could not."""

from __future__ import annotations

from typing import Protocol

from pipeline.reasons import REASON_TEXT, Reason
from pipeline.store.deliveries import Delivery


class DeliveryFailed(Exception):
    """A message did not arrive. ``str()`` is for people and holds no secret.

    Attributes:
        retry_after: seconds that the target asked for.
        for_good: this message will never be taken.
        all_alike: other messages would fare the same now, so that the target is left alone for a while.
    """

    def __init__(
        self,
        reason: Reason,
        detail: str = "",
        *,
        retry_after: float | None = None,
        for_good: bool = False,
        all_alike: bool = True,
    ) -> None:
        super().__init__(f"{REASON_TEXT[reason]} ({detail})" if detail else REASON_TEXT[reason])
        self.reason = reason
        self.retry_after = retry_after
        self.for_good = for_good
        self.all_alike = all_alike


class Transport(Protocol):
    """A way to one target. Its errors are :class:`DeliveryFailed` alone."""

    @property
    def ready(self) -> bool:
        """Whether it makes sense to try now."""
        ...

    async def send(self, delivery: Delivery) -> None:
        """Returns once the target has said that it has the message."""
        ...

    async def send_test(self) -> None:
        """Sends a message that tells of nothing; from any process, whoever holds the target."""
        ...

    async def close(self) -> None:
        """Closes connections."""
        ...
