"""Hostile and odd pictures, made by code from seeds: truncated, flipped, bombs, odd modes and sizes, pretenders.

Nothing is read from disk, and the same seed gives the same bytes with the same Pillow.
"""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from PIL import Image, ImageDraw

SEED = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """One file of the corpus.

    Attributes:
        good: True: it must be taken; False: it must be refused; None: either, as long as it is one of the two.
        mime: what its data URL says that it is.
    """

    name: str
    data: bytes
    good: bool | None
    mime: str = "image/png"


def corpus(seed: int = SEED) -> list[Sample]:
    """More than 200 files, in an order of their own."""
    makers = (truncated, flipped, bombs, modes, sizes, animations, pretenders, metadata, junk)
    return [sample for make in makers for sample in make(random.Random(f"{seed} {make.__name__}"))]


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def scene(width: int = 96, height: int = 128, seed: int = 0) -> Image.Image:
    """Something like a person before a wall, with grain."""
    random_ = random.Random(seed)
    image = Image.frombytes("L", (16, 16), random_.randbytes(256)).resize((width, height)).convert("RGB")
    draw = ImageDraw.Draw(image)
    colour = tuple(random_.randrange(256) for _ in range(3))
    draw.ellipse((width * 0.38, height * 0.08, width * 0.62, height * 0.28), fill="bisque")
    draw.rectangle((width * 0.28, height * 0.3, width * 0.72, height * 0.95), fill=colour)
    return image


WHOLE: tuple[tuple[str, Callable[[], bytes]], ...] = (
    ("jpeg", lambda: encoded(scene(), "JPEG", quality=85)),
    ("jpeg-progressive", lambda: encoded(scene(), "JPEG", progressive=True)),
    ("png", lambda: encoded(scene())),
    ("png-palette", lambda: encoded(scene().quantize(16))),
    ("gif", lambda: encoded(scene(), "GIF")),
    ("webp", lambda: encoded(scene(), "WEBP")),
    ("webp-lossless", lambda: encoded(scene(), "WEBP", lossless=True)),
    ("bmp", lambda: encoded(scene(), "BMP")),
    ("tiff", lambda: encoded(scene(), "TIFF")),
    ("tiff-lzw", lambda: encoded(scene(), "TIFF", compression="tiff_lzw")),
)


