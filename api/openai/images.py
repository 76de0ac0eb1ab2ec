"""Pictures in requests: data URLs to bytes. Nothing is fetched; what the bytes are is found by their content later."""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import unquote_to_bytes

from api.errors import invalid

_WHITESPACE = re.compile(rb"\s+")
_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def image_bytes(url: str, param: str) -> bytes:
    """The bytes of ``data:[type][;...];base64,...``.

    Forgiving where clients differ (line breaks, the URL-safe alphabet, missing padding, percent-encoding, a declared
    type that is wrong), strict otherwise. Raises a 400 that names ``param``.
    """
    scheme = url[:16].partition(":")[0].lower()
    if scheme in ("http", "https"):
        raise invalid(
            "Fetching pictures from the network is off on this server; send the picture as a data URL "
            "(data:image/jpeg;base64,...).",
            param=param,
            code="image_url_fetching_off",
        )
    if scheme != "data":
        raise invalid("The image URL must be a data URL (data:image/jpeg;base64,...).", param=param, code=_CODE_URL)
    header, comma, payload = url.partition(",")
    if not comma:
        raise invalid("The data URL has no comma between its type and its data.", param=param, code=_CODE_URL)
    if header.rpartition(";")[2].strip().lower() != "base64":
        raise invalid("The data URL must be base64-encoded (data:image/jpeg;base64,...).", param=param, code=_CODE_URL)
    return _decode(payload, param)


_CODE_URL = "invalid_image_url"
_CODE_BASE64 = "invalid_base64_image"


def _decode(payload: str, param: str) -> bytes:
    try:
        raw = payload.encode("ascii")
    except UnicodeEncodeError:
        raise invalid("The data URL holds characters outside base64.", param=param, code=_CODE_BASE64) from None
    if b"%" in raw:
        raw = unquote_to_bytes(raw)
    raw = _WHITESPACE.sub(b"", raw).translate(_URL_SAFE).rstrip(b"=")
    try:
        data = base64.b64decode(raw + b"=" * (-len(raw) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise invalid("The data URL's base64 can't be decoded.", param=param, code=_CODE_BASE64) from None
    if not data:
        raise invalid("The data URL holds no data.", param=param, code="empty_image_file")
    return data
