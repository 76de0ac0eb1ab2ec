"""Logging for every command: a console for people or JSON lines for machines, credentials hidden in both."""

from __future__ import annotations

import json as jsonlib
import logging
import os
import re
import sys
import threading
from collections import OrderedDict
from types import TracebackType

from pipeline.clock import iso
from pipeline.redaction import RedactingFilter, extras

# Loggers that say at INFO what nobody asked for, or bring a handler of their own that the root's filter never sees.
_QUIET = {
    "httpx": logging.WARNING,
    "httpx2": logging.WARNING,
    "httpcore": logging.WARNING,
    "urllib3": logging.WARNING,
    "asyncio": logging.WARNING,
    "filelock": logging.WARNING,
    "huggingface_hub": logging.ERROR,
    "transformers": logging.ERROR,
    "openai": logging.WARNING,
    "matplotlib": logging.WARNING,
    "PIL": logging.WARNING,
    "libav": logging.CRITICAL,
    "uvicorn.access": logging.WARNING,
    "multipart": logging.WARNING,
    "ultralytics": logging.ERROR,
}
_OWN_HANDLERS = ("ultralytics", "uvicorn", "uvicorn.error", "uvicorn.access", "transformers", "huggingface_hub")


def setup_logging(level: str | int = "INFO", json: bool = False) -> None:
    """Replaces the root's handlers with one on stderr. Raises ValueError for an unknown level name.

    On a terminal it is a rich console, else one plain line per record; with ``json`` one object per line with
    ``time``, ``level``, ``logger``, ``message``, ``exception`` and the record's extras.
    """
    handler = _make_handler(json)
    redactor = RedactingFilter()
    handler.addFilter(redactor)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper() if isinstance(level, str) else level)
    # Read by ultralytics and transformers when they are imported, later than this.
    os.environ.setdefault("YOLO_VERBOSE", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for name, quiet_level in _QUIET.items():
        logging.getLogger(name).setLevel(max(quiet_level, root.level))
    for name in _OWN_HANDLERS:
        logger = logging.getLogger(name)
        if not any(isinstance(old, RedactingFilter) for old in logger.filters):
            logger.addFilter(redactor)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


class ThrottledLogger:
    """For lines that repeat: the first of a key is logged, then every ``every``-th with the count so far.

    One offline camera must not fill the log (reports: Frigate #1729, #7841; ultralytics #7192). Thread-safe.
    """

    def __init__(self, logger: logging.Logger, every: int = 20, max_keys: int = 1024) -> None:
        if every < 1:
            raise ValueError(f"every is {every}, allowed is 1 or more")
        self._logger = logger
        self._every = every
        self._max_keys = max_keys
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def log(self, level: int, key: str, message: str, *args: object) -> bool:
        """Counts one more of ``key`` and says whether it was logged."""
        with self._lock:
            count = self._counts.pop(key, 0) + 1
            self._counts[key] = count
            if len(self._counts) > self._max_keys:
                self._counts.popitem(last=False)
        if count == 1:
            self._logger.log(level, message, *args)
        elif count % self._every == 0:
            self._logger.log(level, f"{message} (%d times)", *args, count)
        else:
            return False
        return True

    def warning(self, key: str, message: str, *args: object) -> bool:
        """:meth:`log` at WARNING."""
        return self.log(logging.WARNING, key, message, *args)

    def clear(self, key: str) -> int:
        """Forgets ``key`` (it works again): the next one is logged at once. Returns how many there were."""
        with self._lock:
            return self._counts.pop(key, 0)


class JsonFormatter(logging.Formatter):
    """One JSON object a line; times in UTC, ISO 8601."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update(extras(record))
        if record.exc_text:
            entry["exception"] = record.exc_text
        return jsonlib.dumps(entry, default=str, ensure_ascii=False)


class PlainFormatter(logging.Formatter):
    """``2025-11-29T16:55:36.500+00:00 WARNING ingest.camera: text`` for files and containers."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = harmless(record.message)
        return super().formatMessage(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return iso(record.created)


class ConsoleFormatter(logging.Formatter):
    """For a terminal, where rich writes time and level."""

    def __init__(self) -> None:
        super().__init__("%(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = harmless(record.message)
        return super().formatMessage(record)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def harmless(text: str) -> str:
    """Text that may hold what a client sent: it can neither begin a new record nor move a terminal's cursor."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text).replace("\n", "\n    ")


def _make_handler(json: bool) -> logging.Handler:
    if json or not sys.stderr.isatty():
        handler: logging.Handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter() if json else PlainFormatter())
        return handler
    from rich.console import Console
    from rich.highlighter import NullHighlighter
    from rich.logging import RichHandler

    handler = RichHandler(
        console=Console(stderr=True),
        show_path=False,
        highlighter=NullHighlighter(),
        log_time_format="%H:%M:%S",
        omit_repeated_times=False,
    )
    handler.setFormatter(ConsoleFormatter())
    return handler


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Tracebacks hold URLs too: what nobody caught goes through the redactor as well."""
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger("watchword").critical("uncaught error", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit or args.exc_value is None:
        return
    name = args.thread.name if args.thread else "unknown"
    logging.getLogger("watchword").critical(
        "uncaught error in thread %s", name, exc_info=(args.exc_type, args.exc_value, args.exc_traceback)
    )
