"""The pictures that are being encoded: their tasks, and how long a slice takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from vlm_engine.encoder_cache import EncoderCache, ImageFeatures
    from vlm_engine.encoder_task import EncoderTask
    from vlm_engine.prompt import ImageInput

LEARNING_RATE = 0.2


class Encoder(Protocol):
    """What makes tasks: :class:`vlm_engine.runner.ModelRunner`."""

    def encoder_slices(self, inputs: Mapping[str, torch.Tensor]) -> int: ...

    def start_encode(self, inputs: Mapping[str, torch.Tensor]) -> EncoderTask: ...


class Encodings:
    """Tasks by picture, so that a picture that several requests wait for is encoded once."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._tasks: dict[bytes, EncoderTask] = {}
        self._rate = 0.0  # seconds of a slice per input number in it

    def __len__(self) -> int:
        return len(self._tasks)

    def work(self, image: ImageInput) -> tuple[float, int]:
        """Predicted seconds of one slice of a picture (0 = nothing measured yet), and how many slices are left."""
        task = self._tasks.get(image.content_hash)
        total = task.slices if task is not None else self._encoder.encoder_slices(image.inputs)
        done = task.done if task is not None else 0
        return self._rate * image.cost / total, max(1, total - done)

    def advance(self, image: ImageInput, slices: int) -> ImageFeatures | None:
        """Runs slices of a picture, starting it if need be; gives its features when it is done.

        Raises:
            Exception: whatever the tower raises; the picture's task is gone then, and a later one starts afresh.
        """
        key = image.content_hash
        started = time.monotonic()
        task = self._tasks.get(key) or self._encoder.start_encode(image.inputs)
        self._tasks[key] = task
        try:
            features = None
            for _ in range(slices):
                features = task.advance()
                if features is not None:
                    break
            if features is not None and len(features.rows) != image.num_tokens:
                raise ValueError(f"{len(features.rows)} feature rows for {image.num_tokens} image tokens")
        except BaseException:
            del self._tasks[key]
            raise
        if features is not None:
            del self._tasks[key]
        self._learn((time.monotonic() - started) / slices, image.cost / task.slices)
        return features

    def drop_unwanted(self, cache: EncoderCache) -> None:
        """Ends tasks whose pictures nobody waits for any more (aborted, failed, preempted)."""
        for key in [key for key in self._tasks if not cache.wanted(key)]:
            self._tasks.pop(key).abort()

    def _learn(self, seconds: float, cost: float) -> None:
        rate = seconds / max(cost, 1.0)
        self._rate += LEARNING_RATE * (rate - self._rate) if self._rate else rate
