"""The tables. Portable SQL: SQLite by default, PostgreSQL for several serve processes on different hosts.

A change here needs a file in ``migrations/versions``; a test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import JSON, BigInteger, Double, ForeignKey, Index, Integer, LargeBinary, String, Text, select
from sqlalchemy.orm import DeclarativeBase, Mapped, column_property, mapped_column


class Base(DeclarativeBase):
    """Root of the tables."""

    # Seconds since the epoch need double precision, which "float" is not on every server.
    type_annotation_map: ClassVar[dict[Any, Any]] = {float: Double}


class EventRow(Base):
    """One person's stay in front of one camera.

    The description columns and ``best_crop_id`` follow from the event's crops and from whether it is over; they are
    computed by :mod:`pipeline.store.outcome` after each change and kept here so that lists need one table and an index.

    ``touched``: when ingest last had news of it, by this machine's clock. ``end_reason``: None while the track goes on;
    INTERRUPTED when nobody said that it ended. ``final_crop``: whether the end announced a final crop. ``gave_up``:
    crops that were announced are not waited for any more. ``announced_crop_id``: the newest crop that ingest published;
    until a describer takes it, its picture is in Redis only. ``attributes``: those of the shown description.
    ``zones``: the camera's zones that the person was seen in; None where nobody said.
    ``rules``: names of the alert rules that the event matched. ``told``: what has been told of it, as
    :class:`pipeline.delivery.facts.Told` writes it; None before anything was, or where nobody is told anything.
    """

    __tablename__ = "events"
    __table_args__ = (
        Index("events_newest", "first_seen", "id"),
        Index("events_newest_of_camera", "camera", "first_seen", "id"),
        Index("events_by_state", "state", "touched"),
        Index("events_by_description_state", "description_state", "touched"),
    )

    id: Mapped[str] = mapped_column(String(200), primary_key=True)
    track: Mapped[str] = mapped_column(String(200), unique=True)
    camera: Mapped[str] = mapped_column(String(64))
    label: Mapped[str] = mapped_column(String(100))
    state: Mapped[str] = mapped_column(String(20))
    first_seen: Mapped[float]
    last_seen: Mapped[float]
    box: Mapped[list[float]] = mapped_column(JSON)
    score: Mapped[float]
    end_reason: Mapped[str | None] = mapped_column(String(40), default=None)
    final_crop: Mapped[bool] = mapped_column(default=False)
    gave_up: Mapped[bool] = mapped_column(default=False)
    description_state: Mapped[str] = mapped_column(String(20))
    description: Mapped[str | None] = mapped_column(Text, default=None)
    reason: Mapped[str] = mapped_column(String(40))
    announced_crop_id: Mapped[str | None] = mapped_column(String(100), default=None)
    best_crop_id: Mapped[str | None] = mapped_column(String(100), default=None)
    model: Mapped[str | None] = mapped_column(String(300), default=None)
    zones: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True), default=None)
    attributes: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True), default=None)
    rules: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True), default=None)
    told: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True), default=None)
    created: Mapped[float]
    updated: Mapped[float]
    touched: Mapped[float]

    if TYPE_CHECKING:
        image_tokens: Mapped[int | None]


class CropRow(Base):
    """One picture of an event, and what became of its description.

    ``sha256`` names the file, ``bytes`` is its size; None when the picture was gone before it reached serve.
    ``asked_again_until``: a new description was asked for, and this is the time until which it may come.
    """

    __tablename__ = "crops"
    __table_args__ = (
        Index("crops_of_event", "event_id"),
        Index("crops_by_outcome", "outcome", "deadline"),
        Index("crops_by_picture", "sha256"),
    )

    crop_id: Mapped[str] = mapped_column(String(100), primary_key=True)
    event_id: Mapped[str] = mapped_column(ForeignKey("events.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(String(10))
    sha256: Mapped[str | None] = mapped_column(String(64))
    time: Mapped[float]
    frame_id: Mapped[int] = mapped_column(BigInteger)
    box: Mapped[list[float]] = mapped_column(JSON)
    score: Mapped[float]
    quality: Mapped[float]
    width: Mapped[int]
    height: Mapped[int]
    frame_width: Mapped[int]
    frame_height: Mapped[int]
    deadline: Mapped[float]
    outcome: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str] = mapped_column(String(40))
    bytes: Mapped[int | None] = mapped_column(default=None)
    asked_again_until: Mapped[float | None] = mapped_column(default=None)
    created: Mapped[float]


class CropPictureRow(Base):
    """A further picture of the person that a crop shows: the first or the last view of the track. Oldest first.

    ``frame_id``: the frame that it was cut out of, None where that is not known.
    """

    __tablename__ = "crop_pictures"
    __table_args__ = (Index("crop_pictures_by_picture", "sha256"),)

    crop_id: Mapped[str] = mapped_column(ForeignKey("crops.crop_id", ondelete="CASCADE"), primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    sha256: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int]
    frame_id: Mapped[int | None] = mapped_column(BigInteger, default=None)


class DescriptionRow(Base):
    """The words that a model found for a crop, and the exact request. One a crop: storing them twice changes nothing.

    ``pictures``: SHA-256 of the pictures in the prompt, in their order. ``options``: sampling and picture processor.
    ``image_tokens``: how many tokens of the prompt the pictures took; None where the backend doesn't say. ``raw``: the
    answer as the model wrote it, ``form``: what had to be done to read it (:class:`pipeline.answers.AnswerForm`).
    """

    __tablename__ = "descriptions"

    crop_id: Mapped[str] = mapped_column(ForeignKey("crops.crop_id", ondelete="CASCADE"), primary_key=True)
    text: Mapped[str] = mapped_column(Text)
    model: Mapped[str] = mapped_column(String(300))
    prompt_hash: Mapped[str] = mapped_column(String(64))
    finish_reason: Mapped[str] = mapped_column(String(20))
    prompt_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    output_tokens: Mapped[int]
    first_token_s: Mapped[float]
    total_s: Mapped[float]
    attributes: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True), default=None)
    pictures: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True), default=None)
    options: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True), default=None)
    image_tokens: Mapped[int | None] = mapped_column(default=None)
    raw: Mapped[str | None] = mapped_column(Text, default=None)
    form: Mapped[str | None] = mapped_column(String(10), default=None)
    created: Mapped[float]


class PromptRow(Base):
    """Instructions and question by the hash that descriptions name."""

    __tablename__ = "prompts"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    system: Mapped[str] = mapped_column(Text)
    question: Mapped[str] = mapped_column(Text)
    created: Mapped[float]


class EventTextRow(Base):
    """What an event is found by: the full-text index lies over this table (see ``migrations/versions/0002_search.py``).

    ``number``: from :func:`pipeline.store.search_text.time_number`, so that the index itself is in the order of time.
    ``words``, ``tags``: from :mod:`pipeline.store.search_text`.
    """

    __tablename__ = "event_texts"

    number: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False
    )
    event_id: Mapped[str] = mapped_column(ForeignKey("events.id", ondelete="CASCADE"), unique=True)
    words: Mapped[str] = mapped_column(Text)
    tags: Mapped[str] = mapped_column(Text)


class EventVectorRow(Base):
    """The embedding of an event's words: float32, of length 1.

    ``number`` grows and is never used again, so that what is new is known.
    """

    __tablename__ = "event_vectors"
    __table_args__ = ({"sqlite_autoincrement": True},)

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    event_id: Mapped[str] = mapped_column(ForeignKey("events.id", ondelete="CASCADE"), unique=True)
    model: Mapped[str] = mapped_column(String(300))
    vector: Mapped[bytes] = mapped_column(LargeBinary)


class DeliveryRow(Base):
    """An event's messages to one target: at most one that is being delivered, and what is to be told after it.

    ``sequence``: messages that were made so far. ``body``: the newest of them while it isn't delivered, word by word
    the same for each attempt; None when it is. ``changes``: what came about since it was made. ``since``: when the
    oldest of what waits came about; ``due``: when to try next; both None when nothing waits.
    """

    __tablename__ = "deliveries"
    __table_args__ = (
        Index("deliveries_due", "target", "due"),
        Index("deliveries_of_event", "event_id"),
    )

    target: Mapped[str] = mapped_column(String(64), primary_key=True)
    event_id: Mapped[str] = mapped_column(ForeignKey("events.id", ondelete="CASCADE"), primary_key=True)
    sequence: Mapped[int] = mapped_column(default=0)
    changes: Mapped[list[str]] = mapped_column(JSON)
    body: Mapped[str | None] = mapped_column(Text, default=None)
    attempts: Mapped[int] = mapped_column(default=0)
    since: Mapped[float | None] = mapped_column(default=None)
    due: Mapped[float | None] = mapped_column(default=None)


class TargetRow(Base):
    """One target: which process delivers to it, and how that went.

    ``owner``, ``lease_until``: nobody else delivers before then. ``counts``: outcome -> messages. ``failures``:
    attempts in a row. ``error``: of the last failure, without secrets.
    """

    __tablename__ = "delivery_targets"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    owner: Mapped[str] = mapped_column(String(200), default="")
    lease_until: Mapped[float] = mapped_column(default=0.0)
    counts: Mapped[dict[str, int]] = mapped_column(JSON)
    failures: Mapped[int] = mapped_column(default=0)
    last_success: Mapped[float | None] = mapped_column(default=None)
    last_failure: Mapped[float | None] = mapped_column(default=None)
    error: Mapped[str | None] = mapped_column(Text, default=None)


class AlertRow(Base):
    """How often a rule matched events of a camera.

    ``last``: the last time that it counted; its cooldown runs from then. ``cooled``: matches within the cooldown.
    """

    __tablename__ = "alert_counts"

    rule: Mapped[str] = mapped_column(String(64), primary_key=True)
    camera: Mapped[str] = mapped_column(String(64), primary_key=True)
    last: Mapped[float]
    matched: Mapped[int] = mapped_column(default=0)
    cooled: Mapped[int] = mapped_column(default=0)


class CameraChangeRow(Base):
    """What the API changed of a camera: see :class:`pipeline.config.overlay.CameraChange`.

    ``settings`` holds passwords as they are. ``revision``: that of the whole table at the row's last change. Rows stay
    when they say nothing any more, so that revisions never go back.
    """

    __tablename__ = "camera_changes"

    camera: Mapped[str] = mapped_column(String(64), primary_key=True)
    settings: Mapped[dict[str, Any]] = mapped_column(JSON)
    whole: Mapped[bool]
    removed: Mapped[bool]
    revision: Mapped[int] = mapped_column(BigInteger)
    updated: Mapped[float]


# Of the words that are shown: read from their own row, so that there is one truth.
EventRow.image_tokens = column_property(
    select(DescriptionRow.image_tokens)
    .where(DescriptionRow.crop_id == EventRow.best_crop_id)
    .correlate_except(DescriptionRow)
    .scalar_subquery()
)
