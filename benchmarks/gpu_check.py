"""Runs the sections of the GPU check.

Each section has a budget in seconds; what it could not get to is listed under "skipped", never passed over in silence.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = {"kernels": 90.0, "golden": 45.0, "attention": 80.0, "steps": 65.0, "encoder": 35.0}
"""Seconds of each section. A section is ended GRACE seconds after its budget: 355 s together at the very most."""
GRACE = 8.0


@dataclass
class Section:
    """What a section reports, and how long it has."""

    device: str
    deadline: float
    results: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def has_time(self, what: str, need: float = 4.0) -> bool:
        """Whether ``need`` seconds are left; notes what is skipped when they aren't."""
        if time.monotonic() + need < self.deadline:
            return True
        self.skipped.append(what)
        return False

    @property
    def on_gpu(self) -> bool:
        """False in the smoke mode on the CPU: tiny shapes, and timings that mean nothing."""
        return self.device != "cpu"


def main() -> int:
    """0 when nothing failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help='"cuda", "cuda:N", or "cpu" to try the script itself')
    parser.add_argument("--only", choices=BUDGETS, action="append", help="run this section (may be repeated)")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device: str = arguments.device
    names: list[str] = arguments.only or list(BUDGETS)
    if arguments.into:
        return _run_sections(names, device, arguments.into)
    started = time.monotonic()
    report: dict[str, Any] = {"machine": _machine(device)}
    # In the smoke mode nothing can break the device, and importing torch once is enough.
    for group in [[name] for name in names] if device != "cpu" else [names]:
        for name, written in _spawn(group, device).items():
            report[name] = written
            print(f"{name}: {written['seconds']:.0f} s, {len(written['failures'])} failures", flush=True)
        _write(report, device)
    report["seconds"] = round(time.monotonic() - started, 1)
    _write(report, device)
    failures = [line for name in names for line in report[name]["failures"]]
    print("\n".join(failures) or "everything passed")
    return int(bool(failures))


def _spawn(names: list[str], device: str) -> dict[str, Any]:
    """Runs sections in a process of their own: a fault on the device ends them, and nothing after them."""
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if device == "cpu" else {})
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "sections.json"
        command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", device, "--into", str(into)]
        command += [word for name in names for word in ("--only", name)]
        try:
            limit = sum(BUDGETS[name] for name in names) + GRACE
            code = subprocess.run(command, cwd=ROOT, env=environment, timeout=limit).returncode
        except subprocess.TimeoutExpired:
            code = 124
        written: dict[str, Any] = json.loads(into.read_text()) if into.exists() else {}
    for name in names:
        if name not in written:
            why = f"{name}: ended with status {code}" + (", out of time" if code == 124 else "")
            spent = round(time.monotonic() - started, 1)
            written[name] = {"results": {}, "failures": [why], "skipped": [], "seconds": spent}
    return written


def _run_sections(names: list[str], device: str, into: Path) -> int:
    written: dict[str, Any] = {}
    for name in names:
        started = time.monotonic()
        section = Section(device, started + BUDGETS[name])
        try:
            _section(name)(section)
        except Exception as error:  # What was found until then must not be lost.
            traceback.print_exc()
            section.failures.append(f"{name}: {type(error).__name__}: {error}")
        kept = {"results": section.results, "failures": section.failures, "skipped": section.skipped}
        written[name] = kept | {"seconds": round(time.monotonic() - started, 1)}
        into.write_text(json.dumps(written))
    return int(any(kept["failures"] for kept in written.values()))


def _section(name: str) -> Callable[[Section], None]:
    if name == "kernels":
        from benchmarks.gpu_check_kernels import run
    elif name == "attention":
        from benchmarks.gpu_check_attention import run
    elif name == "encoder":
        from benchmarks.gpu_check_encoder import run
    elif name == "golden":
        from benchmarks.gpu_check_engine import run_golden as run
    else:
        from benchmarks.gpu_check_engine import run_steps as run
    return run


def _machine(device: str) -> dict[str, Any]:
    import platform
    from importlib.metadata import version

    import torch

    about: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    about |= {name: version(name) for name in ("triton", "transformers")}
    about["figures"] = device != "cpu"
    if device != "cpu":
        properties = torch.cuda.get_device_properties(device)
        about |= {
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
        }
    return about


def _write(report: dict[str, Any], device: str) -> None:
    """Into $OUT or benchmarks/results; the smoke mode only into $OUT, lest its times pass for measurements."""
    folder = os.environ.get("OUT") or (str(ROOT / "benchmarks" / "results") if device != "cpu" else "")
    if folder:
        name = "gpu_check.json" if device != "cpu" else "gpu_check_smoke.json"
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
