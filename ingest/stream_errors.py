"""What went wrong with a stream, told by libav in many ways, as a state and a reason.

libav's exceptions carry the URL with the password in their text, so only their type, number and the time it took are
looked at; ``detail`` is made of words of our own and of redacted lines from libav's log.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

import av

from pipeline.messages import CameraState
from pipeline.reasons import Reason
from pipeline.redaction import redact


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a stream can't be opened or has ended. ``detail`` is free of secrets."""

    state: CameraState
    reason: Reason
    detail: str = ""


class StreamError(Exception):
    """A stream can't be opened or has ended."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.reason.value}: {failure.detail}" if failure.detail else failure.reason.value)
        self.failure = failure


_UNREACHABLE_ERRNOS = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
_NO_ROOM = (453, 503)
_TLS_WORDS = ("certificate", "TLS", "tls")
_NOT_A_VIDEO = (av.error.InvalidDataError, av.error.DecoderNotFoundError, av.error.DemuxerNotFoundError)


def classify_open(error: Exception, elapsed: float, timeout: float, lines: Sequence[str], is_file: bool) -> Failure:
    """Names a failure to open.

    A timeout shows as InvalidDataError, PermissionError or ExitError depending on the verb that hung (measured with
    libavformat 62), so the time that passed decides before the type does.
    """
    detail = _detail(error, lines)
    if is_file:
        reason = Reason.CODEC if isinstance(error, _NOT_A_VIDEO) else Reason.BAD_SOURCE
        return Failure(CameraState.UNSUPPORTED, reason, detail)
    if isinstance(error, av.error.HTTPUnauthorizedError | av.error.HTTPForbiddenError):
        return Failure(CameraState.AUTH_FAILED, Reason.AUTH, detail)
    if isinstance(error, av.error.HTTPNotFoundError):
        return Failure(CameraState.UNREACHABLE, Reason.NOT_FOUND, detail)
    number = getattr(error, "errno", None)
    if number == errno.EPROTONOSUPPORT or any("failed: 461" in line for line in lines):
        return Failure(CameraState.TRANSPORT_REFUSED, Reason.TRANSPORT, detail)
    if any(f" {status} " in f"{line.strip()} " for line in lines for status in _NO_ROOM if "failed: " in line):
        return Failure(CameraState.UNREACHABLE, Reason.BUSY, detail)
    if any(word in line for line in lines for word in _TLS_WORDS):
        return Failure(CameraState.UNREACHABLE, Reason.TLS, detail)
    if isinstance(error, ConnectionRefusedError):
        return Failure(CameraState.UNREACHABLE, Reason.REFUSED, detail)
    if number in _UNREACHABLE_ERRNOS or any("resolve hostname" in line for line in lines):
        return Failure(CameraState.UNREACHABLE, Reason.HOST, detail)
    if number == errno.EINVAL or isinstance(error, av.error.ProtocolNotFoundError | UnicodeError):
        return Failure(CameraState.UNSUPPORTED, Reason.BAD_SOURCE, detail)
    if isinstance(error, av.error.ExitError | TimeoutError) or elapsed >= 0.95 * timeout:
        return Failure(CameraState.UNREACHABLE, Reason.TIMEOUT, detail)
    if isinstance(error, av.error.DecoderNotFoundError):
        return Failure(CameraState.UNSUPPORTED, Reason.CODEC, detail)
    return Failure(CameraState.UNREACHABLE, Reason.STREAM_ENDED, detail)


def classify_read(error: Exception) -> Failure:
    """Names the end of a running stream."""
    if isinstance(error, TimeoutError):
        return Failure(CameraState.STALLED, Reason.NO_FRAMES, type(error).__name__)
    return Failure(CameraState.STALLED, Reason.STREAM_ENDED, type(error).__name__)


def _detail(error: Exception, lines: Sequence[str]) -> str:
    last = redact(lines[-1].strip())[:200] if lines else ""
    return f"{type(error).__name__}; {last}" if last else type(error).__name__
