"""API keys: a Bearer header for programs, a cookie for the operator page (EventSource and <img> can't send headers)."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Sequence
from hashlib import sha256

from fastapi import APIRouter, Request, Response
from pydantic import SecretStr

from api.errors import ApiError

_log = logging.getLogger(__name__)

COOKIE = "watchword_session"
_COOKIE_PURPOSE = b"watchword operator page"
_COOKIE_SECONDS = 30 * 24 * 3600
_SAFE_METHODS = frozenset({"GET", "HEAD"})


class ApiKeys:
    """The configured keys as digests; without any, everybody is let in.

    The page's cookie holds a value derived from the key, so that the key itself stays out of cookie jars; it works on
    every process that knows the key and ends when the key is removed from the configuration.
    """

    def __init__(self, keys: Sequence[SecretStr]) -> None:
        digests = [sha256(key.get_secret_value().encode()).digest() for key in keys]
        self._digests = tuple(digests)
        self._cookies = tuple(hmac.digest(digest, _COOKIE_PURPOSE, "sha256") for digest in digests)
        if not digests:
            _log.warning("No API keys are configured: everyone who reaches this server may use it.")

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._digests)

    def admits(self, request: Request) -> bool:
        """Whether the request carries a key (any method) or the page's cookie (reading only, against forged posts)."""
        if not self.required or self.cookie_for(request) is not None:
            return True
        if request.method not in _SAFE_METHODS:
            return False
        try:
            given = bytes.fromhex(request.cookies.get(COOKIE, ""))
        except ValueError:
            return False
        return _index_of(given, self._cookies) is not None

    def cookie_for(self, request: Request) -> str | None:
        """The cookie that the request's Bearer key earns, None without a valid key."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        index = _index_of(sha256(key.strip().encode()).digest(), self._digests)
        return None if index is None else self._cookies[index].hex()


def _index_of(given: bytes, known: Sequence[bytes]) -> int | None:
    """Compares with all, each in constant time, so that the time taken tells nothing."""
    found = None
    for index, candidate in enumerate(known):
        if hmac.compare_digest(given, candidate):
            found = index
    return found


async def require_key(request: Request) -> None:
    """Dependency of every route that needs a key. Raises 401."""
    keys: ApiKeys = request.app.state.keys
    if not keys.admits(request):
        raise _unauthorized(request)


def _unauthorized(request: Request) -> ApiError:
    given = "authorization" in request.headers
    message = "Incorrect API key." if given else "This server needs an API key: send 'Authorization: Bearer KEY'."
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


router = APIRouter(prefix="/api/session", tags=["session"])


@router.post("", status_code=204, summary="Exchange an API key for the page's cookie")
async def sign_in(request: Request) -> Response:
    keys: ApiKeys = request.app.state.keys
    cookie = keys.cookie_for(request)
    response = Response(status_code=204)
    if keys.required:
        if cookie is None:
            raise _unauthorized(request)
        response.set_cookie(
            COOKIE,
            cookie,
            max_age=_COOKIE_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
    return response


@router.delete("", status_code=204, summary="Sign the page out")
async def sign_out() -> Response:
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response
