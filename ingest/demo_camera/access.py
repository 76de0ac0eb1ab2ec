"""User name and password of the demo camera: Basic (RFC 7617) and Digest (RFC 7616 with MD5, as cameras speak it)."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Literal

Scheme = Literal["basic", "digest"]
REALM = "watchword-demo"
_FIELD = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))')


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who is let in."""

    username: str
    password: str


class Access:
    """Checks the Authorization header of requests. One nonce for the camera's life, as many cameras have it."""

    def __init__(self, credentials: Credentials, scheme: Scheme = "digest") -> None:
        self._credentials = credentials
        self._scheme = scheme
        self._nonce = secrets.token_hex(16)

    @property
    def challenge(self) -> str:
        """Value of WWW-Authenticate."""
        if self._scheme == "basic":
            return f'Basic realm="{REALM}"'
        return f'Digest realm="{REALM}", nonce="{self._nonce}", algorithm=MD5, qop="auth"'

    def admits(self, method: str, authorization: str) -> bool:
        """Whether the header proves that the client knows the password."""
        scheme, _, rest = authorization.strip().partition(" ")
        if scheme.lower() != self._scheme:
            return False
        return self._basic(rest) if self._scheme == "basic" else self._digest(method, rest)

    def _basic(self, token: str) -> bool:
        try:
            given = base64.b64decode(token.strip(), validate=True)
        except ValueError:
            return False
        wanted = f"{self._credentials.username}:{self._credentials.password}".encode()
        return secrets.compare_digest(given, wanted)

    def _digest(self, method: str, text: str) -> bool:
        fields = {name.lower(): quoted or plain for name, quoted, plain in _FIELD.findall(text)}
        if fields.get("nonce") != self._nonce or fields.get("username") != self._credentials.username:
            return False
        secret = _md5(f"{self._credentials.username}:{REALM}:{self._credentials.password}")
        request = _md5(f"{method}:{fields.get('uri', '')}")
        if "qop" in fields:
            middle = f"{self._nonce}:{fields.get('nc', '')}:{fields.get('cnonce', '')}:{fields['qop']}"
        else:
            middle = self._nonce
        return secrets.compare_digest(_md5(f"{secret}:{middle}:{request}"), fields.get("response", ""))


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
