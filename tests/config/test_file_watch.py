"""The configuration file as it changes under a running process."""

from __future__ import annotations

import os

import pytest

from pipeline import redaction
from pipeline.config.file_watch import ConfigFile
from pipeline.config.load import load_config

ONE = "cameras:\n  - id: door\n    url: rtsp://10.0.0.2/x\n"
TWO = ONE + "  - id: yard\n    url: rtsp://10.0.0.3/x\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "watchword.yaml"
    path.write_text(ONE)
    return ConfigFile(path, load_config(path))


def ids(file: ConfigFile) -> list[str]:
    return [camera.id for camera in file.config.cameras]


def settle(file: ConfigFile) -> bool:
    """Two looks: a file is read once it has stopped changing."""
    return any([file.poll(), file.poll()])


def test_nothing_is_read_while_nothing_changes(file, monkeypatch):
    monkeypatch.setattr("pipeline.config.file_watch.load_config", lambda path: pytest.fail("read"))
    assert not any(file.poll() for _ in range(5))


def test_a_change_is_taken_over_once_the_file_is_still(file):
    file.path.write_text(TWO)
    assert not file.poll(), "it may still be being written"
    assert file.poll()
    assert ids(file) == ["door", "yard"]
    assert not settle(file)


def test_a_file_that_is_put_in_place_of_the_other_is_seen(file, tmp_path):
    """As editors save: a new file, renamed; here of the same size and time."""
    new = tmp_path / "new"
    new.write_text(ONE.replace("door", "gate"))
    before = file.path.stat()
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(new, file.path)
    assert settle(file)
    assert ids(file) == ["gate"]


def test_a_file_that_is_away_for_a_moment_changes_nothing(file):
    file.path.unlink()
    assert not settle(file)
    file.path.write_text(TWO)
    assert settle(file)
    assert ids(file) == ["door", "yard"]


def test_a_wrong_file_keeps_the_cameras_and_says_the_line(file, caplog, monkeypatch):
    # Secrets of other tests in this process would hide parts of the text.
    monkeypatch.setattr(redaction, "_secrets", set())
    monkeypatch.setattr(redaction, "_secret_pattern", None)
    file.path.write_text(TWO + "    passwort: S3cret-word\n")
    assert not settle(file)
    assert ids(file) == ["door"]
    assert file.problem is not None
    assert "line 6: cameras[1].passwort: unknown key; did you mean 'password'?" in file.problem
    assert "line 6" in caplog.text
    assert not settle(file), "once is enough"
    assert caplog.text.count("line 6") == 1
    file.path.write_text(TWO)
    assert settle(file)
    assert file.problem is None


def test_half_a_file_is_not_taken_for_a_whole_one(file):
    """A writer that isn't done: each look finds the file longer."""
    for end in range(10, len(TWO), 5):
        file.path.write_text(TWO[:end])
        assert not file.poll()
    file.path.write_text(TWO)
    assert settle(file)
    assert ids(file) == ["door", "yard"]


def test_what_else_changed_is_said_to_wait_for_a_restart(file, caplog):
    file.path.write_text(ONE + "crops:\n  padding: 0.3\n")
    assert not settle(file)
    assert "changes in crops take effect after a restart" in caplog.text


def test_a_wish_reads_the_file_though_it_is_the_same(file, monkeypatch, tmp_path):
    """A secret's file may have changed behind it."""
    file.path.write_text(ONE + "    username: u\n    password: ${DOOR_PASSWORD}\n")
    secret = tmp_path / "secret"
    secret.write_text("first")
    monkeypatch.setenv("DOOR_PASSWORD_FILE", str(secret))
    assert settle(file)
    secret.write_text("second")
    assert not settle(file)
    assert file.reload()
    assert file.config.cameras[0].password.get_secret_value() == "second"
