"""Pictures by address: ``http(s):`` from allowed hosts, ``file:`` from one folder. Both are off unless configured.

Whoever may send a URL must not reach through this server what they can't reach themselves (SSRF). So: names come from
an allow-list; the address is looked up once, checked, and that very address is connected to, so that a name that
changes its mind in between (DNS rebinding) gains nothing; redirects stay on their host; nothing is decompressed;
cookies, credentials and proxies of the environment are not used; bytes and time are bounded.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpcore
import httpx
from httpcore._backends.base import SOCKET_OPTION

from api.errors import ApiError, invalid
from api.openai.addresses import AddressRule
from pipeline.config.pictures import PicturesConfig

MAX_URL = 4096
RESOLVER_THREADS = 4
DEFAULT_PORTS = {"http": 80, "https": 443}

OFF = "image_url_fetching_off"
BAD_URL = "invalid_image_url"
NOT_ALLOWED = "image_url_not_allowed"
FAILED = "image_url_failed"
TOO_LARGE = "image_too_large"

_TROUBLE = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, OSError, UnicodeError)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_DOTTED = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port -> addresses."""


@dataclass(frozen=True, slots=True)
class RemotePicture:
    """A picture that is still to be fetched: its URL, and the request's field that held it."""

    url: str
    param: str


