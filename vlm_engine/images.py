"""Pictures as untrusted input: encoded bytes in, an upright RGB picture and its identity out."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import warnings
from collections.abc import Mapping
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from vlm_engine.errors import InvalidRequestError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
MIN_SIDE = 2
"""Sides below are refused; what is larger but smaller than a model's least size is scaled up by its processor."""
MAX_ASPECT = 150.0
"""Longest allowed ratio of the sides; Qwen's processor refuses beyond 200."""


def decode_image(source: bytes | Image.Image, max_pixels: int) -> Image.Image:
    """Decodes one picture.

    The type is found by content, the pixel cap is checked before anything is decoded, EXIF orientation is applied,
    alpha goes onto white, and of an animation the first frame counts.

    Args:
        source: encoded bytes, or a picture already decoded.
        max_pixels: most pixels (width x height).

    Returns:
        A picture in mode RGB.

    Raises:
        InvalidRequestError: not a picture, truncated, too large, too thin; with the numbers.
    """
    try:
        with warnings.catch_warnings():
            # The cap below takes the place of Pillow's own guard against decompression bombs.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = source if isinstance(source, Image.Image) else Image.open(io.BytesIO(source), formats=FORMATS)
            _check_size(image.width, image.height, max_pixels)
            image.seek(0)
            image.load()
            return _on_white(ImageOps.exif_transpose(image))
    except (UnidentifiedImageError, ImportError):
        # ImportError: in a process with ultralytics, Image.open is its own and looks for a HEIF decoder.
        raise InvalidRequestError(f"the picture is none of {', '.join(FORMATS)}", param="messages") from None
    except Image.DecompressionBombError as error:
        message = f"the picture is too large: {error}; allowed are {max_pixels} pixels (max_pixels)"
        raise InvalidRequestError(message, param="messages") from None
    except InvalidRequestError:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, struct.error) as error:
        raise InvalidRequestError(f"the picture can't be decoded: {error}", param="messages") from None


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


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        # 16 bits and more: the upper 8 count (Pillow's own conversion would clip).
        high = image.convert("F").point(lambda v: v / 256.0) if image.mode != "F" else image
        return high.convert("L").convert("RGB")
    return image.convert("RGB")
