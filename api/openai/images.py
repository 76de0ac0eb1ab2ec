"""Pictures in requests: data URLs to bytes, other addresses fetched. What they are is found by their content later."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote_to_bytes

from fastapi import Request

from api.errors import invalid
from api.openai.fetch import BAD_URL, Budget, PictureFetcher, RemotePicture
from vlm_engine.prompt import ImagePart, Message, TextPart

if TYPE_CHECKING:
    from api.openai.submission import Submission
    from pipeline.config import WatchwordConfig

_WHITESPACE = b" \t\r\n\v\f"
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
PIECE = 16 * 1024
"""Characters decoded at once, a multiple of 4: a call over megabytes would hold the interpreter's lock, which the event
loop needs as well, for as long as it runs."""


def image_source(url: str, param: str) -> bytes | RemotePicture:
    """The bytes of a data URL, or what :func:`load_pictures` fetches later. Raises a 400 that names ``param``."""
    scheme = url[:16].partition(":")[0].lower()
    return RemotePicture(url, param) if scheme in ("http", "https", "file") else image_bytes(url, param)


def image_bytes(url: str, param: str) -> bytes:
    """The bytes of ``data:[type][;...];base64,...``.

    Forgiving where clients differ (line breaks, the URL-safe alphabet, missing padding, percent-encoding, a declared
    type that is wrong), strict otherwise. Raises a 400 that names ``param``.
    """
    if url[:16].partition(":")[0].lower() != "data":
        raise invalid("The image URL must be a data URL (data:image/jpeg;base64,...).", param=param, code=BAD_URL)
    header, comma, payload = url.partition(",")
    if not comma:
        raise invalid("The data URL has no comma between its type and its data.", param=param, code=BAD_URL)
    if header.rpartition(";")[2].strip().lower() != "base64":
        raise invalid("The data URL must be base64-encoded (data:image/jpeg;base64,...).", param=param, code=BAD_URL)
    return _decode(payload, param)


def fetcher_of(request: Request) -> PictureFetcher:
    """The app's one fetcher."""
    fetcher: PictureFetcher = request.app.state.fetcher
    return fetcher


async def load_pictures(submission: Submission, fetcher: PictureFetcher, config: WatchwordConfig) -> Submission:
    """The submission with every picture's bytes in it; those given by address are fetched, side by side.

    Raises a 400: too many pictures, one that can't be had.
    """
    param = submission.renames.get("messages", "messages")
    return replace(submission, messages=await load_messages(submission.messages, fetcher, config, param))


async def load_messages(
    messages: Sequence[Message], fetcher: PictureFetcher, config: WatchwordConfig, param: str = "messages"
) -> list[Message]:
    """The same for messages alone."""
    parts = [part for message in messages for part in _image_parts(message)]
    most = config.pictures.max_per_request
    if len(parts) > most:
        raise invalid(
            f"The request has {len(parts)} pictures, allowed are {most} (pictures.max_per_request).",
            param=param,
            code="too_many_images",
        )
    remote = [part["image"] for part in parts if isinstance(part["image"], RemotePicture)]
    if not remote:
        return list(messages)
    budget = Budget(config.server.max_body_bytes)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {picture: group.create_task(fetcher.fetch(picture, budget)) for picture in remote}
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    fetched = {picture: task.result() for picture, task in tasks.items()}
    return [_with_bytes(message, fetched) for message in messages]


def _image_parts(message: Message) -> list[ImagePart]:
    content = message.get("content", "")
    if isinstance(content, str):
        return []
    return [cast("ImagePart", part) for part in content if part["type"] == "image"]


def _with_bytes(message: Message, fetched: Mapping[RemotePicture, bytes]) -> Message:
    content = message.get("content", "")
    if isinstance(content, str):
        return message
    parts: list[TextPart | ImagePart] = []
    for part in content:
        image = part.get("image")
        if isinstance(image, RemotePicture):
            part = cast("ImagePart", {**part, "image": fetched[image]})
        parts.append(part)
    return cast("Message", {**message, "content": parts})


_CODE_BASE64 = "invalid_base64_image"


def _decode(payload: str, param: str) -> bytes:
    try:
        raw = payload.encode("ascii")
    except UnicodeEncodeError:
        raise invalid("The data URL holds characters outside base64.", param=param, code=_CODE_BASE64) from None
    if b"%" in raw:
        raw = unquote_to_bytes(raw)
    # A regular expression takes thirty times as long here.
    raw = raw.translate(_URL_SAFE, _WHITESPACE).rstrip(b"=")
    try:
        if b"=" in raw:
            raise binascii.Error("padding before the end")
        raw += b"=" * (-len(raw) % 4)
        data = b"".join(_pieces(raw))
    except (binascii.Error, ValueError):
        raise invalid("The data URL's base64 can't be decoded.", param=param, code=_CODE_BASE64) from None
    if not data:
        raise invalid("The data URL holds no data.", param=param, code="empty_image_file")
    return data


def _pieces(raw: bytes) -> Iterator[bytes]:
    for at in range(0, len(raw), PIECE):
        yield base64.b64decode(raw[at : at + PIECE], validate=True)
