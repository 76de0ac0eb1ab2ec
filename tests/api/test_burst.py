"""A burst of ten times what the server takes: 200s and 429s only, and whoever was running goes on."""

from __future__ import annotations

import argparse

import pytest

from api.services import Services
from benchmarks.burst import measure
from pipeline.config import WatchwordConfig
from tests.api.conftest import MODEL, engine_config
from tests.api.live_server import LiveServer
from tests.api.waiting import until
from vlm_engine.engine import VLMEngine

RUNNING, QUEUED, TIMES = 4, 6, 10


@pytest.fixture(scope="module")
def crowded(checkpoint):
    """A server that runs 4 requests and lets 6 wait."""
    engine = VLMEngine(engine_config(checkpoint("text"), max_num_seqs=RUNNING, max_queued_requests=QUEUED))
    engine.start()
    with LiveServer(Services(WatchwordConfig(), engine, None, None, MODEL)) as server:
        yield engine, server
    engine.shutdown()


async def test_a14_ten_times_the_capacity_at_once_is_answered_with_200_and_429_only(crowded):
    engine, server = crowded
    options = argparse.Namespace(
        base_url=f"{server.url}/v1", api_key="x", model=MODEL, capacity=RUNNING + QUEUED, times=TIMES,
        streams=2, tokens=200, burst_tokens=16, warm_up=0.2, seconds=0.5,
    )  # fmt: skip
    result = await measure(options)
    statuses = result["burst"]["statuses"]
    assert set(statuses) == {"200", "429"}
    assert sum(statuses.values()) == TIMES * (RUNNING + QUEUED)
    assert statuses["200"] >= RUNNING + QUEUED - options.streams
    assert result["gap_ms_burst"]["gaps"] > 0
    # Nothing is left once the streams were closed.
    until(lambda: not engine._core.has_work and server.app.state.limits.num_open == 0)
    engine._core.check_integrity()
