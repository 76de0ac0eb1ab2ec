"""The kernels compile ahead of time for sm_90, sm_89 and sm_87 without a GPU, and never spill."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "benchmarks" / "results" / "triton_resources.json"
SHARED_LIMIT = {90: 227 * 1024, 89: 99 * 1024, 87: 163 * 1024}

pytest.importorskip("triton", reason="Triton is for Linux only")


@pytest.fixture(scope="module")
def sample():
    """A few variants, compiled now, in a process without the interpreter."""
    command = [sys.executable, "benchmarks/triton_resources.py", "--sample"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode in (0, 1), result.stderr
    return json.loads(result.stdout)


def records(report):
    """Each row as a dict."""
    return [dict(zip(report["columns"], row, strict=True)) for row in report["rows"]]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="Triton's tools are for x86-64 and Arm64")
def test_nothing_compiled_now_spills_or_takes_too_much_shared_memory(sample):
    compiled = records(sample)
    assert {(r["target"], r["kernel"]) for r in compiled} >= {
        (90, "attend"),
        (89, "attend"),
        (87, "attend"),
        (90, "join_splits"),
        (90, "write_kv"),
    }
    for record in compiled:
        assert record["stack"] == record["local"] == 0, record
        assert record["shared"] <= SHARED_LIMIT[record["target"]], record
        assert 0 < record["registers"] <= 255, record


def test_the_record_is_of_these_kernels_and_of_every_variant_and_free_of_spills(sample):
    record = json.loads(RECORD.read_text())
    assert record["kernels"] == sample["kernels"], "the kernels have changed: run benchmarks/triton_resources.py"
    rows = records(record)
    for dtype in ("bf16", "fp16"):
        for head_dim in (64, 80, 96, 128):
            for group in (1, 2, 3, 4, 7):
                wanted = {"kernel": "attend", "dtype": dtype, "head_dim": head_dim, "group": group}
                found = [r for r in rows if wanted.items() <= r.items()]
                assert {r["target"] for r in found} == {90, 89, 87} and len({r["rows"] for r in found}) >= 2, wanted
    assert all(r["stack"] == r["local"] == 0 for r in rows), [r for r in rows if r["stack"] or r["local"]]
    assert all(r["shared"] <= SHARED_LIMIT[r["target"]] for r in rows)
    if record["triton"] == sample["triton"]:
        known = {tuple(row) for row in record["rows"]}
        assert all(tuple(row) in known for row in sample["rows"]), "run benchmarks/triton_resources.py"
