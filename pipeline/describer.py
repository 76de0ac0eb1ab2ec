"""Takes crops, has them put into words, stores the words, and only then acknowledges."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from pipeline.answers import Answer, NoWords, read_object, read_text, thoughts_over, words_so_far
from pipeline.backends import BackendError, DescriptionBackend, DescriptionPiece, DescriptionRequest
from pipeline.clock import Clock, SystemClock
from pipeline.config.engine import DescriberConfig
from pipeline.describer_metrics import DescriberMetrics, Outcome
from pipeline.image_ladder import ImageLadder
from pipeline.messages import ChangeKind, CropMessage, DescriptionState, EventChange
from pipeline.prompts import Prompt, PromptBook
from pipeline.queue.crops import CropReader, HeldCrop
from pipeline.queue.health import QueueHealth, QueueUnavailable, checkpoint
from pipeline.queue.hub import CameraHub
from pipeline.reasons import Reason
from pipeline.store import DescriptionMeta, EventRecord, EventStore, UnknownCrop, View
from pipeline.store.patience import StoreLink
from pipeline.store.records import views_before

log = logging.getLogger(__name__)

PARTIAL_EVERY_S = 0.25
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 3.0
LONGEST_RETRY_AFTER_S = 30.0
LADDER_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class DescriberHealth:
    """How the describer fares.

    Attributes:
        redis: its side of the queue.
        engine: why the last attempt had to be put off (ENGINE_DOWN, ENGINE_BUSY), NONE when the last one worked.
        store: STORE while the database or the disk fails, else NONE.
        running: crops that are being described.
        described, expired, failed: crops since this process started.
    """

    redis: QueueHealth
    engine: Reason
    store: Reason
    running: int
    described: int
    expired: int
    failed: int


@dataclass(slots=True)
class _Counts:
    running: int = 0
    described: int = 0
    expired: int = 0
    failed: int = 0


@dataclass(slots=True)
class _Writing:
    """An answer that is being written, and how it came."""

    prompt: Prompt
    started: float
    text: str = ""
    reasoning: str = ""
    first_words_s: float | None = None
    told: float = field(default=float("-inf"))

    def add(self, piece: DescriptionPiece) -> None:
        self.text += piece.text
        self.reasoning += piece.reasoning

    @property
    def words(self) -> str:
        """The description as far as it goes."""
        return words_so_far(self.text) if self.prompt.schema is not None else thoughts_over(self.text)

    def read(self) -> tuple[Answer, str]:
        """The whole answer, and the text that it was read from. Raises :class:`NoWords`."""
        schema = self.prompt.schema
        if schema is None:
            return read_text(self.text), self.text
        if not self.text.strip() and "{" in self.reasoning:
            # A server that looks for the end of reasoning, and a model that never said it was reasoning (R53).
            return read_object(self.reasoning, schema), self.reasoning
        return read_object(self.text, schema), self.text


@dataclass(frozen=True, slots=True)
class _Views:
    """The pictures of a crop: its own one, the best, and the person's first and last views if there are any."""

    best: View
    others: tuple[View, ...] = ()

    def shown(self, most: int) -> tuple[tuple[bytes, ...], int]:
        """At most so many of them, oldest first, and which one is the best."""
        others = self.others[: max(0, most - 1)]
        place = views_before([view.frame_id for view in others], self.best.frame_id or 0)
        return tuple(view.jpeg for view in (*others[:place], self.best, *others[place:])), place


