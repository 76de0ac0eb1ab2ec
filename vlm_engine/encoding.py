"""The pictures that are being encoded: packed, advanced in the time a step has for them, features handed over by item.

Pictures are told in the order of their turn. The items (tiles) of a picture are encoded in their order; small ones are
packed with the following items, also of following pictures of the same class, up to a bound in patches, so that forty
small crops cost what their patches cost and not forty times a launch of every layer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vlm_engine.encoder_cost import EncoderCost
from vlm_engine.encoder_lane import CpuLane, Lane
from vlm_engine.row_cuts import SliceWork

if TYPE_CHECKING:
    import torch

    from vlm_engine.encoder_cache import EncoderCache, ImageFeatures
    from vlm_engine.encoder_task import EncoderItem, EncoderTask
    from vlm_engine.prompt import ImageInput

logger = logging.getLogger(__name__)

MARGIN = 1.1
"""A slice is run when this much of its predicted time is left: most steps shall end before their target, not half."""
TOTAL = "total"
"""Kind under which the time of whole packs is learned."""


class Encoder(Protocol):
    """What makes items and tasks: :class:`vlm_engine.runner.ModelRunner`."""

    def encoder_items(self, inputs: Mapping[str, torch.Tensor]) -> Sequence[EncoderItem]: ...

    def start_encode(self, items: Sequence[EncoderItem]) -> EncoderTask: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """A picture whose features somebody waits for; only pictures of one ``group`` (class) are packed together."""

    image: ImageInput
    group: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a picture: the next rows of its features, or why it can't be encoded.

    Attributes:
        part: features of the next item; None when it failed.
        complete: whether it was the last item.
    """

    content_hash: bytes
    part: ImageFeatures | None
    complete: bool = False
    error: Exception | None = None


@dataclass(slots=True)
class Spent:
    """What one call of :meth:`Encodings.run` did: slices, and their seconds as predicted and (CPU) measured."""

    slices: int = 0
    predicted: float = 0.0
    seconds: float = 0.0
    ended: bool = False


@dataclass(slots=True, eq=False)
class _Picture:
    """``next``: its first item that is in no pack yet; ``rows``: feature rows handed over so far."""

    image: ImageInput
    items: Sequence[EncoderItem]
    next: int = 0
    rows: int = 0
    alone: bool = False
    pack: _Pack | None = None


@dataclass(slots=True, eq=False)
class _Pack:
    """Items encoded together, whose they are, and what they have taken."""

    members: list[tuple[_Picture, EncoderItem]]
    task: EncoderTask | None = None
    seconds: float = 0.0

    @property
    def pictures(self) -> list[_Picture]:
        return list(dict.fromkeys(picture for picture, _ in self.members))

    def abort(self) -> None:
        """Ends its task, if it has begun."""
        if self.task is not None:
            self.task.abort()

    @property
    def whole(self) -> SliceWork:
        """All of it, for the learned time of whole packs."""
        items = [item for _, item in self.members]
        return SliceWork(TOTAL, sum(i.rows for i in items), sum(i.rows * i.keys for i in items))


