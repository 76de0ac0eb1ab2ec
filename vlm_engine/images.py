"""Pictures as untrusted input: encoded bytes in, an upright RGB picture and its identity out."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from vlm_engine.errors import InvalidRequestError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
MIN_SIDE = 2
"""Sides below are refused; what is larger but smaller than a model's least size is scaled up by its processor."""
MAX_ASPECT = 150.0
"""Longest allowed ratio of the sides; Qwen's processor refuses beyond 200."""
MAX_REASON = 200

_WIDE = frozenset({"I", "F", "I;16", "I;16L", "I;16B", "I;16N"})
_ALPHA = {"RGBA": "", "LA": "", "PA": "", "La": "LA", "RGBa": "RGBA"}
"""Modes with alpha, and for premultiplied ones the straight mode that Pillow can go on from."""
_TILE_WIDTH, _TILE_LENGTH = 322, 323
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

logger = logging.getLogger(__name__)


def decode_image(source: bytes | Image.Image, max_pixels: int) -> Image.Image:
    """Decodes one picture.

    The type is found by content, the pixel cap is checked before anything is decoded, EXIF orientation is applied,
    alpha goes onto white, and of an animation the first frame counts. Meant for a process that may die of it: decoders
    are C code that reads hostile bytes.

    Args:
        source: encoded bytes, or a picture already decoded.
        max_pixels: most pixels (width x height) of the picture, and of one of its tiles.

    Returns:
        A picture in mode RGB.

    Raises:
        InvalidRequestError: not a picture, truncated, too large, too thin; with the numbers.
    """
    try:
        with warnings.catch_warnings():
            # The cap below takes the place of Pillow's own guard against decompression bombs; what it says of broken
            # metadata is the sender's business.
            warnings.simplefilter("ignore")
            return _decode(source, max_pixels)
    except (UnidentifiedImageError, ImportError):
        # ImportError: in a process with ultralytics, Image.open is its own and looks for a HEIF decoder.
        raise InvalidRequestError(f"the picture is none of {', '.join(FORMATS)}", param="messages") from None
    except Image.DecompressionBombError as error:
        message = f"the picture is too large: {error}; allowed are {max_pixels} pixels (max_pixels)"
        raise InvalidRequestError(message, param="messages") from None
    except (InvalidRequestError, MemoryError):
        raise
    except Exception as error:
        # Not narrower: on damaged files Pillow's readers raise whatever their arithmetic runs into (KeyError,
        # IndexError, TypeError, zlib.error and more, depending on its version).
        logger.debug("a picture can't be decoded", exc_info=True)
        reason = _printable(str(error)) or type(error).__name__
        raise InvalidRequestError(f"the picture can't be decoded: {reason}", param="messages") from None


def _decode(source: bytes | Image.Image, max_pixels: int) -> Image.Image:
    # Ultralytics switches this on where it is imported: half a picture would pass for a whole one.
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    image = source if isinstance(source, Image.Image) else Image.open(io.BytesIO(source), formats=FORMATS)
    _check_size(image.width, image.height, max_pixels)
    _check_tiles(image, max_pixels)
    image.seek(0)
    image.load()
    # Loading may have grown it (a GIF's first frame reaches over its screen).
    _check_size(image.width, image.height, max_pixels)
    return _on_white(_upright(image))


def content_hash(image: Image.Image, options: Mapping[str, Any]) -> bytes:
    """256 bits over decoded pixels, size, mode and every processor option: what makes features the same."""
    head = json.dumps([image.mode, image.width, image.height, dict(sorted(options.items()))], sort_keys=True)
    digest = hashlib.sha256(head.encode())
    digest.update(image.tobytes())
    return digest.digest()


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise InvalidRequestError(
            f"the picture is {width}x{height} = {width * height} pixels, allowed are {max_pixels} (max_pixels)",
            param="messages",
        )
    if min(width, height) < MIN_SIDE:
        raise InvalidRequestError(f"the picture is {width}x{height}, the least side is {MIN_SIDE}", param="messages")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise InvalidRequestError(
            f"the picture is {width}x{height}, one side may be {MAX_ASPECT:.0f} times the other at most",
            param="messages",
        )


def _check_tiles(image: Image.Image, max_pixels: int) -> None:
    """A TIFF's tiles have a size of their own, and are decoded whole however small the picture is."""
    tags = getattr(image, "tag_v2", None)
    if tags is None:
        return
    width, height = tags.get(_TILE_WIDTH), tags.get(_TILE_LENGTH)
    if isinstance(width, int) and isinstance(height, int) and width * height > max_pixels:
        raise InvalidRequestError(
            f"the picture's tiles are {width}x{height} = {width * height} pixels, allowed are {max_pixels} "
            "(max_pixels)",
            param="messages",
        )


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF or XMP says; unreadable metadata say nothing. (TIFFs are turned by Pillow when loaded.)"""
    if not hasattr(image, "getexif"):
        return image
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # whatever its reader stumbles over: the pixels are good
        logger.debug("unreadable EXIF", exc_info=True)
        return image
    turn = _TURNS.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode in _WIDE:
        # 16 bits and more: the upper 8 count (Pillow's own conversion would clip).
        wide = image.convert("F")
        narrow = (wide if image.mode == "F" else wide.point(lambda v: v / 256.0)).convert("L")
        return _without_colour(narrow, image.info.get("transparency"), wide).convert("RGB")
    if image.mode in _ALPHA or "transparency" in image.info:
        straight = image.convert(_ALPHA[image.mode]) if _ALPHA.get(image.mode) else image
        rgba = straight.convert("RGBA")
        del straight
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        white.alpha_composite(rgba)
        return white.convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _without_colour(narrow: Image.Image, colour: object, wide: Image.Image) -> Image.Image:
    """White where a 16-bit grey picture has the value that its header calls transparent."""
    if not isinstance(colour, int):
        return narrow
    clear = np.asarray(wide) == float(colour)
    narrow.paste(255, mask=Image.fromarray(clear.astype(np.uint8) * 255))
    return narrow


def _printable(text: str) -> str:
    """A decoder's words without what a hostile file may have put into them, and not longer than a line."""
    return "".join(c if c.isprintable() else "?" for c in text)[:MAX_REASON]
