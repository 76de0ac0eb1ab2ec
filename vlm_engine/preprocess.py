"""Pictures are decoded, resized and normalised in a bounded pool of spawned processes.

Not on the event loop (others' ``/health`` would wait), not on the engine thread (everybody's tokens would wait), and
not in threads (the GIL: two processor threads are slower than one). Workers run at low priority with one torch thread
and hand tensors over through shared memory.
"""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any

import numpy as np

from vlm_engine.errors import InvalidRequestError, OverloadedError, RequestFailedError
from vlm_engine.images import content_hash, decode_image

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from vlm_engine.metrics import EngineMetrics

MAX_PENDING = 256
ATTEMPTS = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """A picture after the checkpoint's processor.

    Attributes:
        token_ids: the block of tokens that takes the placeholder's place.
        feature_indices: which of them take a feature row.
        inputs: tensors for the family's encoder.
    """

    content_hash: bytes
    token_ids: tuple[int, ...]
    feature_indices: tuple[int, ...]
    inputs: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Packed:
    """What comes back from a worker: arrays lie one after another in the named shared memory."""

    content_hash: bytes
    token_ids: tuple[int, ...]
    feature_indices: tuple[int, ...]
    memory: str
    arrays: tuple[tuple[str, str, tuple[int, ...], int], ...]  # name, dtype, shape, offset
    seconds: float


class ImageProcessorPool:
    """Runs the checkpoint's processor on single pictures.

    Args:
        model, revision: whose processor.
        workers: processes; None = one on 4 cores or fewer, else two.
        max_pixels: pixel cap of an input picture.
        metrics: depth and seconds are counted there.
    """

    def __init__(
        self, model: str, revision: str | None, workers: int | None, max_pixels: int, metrics: EngineMetrics
    ) -> None:
        count = workers or (1 if (os.cpu_count() or 1) <= 4 else 2)
        self._max_pixels = max_pixels
        self._metrics = metrics
        self._pending = 0
        self._arguments = (model, revision)
        self._count = count
        self._pool = self._start()

    def warm_up(self) -> None:
        """Waits until a worker has loaded the processor. Raises what loading raised."""
        self._pool.submit(_ready).result()

    def process_largest(self) -> Mapping[str, torch.Tensor]:
        """Encoder inputs of the largest (square) picture that the pixel cap lets through. Blocks."""
        return self.process_blank(math.isqrt(self._max_pixels))

    def process_blank(self, side: int) -> Mapping[str, torch.Tensor]:
        """Encoder inputs of a square picture of one colour. Blocks."""
        from PIL import Image

        picture = Image.new("RGB", (side, side), (40, 90, 140))
        return _unpack(self._pool.submit(_process, picture, self._max_pixels, {}).result())

    async def process(self, source: bytes | Image, options: Mapping[str, Any], copies: int = 1) -> ProcessedImage:
        """Processes one picture.

        Args:
            source: encoded bytes, or a picture.
            options: of the processor.
            copies: 2 shows it to the processor as one of several (``Family.counts_images``).

        Raises:
            InvalidRequestError: the picture can't be used.
            OverloadedError: too many pictures wait already.
            RequestFailedError: the worker died on it.
        """
        if self._pending >= MAX_PENDING:
            raise OverloadedError(f"{self._pending} pictures wait for preprocessing, the bound", retry_after=5.0)
        self._pending += 1
        self._metrics.set("preprocess_queue_depth", self._pending)
        try:
            packed = await self._run(source, options, copies)
        finally:
            self._pending -= 1
            self._metrics.set("preprocess_queue_depth", self._pending)
        self._metrics.observe("preprocess_seconds", packed.seconds)
        # Copying a large picture's tensors takes tens of milliseconds: not on the event loop.
        inputs = await asyncio.to_thread(_unpack, packed)
        return ProcessedImage(packed.content_hash, packed.token_ids, packed.feature_indices, inputs)

    async def _run(self, source: bytes | Image, options: Mapping[str, Any], copies: int) -> _Packed:
        """One picture through a worker. A worker that dies takes every picture in the pool with it: each is tried once
        more in a new pool, so that only the one at fault fails."""
        for _ in range(ATTEMPTS):
            pool = self._pool
            try:
                future = pool.submit(_process, source, self._max_pixels, dict(options), copies)
                try:
                    return await asyncio.wrap_future(future)
                except asyncio.CancelledError:
                    future.add_done_callback(_discard)
                    raise
            except BrokenProcessPool:
                if self._pool is pool:
                    logger.error("a picture worker died; starting new ones")
                    pool.shutdown(wait=False, cancel_futures=True)
                    self._pool = self._start()
        raise RequestFailedError("preprocessing died on the picture")

    def shutdown(self) -> None:
        """Ends the workers."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._count, mp_context=context, initializer=_load, initargs=self._arguments)


# In the worker ------------------------------------------------------------------------------------------------------

_processor: Any = None


def _end_with_parent() -> None:
    """A parent that is killed closes no queue: its workers would wait for pictures for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