class Describer:
    """Describes as many crops at once as configured, until cancelled. What it holds then stays unacknowledged.

    Args:
        ladder: bounds the image tokens of crops while the queue is too old; None: never.
        prompts: what is asked about each crop; default: what ``config`` says, for all cameras alike.
        metrics: what is counted and timed goes there.
    """

    def __init__(
        self,
        reader: CropReader,
        store: EventStore,
        hub: CameraHub,
        backend: DescriptionBackend,
        config: DescriberConfig,
        *,
        ladder: ImageLadder | None = None,
        prompts: PromptBook | None = None,
        metrics: DescriberMetrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._reader = reader
        self._store = store
        self._hub = hub
        self._backend = backend
        self._config = config
        self._ladder = ladder
        self._prompts = prompts or PromptBook(config)
        self._metrics = metrics or DescriberMetrics()
        self._clock = clock or SystemClock()
        self._storing = StoreLink("describer")
        self._engine = Reason.NONE
        self._counts = _Counts()

    @property
    def health(self) -> DescriberHealth:
        counts = self._counts
        return DescriberHealth(
            redis=self._reader.health,
            engine=self._engine,
            store=Reason.NONE if self._storing.ok else Reason.STORE,
            running=counts.running,
            described=counts.described,
            expired=counts.expired,
            failed=counts.failed,
        )

    async def run(self) -> None:
        """Until cancelled, or :meth:`stop` and no crop is in work. Neither Redis, the engine, the database nor a bad
        crop ends it."""
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self._reader.keep_claims(), name="crop-claims")]
            if self._ladder is not None:
                beside.append(tasks.create_task(self._watch_age(self._ladder), name="image-ladder"))
            works = [tasks.create_task(self._work(), name=f"describer-{n}") for n in range(self._config.concurrency)]
            await asyncio.wait(works)
            for task in beside:
                task.cancel()

    def stop(self) -> None:
        """No more crops are taken; :meth:`run` ends when those in work are done."""
        self._reader.stop()

    async def _watch_age(self, ladder: ImageLadder) -> None:
        """While Redis is away nobody knows the age, and the ladder stays where it is."""
        while True:
            with suppress(QueueUnavailable):
                ladder.observe((await self._hub.queue_stats()).oldest_age)
            checkpoint()
            await asyncio.sleep(LADDER_LOOK_S)

    async def _work(self) -> None:
        while (held := await self._reader.take()) is not None:
            try:
                await self._handle(held)
            except Exception:
                # Whatever is wrong with this crop, the next ones must not suffer for it.
                log.exception("crop %s of camera %s failed", held.message.crop_id, held.message.camera)
                await self._record_failure(held, Reason.ENGINE_ERROR)

    async def _handle(self, held: HeldCrop) -> None:
        """One crop to its end, or to the point where it's put back for another attempt."""
        message = held.message
        others = await self._other_views(held)
        record = await self._storing.until_done(lambda: self._store.add_crop(message, held.jpeg, others))
        begun = await self._storing.until_done(lambda: self._store.begin_description(message.crop_id))
        if begun is None:
            # Described before its entry could be acknowledged, so it's no drop, however late it is by now.
            await self._reader.settle(held)
            await self._tell_outcome(record)
            return
        if held.refusal == Reason.POISON:
            await self._bury(held, Reason.POISON)
            return
        if held.refusal != Reason.NONE or held.jpeg is None:
            await self._expire(held, held.refusal)
            return
        await self._tell(ChangeKind.UPDATED, begun)
        if not others and self._config.pictures_per_prompt > 1:
            # One that is described once more: its pictures were kept (R51).
            others = await self._storing.until_done(lambda: self._store.other_views(message.crop_id))
        await self._describe_in_time(held, _Views(View(held.jpeg, message.frame_id), tuple(others)), begun)

    async def _other_views(self, held: HeldCrop) -> Sequence[View]:
        """The person's first and last views; those that are gone are done without."""
        wanted = held.message.extra_keys[: self._config.pictures_per_prompt - 1]
        frames = [*held.message.extra_frames, *([None] * len(wanted))]
        if held.refusal != Reason.NONE or held.jpeg is None or not wanted:
            return ()
        try:
            pictures = await self._hub.pictures_at(wanted)
        except QueueUnavailable:
            return ()
        views = zip(pictures, frames, strict=False)
        return [View(jpeg, frame) for jpeg, frame in views if jpeg is not None and jpeg != held.jpeg]

    async def _describe_in_time(self, held: HeldCrop, views: _Views, event: EventRecord) -> None:
        """Tries until the crop's deadline while the engine is down or busy (R44, R45); a failure is recorded."""
        attempts, most = 0, self._config.pictures_per_prompt
        while True:
            try:
                self._counts.running += 1
                text, meta = await self._describe(held.message, views, event, most)
            except BackendError as error:
                if error.too_many_pictures and most > 1:
                    log.info("crop %s goes with its best picture alone: %s", held.message.crop_id, error)
                    most = 1
                    continue
                if error.reason == Reason.ENGINE_ERROR:
                    log.warning("crop %s of camera %s failed: %s", held.message.crop_id, event.camera, error)
                    await self._record_failure(held, error.reason)
                    return
                self._note_engine(error.reason, str(error))
                self._metrics.put_off(error.reason)
                left = held.message.deadline - self._clock.now()
                if left <= 0:
                    await self._expire(held, error.reason)
                    return
                await asyncio.sleep(min(_pause(attempts, error.retry_after), left))
                attempts += 1
            except TimeoutError:
                log.warning("crop %s of camera %s took too long", held.message.crop_id, event.camera)
                await self._record_failure(held, Reason.ENGINE_TIMEOUT)
                return
            else:
                self._note_engine(Reason.NONE, "")
                await self._finish(held, text, meta)
                return
            finally:
                self._counts.running -= 1

    async def _describe(
        self, message: CropMessage, views: _Views, event: EventRecord, most: int
    ) -> tuple[str, DescriptionMeta]:
        """The words of a crop that is shown with at most so many pictures. Raises BackendError, TimeoutError."""
        config = self._config
        bound = self._ladder.tokens if self._ladder is not None else None
        several = bound is None and self._backend.takes_several_pictures
        pictures, best = views.shown(most if several else 1)
        if len(pictures) > 1:
            bound = max(1, config.image_tokens_per_prompt // len(pictures))
        prompt = self._prompts.prompt(message, event, len(pictures))
        request = DescriptionRequest(
            pictures, prompt.system, prompt.question, config.max_tokens, prompt.schema, bound, best
        )
        writing = _Writing(prompt, time.monotonic())
        finish: str | None = None
        async with asyncio.timeout(config.timeout_s), aclosing(self._backend.describe(request)) as pieces:
            async for piece in pieces:
                writing.add(piece)
                if piece.finish_reason is not None:
                    finish, usage = piece.finish_reason, piece.usage
                await self._tell_words(event, writing)
        try:
            answer, raw = writing.read()
        except NoWords as error:
            raise BackendError(Reason.ENGINE_ERROR, str(error)) from None
        if finish is None:
            raise BackendError(Reason.ENGINE_ERROR, "the engine did not end its answer")
        self._metrics.answered(answer.form, writing.first_words_s)
        meta = DescriptionMeta(
            model=self._backend.model,
            prompt_hash=prompt.hash,
            finish_reason=finish,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            first_token_s=writing.first_words_s or 0.0,
            total_s=time.monotonic() - writing.started,
            system=prompt.system,
            question=prompt.question,
            pictures=tuple(hashlib.sha256(picture).hexdigest() for picture in pictures),
            options={"temperature": 0.0, "max_tokens": config.max_tokens, **config.processor_options},
            image_tokens=usage.image_tokens,
            attributes=answer.attributes,
            raw=raw,
            form=answer.form.value,
        )
        return answer.words, meta

    async def _finish(self, held: HeldCrop, text: str, meta: DescriptionMeta) -> None:
        crop_id = held.message.crop_id
        record = await self._storing.until_done(lambda: self._store.finish_description(crop_id, text, meta))
        self._counts.described += 1
        now = self._clock.now()
        self._metrics.ended(Outcome.DESCRIBED, age_s=now - held.message.time, queued_s=now - held.arrived)
        await self._reader.settle(held)
        await self._tell_outcome(record)

    async def _expire(self, held: HeldCrop, reason: Reason) -> None:
        record = await self._store_failure(held, reason, expired=True)
        self._counts.expired += 1
        self._metrics.ended(Outcome.EXPIRED)
        await self._reader.give_up(held, reason)
        if record is not None:
            await self._tell_outcome(record)

    async def _record_failure(self, held: HeldCrop, reason: Reason) -> None:
        if await self._reader.fail(held):
            await self._bury(held, reason)

    async def _bury(self, held: HeldCrop, reason: Reason) -> None:
        record = await self._store_failure(held, reason, expired=False)
        self._counts.failed += 1
        self._metrics.ended(Outcome.FAILED)
        await self._reader.bury(held, reason)
        if record is not None:
            await self._tell_outcome(record)

    async def _store_failure(self, held: HeldCrop, reason: Reason, *, expired: bool) -> EventRecord | None:
        """The event with its failure; None when not even that can be stored, which must not keep the crop for ever."""
        crop_id = held.message.crop_id
        try:
            return await self._storing.until_done(
                lambda: self._store.fail_description(crop_id, reason, expired=expired)
            )
        except (SQLAlchemyError, UnknownCrop) as error:
            log.error("crop %s: its failure can't be stored: %s", crop_id, error)
            return None

    def _note_engine(self, reason: Reason, detail: str) -> None:
        if reason != self._engine:
            if reason == Reason.NONE:
                log.info("the engine describes again")
            else:
                log.warning("the engine can't describe now (%s): %s", reason, detail)
        self._engine = reason

    async def _tell_words(self, event: EventRecord, writing: _Writing) -> None:
        """The words so far, a few times a second; they are kept nowhere."""
        now = time.monotonic()
        if writing.first_words_s is not None and now - writing.told < PARTIAL_EVERY_S:
            return
        words = writing.words
        if not words:
            return
        if writing.first_words_s is None:
            writing.first_words_s = now - writing.started
        writing.told = now
        if not self._hub.health.ok:
            return
        shown = event.to_api() | {"description": words, "description_state": DescriptionState.RUNNING.value}
        await self._announce(EventChange(ChangeKind.PARTIAL, event.id, self._clock.now(), shown))

    async def _tell_outcome(self, record: EventRecord) -> None:
        match record.description_state:
            case DescriptionState.FINAL:
                await self._tell(ChangeKind.DESCRIBED, record)
            case DescriptionState.EXPIRED | DescriptionState.FAILED:
                await self._tell(ChangeKind.FAILED, record)
            case _:
                await self._tell(ChangeKind.UPDATED, record)

    async def _tell(self, kind: ChangeKind, record: EventRecord) -> None:
        await self._announce(EventChange(kind, record.id, self._clock.now(), record.to_api()))

    async def _announce(self, change: EventChange) -> None:
        try:
            await self._hub.publish_change(change)
        except QueueUnavailable:
            # What counts is stored; who watches sees it with the event's next change or when the page is loaded.
            log.debug("a change of event %s was not announced", change.event_id)
        checkpoint()


def _pause(attempts: int, asked: float | None) -> float:
    """Seconds before the next attempt."""
    if asked is not None:
        return max(FIRST_PAUSE_S, min(asked, LONGEST_RETRY_AFTER_S))
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempts, 10))
