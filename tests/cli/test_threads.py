"""Threads at a barrier sleep soon, so that a busy machine stays usable; whoever sets it otherwise is heard."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pipeline.cli.threads import SPINS

LOAD = """
import sys
from pipeline.cli import app
sys.argv = ["watchword", "models", "list"]
try:
    app.run()
finally:
    import torch
"""


@pytest.mark.parametrize(
    ("environ", "spins"),
    [({}, str(SPINS)), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "passive"}, "0")],
)
def test_openmp_reads_what_the_command_line_sets(environ, spins):
    """OpenMP itself says what it has read, when torch loads it after a command has begun."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    asked = kept | environ | {"OMP_DISPLAY_ENV": "VERBOSE"}
    done = subprocess.run([sys.executable, "-c", LOAD], env=asked, capture_output=True, text=True, timeout=120)
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr
