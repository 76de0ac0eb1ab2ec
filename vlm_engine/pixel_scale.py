"""Pixels travel as bytes: what a processor does to every byte value by itself is done by the encoder.

A processor's last step, rescaling and normalising, makes four bytes of each. Left out there and done here, with the
same numbers in the same order, it gives the same floats bit for bit, and a large picture's tensors are a quarter as
large in shared memory and in the engine's process (17 SmolVLM tiles: 13 MB, not 53).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image

logger = logging.getLogger(__name__)

LEFT_OUT = {"do_rescale": False, "do_normalize": False}
"""Options with which a processor leaves its last step out."""
PROBE = (211, 97)
"""Size of the picture of noise on which a processor is tried."""


@dataclass(frozen=True, slots=True)
class PixelScale:
    """``(pixel - offset) / divisor`` for each channel, in float32.

    Attributes:
        offsets, divisors: a number a channel.
    """

    concerns: ClassVar[frozenset[str]] = frozenset(
        {"do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std", "data_format", "return_tensors"}
    )
    """A caller's options that change what is left out here."""

    offsets: tuple[float, ...]
    divisors: tuple[float, ...]

    def apply(self, pixels: torch.Tensor) -> torch.Tensor:
        """Float32 of the same shape.

        Args:
            pixels: uint8 ``[..., channels, h, w]``, or ``[patches, channels * n]`` with each channel in one piece.
        """
        columns = pixels.shape[1] if pixels.ndim == 2 else None
        offsets, divisors = _numbers(self, columns, pixels.device)
        return pixels.to(torch.float32).sub_(offsets).div_(divisors)

    @staticmethod
    def of(processor: Any) -> PixelScale | None:
        """What a processor does last; None where it does something else or can't leave it out.

        Tried on a picture of noise, so that a processor of another kind is left as it is.
        """
        images = processor.image_processor
        try:
            if not (images.do_rescale and images.do_normalize):
                return None
            # As transformers fuses the two (_fuse_mean_std_and_rescale_factor).
            factor = 1.0 / images.rescale_factor
            scale = PixelScale(
                tuple((torch.tensor(images.image_mean) * factor).tolist()),
                tuple((torch.tensor(images.image_std) * factor).tolist()),
            )
            noise = np.random.default_rng(0).integers(0, 256, (PROBE[1], PROBE[0], 3), dtype=np.uint8)
            given = {"text": [processor.image_token], "images": [Image.fromarray(noise)], "return_tensors": "pt"}
            whole = processor(**given)["pixel_values"]
            pixels = as_bytes(np.asarray(processor(**given, **LEFT_OUT)["pixel_values"]))
            if pixels is not None and torch.equal(scale.apply(torch.from_numpy(pixels)), whole):
                return scale
        except (AttributeError, TypeError, ValueError, KeyError, RuntimeError) as error:
            logger.debug("%s can't leave its last step out: %s", type(images).__name__, error)
        return None


@lru_cache(maxsize=16)
def _numbers(scale: PixelScale, columns: int | None, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Offsets and divisors as they are broadcast; kept, since bringing them to a GPU waits for all of its work."""
    numbers = [torch.tensor(values) for values in (scale.offsets, scale.divisors)]
    if columns is None:
        offsets, divisors = (each[:, None, None] for each in numbers)
    else:
        offsets, divisors = (each.repeat_interleave(columns // len(each)) for each in numbers)
    return offsets.to(device), divisors.to(device)


def as_bytes(pixels: np.ndarray) -> np.ndarray | None:
    """The same values as uint8; None where they aren't whole numbers from 0 to 255."""
    if pixels.dtype == np.uint8:
        return pixels
    with np.errstate(invalid="ignore"):
        narrow = pixels.astype(np.uint8)
    return narrow if np.array_equal(narrow, pixels) else None
