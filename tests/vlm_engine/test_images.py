"""Pictures are untrusted input."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib

import pytest
from PIL import Image

from vlm_engine import InvalidRequestError
from vlm_engine.images import content_hash, decode_image

CAP = 1_000_000


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def bomb(width, height):
    """A PNG header that promises a huge picture of zeros, in a few hundred bytes."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


def test_d4_the_pixel_cap_is_checked_before_decoding():
    with pytest.raises(InvalidRequestError, match=r"400000000 pixels.*allowed are 1000000"):
        decode_image(bomb(20000, 20000), CAP)
    with pytest.raises(InvalidRequestError, match="2000x1000 = 2000000 pixels, allowed are 1000000"):
        decode_image(bomb(2000, 1000), CAP)


def test_d6_a_truncated_jpeg_is_refused():
    whole = encoded(Image.effect_noise((200, 200), 90).convert("RGB"), "JPEG")
    with pytest.raises(InvalidRequestError, match="can't be decoded"):
        decode_image(whole[: len(whole) // 2], CAP)


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7", b"\xff\xd8\xff"]
)
def test_what_is_no_picture_is_refused(data):
    with pytest.raises(InvalidRequestError):
        decode_image(data, CAP)


def test_c11_exif_orientation_is_applied():
    image = Image.new("RGB", (40, 20), "red")
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode_image(encoded(image, "JPEG", exif=exif), CAP).size == (20, 40)


def test_alpha_goes_onto_white_and_palettes_become_rgb():
    clear = Image.new("RGBA", (10, 10), (0, 0, 0, 0))
    assert decode_image(encoded(clear), CAP).getpixel((5, 5)) == (255, 255, 255)
    palette = Image.new("RGB", (10, 10), (10, 200, 30)).quantize(4)
    assert decode_image(encoded(palette), CAP).getpixel((5, 5)) == pytest.approx((10, 200, 30), abs=3)
    assert decode_image(encoded(Image.new("L", (10, 10), 77)), CAP).getpixel((5, 5)) == (77, 77, 77)
    assert decode_image(encoded(Image.new("I;16", (10, 10), 0x7FFF)), CAP).getpixel((5, 5)) == pytest.approx(
        (127, 127, 127), abs=1
    )
    assert decode_image(encoded(Image.new("CMYK", (10, 10), (0, 255, 255, 0)), "JPEG"), CAP).mode == "RGB"


def test_the_first_frame_of_an_animation_counts():
    frames = [Image.new("RGB", (10, 10), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode_image(data, CAP).getpixel((5, 5)) == pytest.approx((255, 0, 0), abs=8)


def test_d2_tiny_and_thin_pictures_have_a_rule():
    assert decode_image(encoded(Image.new("RGB", (2, 2))), CAP).size == (2, 2)
    with pytest.raises(InvalidRequestError, match="least side is 2"):
        decode_image(encoded(Image.new("RGB", (1, 40))), CAP)
    with pytest.raises(InvalidRequestError, match="150 times"):
        decode_image(encoded(Image.new("RGB", (4000, 12))), CAP)


def test_b3_the_same_bytes_in_another_size_or_mode_are_another_picture():
    data = bytes(range(256)) * 36
    wide, tall = Image.frombytes("RGB", (96, 32), data), Image.frombytes("RGB", (32, 96), data)
    grey = Image.frombytes("L", (96, 96), data)
    assert len({content_hash(image, {}) for image in (wide, tall, grey)}) == 3


def test_b5_processor_options_are_part_of_the_identity():
    image = Image.new("RGB", (20, 20))
    hashes = {content_hash(image, options) for options in ({}, {"max_pixels": 1}, {"max_pixels": 2}, {"min_pixels": 1})}
    assert len(hashes) == 4
    assert content_hash(image, {"a": 1, "b": 2}) == content_hash(image, {"b": 2, "a": 1})


def test_b8_hashes_are_256_bits():
    """Too many to collide by chance; block hashes chain whole SHA-256 digests as well (B7)."""
    assert len(content_hash(Image.new("RGB", (4, 4)), {})) == 32


def test_a_process_with_ultralytics_in_it_refuses_the_same():
    """ultralytics puts its own function over PIL.Image.open, which looks for a HEIF decoder in what it can't read."""
    code = """
import ultralytics, ultralytics.utils
from vlm_engine import InvalidRequestError
from vlm_engine.images import decode_image
try:
    decode_image(b"hello", 1000)
except InvalidRequestError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "none of JPEG" in run.stdout
