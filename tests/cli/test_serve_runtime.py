"""The serving process, composed: it answers before the model is loaded, describes crops, and ends in time."""

import asyncio
import io
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from pipeline.cli.serve_runtime import EngineDied, ServeRuntime
from pipeline.cli.trace import run_trace
from pipeline.config import WatchwordConfig
from pipeline.config.engine import StoreConfig
from pipeline.embedded_redis import EmbeddedValkey
from pipeline.messages import CropKind, CropMessage, TrackPhase
from pipeline.queue import keys
from pipeline.queue.connect import sync_client
from pipeline.queue.crops import CropWriter
from pipeline.reasons import Reason
from pipeline.store import EventStore
from tests.pipeline.material import crop_of, jpeg_of, track_of
from vlm_engine import ModelLoadError, VLMEngine


@pytest.fixture(scope="module")
def valkey() -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey() as server:
        yield server


def config(model: Path | str, folder: Path, redis_url: str | None = None, **sections: Any) -> WatchwordConfig:
    tree: dict[str, Any] = {
        "engine": {"model": str(model), "kv_cache_memory": 1 << 24, "num_threads": 1, "max_model_len": 1024},
        "describer": {"max_tokens": 8, "concurrency": 1, "processor_options": {"do_image_splitting": False}},
        "store": {"data_dir": str(folder)},
        "server": {"port": 0},
        "redis": {"url": redis_url},
    }
    return WatchwordConfig.model_validate({**tree, **sections})


@asynccontextmanager
async def running(settings: WatchwordConfig, *, cameras: bool) -> AsyncIterator[ServeRuntime]:
    runtime = ServeRuntime(settings, cameras=cameras)
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()


async def until(condition: Any, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := await condition()):
        assert time.monotonic() < deadline, "not within time"
        await asyncio.sleep(0.05)
    return value


async def test_live_at_once_ready_when_loaded_and_ended_when_the_engine_breaks(
    tiny_smolvlm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.cli.serve_runtime.DEAD_GRACE_S", 0.1)
    async with running(config(tiny_smolvlm, tmp_path), cameras=False) as runtime, httpx.AsyncClient() as http:
        assert (await http.get(f"{runtime.url}/health/live")).status_code == 200
        assert (await http.get(f"{runtime.url}/health/ready")).status_code == 503
        await runtime.ready()
        assert (await http.get(f"{runtime.url}/health/ready")).status_code == 200
        async with openai.AsyncOpenAI(base_url=f"{runtime.url}/v1", api_key="x") as client:
            model = (await client.models.list()).data[0].id
            answer = await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "Hello"}], max_tokens=4
            )
        assert model == tiny_smolvlm.name
        assert answer.usage is not None and answer.usage.completion_tokens > 0
        await assert_trace(runtime.url, tmp_path)

        def break_it(core: Any) -> None:
            raise RuntimeError("broken on purpose")

        assert runtime.engine is not None
        runtime.engine._thread.post(break_it)
        with pytest.raises(EngineDied):
            await asyncio.wait_for(runtime.wait(), 30)
        assert (await http.get(f"{runtime.url}/health/ready")).status_code == 503
        url = runtime.url
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=1)
    await runtime.stop()  # again: nothing to do


async def assert_trace(url: str, folder: Path) -> None:
    """`watchword trace` writes the steps of that answer as data and as a picture."""
    assert await asyncio.to_thread(run_trace, url, None, folder / "steps.json") == 0
    steps = json.loads((folder / "steps.json").read_text())
    assert sum(step["prefill_tokens"] for step in steps) > 0
    assert sum(step["decode_tokens"] for step in steps) == 3  # of four tokens the first one ends the prefill
    assert all(step["predicted_seconds"] > 0 for step in steps)
    assert await asyncio.to_thread(run_trace, url, None, folder / "steps.svg") == 0
    assert "<svg" in (folder / "steps.svg").read_text()


def crop(camera: str) -> tuple[CropMessage, bytes]:
    picture = io.BytesIO()
    Image.new("RGB", (64, 128), (200, 40, 40)).save(picture, "JPEG")
    now = time.time()
    message = CropMessage(
        crop_id="c1",
        camera=camera,
        track=f"{camera}/t1",
        kind=CropKind.FINAL,
        time=now,
        box=(0, 0, 64, 128),
        score=0.9,
        quality=0.8,
        frame_id=1,
        picture_key=keys.picture("c1"),
        label="person",
        deadline=now + 120,
        width=64,
        height=128,
        frame_width=640,
        frame_height=480,
    )
    return message, picture.getvalue()


