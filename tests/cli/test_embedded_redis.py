"""The embedded Valkey: reachable by a second process, back after a kill with everything in it, gone at the end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from pipeline.embedded_redis import EmbeddedValkey, EmbeddedValkeyError
from pipeline.redaction import redact
from tests.cli.helpers import alive, until


def test_a_second_process_can_connect_and_settings_suit_streams(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path / "valkey") as valkey:
        code = "import os, redis; redis.Redis.from_url(os.environ['URL']).xadd('s', {'a': b'\\xff'})"
        subprocess.run([sys.executable, "-c", code], env={"URL": valkey.url}, check=True, timeout=30)
        client = redis.Redis.from_url(valkey.url)
        assert client.xlen("s") == 1
        settings = client.config_get("maxmemory*", "append*")
        assert settings["maxmemory-policy"] == "volatile-ttl"
        assert settings["maxmemory"] == str(256 * 1024 * 1024)
        assert settings["appendonly"] == "yes"


def test_a_killed_server_is_back_on_its_port_with_everything_that_was_answered(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path / "valkey") as valkey:
        client = redis.Redis.from_url(valkey.url, retry=None)
        url, pid = valkey.url, valkey.pid
        assert pid is not None
        for index in range(500):
            client.xadd("s", {"n": index})
        client.xgroup_create("s", "g", id="0")
        os.kill(pid, signal.SIGKILL)

        def is_back() -> bool:
            try:
                return bool(redis.Redis.from_url(url, retry=None).ping())
            except redis.ConnectionError:
                return False

        until(lambda: valkey.restarts == 1 and is_back())
        client = redis.Redis.from_url(url)
        assert valkey.url == url and valkey.pid != pid
        assert client.xlen("s") == 500
        assert [group["name"] for group in client.xinfo_groups("s")] == [b"g"]


def test_data_outlives_a_stop_in_a_given_folder_and_nothing_is_left_of_a_temporary_one(tmp_path: Path) -> None:
    for expected in (None, b"1"):
        with EmbeddedValkey(tmp_path / "kept folder") as valkey:
            client = redis.Redis.from_url(valkey.url)
            assert client.get("k") == expected
            client.set("k", 1)
    temporary = EmbeddedValkey()
    temporary.start()
    folder, pid = temporary._folder, temporary.pid
    assert folder.is_dir() and (folder.stat().st_mode & 0o777) == 0o700
    temporary.stop()
    temporary.stop()
    assert not folder.exists()
    assert pid is not None and not alive(pid)


def test_without_the_password_nobody_gets_in_and_it_is_nowhere_to_be_read(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as valkey:
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=int(valkey.url.rpartition(":")[2].split("/")[0]), retry=None).ping()
        password = valkey.url.split(":")[2].split("@")[0]
        command = Path(f"/proc/{valkey.pid}/cmdline").read_bytes()
        assert password.encode() not in command
        assert all(password not in path.read_text(errors="replace") for path in tmp_path.glob("*") if path.is_file())
        assert redact(f"AUTH {password}") == "AUTH ***"


def test_two_servers_never_share_a_folder(tmp_path: Path) -> None:
    with (
        EmbeddedValkey(tmp_path),
        pytest.raises(EmbeddedValkeyError, match="another Valkey uses"),
    ):
        EmbeddedValkey(tmp_path).start(timeout=0.3)


def test_a_taken_port_is_an_error_that_says_so(tmp_path: Path) -> None:
    with EmbeddedValkey() as first:
        port = int(first.url.rpartition(":")[2].split("/")[0])
        second = EmbeddedValkey(tmp_path, port=port)
        with pytest.raises(EmbeddedValkeyError, match="in use"):
            second.start(timeout=1.5)


def test_it_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from pipeline.embedded_redis import EmbeddedValkey
valkey = EmbeddedValkey(Path(sys.argv[1]))
valkey.start()
print(valkey.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
    finally:
        parent.kill()
        parent.communicate()
    until(lambda: not alive(pid))
    with EmbeddedValkey(tmp_path) as valkey:  # and its folder is free again
        assert valkey.pid is not None