class Encodings:
    """Pictures by content, so that one that several requests wait for is encoded once.

    Args:
        encoder: makes items and tasks.
        pack_patches: patches of a pack, at most; an item with more is a pack by itself.
        slicing: False encodes a picture in one piece, whatever it takes.
        lane: where slices run.

    Attributes:
        cost: predicts slices; learns from every one.
        spent: what the last :meth:`run` did.
        observe: told work, predicted and measured seconds of every slice.
    """

    def __init__(self, encoder: Encoder, pack_patches: int, slicing: bool = True, lane: Lane | None = None) -> None:
        self._encoder = encoder
        self._pack_patches = pack_patches
        self._slicing = slicing
        self._lane = lane or CpuLane()
        self._pictures: dict[bytes, _Picture] = {}
        self.cost = EncoderCost()
        self.spent = Spent()
        self.observe: Callable[[SliceWork, float, float], None] = lambda work, predicted, seconds: None

    def __len__(self) -> int:
        return len(self._pictures)

    def seconds_left(self, image: ImageInput) -> float:
        """Predicted seconds until a picture is encoded; 0 while nothing is known. For sharing out a step's time."""
        picture = self._picture(image)
        items = picture.items[picture.next :]
        left = sum(self.cost.predict(SliceWork(TOTAL, item.rows, item.rows * item.keys)) for item in items)
        if picture.pack is not None:
            left += max(0.0, self.cost.predict(picture.pack.whole) - picture.pack.seconds)
        return left

    @property
    def slice_seconds(self) -> float:
        """Predicted seconds of the longest of the slices that come next."""
        return max((self.cost.predict(self._next_slice(picture)) for picture in self._pictures.values()), default=0.0)

    def _next_slice(self, picture: _Picture) -> SliceWork:
        if picture.pack is not None and picture.pack.task is not None:
            return picture.pack.task.next
        return SliceWork("begin", picture.items[picture.next].rows if picture.next < len(picture.items) else 0)

    def run(
        self,
        wanted: Sequence[Wanted],
        seconds: float,
        interrupted: Callable[[], bool] = lambda: False,
        least: int = 1,
    ) -> Iterator[Outcome]:
        """Advances pictures in their order as long as the next slice still fits.

        Args:
            wanted: pictures in the order of their turn.
            seconds: what the slices may take; afterwards :attr:`spent` says what they took.
            least: so many slices are run in any case.
            interrupted: asked between slices; true ends the run early (somebody new has come).
        """
        self.spent = Spent()
        self._learn()
        over: set[bytes] = set()
        while (picture := self._first(wanted, over)) is not None:
            if picture.pack is None:
                self._form_pack(picture, wanted, over)
            for outcome in self._advance(picture, seconds, interrupted, least):
                if outcome.complete or outcome.error is not None:
                    over.add(outcome.content_hash)
                yield outcome
            if self.spent.ended:
                return

    def drop_unwanted(self, cache: EncoderCache) -> None:
        """Ends packs whose pictures nobody waits for any more (aborted, failed, preempted).

        A picture that was let go and is wanted again begins anew: its first rows went with the cache's entry.
        """
        for key, picture in list(self._pictures.items()):
            if cache.wanted(key) and cache.rows_ready(key) == picture.rows:
                continue
            del self._pictures[key]
            if picture.pack is not None and not any(self._current(p) for p in picture.pack.pictures):
                picture.pack.abort()

    # Packs -----------------------------------------------------------------------------------------------------------

    def _first(self, wanted: Sequence[Wanted], over: set[bytes]) -> _Picture | None:
        """The first picture that isn't over."""
        return next((self._picture(w.image) for w in wanted if w.image.content_hash not in over), None)

    def _picture(self, image: ImageInput) -> _Picture:
        picture = self._pictures.get(image.content_hash)
        if picture is None:
            picture = _Picture(image, self._items(image))
            self._pictures[image.content_hash] = picture
        return picture

    def _items(self, image: ImageInput) -> Sequence[EncoderItem]:
        """None for a picture whose tensors are not what the family takes: it fails when its turn comes."""
        try:
            return self._encoder.encoder_items(image.inputs)
        except Exception:
            logger.exception("a picture can't be cut into items")
            return ()

    def _form_pack(self, first: _Picture, wanted: Sequence[Wanted], over: set[bytes]) -> None:
        """Items from the picture's next one on; then, if there is room, of the pictures after it."""
        members = self._take(first, [], self._pack_patches)
        room = self._pack_patches - sum(item.rows for _, item in members)
        group = next(w.group for w in wanted if w.image.content_hash == first.image.content_hash)
        for one in wanted:
            if room <= 0 or first.alone or one.group != group or one.image.content_hash in over:
                continue
            picture = self._picture(one.image)
            if picture is not first and picture.pack is None and not picture.alone:
                more = self._take(picture, members, room)
                members += more
                room -= sum(item.rows for _, item in more)
        pack = _Pack(members)
        for picture in pack.pictures:
            picture.pack = pack

    def _take(
        self, picture: _Picture, members: Sequence[tuple[_Picture, EncoderItem]], room: int
    ) -> list[tuple[_Picture, EncoderItem]]:
        """The picture's next items that pack with those there are and fit; its first item in any case if it leads."""
        taken: list[tuple[_Picture, EncoderItem]] = []
        for item in picture.items[picture.next :]:
            lead = (members or taken or [(picture, item)])[0][1]
            leads = lead is item
            packs = item.pack_key is not None and item.pack_key == lead.pack_key
            if not leads and not (packs and (item.rows <= room or not self._slicing)):
                break
            taken.append((picture, item))
            room -= item.rows
            picture.next += 1
        return taken

    def _advance(
        self, picture: _Picture, seconds: float, interrupted: Callable[[], bool], least: int
    ) -> Iterator[Outcome]:
        """Runs the next slice of the picture's pack, or ends the run when it doesn't fit."""
        pack = picture.pack
        features: Sequence[ImageFeatures] | None = None
        try:
            if pack is None or not pack.members:
                raise ValueError("the picture has nothing to encode")
            if pack.task is None:
                pack.task = self._encoder.start_encode([item for _, item in pack.members])
            work = pack.task.next
            if self.spent.slices >= least and (interrupted() or not self._fits(work, seconds)):
                self.spent.ended = True
                return
            features = self._run_slice(pack, pack.task, work)
        except Exception as error:
            yield from self._failed(pack or _Pack([]), picture, error)
            return
        if features is not None and pack is not None:
            self._lane.join()
            self.cost.observe(pack.whole, pack.seconds)
            yield from self._finished(pack, features)

    def _run_slice(self, pack: _Pack, task: EncoderTask, work: SliceWork) -> Sequence[ImageFeatures] | None:
        predicted = self.cost.predict(work)
        started = time.perf_counter()
        try:
            return self._lane.run(work, task.advance)
        finally:
            seconds = time.perf_counter() - started
            pack.seconds += seconds if self._lane.waits else predicted
            self.spent.slices += 1
            self.spent.predicted += predicted
            self.spent.seconds += seconds
            self._learn()

    def _finished(self, pack: _Pack, features: Sequence[ImageFeatures]) -> Iterator[Outcome]:
        for picture in pack.pictures:
            picture.pack = None
        last = {picture: place for place, (picture, _) in enumerate(pack.members)}
        for place, ((picture, _), part) in enumerate(zip(pack.members, features, strict=True)):
            if not self._current(picture):
                continue
            picture.rows += len(part.rows)
            complete = place == last[picture] and picture.next == len(picture.items)
            if complete and picture.rows != picture.image.num_tokens:
                error = ValueError(f"{picture.rows} feature rows for {picture.image.num_tokens} image tokens")
                yield self._lost(picture, error)
            else:
                if complete:
                    del self._pictures[picture.image.content_hash]
                yield Outcome(picture.image.content_hash, part, complete)

    def _failed(self, pack: _Pack, turn: _Picture, error: Exception) -> Iterator[Outcome]:
        """A picture alone is at fault; of several, each is tried again by itself, so that only that one is lost."""
        for picture in pack.pictures:
            picture.pack = None
            picture.alone = True
            picture.next -= sum(1 for member, _ in pack.members if member is picture)
        if len(pack.pictures) <= 1:
            yield self._lost(turn, error)

    def _lost(self, picture: _Picture, error: Exception) -> Outcome:
        del self._pictures[picture.image.content_hash]
        return Outcome(picture.image.content_hash, None, error=error)

    def _current(self, picture: _Picture) -> bool:
        """Whether the picture is still wanted, and this is its latest start."""
        return self._pictures.get(picture.image.content_hash) is picture

    def _fits(self, work: SliceWork, seconds: float) -> bool:
        so_far = self.spent.seconds if self._lane.waits else self.spent.predicted
        return so_far + MARGIN * self.cost.predict(work) <= seconds

    def _learn(self) -> None:
        for work, seconds in self._lane.measured():
            self.observe(work, self.cost.predict(work), seconds)
            self.cost.observe(work, seconds)
