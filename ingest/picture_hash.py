"""Whether two pictures look the same."""

from __future__ import annotations

import cv2
import numpy as np

from ingest.frame import Image

_SIDE = 8


def picture_hash(image: Image) -> int:
    """64 bits: in an 8 x 8 grid, whether it gets brighter from each field to the next (dHash, Neal Krawetz, 2013).

    Says what is where, not how sharp or how large the picture is.
    """
    grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    small = cv2.resize(grey, (_SIDE + 1, _SIDE), interpolation=cv2.INTER_AREA).astype(np.int16)
    bits = (small[:, 1:] > small[:, :-1]).flatten()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def bits_apart(a: int, b: int) -> int:
    """0 to 64."""
    return (a ^ b).bit_count()
