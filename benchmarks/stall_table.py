"""All stall measurements of this project, one after another, each with the server it needs, and one table of them.

    python -m benchmarks.stall_table --model DIR --vllm-python VENV/bin/python
    python -m benchmarks.stall_table --model DIR --only ours-split,ours-split-unsliced
    python -m benchmarks.stall_table --table          # only writes the table again

Every measurement's result is a file of its own (``stall/KEY.json`` and ``.png`` beside the table), so that what is
there already is not measured again; ``--only`` measures what it names, be it there or not. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.servers import RunningServer, ServerError, ServerSpec, running, vllm_cpu_server, watchword_server
from benchmarks.stall_report import markdown, summarise
from pipeline.bench.asks import CameraLoad, Load, TextLoad
from pipeline.bench.endpoint import EndpointError
from pipeline.bench.stall import StallSettings, run
from pipeline.cli.bench import lines, write_result

RESULTS = Path(__file__).parent / "results"
CONTEXT = 8192
SPLIT, ONE_TILE = CameraLoad(0.1), CameraLoad(0.5, one_tile=True)
TEXTS, LONG_TEXT = TextLoad(2000, 10.0), TextLoad(6000)


@dataclass(frozen=True)
class Scenario:
    """One measurement.

    Attributes:
        key: names its files.
        title: names its row.
        load: what the chats run beside.
        seed: equal for equal loads, so that every server gets the same; different within one server's life.
        server: "ours" or "vllm".
        engine: our configuration's section ``engine``.
        target_multiple: ``target_itl_ms`` is so many times a step that only decodes, as ``ours-split`` measured it.
    """

    key: str
    title: str
    load: Load
    seed: int
    server: str = "ours"
    engine: Mapping[str, Any] = field(default_factory=dict)
    target_multiple: float | None = None


def scenarios() -> list[Scenario]:
    """All of them, those that share a server together."""
    unsliced = {"encoder_slicing": False}
    return [
        Scenario("ours-split", "pictures split into tiles, 0.1/s", SPLIT, 1),
        Scenario("ours-one-tile", "pictures of one tile, 0.5/s", ONE_TILE, 2),
        Scenario("ours-text-2000", "text of 2,000 tokens every 10 s", TEXTS, 3),
        Scenario("ours-text-6000", "one text of 6,000 tokens", LONG_TEXT, 4),
        Scenario("ours-split-unsliced", "split pictures, slicing off", SPLIT, 1, engine=unsliced),
        Scenario("ours-one-tile-unsliced", "one tile, slicing off", ONE_TILE, 2, engine=unsliced),
        *(
            Scenario(f"ours-target-{m:g}x", f"split pictures, target {m:g}x", SPLIT, 1, target_multiple=m)
            for m in (1.5, 2.0, 4.0)
        ),
        Scenario("vllm-split", "pictures split into tiles, 0.1/s", SPLIT, 1, "vllm"),
        Scenario("vllm-one-tile", "pictures of one tile, 0.5/s", ONE_TILE, 2, "vllm"),
        Scenario("vllm-text-2000", "text of 2,000 tokens every 10 s", TEXTS, 3, "vllm"),
        Scenario("vllm-text-6000", "one text of 6,000 tokens", LONG_TEXT, 4, "vllm"),
    ]


def choose(everything: Sequence[Scenario], only: str | None, folder: Path) -> list[Scenario]:
    """What is to be measured now: what ``only`` names, else what has no result yet.

    Raises:
        SystemExit: a name is none of the scenarios'.
    """
    if only is None:
        return [scenario for scenario in everything if not (folder / f"{scenario.key}.json").exists()]
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = {scenario.key for scenario in everything}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"--only names {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [scenario for scenario in everything if scenario.key in names]


def with_target(scenario: Scenario, folder: Path) -> Scenario:
    """``target_itl_ms`` in milliseconds, where the scenario has it as a multiple.

    Raises:
        ServerError: the decode-only step is not measured yet.
    """
    if scenario.target_multiple is None:
        return scenario
    base = folder / "ours-split.json"
    decode_only = json.loads(base.read_text())["engine"]["decode_only_ms"] if base.exists() else None
    if decode_only is None:
        raise ServerError(f"{scenario.key} needs the decode-only step of ours-split; measure that first")
    target = round(scenario.target_multiple * decode_only, 1)
    return replace(scenario, engine={**scenario.engine, "target_itl_ms": target})


def measure_all(chosen: Sequence[Scenario], options: argparse.Namespace, folder: Path) -> list[str]:
    """Measures; a server is started once for scenarios in a row that want the same. Gives the keys that failed."""
    failed: list[str] = []
    for _, group in itertools.groupby(chosen, key=_server_key):
        wanted = list(group)
        try:
            # Targets are filled in here, and not before: ours-split may just have been measured.
            wanted = [with_target(scenario, folder) for scenario in wanted]
            with tempfile.TemporaryDirectory() as work:
                spec = _server_spec(wanted[0], options, Path(work))
                say(f"starting {spec.name} {json.dumps(spec.settings)}")
                with running(spec, (options.log_dir or Path(work)) / f"{spec.name}.log") as server:
                    failed += _measure_on(server, wanted, options, folder)
        except ServerError as error:
            say(str(error))
            failed += [scenario.key for scenario in wanted]
    return failed


def _measure_on(
    server: RunningServer, wanted: Sequence[Scenario], options: argparse.Namespace, folder: Path
) -> list[str]:
    failed = []
    for scenario in wanted:
        settings = StallSettings(
            streams=options.streams,
            seconds=options.seconds,
            drain_s=options.drain,
            seed=scenario.seed,
            target_ms=scenario.engine.get("target_itl_ms"),
        )
        say(f"{scenario.key}: {scenario.title}")
        try:
            result = run(server.base_url, scenario.load, settings, report=say)
        except EndpointError as error:
            say(f"{scenario.key} failed: {error}")
            failed.append(scenario.key)
            continue
        result.document["scenario"] = {"key": scenario.key, "title": scenario.title, "server": server.spec.name}
        result.document["server"] |= {
            "settings": dict(server.spec.settings),
            "start_s": server.start_s,
            "model": Path(options.model).name,
        }
        result.document["machine"] = machine()
        write_result(result, folder / f"{scenario.key}.json")
        for line in lines(result.document):
            say("  " + line)
    return failed


def _server_key(scenario: Scenario) -> tuple[str, str, float | None]:
    return scenario.server, json.dumps(scenario.engine, sort_keys=True), scenario.target_multiple


def _server_spec(scenario: Scenario, options: argparse.Namespace, work: Path) -> ServerSpec:
    if options.model is None:
        raise ServerError("which model? --model DIR")
    if scenario.server == "ours":
        engine = {"dtype": "bfloat16", "max_model_len": CONTEXT, **options.engine, **scenario.engine}
        return watchword_server(options.model, engine, work)
    if options.vllm_python is None:
        raise ServerError(f"{scenario.key} needs vLLM: --vllm-python VENV/bin/python")
    return vllm_cpu_server(options.vllm_python, options.model, CONTEXT)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass  # not Linux, or a processor without a name
    return {"cpu": model, "cores": os.cpu_count(), "torch": _version("torch"), "python": platform.python_version()}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_table(folder: Path, out: Path) -> None:
    """``stall_table.json`` and ``stall_table.md`` of all results that are there."""
    results = {
        scenario.key: json.loads(path.read_text())
        for scenario in scenarios()
        if (path := folder / f"{scenario.key}.json").exists()
    }
    table = summarise(results)
    out.with_suffix(".json").write_text(json.dumps(table, indent=1) + "\n")
    out.with_suffix(".md").write_text(markdown(table, folder.name))
    say(f"{len(results)} of {len(scenarios())} measurements in {out.with_suffix('.md')}")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="a checkpoint's folder")
    parser.add_argument("--vllm-python", help="Python of the environment that vLLM is installed in")
    parser.add_argument("--engine", type=json.loads, default={}, help="more of our section engine, as JSON")
    parser.add_argument("--only", help="keys, with commas: measure these, be they there or not")
    parser.add_argument("--list", action="store_true", help="print the keys and what they measure")
    parser.add_argument("--table", action="store_true", help="only write the table of what is there")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=40.0, help="length of a phase")
    parser.add_argument("--drain", type=float, default=60.0, help="seconds for prompts after the phase")
    parser.add_argument("--log-dir", type=Path, help="keep what the servers say here")
    parser.add_argument("--out-dir", type=Path, default=RESULTS, help="where the table goes; results in stall/ there")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all that was chosen is measured; 1: something failed."""
    options = parse(arguments)
    if options.list:
        for scenario in scenarios():
            print(f"{scenario.key:24}{scenario.title}")
        return 0
    folder = options.out_dir / "stall"
    folder.mkdir(parents=True, exist_ok=True)
    if options.log_dir is not None:
        options.log_dir.mkdir(parents=True, exist_ok=True)
    failed = [] if options.table else measure_all(choose(scenarios(), options.only, folder), options, folder)
    write_table(folder, options.out_dir / "stall_table")
    if failed:
        say(f"not measured: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