class Budget:
    """Bytes that the fetched pictures of one request may have together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._left = most

    def take(self, count: int) -> bool:
        """Whether ``count`` more bytes fit."""
        self._left -= count
        return self._left >= 0


class _Refused(Exception):
    """The host is, or turned out to be, at an address that pictures may not come from."""


class PictureFetcher:
    """Fetches pictures as the configuration allows. One event loop.

    Args:
        config: what is allowed.
        resolve: names to addresses; the system's resolver when not given.
        ssl_context: of https; certificates are checked against the usual authorities when not given.
    """

    def __init__(
        self, config: PicturesConfig, resolve: Resolve | None = None, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        self._config = config
        self._gate = asyncio.Semaphore(config.url_concurrency)
        self._backend = _GuardedBackend(AddressRule(config.url_networks), resolve or _SystemResolver())
        self._ssl_context = ssl_context

    async def fetch(self, picture: RemotePicture, budget: Budget) -> bytes:
        """The picture's bytes, whatever they are. Raises a 400 that names the field and the cause."""
        scheme = picture.url[:16].partition(":")[0].lower()
        if scheme == "file":
            return await asyncio.to_thread(read_file, picture, self._config, budget)
        if not self._config.url_hosts:
            raise invalid(
                "Fetching pictures from the network is off on this server; send the picture as a data URL "
                "(data:image/jpeg;base64,...).",
                param=picture.param,
                code=OFF,
            )
        url = self._checked(picture.url, picture.param)
        try:
            async with asyncio.timeout(self._config.url_timeout_s), self._gate:
                return await self._follow(url, picture.param, budget)
        except TimeoutError:
            raise self._failed(
                url, f"it took longer than {self._config.url_timeout_s:g} s (pictures.url_timeout_s)", picture.param
            ) from None

    # Rules -----------------------------------------------------------------------------------------------------------

    def _checked(self, text: str, param: str) -> httpx.URL:
        """The URL, when its form, scheme and host are allowed."""
        if len(text) > MAX_URL:
            raise invalid(f"The image URL is longer than {MAX_URL} characters.", param=param, code=BAD_URL)
        if _UNPRINTABLE.search(text):
            raise invalid("The image URL holds spaces or control characters.", param=param, code=BAD_URL)
        try:
            url = httpx.URL(text)
            host, port = url.raw_host.decode("ascii").lower().removesuffix("."), url.port
        except (httpx.InvalidURL, UnicodeError, ValueError):
            raise invalid("The image URL can't be read.", param=param, code=BAD_URL) from None
        if url.scheme not in DEFAULT_PORTS or not host:
            raise invalid("The image URL must begin with https:// and a host.", param=param, code=BAD_URL)
        if url.userinfo:
            raise invalid("The image URL must not hold a user name or password.", param=param, code=BAD_URL)
        if not _is_plain_host(host):
            raise invalid("The image URL's host is not a plain name or address.", param=param, code=BAD_URL)
        if url.scheme not in self._config.url_schemes:
            allowed = ", ".join(self._config.url_schemes)
            raise invalid(
                f"Pictures are fetched by {allowed} only (pictures.url_schemes).", param=param, code=NOT_ALLOWED
            )
        if not self._allows(host, port or DEFAULT_PORTS[url.scheme], url.scheme):
            raise invalid(
                f"Pictures may not be fetched from {_where(host, port)} (pictures.url_hosts).",
                param=param,
                code=NOT_ALLOWED,
            )
        return url.copy_with(host=host)

    def _allows(self, host: str, port: int, scheme: str) -> bool:
        name = f"[{host}]" if ":" in host else host
        for entry in self._config.url_hosts:
            pattern, ported, number = entry.rpartition(":") if not entry.endswith("]") else ("", "", "")
            if not ported:
                pattern, number = entry, str(DEFAULT_PORTS[scheme])
            if int(number) != port:
                continue
            if pattern in ("*", name) or (pattern.startswith("*.") and name.endswith(pattern[1:])):
                return True
        return False

    # Work ------------------------------------------------------------------------------------------------------------

    async def _follow(self, url: httpx.URL, param: str, budget: Budget) -> bytes:
        async with httpcore.AsyncConnectionPool(
            ssl_context=self._ssl_context, max_keepalive_connections=0, network_backend=self._backend
        ) as pool:
            for _ in range(self._config.url_max_redirects + 1):
                outcome = await self._get(pool, url, param, budget)
                if isinstance(outcome, bytes):
                    return outcome
                url = self._redirected(url, outcome, param)
        most = self._config.url_max_redirects
        raise self._failed(url, f"it redirects more than {most} times (pictures.url_max_redirects)", param)

    async def _get(self, pool: httpcore.AsyncConnectionPool, url: httpx.URL, param: str, budget: Budget) -> bytes | str:
        """The body, or where it says that the picture is."""
        timeout = dict.fromkeys(("connect", "read", "write", "pool"), self._config.url_timeout_s)
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        headers = [(b"Accept", b"image/*"), (b"Accept-Encoding", b"identity"), (b"User-Agent", b"watchword")]
        try:
            async with pool.stream("GET", target, headers=headers, extensions={"timeout": timeout}) as response:
                found = {name.lower(): value for name, value in response.headers}
                if response.status in _REDIRECTS and b"location" in found:
                    return found[b"location"].decode("latin-1")
                if response.status != 200:
                    raise self._failed(url, f"it answers {response.status}", param)
                if found.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
                    raise self._failed(url, "it is compressed on the way (Content-Encoding)", param)
                length = found.get(b"content-length", b"")
                if length.isdigit() and int(length[:20]) > self._config.url_max_bytes:
                    raise self._too_large(url, param)
                return await self._read(response, url, param, budget)
        except _Refused:
            # Not which address: what names mean inside is nobody's business outside.
            raise invalid(
                f"Pictures may not be fetched from {_where(url.host, url.port)}: "
                "it is at an address that is not public (pictures.url_networks).",
                param=param,
                code=NOT_ALLOWED,
            ) from None
        except (
            httpcore.NetworkError,
            httpcore.TimeoutException,
            httpcore.ProtocolError,
            OSError,
            UnicodeError,
        ) as error:
            raise self._failed(url, _cause(error), param) from None

    async def _read(self, response: httpcore.Response, url: httpx.URL, param: str, budget: Budget) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_stream():
            body += chunk
            if len(body) > self._config.url_max_bytes:
                raise self._too_large(url, param)
            if not budget.take(len(chunk)):
                raise _over_budget(budget, param)
        if not body:
            raise self._failed(url, "it is empty", param)
        return bytes(body)

    def _redirected(self, url: httpx.URL, location: str, param: str) -> httpx.URL:
        try:
            target = str(url.join(location))
        except (httpx.InvalidURL, ValueError):
            raise self._failed(url, "it redirects to an address that can't be read", param) from None
        following = self._checked(target, param)
        upgraded = (url.scheme, following.scheme) == ("http", "https") and not url.port and not following.port
        same = (url.scheme, url.port) == (following.scheme, following.port)
        if following.host != url.host or not (same or upgraded):
            raise invalid(
                f"{_where(url.host, url.port)} redirects to another host, which is not followed.",
                param=param,
                code=NOT_ALLOWED,
            )
        return following

    def _failed(self, url: httpx.URL, cause: str, param: str) -> ApiError:
        # Only the host is repeated: paths and queries may hold somebody's token.
        return invalid(f"The picture at {_where(url.host, url.port)} can't be had: {cause}.", param=param, code=FAILED)

    def _too_large(self, url: httpx.URL, param: str) -> ApiError:
        most = self._config.url_max_bytes
        return invalid(
            f"The picture at {_where(url.host, url.port)} is larger than {most} bytes (pictures.url_max_bytes).",
            param=param,
            code=TOO_LARGE,
        )