async def test_a_crop_from_redis_becomes_an_event_with_words_and_a_picture(
    tiny_smolvlm: Path, tmp_path: Path, valkey: EmbeddedValkey
) -> None:
    settings = config(tiny_smolvlm, tmp_path, valkey.url)
    writer = CropWriter(sync_client(valkey.url), settings.redis)
    await asyncio.to_thread(writer.publish, *crop("front"))  # waits in Redis before there is anybody
    async with running(settings, cameras=True) as runtime, httpx.AsyncClient(base_url=runtime.url) as http:

        async def described() -> Any:
            events = (await http.get("/api/events")).json()["events"]
            return [event for event in events if event["description"]]

        (event,) = await until(described)
        assert event["camera"] == "front"
        picture = await http.get(event["crop_url"])
        assert picture.headers["content-type"] == "image/jpeg" and picture.content[:2] == b"\xff\xd8"
        ready = (await http.get("/health/ready")).json()
        assert set(ready["parts"]) == {"engine", "store", "redis"}


async def test_told_to_stop_while_the_model_loads_it_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = threading.Event()
    monkeypatch.setattr(VLMEngine, "start", lambda self: loaded.wait(60))
    runtime = ServeRuntime(config(tmp_path, tmp_path), cameras=False)
    await runtime.start()
    runtime.request_stop()
    await asyncio.wait_for(runtime.wait(), 5)
    await asyncio.wait_for(runtime.stop(), 8)
    assert runtime.loading
    loaded.set()


async def test_a_model_that_can_not_be_loaded_ends_it_with_the_reason(tmp_path: Path) -> None:
    async with running(config(tmp_path / "nothing", tmp_path), cameras=False) as runtime:
        with pytest.raises(ModelLoadError, match="nothing"):
            await asyncio.wait_for(runtime.wait(), 60)


async def test_a_taken_port_is_an_error_and_leaves_nothing_open(tiny_smolvlm: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = config(tiny_smolvlm, tmp_path, server={"port": taken.getsockname()[1]})
        runtime = ServeRuntime(settings, cameras=False)
        with pytest.raises(OSError):
            await runtime.start()
    assert not runtime.loading


async def test_with_another_server_for_the_words_no_engine_is_loaded(tmp_path: Path, valkey: EmbeddedValkey) -> None:
    engine = {"backend": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "theirs"}
    async with running(config("x", tmp_path, valkey.url, engine=engine), cameras=True) as runtime:
        await asyncio.wait_for(runtime.ready(), 5)
        assert runtime.engine is None
        async with httpx.AsyncClient(base_url=runtime.url) as http:
            assert (await http.get("/health/ready")).json()["parts"].keys() == {"store", "redis"}


async def test_serve_deletes_what_its_retention_says(valkey: EmbeddedValkey, tmp_path: Path) -> None:
    """No model is needed for that: the server that describes is not even there."""
    store = EventStore(StoreConfig(data_dir=tmp_path))
    old = time.time() - 3 * 86_400
    for number, seen in ((1, old), (2, time.time())):
        track = f"front/a-{number}"
        end = track_of(TrackPhase.END, track=track, time=seen, first_seen=seen, last_seen=seen)
        store.add_crop(crop_of(f"c-{number}", track=track, time=seen, deadline=seen + 1), jpeg_of(number))
        store.fail_description(f"c-{number}", Reason.DEADLINE, expired=True)
        store.apply_track(end)
    store.close()

    engine = {"backend": "openai", "model": "none", "base_url": "http://127.0.0.1:1/v1"}
    settings = config("none", tmp_path, valkey.url, retention={"days": 2}, engine=engine)
    async with running(settings, cameras=True) as runtime, httpx.AsyncClient() as http:

        async def only_the_young_one() -> bool:
            events = (await http.get(f"{runtime.url}/api/events")).json()["events"]
            return [event["id"] for event in events] == ["front.a-2"]

        await until(only_the_young_one)


async def test_r63_serve_says_that_its_redis_may_throw_streams_away(
    valkey: EmbeddedValkey, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = {"backend": "openai", "model": "none", "base_url": "http://127.0.0.1:1/v1"}
    client = sync_client(valkey.url)
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        async with running(config("none", tmp_path, valkey.url, engine=engine), cameras=True):

            async def said() -> bool:
                return "maxmemory-policy of Redis is allkeys-lru" in caplog.text

            await until(said)
    finally:
        client.config_set("maxmemory-policy", "volatile-ttl")
        client.close()
