"""`watchword events prune`, run as a command on a real store."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.config.engine import StoreConfig
from pipeline.store import EventStore
from tests.pipeline.test_retention import add, age_file

DAY = 86_400.0


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    config = tmp_path / "watchword.yaml"
    config.write_text(f"store:\n  data_dir: {tmp_path / 'data'}\nretention:\n  days: 30\n  labels: {{dog: 400}}\n")
    command = [sys.executable, "-m", "pipeline.cli", "events", "prune", "--config", str(config), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two old people, one young one, one old dog and a stray file."""
    store = EventStore(StoreConfig(data_dir=tmp_path / "data"))
    ago = (time.time() - 1_764_435_336.5) / DAY  # the helper counts from a day of its own
    for number, days, label in ((1, 40, "person"), (2, 50, "person"), (3, 1, "person"), (4, 300, "dog")):
        add(store, number, days=days - ago, label=label)
    store.close()
    stray = tmp_path / "data" / "crops" / "00" / f"{'0' * 64}.jpg"
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"x")
    age_file(stray)
    return tmp_path / "data"


def counts(data: Path) -> tuple[int, int]:
    with sqlite3.connect(data / "watchword.db") as connection:
        (events,) = connection.execute("SELECT count(*) FROM events").fetchone()
    return events, len(list(data.rglob("*.jpg")))


def test_a_dry_run_says_what_would_go_and_deletes_nothing_then_it_goes(tmp_path: Path, data: Path) -> None:
    dry = run(tmp_path, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "person" in dry.stdout and "age" in dry.stdout and "dog" not in dry.stdout
    assert "would delete 2 events and 1 stray files; nothing was deleted" in dry.stdout
    assert counts(data) == (4, 5)

    real = run(tmp_path)
    assert real.returncode == 0, real.stderr
    assert "deleted 2 events and 1 stray files" in real.stdout
    assert counts(data) == (2, 2)

    shorter = run(tmp_path, "--days", "0.5")
    assert "deleted 1 events" in shorter.stdout and counts(data) == (1, 1), "the dog's own limit stands"


def test_without_a_store_it_says_so_and_makes_none(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.returncode == 2 and "there are no events in" in result.stderr
    assert not (tmp_path / "data").exists()


def test_a_newer_database_is_refused_without_a_traceback(tmp_path: Path, data: Path) -> None:
    with sqlite3.connect(data / "watchword.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0999'")
    result = run(tmp_path)
    assert result.returncode == 2
    assert "schema version 0999" in result.stderr and "Traceback" not in result.stderr
    assert counts(data) == (4, 5)
