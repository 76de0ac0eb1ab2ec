"""API keys and their roles: a Bearer header for programs, a cookie for the operator page (EventSource and <img> can't
send headers)."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from fastapi import APIRouter, Request, Response
from starlette.datastructures import Headers

from api.errors import ApiError
from pipeline.config import ApiKeyConfig, ServerConfig
from pipeline.config.server import Role, is_loopback

_log = logging.getLogger(__name__)

COOKIE = "watchword_session"
_COOKIE_PURPOSE = b"watchword operator page"
_COOKIE_SECONDS = 30 * 24 * 3600
_SAFE_METHODS = frozenset({"GET", "HEAD"})

GRANTS: Mapping[Role, frozenset[Role]] = {
    "chat": frozenset({"chat"}),
    "viewer": frozenset({"viewer"}),
    "operator": frozenset({"chat", "viewer", "operator"}),
    "admin": frozenset({"chat", "viewer", "operator", "admin"}),
}
"""What a role includes."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request.

    Attributes:
        id: tells callers apart without telling the key: what one of them stored, the others don't see.
        roles: everything that the caller may do, included roles spelled out.
        name: the key's name in the configuration, for logs.
    """

    id: str
    roles: frozenset[Role]
    name: str = ""
    requests_per_minute: int | None = None
    max_concurrent_requests: int | None = None


class ApiKeys:
    """The configured keys, known by their hashes alone; without any, everybody is let in.

    A key is known by SHA-256: keys are 256 random bits (`watchword keys new`), which no dictionary holds, so a slow
    hash would add nothing but work for every request. The page's cookie holds a value derived from the hash, so that
    the key itself stays out of cookie jars; it works on every process that knows the key and ends when the key is
    removed.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._callers = tuple(_caller(key, config) for key in config.api_keys)
        self._digests = tuple(bytes.fromhex(_digits(key)) for key in config.api_keys)
        self._cookies = tuple(hmac.digest(digest, _COOKIE_PURPOSE, "sha256") for digest in self._digests)
        self._anyone = Caller("anyone", GRANTS["admin"], "", config.requests_per_minute, config.max_concurrent_requests)
        if not self._digests:
            reach = "on this machine" if is_loopback(config.host) else "who reaches it over the network"
            _log.warning("No API keys are configured: everyone %s may use this server (server.api_keys).", reach)

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return bool(self._digests)

    def bearer(self, headers: Headers) -> Caller | None:
        """Whose key the Authorization header holds; None without a valid one. Anyone, where no keys are configured."""
        if not self.required:
            return self._anyone
        index = self._bearer_index(headers)
        return None if index is None else self._callers[index]

    def caller(self, request: Request) -> Caller | None:
        """Who asks: by the Bearer key (any method) or the page's cookie (reading only, against forged posts)."""
        by_key = self.bearer(request.headers)
        if by_key is not None or request.method not in _SAFE_METHODS:
            return by_key
        try:
            given = bytes.fromhex(request.cookies.get(COOKIE, ""))
        except ValueError:
            return None
        index = _index_of(given, self._cookies)
        return None if index is None else self._callers[index]

    def cookie_for(self, request: Request) -> str | None:
        """The cookie that the request's Bearer key earns, None without a valid key."""
        index = self._bearer_index(request.headers)
        return None if index is None else self._cookies[index].hex()

    def _bearer_index(self, headers: Headers) -> int | None:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        return _index_of(sha256(key.strip().encode()).digest(), self._digests)


def _digits(key: ApiKeyConfig) -> str:
    return key.hash.get_secret_value().removeprefix("sha256:")


def _caller(key: ApiKeyConfig, config: ServerConfig) -> Caller:
    return Caller(
        id=sha256(_digits(key).encode()).hexdigest()[:16],
        roles=frozenset().union(*(GRANTS[role] for role in key.roles)),
        name=key.name,
        requests_per_minute=key.requests_per_minute or config.requests_per_minute,
        max_concurrent_requests=key.max_concurrent_requests or config.max_concurrent_requests,
    )


def _index_of(given: bytes, known: Sequence[bytes]) -> int | None:
    """Compares with all, each in constant time, so that the time taken tells nothing."""
    found = None
    for index, candidate in enumerate(known):
        if hmac.compare_digest(given, candidate):
            found = index
    return found


def require(role: Role) -> Callable[[Request], Awaitable[None]]:
    """Dependency of every route that needs ``role``: raises 401 without a key, 403 with one that lacks the role.

    ``request.state.caller`` is who asks from then on.
    """

    async def check(request: Request) -> None:
        keys: ApiKeys = request.app.state.keys
        caller = keys.caller(request)
        if caller is None:
            raise _unauthorized(request)
        needed: Role = "operator" if role == "viewer" and request.method not in _SAFE_METHODS else role
        if needed not in caller.roles:
            raise _forbidden(needed)
        request.state.caller = caller

    return check


def caller_of(request: Request) -> Caller:
    """Who asks, on routes that :func:`require` guards."""
    caller: Caller = request.state.caller
    return caller


def _unauthorized(request: Request) -> ApiError:
    given = "authorization" in request.headers
    message = "Incorrect API key." if given else "This server needs an API key: send 'Authorization: Bearer KEY'."
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _forbidden(role: Role) -> ApiError:
    return ApiError(403, f"This API key does not have the role '{role}'.", code="insufficient_role")


router = APIRouter(prefix="/api/session", tags=["session"])


@router.post("", status_code=204, summary="Exchange an API key for the page's cookie")
async def sign_in(request: Request) -> Response:
    """The key must have the role viewer: the page shows cameras and events."""
    keys: ApiKeys = request.app.state.keys
    response = Response(status_code=204)
    if keys.required:
        cookie, caller = keys.cookie_for(request), keys.bearer(request.headers)
        if cookie is None or caller is None:
            raise _unauthorized(request)
        if "viewer" not in caller.roles:
            raise _forbidden("viewer")
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
