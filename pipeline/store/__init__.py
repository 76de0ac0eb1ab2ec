"""Where events and their crops are kept."""

from __future__ import annotations

from pipeline.store.again import Answer, Asking
from pipeline.store.events import EventStore
from pipeline.store.records import (
    BadCursor,
    CropRecord,
    DescriptionMeta,
    DescriptionRecord,
    EventFilter,
    EventPage,
    EventRecord,
    UnknownCrop,
    View,
)

__all__ = [
    "Answer",
    "Asking",
    "BadCursor",
    "CropRecord",
    "DescriptionMeta",
    "DescriptionRecord",
    "EventFilter",
    "EventPage",
    "EventRecord",
    "EventStore",
    "UnknownCrop",
    "View",
]
