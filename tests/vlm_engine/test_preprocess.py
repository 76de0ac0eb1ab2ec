"""What a hostile picture may cost: its own request, bounded memory and processor time, never a neighbour."""

from __future__ import annotations

import asyncio
import os

import pytest
from PIL import Image

from tests.golden.harness import user
from tests.hostile_pictures import encoded, many_scans
from vlm_engine import ConfigError, EngineConfig, InvalidRequestError, VLMEngine
from vlm_engine.worker_process import OOM_SCORE

MEMORY = 320 * 1024**2
CPU_S = 2


@pytest.fixture(scope="module")
def engine(checkpoint):
    knobs = dict(preprocess_memory=MEMORY, preprocess_cpu_s=CPU_S, preprocess_workers=1, max_pixels=50_000_000)
    model = str(checkpoint("smolvlm"))
    engine = VLMEngine(EngineConfig(model=model, dtype="float32", device="cpu", kv_cache_memory=1 << 24, **knobs))
    engine.start()
    yield engine
    engine.shutdown()


@pytest.fixture
def pool(engine):
    return engine._pool


async def process(engine, picture: bytes):
    """Its tensors."""
    [image] = (await engine.prepare(user(picture, "What?"))).images
    return image.inputs


def small(number: int = 0) -> bytes:
    return encoded(Image.new("RGB", (40, 40), (number, 0, 0)))


async def test_a_picture_that_takes_more_memory_than_a_worker_may_have_is_refused_and_the_worker_lives(engine, pool):
    [before] = pool.worker_pids
    big = encoded(Image.new("LA", (7000, 7000)))  # 100 kB on the wire, half a gigabyte while alpha goes onto white
    neighbour = asyncio.create_task(process(engine, small(1)))
    with pytest.raises(InvalidRequestError, match=rf"more memory .*preprocess_memory is {MEMORY} bytes") as refused:
        await process(engine, big)
    assert refused.value.code == "image_too_expensive"
    assert await neighbour
    assert await process(engine, small(2))
    assert pool.worker_pids == [before]


async def test_a_picture_that_takes_too_much_processor_time_is_refused_and_its_neighbours_are_served(engine, pool):
    """A progressive JPEG may repeat its scans without end; the decoder goes over the whole picture for each."""
    [before] = pool.worker_pids
    neighbours = [asyncio.create_task(process(engine, small(3 + i))) for i in range(2)]
    with pytest.raises(InvalidRequestError, match=f"preprocess_cpu_s is {CPU_S} s"):
        await process(engine, many_scans(side=2000, scans=10_000))
    assert all(await asyncio.gather(*neighbours))
    assert await process(engine, small(9))
    assert pool.worker_pids != [before]


async def test_processor_time_is_counted_for_each_picture_alone(engine, pool):
    [pid] = pool.worker_pids
    picture = encoded(Image.effect_noise((900, 900), 80).convert("RGB"), "JPEG")
    end = cpu_seconds(pid) + CPU_S + 1
    while cpu_seconds(pid) < end:
        assert await process(engine, picture)
    assert pool.worker_pids == [pid]


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_the_kernel_would_end_a_worker_before_the_engine(engine, pool):
    [pid] = pool.worker_pids
    with open(f"/proc/{pid}/oom_score_adj") as file:
        assert int(file.read()) == OOM_SCORE
    assert os.getpriority(os.PRIO_PROCESS, pid) >= os.getpriority(os.PRIO_PROCESS, 0)


async def test_who_leaves_is_taken_out_of_the_queue(engine, pool):
    waiting = [asyncio.create_task(process(engine, small(i))) for i in range(40)]
    await asyncio.sleep(0)
    for task in waiting[1:]:
        task.cancel()
    await asyncio.wait(waiting)
    assert engine.metrics.value("preprocess_queue_depth") == 0
    assert await process(engine, small(99))


def test_limits_are_checked_and_follow_the_pixel_cap():
    assert EngineConfig(model="x", max_pixels=1000).preprocess_memory_bytes == 512 * 1024**2 + 32_000
    assert EngineConfig(model="x", preprocess_memory=1 << 30).preprocess_memory_bytes == 1 << 30
    with pytest.raises(ConfigError, match="preprocess_memory is 5, allowed are 67108864"):
        EngineConfig(model="x", preprocess_memory=5)
    with pytest.raises(ConfigError, match="preprocess_cpu_s is 0"):
        EngineConfig(model="x", preprocess_cpu_s=0)
