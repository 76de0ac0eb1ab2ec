"""Clients for Redis or Valkey with the time limits that each use needs.

Values are bytes (never ``decode_responses``: a JPEG is not UTF-8) and replies have the shapes of RESP2 on every
version of redis-py. No client retries by itself: a command whose reply got lost may have run, so the caller, who knows
whether repeating is harmless, decides.
"""

from __future__ import annotations

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

CONNECT_TIMEOUT_S = 3.0
SOCKET_TIMEOUT_S = 5.0
BLOCK_MARGIN_S = 1.0
"""A blocking read ends so much before the socket's own limit, which would raise instead (redis-py#2807, #3138)."""
BLOCKING_SOCKET_TIMEOUT_S = 10.0


def sync_client(url: str) -> redis.Redis:
    """Client for ingest. A call takes at most ``SOCKET_TIMEOUT_S``; ``redis.RedisError`` comes at the first failure."""
    return redis.Redis.from_url(
        url,
        protocol=2,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=SOCKET_TIMEOUT_S,
        health_check_interval=15,
        retry=Retry(NoBackoff(), 0),
    )


def async_client(url: str) -> redis.asyncio.Redis:
    """Client for serve's commands. A call takes at most ``SOCKET_TIMEOUT_S`` and raises at the first failure.

    A connection that was cut while idle is no failure: the pool looks before it hands one out.
    """
    return redis.asyncio.Redis.from_url(
        url,
        protocol=2,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=SOCKET_TIMEOUT_S,
        health_check_interval=15,
        retry=AsyncRetry(NoBackoff(), 0),
    )


def async_blocking_client(url: str) -> redis.asyncio.Redis:
    """Client for blocking reads only; pass them at most :func:`block_ms` of it."""
    return redis.asyncio.Redis.from_url(
        url,
        protocol=2,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=BLOCKING_SOCKET_TIMEOUT_S,
        retry=AsyncRetry(NoBackoff(), 0),
    )


def block_ms(client: redis.Redis | redis.asyncio.Redis, wanted_ms: int) -> int:
    """``wanted_ms``, at least 1 (0 would block forever) and safely below the client's own socket timeout (R62)."""
    limit_s = client.connection_pool.connection_kwargs.get("socket_timeout")
    if limit_s is None:
        return max(1, wanted_ms)
    return max(1, min(wanted_ms, int((limit_s - BLOCK_MARGIN_S) * 1000)))