def _load(model: str, revision: str | None) -> None:
    global _processor
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the workers in order.
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    os.nice(10)
    import torch
    from transformers import AutoProcessor

    torch.set_num_threads(1)
    _processor = AutoProcessor.from_pretrained(model, revision=revision)


def _ready() -> bool:
    return _processor is not None


def _process(source: bytes | Image, max_pixels: int, options: Mapping[str, Any], copies: int = 1) -> _Packed:
    started = time.perf_counter()
    image = decode_image(source, max_pixels)
    identity = content_hash(image, options if copies == 1 else {**options, "copies": copies})
    try:
        output = _processor(
            text=[_processor.image_token * copies],
            images=[image] if copies == 1 else [[image] * copies],
            return_tensors="pt",
            add_special_tokens=False,
            **options,
        )
    except (ValueError, TypeError) as error:
        raise InvalidRequestError(f"the model's processor refuses the picture: {error}", param="messages") from None
    output = {name: np.asarray(value) for name, value in output.items()}
    ids = output.pop("input_ids")[0]
    if copies > 1:
        # Alike, so each has an equal share of the tokens and of every array with a row for each picture.
        ids = ids[: len(ids) // copies]
        output = {name: value[:1] if len(value) == copies else value for name, value in output.items()}
    for unused in ("attention_mask", "mm_token_type_ids"):
        output.pop(unused, None)
    mask = output.get("pixel_attention_mask")
    if mask is not None and mask.all():
        output.pop("pixel_attention_mask")  # all ones = no padding; the family fills it in.
    features = np.flatnonzero(ids == _processor.image_token_id)
    return _pack(identity, ids, features, {name: np.ascontiguousarray(v) for name, v in output.items()}, started)


def _pack(
    identity: bytes, ids: np.ndarray, features: np.ndarray, arrays: Mapping[str, np.ndarray], started: float
) -> _Packed:
    memory = SharedMemory(create=True, size=max(1, sum(a.nbytes + 64 for a in arrays.values())))
    offset = 0
    table: list[tuple[str, str, tuple[int, ...], int]] = []
    for name, array in arrays.items():
        target: np.ndarray = np.ndarray(array.shape, array.dtype, memory.buf, offset)
        target[...] = array
        table.append((name, array.dtype.str, array.shape, offset))
        offset += -(-array.nbytes // 64) * 64
    memory.close()  # the receiver unlinks it; until then the shared resource tracker guards against a leak.
    return _Packed(
        identity,
        tuple(ids.tolist()),
        tuple(features.tolist()),
        memory.name,
        tuple(table),
        time.perf_counter() - started,
    )


# In the engine's process --------------------------------------------------------------------------------------------


def _discard(future: Future[_Packed]) -> None:
    """Frees the memory of a result that nobody waits for any more."""
    if not future.cancelled() and future.exception() is None:
        _unpack(future.result())


def _unpack(packed: _Packed) -> dict[str, torch.Tensor]:
    import torch

    memory = SharedMemory(name=packed.memory)
    try:
        out: dict[str, torch.Tensor] = {}
        for name, dtype, shape, offset in packed.arrays:
            view: np.ndarray = np.ndarray(shape, np.dtype(dtype), memory.buf, offset)
            out[name] = torch.from_numpy(view.copy())
            del view
        return out
    finally:
        memory.close()
        memory.unlink()