def truncated(random_: random.Random) -> Iterator[Sample]:
    """Cut off at many places. The last few bytes of some formats are padding, so their loss may go unnoticed."""
    for kind, make in WHOLE:
        data = make()
        for place in (1, 4, 16, 64, len(data) // 4, len(data) // 2, 3 * len(data) // 4):
            yield Sample(f"truncated {kind} at {place}", data[:place], False)
        yield Sample(f"truncated {kind} by 1", data[:-1], None)


def flipped(random_: random.Random) -> Iterator[Sample]:
    """Bits flipped in the head and everywhere, and runs of bytes replaced."""
    for kind, make in WHOLE:
        for number in range(4):
            data = bytearray(make())
            reach = 64 if number % 2 else len(data)
            for _ in range(1 + number * 4):
                place = random_.randrange(min(reach, len(data)))
                data[place] ^= 1 << random_.randrange(8)
            yield Sample(f"flipped {kind} {number}", bytes(data), None)
        data = bytearray(make())
        start = random_.randrange(len(data) // 2)
        data[start : start + 32] = random_.randbytes(32)
        yield Sample(f"overwritten {kind}", bytes(data), None)


def bombs(random_: random.Random) -> Iterator[Sample]:
    """Small on the wire, huge when decoded, or said to be."""
    yield Sample("bomb png zeros 20000x20000", encoded(Image.new("1", (20_000, 20_000))), False)
    for width, height in ((20_000, 20_000), (2**31 - 1, 2**31 - 1), (1, 2**31 - 1), (0, 10), (65_535, 65_535)):
        yield Sample(f"bomb png header {width}x{height}", png_header(width, height), False)
    for kind, head in (
        ("gif", b"GIF89a" + struct.pack("<HH", 65_535, 65_535) + b"\x00\x00\x00"),
        (
            "bmp",
            b"BM"
            + struct.pack("<IHHI", 54, 0, 0, 54)
            + struct.pack("<IiiHHIIiiII", 40, 60_000, 60_000, 1, 24, *[0] * 6),
        ),
        ("jpeg", jpeg_with_size(65_535, 65_535)),
        (
            "webp",
            b"RIFF" + struct.pack("<I", 30) + b"WEBPVP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + b"\xff\x3f\x00" * 2,
        ),
    ):
        yield Sample(f"bomb {kind} header", head, False)
    yield Sample("bomb gif frame beyond its screen", gif_frame_beyond(), False)
    yield Sample("bomb png text chunks", png_with(text_chunk(64 * 1024 * 1024)), None)
    yield Sample("bomb png profile", png_with(profile_chunk(64 * 1024 * 1024)), None)
    yield Sample("bomb png many chunks", png_with(chunk(b"tEXt", b"a\0b") * 50_000), None)
    yield Sample("bomb jpeg scans", many_scans(400, 300), None)
    yield Sample("bomb tiff tile", tiff_with_tile(60_000, 60_000), False)
    yield Sample(
        "bomb tiff strips",
        tiff_directory({256: 50_000, 257: 50_000, 258: 8, 259: 1, 262: 1, 273: 8, 278: 50_000, 279: 10}),
        False,
    )
    yield Sample(
        "bomb tiff loop of directories",
        tiff_directory({256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 8, 279: 64}, following=8),
        None,
    )
    yield Sample(
        "bomb deflate in deflate",
        png_with(chunk(b"zTXt", b"a\0\0" + zlib.compress(zlib.compress(b"\0" * 10**7)))),
        None,
    )


def modes(random_: random.Random) -> Iterator[Sample]:
    """Every mode that a format can hold."""
    for mode in ("1", "L", "P", "RGB", "RGBA", "LA", "PA", "CMYK", "YCbCr", "LAB", "I", "F", "I;16", "I;16B"):
        source = scene(40, 30).convert("L") if mode.startswith("I;") else scene(40, 30)
        image = Image.new(mode, source.size, 0x7FFF) if mode.startswith("I;") else _converted(source, mode)
        for kind in ("PNG", "TIFF", "JPEG", "WEBP", "GIF", "BMP"):
            try:
                data = encoded(image, kind)
            except (OSError, ValueError, KeyError, SystemError):
                continue  # the format has no such mode
            yield Sample(f"mode {mode} as {kind}", data, True)
    for colour, mode in ((0x1234, "I;16"), ((1, 2, 3), "RGB"), (7, "L")):
        yield Sample(
            f"mode {mode} with a transparent colour",
            encoded(Image.new(mode, (9, 9), colour), transparency=colour),
            True,
        )


def sizes(random_: random.Random) -> Iterator[Sample]:
    """Sides from 1 to 4,000."""
    for width, height in ((1, 1), (1, 2), (2, 1), (1, 4000), (4000, 1), (3, 1000), (4000, 20)):
        yield Sample(f"size {width}x{height}", encoded(Image.new("RGB", (width, height))), False)
    for width, height in (
        (2, 2),
        (2, 3),
        (3, 2),
        (2, 300),
        (300, 2),
        (13, 17),
        (29, 28),
        (4000, 30),
        (30, 4000),
        (4000, 3999),
    ):
        yield Sample(f"size {width}x{height}", encoded(Image.new("L", (width, height), 99)), True)
    for _ in range(12):
        width, height = random_.randrange(2, 1200), random_.randrange(2, 1200)
        fits = max(width, height) <= 150 * min(width, height)
        yield Sample(f"size {width}x{height}", encoded(scene(width, height), "JPEG"), fits)


def animations(random_: random.Random) -> Iterator[Sample]:
    frames = [scene(48, 48, seed) for seed in range(8)]
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        yield Sample(f"animation {kind}", encoded(frames[0], kind, save_all=True, append_images=frames[1:]), True)
    many = [Image.new("P", (8, 8), n % 5) for n in range(2000)]
    yield Sample("animation GIF of 2000 frames", encoded(many[0], "GIF", save_all=True, append_images=many[1:]), True)
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    yield Sample("animation GIF damaged after its first frame", data[: len(data) // 2], None)


def pretenders(random_: random.Random) -> Iterator[Sample]:
    """What is something else than it says, and pictures under wrong names."""
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>"
    texts = {
        "svg": svg,
        "svg with a declaration": b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
        + svg,
        "html": b"<html><script>alert(1)</script></html>",
        "pdf": b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF",
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(id) system\n",
        "zip": b"PK\x03\x04" + bytes(60),
        "elf": b"\x7fELF" + bytes(60),
        "xpm": b'/* XPM */ static char *x[] = {"1 1 1 1", "a c red", "a"};',
        "ppm": b"P6 10 10 255\n" + bytes(300),
        "ico": encoded(scene(32, 32), "ICO"),
        "tga": encoded(scene(32, 32), "TGA"),
        "jpeg 2000": b"\x00\x00\x00\x0cjP  \r\n\x87\n" + bytes(80),
        "avif": b"\x00\x00\x00\x20ftypavif" + bytes(80),
        "mp4": b"\x00\x00\x00\x20ftypisom" + bytes(80),
        "image magick script": b"push graphic-context\nfill 'url(https://127.0.0.1/x)'\npop graphic-context\n",
        "nothing": b"\0",
        "text": b"plain text, whatever it says it is",
    }
    for name, data in texts.items():
        yield Sample(f"pretender {name}", data, False, random_.choice(("image/png", "image/jpeg", "image/webp")))
    for name, make in WHOLE:
        for mime in ("text/html", "image/svg+xml", "application/pdf"):
            yield Sample(f"{name} as {mime}", make(), True, mime)
    for name, make in WHOLE[:3]:
        yield Sample(f"{name} followed by html", make() + texts["html"], True)
        yield Sample(f"{name} after html", texts["html"] + make(), False)


def metadata(random_: random.Random) -> Iterator[Sample]:
    """EXIF in and out of shape, colour profiles that are none."""
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        yield Sample(f"exif orientation {orientation}", encoded(scene(), "JPEG", exif=exif), True)
    for name, value in (("0", 0), ("9", 9), ("65535", 65535)):
        exif = Image.Exif()
        exif[0x0112] = value
        yield Sample(f"exif orientation {name}", encoded(scene(), "JPEG", exif=exif), True)
    jpeg = encoded(scene(), "JPEG")
    for name, block in {
        "empty": b"Exif\0\0",
        "junk": b"Exif\0\0" + random_.randbytes(200),
        "offset beyond": b"Exif\0\0MM\0*" + struct.pack(">I", 2**31),
        "loop": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\x08",
        "text orientation": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x02\0\0\0\x01A\0\0\0\0\0\0\0",
        "many values": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\xff\xff\xff\xff\0\0\0\x1a\0\0\0\0",
        "many entries": b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0" * 5000,
        "gps": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x88\x25\0\x04\0\0\0\x01\0\0\0\x08\0\0\0\0",
    }.items():
        yield Sample(f"exif {name}", jpeg[:2] + segment(0xE1, block) + jpeg[2:], True)
    for name, profile in {"junk": random_.randbytes(400), "short": b"\0", "huge": bytes(60_000)}.items():
        yield Sample(f"profile {name} in jpeg", encoded(scene(), "JPEG", icc_profile=profile), True)
        yield Sample(f"profile {name} in png", encoded(scene(), icc_profile=profile), True)
    for name, value in {
        "long": b"x" * 60_000,
        "orientation": b'<x tiff:Orientation="6"/>',
        "bad": b'tiff:Orientation="x"',
    }.items():
        xmp = b"http://ns.adobe.com/xap/1.0/\0" + value
        yield Sample(f"xmp {name}", jpeg[:2] + segment(0xE1, xmp) + jpeg[2:], True)


def junk(random_: random.Random) -> Iterator[Sample]:
    """A format's first bytes and then noise."""
    heads = {
        "jpeg": b"\xff\xd8\xff\xe0",
        "png": b"\x89PNG\r\n\x1a\n",
        "gif": b"GIF89a",
        "webp": b"RIFF\xff\xff\x00\x00WEBPVP8 ",
        "bmp": b"BM",
        "tiff little": b"II*\0\x08\0\0\0",
        "tiff big": b"MM\0*\0\0\0\x08",
        "bigtiff": b"II+\0\x08\0\0\0\x10\0\0\0\0\0\0\0",
        "mpo": b"\xff\xd8\xff\xe2\x00\x10MPF\0",
    }
    for name, head in heads.items():
        for number in range(2):
            yield Sample(f"junk after {name} {number}", head + random_.randbytes(500), None)


# Parts of files -------------------------------------------------------------------------------------------------------


def _converted(image: Image.Image, mode: str) -> Image.Image:
    try:
        converted = image.convert(mode)
    except ValueError:
        return Image.new(mode, image.size)
    converted.info.clear()  # a colour profile made on the way holds the time of day
    return converted


def chunk(name: bytes, data: bytes) -> bytes:
    """A PNG's chunk with its length and sum."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_header(width: int, height: int) -> bytes:
    """A PNG that says it is so large, and holds a thousand bytes."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def png_with(extra: bytes) -> bytes:
    """A good PNG with further chunks after its header."""
    data = encoded(scene(32, 32))
    return data[:33] + extra + data[33:]


def text_chunk(size: int) -> bytes:
    return chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"x" * size, 9))


def profile_chunk(size: int) -> bytes:
    return chunk(b"iCCP", b"icc\0\0" + zlib.compress(b"\0" * size, 9))


def segment(marker: int, data: bytes) -> bytes:
    """A JPEG's segment; longer ones than fit are cut."""
    data = data[:65_533]
    return bytes((0xFF, marker)) + struct.pack(">H", len(data) + 2) + data


def jpeg_with_size(width: int, height: int) -> bytes:
    """A good JPEG whose frame header says another size."""
    data = bytearray(encoded(scene(16, 16), "JPEG"))
    place = data.index(b"\xff\xc0")
    data[place + 5 : place + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def many_scans(side: int = 1000, scans: int = 1000) -> bytes:
    """A progressive JPEG whose last scan is repeated: small to send, long to decode."""
    image = Image.linear_gradient("L").resize((side, side))
    whole = encoded(image, "JPEG", progressive=True, quality=10)
    last = whole.rindex(b"\xff\xda")
    return whole[:last] + whole[last:-2] * scans + whole[-2:]


def gif_frame_beyond() -> bytes:
    """A GIF of 10x10 whose first frame is 60,000x60,000."""
    head = b"GIF89a" + struct.pack("<HH", 10, 10) + b"\x80\x00\x00" + bytes(6)
    return head + b"," + struct.pack("<HHHH", 0, 0, 60_000, 60_000) + b"\x00\x02\x02\x4c\x01\x00;"


def tiff_directory(tags: dict[int, int], following: int = 0) -> bytes:
    """A TIFF of one directory at byte 8, all values long."""
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", following) + bytes(64)


def tiff_with_tile(width: int, height: int) -> bytes:
    """A TIFF of 8x8 in one tile of another size."""
    return tiff_directory({256: 8, 257: 8, 258: 8, 259: 8, 262: 1, 277: 1, 322: width, 323: height, 324: 8, 325: 64})
