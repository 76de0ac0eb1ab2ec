"""Clients for Redis or Valkey with the time limits that each use needs.

Values are bytes (never ``decode_responses``: a JPEG is not UTF-8) and replies have the shapes of RESP2 on every
version of redis-py. No client retries by itself: a command whose reply got lost may have run, so the caller, who knows
whether repeating is harmless, decides.

Where Sentinels watch over the server, a client asks them for the master each time it connects, and connects anew when
its server turns out to be a master no more.
"""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from pipeline.queue.address import RedisAddress

CONNECT_TIMEOUT_S = 3.0
SOCKET_TIMEOUT_S = 5.0
SENTINEL_TIMEOUT_S = 1.0
"""One of them that doesn't answer must not keep us from asking the next."""
BLOCK_MARGIN_S = 1.0
"""A blocking read ends so much before the socket's own limit, which would raise instead (redis-py#2807, #3138)."""
BLOCKING_SOCKET_TIMEOUT_S = 10.0


def sync_client(address: RedisAddress | str, timeout_s: float = SOCKET_TIMEOUT_S) -> redis.Redis:
    """Client for ingest. A call takes at most ``timeout_s``; ``redis.RedisError`` comes at the first failure."""
    where = RedisAddress.of(address)
    options = _options(timeout_s, health_check_interval=15, retry=Retry(NoBackoff(), 0))
    if not where.sentinels:
        return redis.Redis.from_url(where.url, **options, **where.tls_options())
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        where.sentinels, sentinel_kwargs=where.sentinel_options(SENTINEL_TIMEOUT_S)
    )
    client: redis.Redis = sentinel.master_for(  # type: ignore[no-untyped-call]
        where.master, redis.Redis, **options, **where.master_options()
    )
    return client


def async_client(address: RedisAddress | str) -> redis.asyncio.Redis:
    """Client for serve's commands. A call takes at most ``SOCKET_TIMEOUT_S`` and raises at the first failure.

    A connection that was cut while idle is no failure: the pool looks before it hands one out.
    """
    return _async(RedisAddress.of(address), _options(SOCKET_TIMEOUT_S, health_check_interval=15, retry=_no_retry()))


def async_blocking_client(address: RedisAddress | str) -> redis.asyncio.Redis:
    """Client for blocking reads only; pass them at most :func:`block_ms` of it."""
    return _async(RedisAddress.of(address), _options(BLOCKING_SOCKET_TIMEOUT_S, retry=_no_retry()))


def block_ms(client: redis.Redis | redis.asyncio.Redis, wanted_ms: int) -> int:
    """``wanted_ms``, at least 1 (0 would block forever) and safely below the client's own socket timeout (R62)."""
    limit_s = client.connection_pool.connection_kwargs.get("socket_timeout")
    if limit_s is None:
        return max(1, wanted_ms)
    return max(1, min(wanted_ms, int((limit_s - BLOCK_MARGIN_S) * 1000)))


def _async(where: RedisAddress, options: dict[str, Any]) -> redis.asyncio.Redis:
    if not where.sentinels:
        return redis.asyncio.Redis.from_url(where.url, **options, **where.tls_options())
    sentinel = AsyncSentinel(  # type: ignore[no-untyped-call]
        where.sentinels, sentinel_kwargs=where.sentinel_options(SENTINEL_TIMEOUT_S)
    )
    client: redis.asyncio.Redis = sentinel.master_for(
        where.master, redis.asyncio.Redis, **options, **where.master_options()
    )
    return client


def _options(socket_timeout: float, **more: Any) -> dict[str, Any]:
    connect_timeout = min(CONNECT_TIMEOUT_S, socket_timeout)
    return {"protocol": 2, "socket_connect_timeout": connect_timeout, "socket_timeout": socket_timeout, **more}


def _no_retry() -> AsyncRetry:
    return AsyncRetry(NoBackoff(), 0)
