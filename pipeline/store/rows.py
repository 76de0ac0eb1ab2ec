"""Rows from messages, and records from rows."""

from __future__ import annotations

from pipeline.messages import Box, CropKind, CropMessage, DescriptionState, EventState
from pipeline.reasons import Reason
from pipeline.store.crop_files import Picture
from pipeline.store.outcome import CropFacts, CropOutcome
from pipeline.store.records import CropRecord, DescriptionMeta, DescriptionRecord, EventRecord
from pipeline.store.schema import CropRow, DescriptionRow, EventRow, PromptRow


def facts_of(crop: CropRow) -> CropFacts:
    return CropFacts(
        crop_id=crop.crop_id,
        kind=CropKind(crop.kind),
        time=crop.time,
        quality=crop.quality,
        has_picture=crop.sha256 is not None,
        outcome=CropOutcome(crop.outcome),
        reason=Reason(crop.reason),
    )


def crop_row_of(message: CropMessage, event_id: str, picture: Picture | None, now: float) -> CropRow:
    return CropRow(
        crop_id=message.crop_id,
        event_id=event_id,
        kind=message.kind.value,
        sha256=picture.sha256 if picture else None,
        bytes=picture.size if picture else None,
        time=message.time,
        frame_id=message.frame_id,
        box=list(message.box),
        score=message.score,
        quality=message.quality,
        width=message.width,
        height=message.height,
        frame_width=message.frame_width,
        frame_height=message.frame_height,
        deadline=message.deadline,
        outcome=CropOutcome.QUEUED.value,
        reason=Reason.NONE.value,
        created=now,
    )


def message_of(crop: CropRow, event: EventRow, picture_key: str, now: float, deadline: float) -> CropMessage:
    """The crop as a message once more. Its ``time`` is when it is queued again: that is what its age counts from."""
    return CropMessage(
        crop_id=crop.crop_id,
        camera=event.camera,
        track=event.track,
        kind=CropKind(crop.kind),
        time=now,
        box=_box(crop.box),
        score=crop.score,
        quality=crop.quality,
        frame_id=crop.frame_id,
        picture_key=picture_key,
        label=event.label,
        deadline=deadline,
        width=crop.width,
        height=crop.height,
        frame_width=crop.frame_width,
        frame_height=crop.frame_height,
        zones=tuple(event.zones or ()),
    )


def description_row_of(crop: CropRow, text: str, meta: DescriptionMeta, now: float) -> DescriptionRow:
    own = [crop.sha256] if crop.sha256 else []
    return DescriptionRow(
        crop_id=crop.crop_id,
        text=_storable(text),
        model=meta.model,
        prompt_hash=meta.prompt_hash,
        finish_reason=meta.finish_reason,
        prompt_tokens=meta.prompt_tokens,
        cached_tokens=meta.cached_tokens,
        output_tokens=meta.output_tokens,
        first_token_s=meta.first_token_s,
        total_s=meta.total_s,
        attributes=dict(meta.attributes) if meta.attributes is not None else None,
        pictures=list(meta.pictures) or own,
        options=dict(meta.options),
        image_tokens=meta.image_tokens,
        raw=None if meta.raw is None else _storable(meta.raw),
        form=meta.form,
        created=now,
    )


def description_record_of(row: DescriptionRow, prompt: PromptRow | None) -> DescriptionRecord:
    """``prompt``: None where the description is older than the keeping of prompts."""
    meta = DescriptionMeta(
        model=row.model,
        prompt_hash=row.prompt_hash,
        finish_reason=row.finish_reason,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        first_token_s=row.first_token_s,
        total_s=row.total_s,
        system=prompt.system if prompt else "",
        question=prompt.question if prompt else "",
        pictures=tuple(row.pictures or ()),
        options=row.options or {},
        image_tokens=row.image_tokens,
        attributes=row.attributes,
        raw=row.raw,
        form=row.form,
    )
    return DescriptionRecord(row.crop_id, row.text, meta, row.created)


def _storable(text: str) -> str:
    """What no database takes, NUL and lone surrogates, becomes a question mark or the replacement character."""
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def _box(values: list[float]) -> Box:
    x1, y1, x2, y2 = values
    return (x1, y1, x2, y2)


def record_of(event: EventRow, crop: CropRow | None) -> EventRecord:
    return EventRecord(
        id=event.id,
        track=event.track,
        camera=event.camera,
        label=event.label,
        state=EventState(event.state),
        description_state=DescriptionState(event.description_state),
        description=event.description,
        reason=Reason(event.reason),
        end_reason=Reason(event.end_reason) if event.end_reason is not None else None,
        first_seen=event.first_seen,
        last_seen=event.last_seen,
        box=_box(event.box),
        score=event.score,
        model=event.model,
        image_tokens=event.image_tokens if event.description is not None else None,
        zones=tuple(event.zones or ()),
        attributes=event.attributes,
        rules=tuple(event.rules or ()),
        crop=crop_record_of(crop) if crop else None,
        announced_crop_id=event.announced_crop_id,
        created=event.created,
        updated=event.updated,
    )


def crop_record_of(crop: CropRow) -> CropRecord:
    return CropRecord(
        crop_id=crop.crop_id,
        kind=CropKind(crop.kind),
        time=crop.time,
        box=_box(crop.box),
        score=crop.score,
        quality=crop.quality,
        frame_id=crop.frame_id,
        width=crop.width,
        height=crop.height,
        frame_width=crop.frame_width,
        frame_height=crop.frame_height,
        has_picture=crop.sha256 is not None,
    )
