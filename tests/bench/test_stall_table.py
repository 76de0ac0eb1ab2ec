"""Which measurements run, what is kept, and what the table claims."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import httpx
import pytest

from benchmarks import servers, stall_table
from benchmarks.servers import ServerError, ServerSpec, running
from benchmarks.stall_report import limits, markdown, summarise
from benchmarks.stall_table import choose, main, scenarios, with_target
from tests.cli.helpers import alive, until


def document(key: str, *, p99=50.0, largest=90.0, tokens=40.0, encoder=1.0, within=0.97, unfinished=0) -> dict:
    """A result as the benchmark writes it, in the fields that the table reads."""
    gap = {"p50": 20.0, "p90": 30.0, "p99": p99, "max": largest}
    quarter = {"p50": 1.0, "p90": 2.0, "p99": 2.0, "max": 2.0}
    load = {"sent": 4, "completed": 4 - unfinished, "unfinished": unfinished, "failed": 0, "completed_per_s": 0.1}
    steps = {
        "share_within": {"1.5x": 0.5, "2x": 0.9, "4x": 1.0, "target": within},
        "prediction": {"step": {"median": 1.0, "p95": 1.4}},
    }
    found = {
        "settings": {"seconds": 40.0},
        "server": {"settings": {"dtype": "bfloat16"}},
        "scenario": {"key": key, "title": f"the case {key}", "server": "watchword"},
        "phases": [
            {"gap_ms": gap | {"p99": 25.0}, "tokens_per_s": 80.0},
            {"gap_ms": gap, "tokens_per_s": tokens, "load": load | {"ttft_s": quarter, "e2e_s": quarter}},
        ],
        "compared": {"p99_gap_over_p99_alone": p99 / 25.0, "max_gap_over_p99_alone": largest / 25.0},
        "machine": {"cpu": "a processor", "cores": 2, "torch": "2.0"},
    }
    if key.startswith("ours"):
        encoder_use = {"busy_s_per_picture": encoder}
        found["engine"] = {"decode_only_ms": 21.0, "target_ms": 42.0, "beside the load": steps, "encoder": encoder_use}
    return found


def met(results: dict) -> dict[str, bool | None]:
    return {limit["what"]: limit["met"] for limit in limits(results)}


def test_what_has_a_result_is_not_measured_again_unless_named(tmp_path: Path) -> None:
    (tmp_path / "ours-split.json").write_text("{}")
    missing = [scenario.key for scenario in choose(scenarios(), None, tmp_path)]
    assert "ours-split" not in missing and len(missing) == len(scenarios()) - 1
    named = choose(scenarios(), "vllm-split, ours-split", tmp_path)
    assert [scenario.key for scenario in named] == ["ours-split", "vllm-split"]
    with pytest.raises(SystemExit, match="ours-splitt"):
        choose(scenarios(), "ours-splitt", tmp_path)


def test_every_server_gets_the_same_load_and_no_server_the_same_twice() -> None:
    by_load: dict[object, set[int]] = {}
    for scenario in scenarios():
        by_load.setdefault(scenario.load, set()).add(scenario.seed)
    assert all(len(seeds) == 1 for seeds in by_load.values())
    assert len({next(iter(seeds)) for seeds in by_load.values()}) == len(by_load)


def test_a_target_is_a_multiple_of_the_measured_decode_only_step(tmp_path: Path) -> None:
    scenario = next(scenario for scenario in scenarios() if scenario.key == "ours-target-4x")
    with pytest.raises(ServerError, match="ours-split"):
        with_target(scenario, tmp_path)
    (tmp_path / "ours-split.json").write_text(json.dumps(document("ours-split")))
    assert with_target(scenario, tmp_path).engine == {"target_itl_ms": 84.0}


def test_limits_are_met_or_not_by_the_numbers() -> None:
    good = {key: document(key) for key in ("ours-split", "ours-split-unsliced", "ours-target-2x")}
    good["vllm-split"] = document("vllm-split", tokens=20.0)
    found = met(good)
    assert found["split: p99 gap over p99 alone, at most"] is True
    assert found["split: largest gap over p99 alone, at most"] is True
    assert found["split: prompts unfinished or failed"] is True
    assert found["split: chat tokens/s over vLLM-CPU's, at least"] is True
    assert found["split: encoder seconds per picture, sliced over unsliced, at most"] is True
    assert found["target 2x: share of steps within it, at least"] is True
    assert found["target 4x: share of steps within it, at least"] is None
    assert found["text-6000: p99 gap over p99 alone, at most"] is None


def test_limits_that_are_missed_are_said_to_be() -> None:
    bad = {
        "ours-split": document("ours-split", p99=50.1, largest=100.1, encoder=1.2, unfinished=1),
        "ours-split-unsliced": document("ours-split-unsliced"),
        "vllm-split": document("vllm-split", tokens=20.1),
        "ours-target-2x": document("ours-target-2x", within=0.94),
    }
    assert {what for what, value in met(bad).items() if value is False} == {
        "split: p99 gap over p99 alone, at most",
        "split: largest gap over p99 alone, at most",
        "split: prompts unfinished or failed",
        "split: chat tokens/s over vLLM-CPU's, at least",
        "split: encoder seconds per picture, sliced over unsliced, at most",
        "target 2x: share of steps within it, at least",
    }


def test_the_table_has_a_row_a_result_and_names_what_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "stall"
    folder.mkdir()
    for key in ("ours-split", "vllm-split"):
        (folder / f"{key}.json").write_text(json.dumps(document(key)))
    assert main(["--table", "--out-dir", str(tmp_path)]) == 0
    table = json.loads((tmp_path / "stall_table.json").read_text())
    assert [row["key"] for row in table["rows"]] == ["ours-split", "vllm-split"]
    text = (tmp_path / "stall_table.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert len(rows) == 2 and "(stall/ours-split.png)" in rows[0] and "20 / 50 / 90, 40" in rows[0]
    assert all(row.count("|") == 12 for row in rows)
    assert "not measured" in text and "a processor, 2 cores" in text


def test_a_table_of_nothing_says_so() -> None:
    assert "Nothing is measured yet." in markdown(summarise({}), "stall")


def test_without_its_server_a_measurement_fails_and_the_others_go_on(tmp_path: Path, capsys) -> None:
    arguments = ["--only", "ours-target-2x,vllm-split", "--out-dir", str(tmp_path), "--model", "m"]
    assert main(arguments) == 1
    said = capsys.readouterr().out
    assert "needs the decode-only step" in said and "--vllm-python" in said
    assert "not measured: ours-target-2x, vllm-split" in said


SERVER = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_is_ready_when_it_says_so_and_leaves_no_process_behind(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(ServerSpec("x", (sys.executable, "-c", SERVER, "{port}")), log) as server:
        assert httpx.get(server.base_url.removesuffix("/v1") + "/health").status_code == 200
        child = int(log.read_text().split()[1])
        assert Path(f"/proc/{child}").exists()
    until(lambda: not alive(child))


def test_a_server_that_ends_tells_its_last_words(tmp_path: Path) -> None:
    spec = ServerSpec("x", (sys.executable, "-c", "import sys; sys.exit('no such model')"))
    with pytest.raises(ServerError, match="exit code 1:\nno such model"), running(spec, tmp_path / "log"):
        pass


def test_our_server_is_started_with_the_scenarios_engine_section(tmp_path: Path) -> None:
    spec = servers.watchword_server("DIR", {"encoder_slicing": False, "dtype": "bfloat16"}, tmp_path)
    written = json.loads((tmp_path / "watchword.yaml").read_text())
    assert written == {
        "engine": {"model": "DIR", "served_model_name": "m", "encoder_slicing": False, "dtype": "bfloat16"}
    }
    assert spec.argv[-6:-2] == ("serve", "--no-cameras", "--config", str(tmp_path / "watchword.yaml"))
    assert spec.ready_path == "/health/ready"


def test_the_list_names_all(capsys) -> None:
    assert main(["--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [scenario.key for scenario in stall_table.scenarios()]
