"""What a hostile picture may cost: its own request, bounded memory and processor time, never a neighbour."""

from __future__ import annotations

import asyncio
import os

import pytest
from PIL import Image

from tests.hostile_pictures import encoded, many_scans
from vlm_engine import ConfigError, EngineConfig, InvalidRequestError
from vlm_engine.metrics import EngineMetrics
from vlm_engine.preprocess import ImageProcessorPool
from vlm_engine.worker_process import OOM_SCORE, WorkerLimits

MEMORY = 320 * 1024**2


@pytest.fixture(scope="module")
def pool(checkpoint):
    limits = WorkerLimits(MEMORY, cpu_s=3)
    pool = ImageProcessorPool(str(checkpoint("smolvlm")), None, 1, 50_000_000, limits, EngineMetrics())
    pool.warm_up()
    yield pool
    pool.shutdown()


def small(number: int = 0) -> bytes:
    return encoded(Image.new("RGB", (40, 40), (number, 0, 0)))


async def test_a_picture_that_takes_more_memory_than_a_worker_may_have_is_refused_and_the_worker_lives(pool):
    [before] = pool.worker_pids
    big = encoded(Image.new("LA", (7000, 7000)))  # 100 kB on the wire, half a gigabyte while alpha goes onto white
    neighbour = asyncio.create_task(pool.process(small(1), {}))
    with pytest.raises(InvalidRequestError, match=rf"more memory .*preprocess_memory is {MEMORY} bytes") as refused:
        await pool.process(big, {})
    assert refused.value.code == "image_too_expensive"
    assert (await neighbour).token_ids
    assert (await pool.process(small(2), {})).token_ids
    assert pool.worker_pids == [before]


async def test_a_picture_that_takes_too_much_processor_time_is_refused_and_its_neighbours_are_served(pool):
    """A progressive JPEG may repeat its scans without end; the decoder goes over the whole picture for each."""
    [before] = pool.worker_pids
    neighbours = [asyncio.create_task(pool.process(small(3 + i), {})) for i in range(2)]
    with pytest.raises(InvalidRequestError, match="preprocess_cpu_s is 3 s"):
        await pool.process(many_scans(side=2000, scans=10_000), {})
    assert all(picture.token_ids for picture in await asyncio.gather(*neighbours))
    assert (await pool.process(small(9), {})).token_ids
    assert pool.worker_pids != [before]


async def test_processor_time_is_counted_for_each_picture_alone(pool):
    for number in range(12):
        await pool.process(encoded(Image.effect_noise((1200, 1200), 80).convert("RGB")), {"do_image_splitting": True})
        assert (await pool.process(small(number), {})).token_ids


async def test_the_kernel_would_end_a_worker_before_the_engine(pool):
    [pid] = pool.worker_pids
    with open(f"/proc/{pid}/oom_score_adj") as file:
        assert int(file.read()) == OOM_SCORE
    assert os.getpriority(os.PRIO_PROCESS, pid) >= os.getpriority(os.PRIO_PROCESS, 0)


async def test_who_leaves_is_taken_out_of_the_queue(pool):
    waiting = [asyncio.create_task(pool.process(small(i), {})) for i in range(40)]
    await asyncio.sleep(0)
    for task in waiting[1:]:
        task.cancel()
    await asyncio.wait(waiting)
    assert pool._metrics.value("preprocess_queue_depth") == 0
    assert (await pool.process(small(99), {})).token_ids


def test_limits_are_checked_and_follow_the_pixel_cap():
    assert EngineConfig(model="x", max_pixels=1000).preprocess_memory_bytes == 512 * 1024**2 + 32_000
    assert EngineConfig(model="x", preprocess_memory=1 << 30).preprocess_memory_bytes == 1 << 30
    with pytest.raises(ConfigError, match="preprocess_memory is 5, allowed are 67108864"):
        EngineConfig(model="x", preprocess_memory=5)
    with pytest.raises(ConfigError, match="preprocess_cpu_s is 0"):
        EngineConfig(model="x", preprocess_cpu_s=0)
