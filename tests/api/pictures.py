"""Small pictures and their data URLs."""

from __future__ import annotations

import base64
import io

from PIL import Image, ImageDraw


def picture(colour: str = "firebrick", size: tuple[int, int] = (96, 128)) -> Image.Image:
    """A person of sorts: a head and a coat of that colour."""
    image = Image.new("RGB", size, "slategray")
    draw = ImageDraw.Draw(image)
    width, height = size
    draw.ellipse((width * 0.38, height * 0.08, width * 0.62, height * 0.28), fill="bisque")
    draw.rounded_rectangle((width * 0.28, height * 0.3, width * 0.72, height * 0.95), 12, fill=colour)
    return image


def encoded(image: Image.Image | None = None, kind: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    (image or picture()).save(buffer, kind)
    return buffer.getvalue()


def data_url(data: bytes | None = None, media_type: str = "image/jpeg") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data or encoded()).decode()}"


def image_part(url: str | None = None) -> dict:
    return {"type": "image_url", "image_url": {"url": url or data_url()}}


def photograph(side: int = 2000) -> bytes:
    """A JPEG with as much detail as a photograph: about a megabyte for 4 megapixels."""
    grain = Image.effect_noise((side // 3, side // 3), 90).resize((side, side)).convert("RGB")
    buffer = io.BytesIO()
    grain.save(buffer, "JPEG", quality=40)
    return buffer.getvalue()
