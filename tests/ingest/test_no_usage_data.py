"""The libraries that run the detector would tell their makers that they are used, without having asked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ONLINE = """
import socket
socket.getaddrinfo = lambda *_, **__: []  # as if the internet were there
"""
LOADS = """
import multiprocessing, sys
forks = []
multiprocessing.Process.start = lambda self: forks.append(self)
from ingest.weights import prepare_ultralytics
prepare_ultralytics()
from ultralytics.utils.events import events
import openvino
openvino.Core()
from openvino.tools.ovc import telemetry
sender = getattr(telemetry, "sender", None)
if sender is not None:
    sender.executor.shutdown()
assert not forks, f"a process was made to send usage data from: {forks}"
assert type(telemetry).__module__ == "openvino.tools.ovc.telemetry_stub", type(telemetry).__module__
assert not events.enabled
assert "openvino_telemetry.main" not in sys.modules
"""
ASKED_FOR_BY = ("CI", "TF_BUILD", "JENKINS_URL", "GITHUB_ACTIONS", "PYTEST_CURRENT_TEST", "YOLO_OFFLINE")
"""With one of these set the libraries are quiet by themselves."""


TRAINS = """
import training.detector.train
from ultralytics.utils.events import events
assert not events.enabled
"""


@pytest.mark.parametrize("code", [LOADS, TRAINS], ids=["detector", "training"])
def test_neither_ultralytics_nor_openvino_sends_usage_data(tmp_path, code):
    pytest.importorskip("openvino", reason="needs the extra 'openvino'")
    environ = {name: value for name, value in os.environ.items() if name not in ASKED_FOR_BY}
    environ |= {"HOME": str(tmp_path), "YOLO_CONFIG_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ONLINE + code], env=environ, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "intel").exists(), "a file that identifies this machine was made"
