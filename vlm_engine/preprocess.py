"""Pictures are decoded, resized and normalised in a bounded pool of spawned processes.

Not on the event loop (others' ``/health`` would wait), not on the engine thread (everybody's tokens would wait), and
not in threads (the GIL: two processor threads are slower than one). Workers run at low priority with one torch thread
and bounds on memory and processor time, and hand tensors over through shared memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.shared_memory import SharedMemory
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from vlm_engine.errors import InvalidRequestError, OverloadedError, RequestFailedError
from vlm_engine.image_fit import SIZINGS, ImageSizing
from vlm_engine.image_size import SizeLimits, SizeRule
from vlm_engine.images import content_hash, decode_image
from vlm_engine.pixel_scale import LEFT_OUT, PixelScale, as_bytes
from vlm_engine.worker_process import WorkerDied, WorkerLimits, WorkerProcess

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
        inputs: tensors for the family's encoder; pixels as bytes where the encoder can scale them itself.
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

    Every worker has one picture at a time: one that takes too much memory or processor time, or crashes a decoder,
    costs its own request and no other.

    Args:
        model, revision: whose processor.
        family: of the model (``Family.name``): how pictures are sized.
        workers: processes; None = one on 4 cores or fewer, else two.
        max_pixels: pixel cap of an input picture.
        limits: of one worker.
        metrics: depth and seconds are counted there.
    """

    def __init__(
        self,
        model: str,
        revision: str | None,
        family: str,
        workers: int | None,
        max_pixels: int,
        limits: WorkerLimits,
        metrics: EngineMetrics,
    ) -> None:
        count = workers or (1 if (os.cpu_count() or 1) <= 4 else 2)
        self._max_pixels = max_pixels
        self._limits = limits
        self._metrics = metrics
        self._pending = 0
        self._workers = [WorkerProcess(_load, (model, revision, family), limits) for _ in range(count)]
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        # A thread for each worker: it waits for the worker's answer, the others wait for their turn in its queue.
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="preprocess")

    @property
    def worker_pids(self) -> list[int]:
        """The processes that run now."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def size_limits(self) -> SizeLimits:
        """What the processor can do; waits until a worker has loaded it. Raises what loading raised."""
        found: SizeLimits = self._threads.submit(self._run, _size_limits).result()
        return found

    def pixel_scale(self) -> PixelScale | None:
        """What turns pixels that come as bytes into the processor's numbers; None: they come as it makes them."""
        found: PixelScale | None = self._threads.submit(self._run, _pixel_scale).result()
        return found

    def process_largest(self, rule: SizeRule) -> Mapping[str, torch.Tensor]:
        """Encoder inputs of the picture that takes the most tokens of all that rule and pixel cap let through. Blocks.

        With ``rule`` the loosest of all that requests may have, no picture takes more (D12).
        """
        return _unpack(self._threads.submit(self._run, _process_largest, self._max_pixels, rule).result())

    def process_blank(self, side: int, rule: SizeRule) -> Mapping[str, torch.Tensor]:
        """Encoder inputs of a square picture of one colour. Blocks."""
        from PIL import Image

        picture = Image.new("RGB", (side, side), (40, 90, 140))
        future = self._threads.submit(self._run, _process, picture, self._max_pixels, rule)
        return _unpack(future.result())

    async def process(self, source: bytes | Image, rule: SizeRule, copies: int = 1) -> ProcessedImage:
        """Processes one picture.

        Args:
            source: encoded bytes, or a picture.
            rule: how many tokens it may take, and options of the processor.
            copies: 2 shows it to the processor as one of several (``Family.counts_images``).

        Raises:
            InvalidRequestError: the picture can't be used; it takes more memory or time than a worker may; workers die
                of it.
            OverloadedError: too many pictures wait already, or shared memory is full.
            RequestFailedError: no worker can be started.
        """
        if self._pending >= MAX_PENDING:
            raise OverloadedError(f"{self._pending} pictures wait for preprocessing, the bound", retry_after=5.0)
        self._pending += 1
        self._metrics.set("preprocess_queue_depth", self._pending)
        try:
            future = self._threads.submit(self._run, _process, source, self._max_pixels, rule, copies)
            try:
                packed: _Packed = await asyncio.wrap_future(future)
            except asyncio.CancelledError:
                future.add_done_callback(_discard)
                raise
        finally:
            self._pending -= 1
            self._metrics.set("preprocess_queue_depth", self._pending)
        self._metrics.observe("preprocess_seconds", packed.seconds)
        # Copying a large picture's tensors takes tens of milliseconds: not on the event loop.
        inputs = await asyncio.to_thread(_unpack, packed)
        return ProcessedImage(packed.content_hash, packed.token_ids, packed.feature_indices, inputs)

    def shutdown(self) -> None:
        """Ends the workers. Blocks until the pictures in work are done."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers:
            worker.end()

    def _run(self, task: Callable[..., Any], *arguments: Any) -> Any:
        """In a thread: one task through the next idle worker."""
        worker = self._idle.get()
        try:
            return self._try(worker, task, arguments)
        except MemoryError:
            raise InvalidRequestError(
                "the picture takes more memory to process than a worker may have "
                f"(preprocess_memory is {self._limits.memory} bytes)",
                param="messages",
                code="image_too_expensive",
            ) from None
        finally:
            self._idle.put(worker)

    def _try(self, worker: WorkerProcess, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        for attempt in range(ATTEMPTS):
            try:
                worker.wait_ready()
            except WorkerDied as error:
                logger.error("a picture worker died while it started (exit code %s)", error.exit_code)
                if attempt:
                    raise RequestFailedError("no picture worker can be started") from None
                continue
            try:
                return worker.run(task, *arguments)
            except WorkerDied as error:
                logger.error("a picture worker died of a picture (exit code %s)", error.exit_code)
                if error.out_of_time:
                    raise InvalidRequestError(
                        "the picture takes more processor time than it may "
                        f"(preprocess_cpu_s is {self._limits.cpu_s:g} s)",
                        param="messages",
                        code="image_too_expensive",
                    ) from None
        # Tried again, because anybody may have killed the first one; the second worker had nothing else to do.
        raise InvalidRequestError("preprocessing died on the picture", param="messages", code="image_processing_failed")


# In the worker ------------------------------------------------------------------------------------------------------

_processor: Any = None
_sizing: ImageSizing | None = None
_scale: PixelScale | None = None


def _load(model: str, revision: str | None, family: str) -> None:
    import torch
    from transformers import AutoProcessor

    torch.set_num_threads(1)
    processor = AutoProcessor.from_pretrained(model, revision=revision)
    _use(processor, family, PixelScale.of(processor))


def _use(processor: Any, family: str, scale: PixelScale | None = None) -> ImageSizing:
    """``scale``: of the processor, if the encoder knows it; pixels go out as bytes then."""
    global _processor, _sizing, _scale
    _processor, _sizing, _scale = processor, SIZINGS[family](processor), scale
    return _sizing


def _loaded() -> ImageSizing:
    if _sizing is None:
        raise RuntimeError("the worker has no processor")
    return _sizing


def _size_limits() -> SizeLimits:
    return _loaded().limits


def _pixel_scale() -> PixelScale | None:
    return _scale


def _process_largest(max_pixels: int, rule: SizeRule) -> _Packed:
    from PIL import Image

    width, height = _loaded().largest(max_pixels, rule)
    return _process(Image.new("RGB", (width, height)), max(max_pixels, width * height), rule)


def _process(source: bytes | Image, max_pixels: int, rule: SizeRule, copies: int = 1) -> _Packed:
    started = time.perf_counter()
    image = decode_image(source, max_pixels)
    sizing = _loaded()
    if rule.max_tokens is None and rule.options:
        # A caller's options can ask for more than the memory of the start-up's largest step has room for.
        rule = replace(rule, max_tokens=sizing.most(max_pixels))
    fit = sizing.fit(image.width, image.height, rule, copies)
    options, copies = fit.options, fit.copies
    if fit.size is not None:
        image = image.resize(fit.size, reducing_gap=3.0)
    # What the processor is told and sees is what makes features the same, not which rule led there.
    identity = content_hash(image, options if copies == 1 else {**options, "copies": copies})
    output = _tensors(image, options, copies)
    ids = output.pop("input_ids")[0]
    if copies > 1:
        # Alike, so each has an equal share of the tokens and of every array with a row for each picture.
        ids = ids[: len(ids) // copies]
        output = {name: value[:1] if len(value) == copies else value for name, value in output.items()}
    for unused in ("attention_mask", "mm_token_type_ids"):
        output.pop(unused, None)
    features = np.flatnonzero(ids == _processor.image_token_id)
    if rule.max_tokens is not None and len(features) > rule.max_tokens:
        raise InvalidRequestError(
            f"the model's processor made {len(features)} tokens of the picture, allowed are {rule.max_tokens} "
            "(max_image_tokens)",
            param="messages",
        )
    return _pack(identity, ids, features, {name: np.ascontiguousarray(v) for name, v in output.items()}, started)


def _tensors(image: Image, options: Mapping[str, Any], copies: int) -> dict[str, np.ndarray]:
    """What the processor makes of a picture (or of so many copies), pixels as bytes where that says the same."""
    if _scale is not None and not PixelScale.concerns & set(options):
        output = _call(image, {**options, **LEFT_OUT}, copies)
        pixels = as_bytes(output["pixel_values"])
        # Padding is zero after scaling, which no byte is.
        if pixels is not None and "pixel_attention_mask" not in output:
            return {**output, "pixel_values": pixels}
    return _call(image, options, copies)


def _call(image: Image, options: Mapping[str, Any], copies: int) -> dict[str, np.ndarray]:
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
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        raise MemoryError from None  # torch's word for it
    arrays = {name: np.asarray(value) for name, value in output.items()}
    mask = arrays.get("pixel_attention_mask")
    if mask is not None and mask.all():
        arrays.pop("pixel_attention_mask")  # all ones = no padding; the family fills it in.
    return arrays


def _pack(
    identity: bytes, ids: np.ndarray, features: np.ndarray, arrays: Mapping[str, np.ndarray], started: float
) -> _Packed:
    memory = _shared_memory(max(1, sum(a.nbytes + 64 for a in arrays.values())))
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


def _shared_memory(size: int) -> SharedMemory:
    """Shared memory that is really there: writing where no page can be had ends a process. Raises OverloadedError."""
    memory = SharedMemory(create=True, size=size)
    try:
        with open(f"/dev/shm/{memory.name}", "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except FileNotFoundError:
        return memory  # a system that keeps it elsewhere
    except OSError as error:
        memory.close()
        memory.unlink()
        message = f"shared memory (/dev/shm) has no room for a picture of {size} bytes: {error.strerror}"
        raise OverloadedError(message, retry_after=5.0) from None
    return memory


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
