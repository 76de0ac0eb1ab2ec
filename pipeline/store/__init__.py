"""Where events and their crops are kept."""

from __future__ import annotations

from pipeline.store.events import EventStore
from pipeline.store.records import BadCursor, CropRecord, DescriptionMeta, EventPage, EventRecord, UnknownCrop

__all__ = ["BadCursor", "CropRecord", "DescriptionMeta", "EventPage", "EventRecord", "EventStore", "UnknownCrop"]