def read_file(picture: RemotePicture, config: PicturesConfig, budget: Budget) -> bytes:
    """The file that a ``file:`` URL names, below the configured folder after following links. Raises a 400.

    What is outside and what is not there get the same answer. The check is made on the open file, so that exchanging a
    link in between gains nothing.
    """
    param = picture.param
    if config.folder is None:
        raise invalid("file: URLs are off on this server (pictures.folder).", param=param, code=OFF)
    try:
        parts = urlsplit(picture.url)
        path = unquote(parts.path, errors="strict")
    except ValueError:
        raise invalid("The file URL can't be read.", param=param, code=BAD_URL) from None
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or "\0" in path:
        raise invalid("A file URL is file:///path, without host, query or fragment.", param=param, code=BAD_URL)
    missing = invalid("There is no such picture in the folder for file URLs.", param=param, code=NOT_ALLOWED)
    if not path.startswith("/") or ".." in path.split("/"):
        raise missing
    root = config.folder.resolve()
    if not Path(os.path.realpath(path)).is_relative_to(root):
        raise missing
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            handle = file.fileno()
            if not stat.S_ISREG(os.fstat(handle).st_mode) or not _opened(handle, path).is_relative_to(root):
                raise missing
            data = file.read(config.url_max_bytes + 1)
    except (OSError, ValueError):
        raise missing from None
    if len(data) > config.url_max_bytes:
        most = config.url_max_bytes
        raise invalid(f"The picture is larger than {most} bytes (pictures.url_max_bytes).", param=param, code=TOO_LARGE)
    if not budget.take(len(data)):
        raise _over_budget(budget, param)
    return data


def _open_at_once(path: str, flags: int) -> int:
    """Not blocking: a named pipe would wait for its other end."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _opened(handle: int, path: str) -> Path:
    """Where the open file really lies."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{handle}"))
    except OSError:  # a system without /proc
        return Path(os.path.realpath(path))


def _over_budget(budget: Budget, param: str) -> ApiError:
    message = f"The request's pictures are larger than {budget.most} bytes together (server.max_body_bytes)."
    return invalid(message, param=param, code=TOO_LARGE)


def _is_plain_host(host: str) -> bool:
    """A name, a dotted address or an IPv6 address, and none of the ways in which 127.0.0.1 can also be written:
    2130706433, 0x7f.1, 0177.0.0.1, 127.1."""
    if ":" in host:
        return re.fullmatch(r"[0-9a-f:.]+", host) is not None
    if len(host) > 253 or not _NAME.fullmatch(host):
        return False
    # As browsers decide it: a host whose last part is a number is an address.
    return _DOTTED.fullmatch(host) is not None or not _NUMBER.fullmatch(host.rpartition(".")[2])


def _where(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"'{name[:260]}'" if port is None else f"'{name[:260]}:{port}'"


def _cause(error: Exception) -> str:
    """Why, without what a library or a server says in its own words."""
    if isinstance(error, httpcore.TimeoutException):
        return "it does not answer in time"
    if isinstance(error, httpcore.ProtocolError):
        return "it does not speak HTTP"
    origin: BaseException | None = error
    while origin is not None:
        if isinstance(origin, socket.gaierror):
            return "there is no such host"
        if isinstance(origin, ssl.SSLCertVerificationError):
            return "its certificate is not valid"
        if isinstance(origin, ssl.SSLError):
            return "it does not speak TLS"
        if isinstance(origin, ConnectionRefusedError):
            return "it refuses connections"
        origin = origin.__cause__ or origin.__context__
    return "the connection fails" if isinstance(error, httpcore.ConnectError) else "the connection breaks"


class _GuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that passed the rule, and to nothing else."""

    def __init__(self, rule: AddressRule, resolve: Resolve) -> None:
        self._rule = rule
        self._resolve = resolve
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._resolve(host, port)
        # One bad address spoils the name: whoever mixes public and private ones means harm or is mistaken.
        if not addresses or not all(self._rule.allows(address) for address in addresses):
            raise _Refused
        for address in addresses:
            try:
                stream = await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore.ConnectError:
                if address == addresses[-1]:
                    raise
                continue
            peer: Any = stream.get_extra_info("server_addr")
            if not peer or not self._rule.allows(str(peer[0])):
                await stream.aclose()
                raise _Refused
            return stream
        raise _Refused

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[SOCKET_OPTION] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise _Refused

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _SystemResolver:
    """``getaddrinfo`` in threads of its own: a name server that hangs must not use up everybody's threads."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self._threads = self._threads or ThreadPoolExecutor(RESOLVER_THREADS, thread_name_prefix="resolve")
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _look_up, host, port)
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _look_up(host: str, port: int) -> list[Any]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
