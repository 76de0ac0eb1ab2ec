"""Hostile and odd pictures, made by code from seeds: truncated, flipped, bombs, odd modes and sizes, pretenders.

:func:`corpus` gives all of them; nothing is read from disk, and the same seed gives the same bytes.
"""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def many_scans(side: int = 1000, scans: int = 1000) -> bytes:
    """A progressive JPEG whose last scan is repeated: small to send, long to decode."""
    image = Image.linear_gradient("L").resize((side, side))
    whole = encoded(image, "JPEG", progressive=True, quality=10)
    last = whole.rindex(b"\xff\xda")
    return whole[:last] + whole[last:-2] * scans + whole[-2:]
