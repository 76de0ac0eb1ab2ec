"""What is recommended of measured points, and what the command refuses."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from pipeline.bench.tune import BUDGETS, QUICK_BUDGETS, TunePlan, prefill_chunks, prefix_reads, recommend, tune
from pipeline.bench.tune_picture import draw
from pipeline.cli.errors import UsageProblem
from pipeline.cli.tune import TuneOptions, make_plan
from tests.api.conftest import engine_config

USUAL = TuneOptions(False, None, None, 4, None, None, None)


def point(budget: int, target: float | None, p99: float | None, rate: float, pictures: float | None = None) -> dict:
    gap = {"p50": 20.0, "p90": 25.0, "p99": p99, "max": p99}
    texts = {"gap_ms": gap, "ttft_s": 1.0, "prompt_tokens_per_s": rate, "chat_tokens_per_s": 50.0, "prompts": 3}
    prefill = {"prompt_tokens": 1000, "ttft_s": 0.8, "tokens_per_s": 1250.0, "chunks": 4, "prefix_reads_per_token": 1.5}
    sweep = "max_num_batched_tokens" if target is None else "target_itl_ms"
    found = {"sweep": sweep, "max_num_batched_tokens": budget, "target_itl_ms": target, "beside_texts": texts}
    if target is None:
        found["prefill_alone"] = prefill
    if pictures is not None:
        found["beside_pictures"] = {"gap_ms": gap | {"p99": pictures}, "ttft_s": 2.0, "pictures_per_s": 0.1}
    return found


def chosen(points: list[dict], limit: float | None = None) -> tuple[int, float | None, bool]:
    found = recommend(points, 30.0, limit)
    return found["max_num_batched_tokens"], found["target_itl_ms"], found["within_limit"]


def test_the_most_prompt_tokens_within_the_limit_win() -> None:
    points = [point(128, None, 40.0, 300.0), point(512, None, 59.0, 500.0), point(2048, None, 600.0, 900.0)]
    assert chosen(points) == (512, None, True)  # twice 30 ms
    assert chosen(points, 45.0) == (128, None, True)
    assert chosen(points, 1000.0) == (2048, None, True)
    text = recommend(points, 30.0, None)["text"]
    assert text.startswith(
        "max_num_batched_tokens: 512, target_itl_ms: null  # p99 gap 59 ms of at most 60; 500 prompt"
    )
    assert "56 % of the most" in text


def test_where_nothing_keeps_the_limit_the_smallest_gap_is_taken_and_said_to_be_over() -> None:
    points = [point(128, None, 80.0, 300.0), point(512, None, 90.0, 500.0), point(64, None, None, 1.0)]
    assert chosen(points) == (128, None, False)
    assert "no point keeps 60" in recommend(points, 30.0, None)["text"]


def test_a_model_with_pictures_gets_what_was_measured_with_pictures() -> None:
    points = [
        point(512, None, 40.0, 900.0),
        point(2048, 40.0, 45.0, 300.0, 50.0),
        point(2048, 80.0, 55.0, 400.0, 200.0),
    ]
    assert chosen(points) == (2048, 40.0, True)  # the third's pictures stall the chats


def test_small_chunks_read_their_prefix_again() -> None:
    steps = [{"prefill_tokens": tokens} for tokens in (90, 256, 0, 256, 256, 232, 0)]
    assert prefill_chunks(steps, 1000) == [256, 256, 256, 232]  # the 90 belong to a prompt before
    assert prefix_reads([256, 256, 256, 232]) == 256 + 512 + 768
    assert prefix_reads([1000]) == prefix_reads([]) == 0


@pytest.mark.parametrize("pictures", [None, 50.0])
def test_the_picture_shows_models_with_and_without_pictures(tmp_path: Path, pictures: float | None) -> None:
    points = [point(128, None, 40.0, 300.0), point(512, None, None, 0.1), point(2048, 40.0, 45.0, 300.0, pictures)]
    document = {
        "model": "m",
        "plan": {"streams": 4},
        "chats_alone": {"gap_ms": {"p99": 30.0}},
        "points": points,
        "recommendation": recommend(points, 30.0, None),
    }
    draw(document, tmp_path / "tune.png")
    with Image.open(tmp_path / "tune.png") as picture:
        assert picture.format == "PNG" and picture.height > 800


def test_options_become_a_plan() -> None:
    assert make_plan(USUAL).budgets == BUDGETS
    quick = make_plan(TuneOptions(True, None, "2,6", 2, None, 64, None))
    assert (quick.budgets, quick.multiples, quick.streams, quick.prompt_tokens) == (QUICK_BUDGETS, [2.0, 6.0], 2, 64)
    assert quick.seconds < make_plan(USUAL).seconds
    assert make_plan(TuneOptions(False, "512,128,512", None, 4, None, None, None)).budgets == [128, 512]
    for wrong in ("a,b", "8,512", ","):
        with pytest.raises(UsageProblem, match="--budgets"):
            make_plan(TuneOptions(False, wrong, None, 4, None, None, None))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline.cli", *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("WATCHWORD_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environ)


def test_what_can_not_be_measured_is_refused_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "remote.yaml").write_text("engine: {backend: openai, base_url: 'http://127.0.0.1:9/v1', model: x}")
    cases = {
        ("tune", "--out", str(tmp_path / "t.png")): "no model is configured",
        ("tune", "--config", str(tmp_path / "remote.yaml"), "--out", str(tmp_path / "t.png")): "backend is openai",
        ("tune", "--model", str(tmp_path / "none"), "--out", str(tmp_path / "t.png")): "there is no such folder",
        ("tune", "--model", "x", "--out", str(tmp_path / "no" / "t.png")): "there is no folder",
        ("bench", "stall", "--load", "rain", "--out", str(tmp_path / "s.json")): "load is 'rain', allowed are cameras",
        (
            "bench",
            "stall",
            "--base-url",
            "http://127.0.0.1:9/v1",
            "--out",
            str(tmp_path / "s.json"),
        ): "can't be reached",
    }
    for arguments, reason in cases.items():
        result = run(*arguments)
        assert result.returncode == 2 and reason in result.stderr, (arguments, result.stderr)
        assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["remote.yaml"]


def test_the_benchmark_from_a_checkout_is_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.stall", "--load", "rain"], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 2 and "load is 'rain'" in result.stderr and "Traceback" not in result.stderr


async def test_tuning_finds_each_points_price(checkpoint) -> None:
    said: list[tuple[str, float]] = []
    plan = TunePlan(
        (64, 512), (3.0,), streams=2, chat_tokens=32, seconds=0.7, drain_s=60.0, prompt_tokens=600, limit_ms=1e6
    )
    config = engine_config(checkpoint("text"))
    document = await tune(config, plan, lambda text, done=None: said.append((text, done)))
    small, large, target = document["points"]
    assert [done for _, done in said] == [0, 0.25, 0.5, 0.75] and "max_num_batched_tokens: 64" in said[1][0]
    assert (small["max_num_batched_tokens"], small["target_itl_ms"]) == (64, None)
    assert target["target_itl_ms"] == pytest.approx(3 * document["chats_alone"]["decode_only_ms"], abs=0.1)
    # Chunks of 64 read what is before them again and again; one of 512 leaves a rest that reads 512 once.
    tokens = small["prefill_alone"]["prompt_tokens"]
    assert abs(tokens - 600) <= 20
    assert small["prefill_alone"]["chunks"] == math.ceil(tokens / 64) and large["prefill_alone"]["chunks"] == 2
    reads = sum(64 * number for number in range(small["prefill_alone"]["chunks"]))
    assert small["prefill_alone"]["prefix_reads_per_token"] == round(reads / tokens, 2)
    assert large["prefill_alone"]["prefix_reads_per_token"] == round(512 / tokens, 2)
    assert all(point["beside_texts"]["prompts"] > 0 for point in document["points"])
    rates = [point["beside_texts"]["prompt_tokens_per_s"] for point in document["points"]]
    best = document["points"][rates.index(max(rates))]
    chosen = document["recommendation"]
    assert chosen["within_limit"] and chosen["max_num_batched_tokens"] == best["max_num_batched_tokens"]
    assert chosen["target_itl_ms"] == best["target_itl_ms"]
