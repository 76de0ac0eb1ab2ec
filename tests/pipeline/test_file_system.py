"""R71: SQLite is refused on network file systems."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pipeline.config.engine import StoreConfig
from pipeline.store import EventStore, file_system
from pipeline.store.database import UnusableDatabase
from pipeline.store.file_system import network_file_system


@pytest.mark.parametrize("folder", ["/", "/proc", "/dev/shm"])
def test_statfs_says_what_coreutils_say(folder):
    """Against another program's reading of the same call."""
    if not Path(folder).is_dir():
        pytest.skip(f"there is no {folder} here")
    shown = subprocess.run(["stat", "-f", "-c", "%t", folder], capture_output=True, text=True, check=True).stdout
    assert file_system._magic_of(Path(folder)) == int(shown, 16)


def test_a_local_folder_is_none_and_a_missing_one_an_error(tmp_path):
    assert network_file_system(Path("/proc")) is None
    with pytest.raises(FileNotFoundError, match="nowhere"):
        network_file_system(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("magic", "mount", "kind"),
    [
        (0x6969, "nfs4", "nfs"),
        (0xFF534D42, "cifs", "cifs"),
        (0xEF53, "ext4", None),
        (0x65735546, "fuse.sshfs", "fuse.sshfs"),
        (0x65735546, "fuseblk", None),
    ],
)
def test_r71_sqlite_is_refused_on_network_file_systems_before_a_file_is_made(tmp_path, monkeypatch, magic, mount, kind):
    """Only the number that the kernel gives is a stand-in: mounting NFS needs rights that tests don't have."""
    monkeypatch.setattr(file_system, "_magic_of", lambda folder: magic)
    monkeypatch.setattr(file_system, "file_system_of", lambda folder: mount)
    config = StoreConfig(data_dir=tmp_path / "data")
    if kind is None:
        EventStore(config).close()
        return
    with pytest.raises(UnusableDatabase, match=rf"network file system \({kind}\).*store\.data_dir.*PostgreSQL"):
        EventStore(config)
    assert not list(tmp_path.rglob("*.db*"))
    with pytest.raises(UnusableDatabase, match="network"):
        EventStore(StoreConfig(data_dir=tmp_path / "data", url=f"sqlite:///{tmp_path}/elsewhere.db"))


def test_r71_postgres_beside_pictures_on_a_network_file_system_is_fine(tmp_path, monkeypatch, postgres_url):
    monkeypatch.setattr(file_system, "_magic_of", lambda folder: 0x6969)
    EventStore(StoreConfig(data_dir=tmp_path / "data", url=postgres_url)).close()
