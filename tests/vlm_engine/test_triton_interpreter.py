"""Runs ``triton_cases.py`` through Triton's interpreter: the kernels' logic, checked on the CPU in every test run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(600)
def test_the_kernels_in_the_interpreter():
    pytest.importorskip("triton", reason="Triton is for Linux only")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/vlm_engine/triton_cases.py"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed and int(passed[1]) >= 30, f"hardly anything ran: {result.stdout}"
