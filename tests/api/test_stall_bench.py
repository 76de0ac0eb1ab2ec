"""Short real measurements against a real server and a real engine, on a tiny checkpoint: facts, not times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from pipeline.bench.stall import StallSettings, load_named, run
from tests.api.live_server import LiveServer

SHORT = {"streams": 2, "chat_tokens": 16, "seconds": 1.0, "drain_s": 60.0, "warm_up_s": 0.5}


def counters(server: LiveServer) -> dict[str, float]:
    families = text_string_to_metric_families(httpx.get(server.url + "/metrics").text)
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "pipeline.cli", *arguments]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    return subprocess.run(run, capture_output=True, text=True, timeout=200, check=False, env=environ)


def test_the_command_measures_cameras_and_writes_numbers_and_a_picture(server: LiveServer, tmp_path: Path) -> None:
    out, before = tmp_path / "stall.json", counters(server)
    options = ["--streams", "2", "--chat-tokens", "16", "--seconds", "1.5", "--one-tile", "--rate", "2"]
    result = command(
        "bench", "stall", "--base-url", f"{server.url}/v1", *options, "--target-ms", "50", "--out", str(out)
    )
    assert result.returncode == 0, result.stderr
    assert "beside the load: gap p50 / p90 / p99 / max" in result.stdout and "Traceback" not in result.stderr
    document = json.loads(out.read_text())
    assert document["server"]["ours"] is True
    assert document["server"]["extras_refused"] == []
    alone, beside = document["phases"]
    assert "load" not in alone and alone["gaps"] > 0 and alone["tokens_per_s"] > 0
    load = beside["load"]
    assert load["sent"] == load["completed"] == 3 and document["compared"]["every_prompt_finished"] is True
    assert load["prompt_tokens_p50"] < 150  # one tile of 64 tokens and the words, not ten tiles
    engine = document["engine"]
    assert engine["decode_only_ms"] > 0 and engine["alone"]["with_decodes"] > 0
    assert set(engine["beside the load"]["share_within"]) == {"1.5x", "2x", "4x", "target", "allowed"}
    assert engine["encoder"]["pictures"] == 3 and engine["encoder"]["busy_s"] > 0
    # Nothing that was asked was known already. The warm-up's picture is one more, the question about tiles another.
    after = counters(server)
    assert after["watchword_encoder_cache_hits_total"] == before["watchword_encoder_cache_hits_total"]
    assert after["watchword_encoder_items_total"] - before["watchword_encoder_items_total"] == 3 + 2
    with Image.open(out.with_suffix(".png")) as picture:
        assert picture.format == "PNG" and picture.width > 800


def test_texts_have_the_tokens_that_were_asked_for(server: LiveServer) -> None:
    load = load_named("one-text", rate=1, one_tile=False, prompt_tokens=700, every_s=1)
    document = run(f"{server.url}/v1", load, StallSettings(**SHORT)).document
    found = document["phases"][1]["load"]
    assert found["completed"] == 1 and abs(found["prompt_tokens_p50"] - 700) <= 20
    assert document["engine"]["encoder"]["pictures"] == 0
    # The whole prompt was computed between the chats' tokens.
    assert document["engine"]["beside the load"]["count"] > 0 and document["engine"]["steps_lost"] is False


def test_a_load_that_can_not_be_served_is_told_before_anything_is_measured(server: LiveServer) -> None:
    from pipeline.bench.endpoint import EndpointError

    load = load_named("one-text", rate=1, one_tile=False, prompt_tokens=700, every_s=1)
    with pytest.raises(EndpointError, match="nobody"):
        run(f"{server.url}/v1", load, StallSettings(**SHORT), model="nobody")
