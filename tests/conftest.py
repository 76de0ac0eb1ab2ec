"""Fixtures that several test folders share."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests import checkpoints

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("YOLO_OFFLINE", "true")
os.environ.setdefault("YOLO_AUTOINSTALL", "false")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with real weights, videos and processors; skips where it is absent."""
    if not checkpoints.SHARED.is_dir():
        pytest.skip(f"needs the folder {checkpoints.SHARED.name} of shared test material beside the repository")
    return checkpoints.SHARED


@pytest.fixture(scope="session")
def checkpoint(shared_data: Path, tmp_path_factory: pytest.TempPathFactory):
    """``checkpoint(kind)`` -> folder of a tiny random checkpoint, built once per session."""
    built: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in built:
            built[kind] = checkpoints.build(kind, tmp_path_factory.mktemp("checkpoint") / kind)
        return built[kind]

    return get


@pytest.fixture(scope="session")
def tiny_smolvlm(checkpoint) -> Path:
    """A tiny SmolVLM."""
    return checkpoint("smolvlm")


GOLDEN = pytest.StashKey[dict[str, tuple[int, int]]]()
"""Tokens compared and ties met by tests/golden in this process."""
_counts: list[tuple[int, int]] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of pytest-xdist ends."""
    _counts.append(getattr(node, "workeroutput", {}).get("golden", (0, 0)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = [*_counts, *config.stash.get(GOLDEN, {}).values()]
    tokens, ties = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    if tokens:
        terminalreporter.write_line(
            f"golden: {tokens:,} tokens compared with transformers.generate, {ties} ties among them"
        )


@pytest.fixture
def free_port() -> int:
    """A port on which nobody listens for now."""
    with socket.create_server(("127.0.0.1", 0)) as placeholder:
        return int(placeholder.getsockname()[1])
