"""Who may make a browser talk to this server: no page from elsewhere, by its own name for us or by ours."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors import ApiError

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_UNGUARDED = "/health/"
"""Probes call by whatever name their cluster has; there is nothing to learn there."""
_DEFAULT_PORTS = {"http": "80", "https": "443"}


class CheckOrigin:
    """Refuses requests that another site's page makes a visitor's browser send.

    Two ways: a page whose own name was made to lead here (DNS rebinding: the browser believes that it stays on its
    site, but its Host header tells), and a form or script that posts across sites (CSRF: Sec-Fetch-Site and Origin
    tell). Programs send neither header and are not concerned, apart from the Host that they use.

    Args:
        hosts: names under which the server may be addressed, ``*.example.com`` for all below; empty: see ``any_host``.
        any_host: with no ``hosts`` given every name is good: requests need keys, which no foreign page has.
        own_host: the address that the server listens on.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str], any_host: bool, own_host: str) -> None:
        self._app = app
        self._hosts = tuple(host.lower() for host in (*hosts, own_host))
        self._any_host = any_host and not hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._refusal(Headers(scope=scope), scope["method"], scope["path"])
            if refusal is not None:
                await refusal.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers, method: str, path: str) -> ApiError | None:
        host = headers.get("host", "")
        if not path.startswith(_UNGUARDED) and not self._any_host and not self._is_ours(_name(host)):
            message = "This server is not to be addressed by that name (server.allowed_hosts)."
            return ApiError(403, message, code="host_not_allowed")
        if method not in _SAFE_METHODS and _is_foreign(headers, host):
            message = "A page of another site may not send this request."
            return ApiError(403, message, code="cross_site_request")
        return None

    def _is_ours(self, name: str) -> bool:
        if not name or name in self._hosts or name.endswith(".localhost"):
            return True
        if any(host.startswith("*.") and name.endswith(host[1:]) for host in self._hosts):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            # A name without a dot (localhost, a container's) is one that only the local network resolves.
            return "." not in name
        return True  # an address can't be made to lead elsewhere


def _name(host: str) -> str:
    """``Example.com:8000`` -> ``example.com``; ``[::1]:8000`` -> ``::1``."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def _is_foreign(headers: Headers, host: str) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:  # every current browser says it, and no page can change it
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    theirs = _netloc(origin)
    return theirs is None or theirs != _netloc(f"{origin.partition('://')[0]}://{host}")


def _netloc(url: str) -> tuple[str, str] | None:
    """Host and port of a URL; None for what is none ("null")."""
    try:
        parts = urlsplit(url)
        port = str(parts.port) if parts.port is not None else _DEFAULT_PORTS.get(parts.scheme, "")
    except ValueError:
        return None
    return (parts.hostname or "", port) if parts.hostname else None
