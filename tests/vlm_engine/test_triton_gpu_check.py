"""``benchmarks/gpu_check.sh`` works, as far as a machine without a GPU can tell: tiny shapes in the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_check

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = ("kernels", "golden", "attention", "steps", "encoder")

pytest.importorskip("triton", reason="Triton is for Linux only")


def test_every_section_runs_and_finds_nothing_wrong(tmp_path):
    environment = os.environ | {"OUT": str(tmp_path), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    environment.pop("TRITON_INTERPRET", None)
    command = ["bash", "benchmarks/gpu_check.sh", "--device", "cpu"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    report = json.loads((tmp_path / "gpu_check_smoke.json").read_text())
    assert report["machine"]["figures"] is False
    for name in SECTIONS:
        assert report[name]["failures"] == report[name]["skipped"] == [], report[name]
    assert report["kernels"]["results"]["cases_passed"] == 3
    assert any("triton" in what for what in report["golden"]["results"]["compared"])
    assert len(report["attention"]["results"]["times"]) == 2
    assert report["encoder"]["results"]["times"]["packs_of_1_ms"] > 0
    assert {step["backend"] for step in report["steps"]["results"]["steps"]} == {"triton", "torch"}


@pytest.mark.parametrize(
    ("script", "why"),
    [("exit 3", "golden: ended with status 3"), ("exec sleep 60", "golden: ended with status 124, out of time")],
)
def test_a_section_that_dies_or_hangs_is_a_failure_and_not_silence(tmp_path, monkeypatch, script, why):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(gpu_check.sys, "executable", str(python))
    monkeypatch.setattr(gpu_check, "BUDGETS", {"golden": 0.2})
    monkeypatch.setattr(gpu_check, "GRACE", 0.2)
    assert gpu_check._spawn(["golden"], "cpu")["golden"]["failures"] == [why]


def test_the_whole_check_ends_within_six_minutes():
    assert sum(budget + gpu_check.GRACE for budget in gpu_check.BUDGETS.values()) < 360
