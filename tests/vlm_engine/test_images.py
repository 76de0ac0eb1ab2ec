"""Pictures are untrusted input."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib

import pytest
from PIL import Image, ImageFile

from tests.hostile_pictures import tiff_with_tile
from vlm_engine import InvalidRequestError
from vlm_engine.images import _printable, content_hash, decode_image

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


@pytest.mark.parametrize(("mode", "colour"), [("RGB", (1, 2, 3)), ("L", 5), ("I;16", 1000)])
def test_a_colour_that_stands_for_transparent_goes_white(mode, colour):
    image = Image.new(mode, (10, 10), colour)
    assert decode_image(encoded(image, transparency=colour), CAP).getpixel((5, 5)) == (255, 255, 255)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_c11_every_orientation_of_every_format_is_turned_upright(kind, orientation):
    """The corner that belongs to the top left is red in the upright picture."""
    upright = Image.new("RGB", (48, 32), "blue")
    upright.paste("red", (0, 0, 16, 16))
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Pillow's numbers of the turns that undo them
    turned = upright if orientation == 1 else upright.transpose(Image.Transpose(back[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95} if kind in ("JPEG", "WEBP") else {}
    decoded = decode_image(encoded(turned, kind, exif=exif, **options), CAP)
    assert decoded.size == (48, 32)
    assert decoded.getpixel((4, 4)) == pytest.approx((255, 0, 0), abs=40)
    assert decoded.getpixel((40, 28)) == pytest.approx((0, 0, 255), abs=40)


def test_d4_the_tiles_of_a_tiff_are_under_the_cap_too():
    with pytest.raises(InvalidRequestError, match="60000x60000 = 3600000000 pixels, allowed are 1000000"):
        decode_image(tiff_with_tile(60_000, 60_000), CAP)


def test_d6_half_a_picture_is_refused_also_where_ultralytics_has_been(monkeypatch):
    """It tells Pillow to fill up what is missing, for the whole process."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    test_d6_a_truncated_jpeg_is_refused()


def test_what_a_decoder_says_of_a_file_is_short_and_printable():
    for text in ("a" * 5000, "x\nfake record\x1b[2J"):
        words = _printable(text)
        assert len(words) <= 200 and words.isprintable()


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
from tests.hostile_pictures import tiff_with_tile
from vlm_engine import InvalidRequestError
from vlm_engine.images import decode_image
try:
    decode_image(b"hello", 1000)
except InvalidRequestError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "none of JPEG" in run.stdout
