"""One place that hides credentials, for everything that leaves the process as text (log lines, errors, API bodies).

Two ways lead to a secret and both are closed: its form (user info in anything that looks like a URL, headers,
well-known query parameters) and its value (:func:`register_secret`). Hiding too much is accepted, hiding too little is
not: a password may hold any of ``@ : / # ? %``, so everything between ``://`` and the last ``@`` of the word goes.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import traceback
from collections.abc import Iterable
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "***"
MIN_SECRET = 4
"""Shorter values are not hidden wherever they occur: they would eat half of every line."""

_COLON = r"(?::|%(?:25)*3A)"
_SLASH = r"(?:\\?/|%(?:25)*2F)"
_SEPARATOR = rf"{_COLON}{_SLASH}{_SLASH}"
_SCHEME = r"[a-z][a-z0-9+.-]*"
# A character of the user info: anything but a space, the start of the next URL, and a quote that closes a string.
_CHAR = rf"(?:(?!{_SCHEME}{_SEPARATOR})(?!['\"](?:[,;:}}\])\s]|$))\S)"
_RAW_URL = re.compile(rf"(?P<scheme>{_SCHEME}:\\?/\\?/){_CHAR}*@", re.IGNORECASE)
_QUOTED_URL = re.compile(rf"(?P<scheme>{_SCHEME}{_SEPARATOR}){_CHAR}*(?P<at>%(?:25)*40|@)", re.IGNORECASE)
# "user:password@host" without a scheme, as libraries print a network location; bounded, so that it stays linear.
_NETLOC = re.compile(r"(?<![\w/*@])[^\s:@/'\"(]{1,128}:(?:(?!//|\\/)[^\s'\"]){1,256}@(?=[\w\[])")
_HEADER = re.compile(r"(?P<name>\b(?:proxy-)?authorization\b[\"']?\s*[:=]\s*)[^\r\n]+", re.IGNORECASE)
_SCHEME_TOKEN = re.compile(r"(?P<name>\b(?i:bearer|basic)\s+)(?=\S*[0-9A-Z=])[\w.~+/=-]{6,}")
_PARAMETER = re.compile(
    r"(?P<name>(?:password|passwd|passphrase|pwd|token|secret|api[_-]?key|apikey)[\"']?\s*[=:]\s*[\"']?)"
    r"(?P<value>[^\s&\"',}]+)",
    re.IGNORECASE,
)
_API_KEY = re.compile(r"\b(?:sk|hf|ghp)[-_][A-Za-z0-9_-]{16,}")

_lock = threading.Lock()
_secrets: set[str] = set()
_secret_pattern: re.Pattern[str] | None = None


def register_secret(*values: str | None) -> None:
    """Hides ``values`` from now on wherever they occur, also percent-encoded, JSON-escaped or as ``repr``."""
    global _secret_pattern
    forms = {form for value in values if value for form in _forms(value) if len(form) >= MIN_SECRET}
    with _lock:
        if forms <= _secrets:
            return
        _secrets.update(forms)
        ordered = sorted(_secrets, key=len, reverse=True)
        _secret_pattern = re.compile("|".join(re.escape(form) for form in ordered))


def redact(text: str) -> str:
    """``text`` without credentials. Never raises; what can't be told apart from a credential is hidden."""
    text = redact_own_words(text)
    text = _HEADER.sub(rf"\g<name>{HIDDEN}", text)
    text = _SCHEME_TOKEN.sub(rf"\g<name>{HIDDEN}", text)
    text = _PARAMETER.sub(_hide_parameter, text)
    return _API_KEY.sub(HIDDEN, text)


def redact_own_words(text: str) -> str:
    """Only user info in URLs, and registered secrets: for text of ours, where "password: is missing" hides nothing."""
    if _secret_pattern is not None:
        text = _secret_pattern.sub(HIDDEN, text)
    if "@" in text:
        text = _RAW_URL.sub(rf"\g<scheme>{HIDDEN}@", text)
        text = _NETLOC.sub(f"{HIDDEN}@", text)
    if "%" in text:
        text = _QUOTED_URL.sub(_hide_quoted, text)
    return text


class RedactingFilter(logging.Filter):
    """Rewrites every record in place: message and arguments, exception text, stack, and string extras."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError):  # a wrong format string must not cost the line
            message = f"{record.msg} {record.args!r}"
        record.msg, record.args = redact(message), None
        if record.exc_info and not record.exc_text:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        if record.exc_text:
            # Nothing downstream may format the exception again from its object.
            record.exc_text, record.exc_info = redact(record.exc_text), None
        if record.stack_info:
            record.stack_info = redact(record.stack_info)
        for name, value in extras(record):
            if isinstance(value, str):
                setattr(record, name, redact(value))
        return True


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def extras(record: logging.LogRecord) -> Iterable[tuple[str, object]]:
    """What the caller passed as ``extra=`` (``reason``, ``camera``, ...)."""
    return [(name, value) for name, value in vars(record).items() if name not in _STANDARD and name[0] != "_"]


def _hide_quoted(match: re.Match[str]) -> str:
    if "://" in match["scheme"] and match["at"] != "@":
        return match[0]  # a plain URL with %40 somewhere: in a query, or within a password that is hidden already
    return f"{match['scheme']}{HIDDEN}{match['at']}"


def _hide_parameter(match: re.Match[str]) -> str:
    value = match["value"]
    # "password: None", "max_tokens=5" and their like are no secrets.
    if value.startswith(HIDDEN) or value.lower() in ("none", "null", "true", "false", "secretstr("):
        return match[0]
    return f"{match['name']}{HIDDEN}"


def _forms(value: str) -> set[str]:
    raw = {value, unquote(value)}
    quoted = {quote(v, safe=safe) for v in raw for safe in ("", "/", "/:@!$&'()*+,;=")}
    escaped = {json.dumps(v)[1:-1] for v in raw} | {repr(v)[1:-1] for v in raw}
    twice = {quote(v, safe=safe) for v in quoted for safe in ("", "/")}
    return raw | quoted | {quote_plus(v) for v in raw} | escaped | twice
