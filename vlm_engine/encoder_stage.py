"""A step's last part: slices of the plan's pictures in the time that the packed forward left."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vlm_engine.encoder_cache import EncoderCache
from vlm_engine.encoding import Encoder, Encodings, Outcome, Spent, Wanted
from vlm_engine.request import Request, RequestState
from vlm_engine.step_time import Margin

if TYPE_CHECKING:
    from vlm_engine.encoder_lane import Lane
    from vlm_engine.metrics import EngineMetrics
    from vlm_engine.prompt import ImageInput
    from vlm_engine.row_cuts import SliceWork
    from vlm_engine.scheduler import Encode, Plan

logger = logging.getLogger(__name__)

CPU_PACK = 1024
"""Patches of a pack on a CPU: as many as one SmolVLM tile has; more make no product faster."""
CUDA_PACK = 16_384
MOST_WITHOUT_SLICES = 3
"""A step that prefilled up to its target leaves pictures out, but not more often than so in a row."""


class EncoderStage:
    """Pictures of running requests, from their tensors to features in the cache.

    Args:
        encoder: makes items and tasks.
        cache: where features go.
        metrics: counted there.
        fail: ends a request (id) with an error: its picture can't be encoded.
        pack_patches: patches that are encoded together, at most.
        slicing: False encodes a picture in one piece.
        lane: where slices run; None = in the engine's thread.
        interrupted: whether somebody new has come; encoding ends early then when nobody decodes.
    """

    def __init__(
        self,
        encoder: Encoder,
        cache: EncoderCache,
        metrics: EngineMetrics,
        fail: Callable[[str, str], None],
        pack_patches: int = CPU_PACK,
        slicing: bool = True,
        lane: Lane | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.encodings = Encodings(encoder, pack_patches, slicing, lane)
        self.encodings.observe = self._observe_slice
        self._cache = cache
        self._metrics = metrics
        self._fail = fail
        self._interrupted = interrupted
        self._waits = lane is None or lane.waits
        self._without_slices = 0
        self._margin = Margin()

    @property
    def seconds(self) -> float:
        """What the last step's slices took: measured where the device waits for them, else predicted."""
        spent = self.encodings.spent
        return spent.seconds if self._waits else spent.predicted

    def seconds_left(self, request: Request, index: int) -> float:
        """Predicted seconds until a request's picture is encoded (0 = not known yet)."""
        return self.encodings.seconds_left(image_of(request, index))

    def run(self, plan: Plan, started: float) -> None:
        """Runs slices of the plan's pictures. A picture that can't be encoded fails its request alone.

        Args:
            plan: of this step.
            started: when the step began, on the monotonic clock.
        """
        encodings = self.encodings
        encodings.drop_unwanted(self._cache)
        encodes = [encode for encode in plan.encodes if encode.request.state is RequestState.RUNNING]
        wanted = [Wanted(image_of(encode.request, encode.image), encode.group) for encode in encodes]
        if not wanted:
            encodings.spent = Spent()
            return
        seconds = plan.encoder_seconds
        if plan.target is not None and self._waits:
            seconds = plan.target / self._margin.factor - (time.monotonic() - started)
        alone = plan.target is None and not any(chunk.request.decoding for chunk in plan.chunks)
        prefilled = any(chunk.length > 1 for chunk in plan.chunks)
        least = 0 if prefilled and self._without_slices < MOST_WITHOUT_SLICES else 1
        for outcome in encodings.run(wanted, seconds, self._interrupted if alone else lambda: False, least):
            self._take(outcome, encodes)
        self._without_slices = 0 if encodings.spent.slices else self._without_slices + 1
        if encodings.spent.slices:
            encodes[0].request.passed_over, encodes[0].request.progress_time = 0, time.monotonic()
        if plan.target is not None and encodings.spent.slices > least:
            self._margin.observe(time.monotonic() - started, plan.target)
        self._metrics.inc("encoder_slices", encodings.spent.slices)
        self._metrics.observe("encoder_seconds", self.seconds)

    def drop_unwanted(self) -> None:
        """Ends encodings that nobody waits for any more."""
        self.encodings.drop_unwanted(self._cache)

    def _take(self, outcome: Outcome, encodes: Sequence[Encode]) -> None:
        if outcome.part is not None:
            # Nobody may hold the picture any more: a request that failed in this very step has let it go.
            if self._cache.wanted(outcome.content_hash):
                self._cache.put(outcome.content_hash, outcome.part, outcome.complete)
            if outcome.complete:
                self._metrics.inc("encoder_items")
            return
        encode = next(e for e in encodes if e.request.spans[e.image].content_hash == outcome.content_hash)
        request_id = encode.request.request_id
        logger.error("encoding a picture of request %s failed", request_id, exc_info=outcome.error)
        self._cache.restart(outcome.content_hash)
        self._fail(request_id, "encoding a picture failed")

    def _observe_slice(self, work: SliceWork, predicted: float, seconds: float) -> None:
        if predicted > 0:
            self._metrics.observe("encoder_slice_predicted_seconds", predicted, kind=work.kind)
        self._metrics.observe("encoder_slice_seconds", seconds, kind=work.kind)


def image_of(request: Request, index: int) -> ImageInput:
    """A request's picture. Raises RuntimeError for one without a prompt: a fault of the engine."""
    if request.prompt is None:
        raise RuntimeError(f"request {request.request_id} has pictures and no prompt")
    return request.prompt.images[index]
