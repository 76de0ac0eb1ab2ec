"""A PostgreSQL server of the test session's own, where the programs are installed."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _find(name: str) -> str:
    if found := shutil.which(name):
        return found
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / name).exists():
            return str(folder / name)
    pytest.skip("needs a PostgreSQL server (apt-get install postgresql) to try the store on one")


def _account() -> dict[str, str]:
    """PostgreSQL refuses to run as root: then an account without rights runs it."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = "postgres" if "postgres" in names else "nobody"
    return {"user": user}


@contextmanager
def running_postgres() -> Iterator[str]:
    """Its URL; skips where there is none. Listens on a socket in its own folder only."""
    initdb, postgres, psql = _find("initdb"), _find("postgres"), _find("psql")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("needs the package psycopg (pip install 'watchword[postgres]')")
    account = _account()
    # Not below pytest's folder: other accounts can't enter it, and socket paths are short.
    folder = Path(tempfile.mkdtemp(prefix="ww-pg-", dir="/tmp"))
    try:
        if account:
            shutil.chown(folder, **account)
        data, env = folder / "data", {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        run = {"cwd": "/", "env": env, **account}
        command = [initdb, "-D", str(data), "-U", "watchword", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, **run)
        options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
        with open(folder / "log", "wb") as log:
            server = subprocess.Popen([postgres, "-D", str(data), *options], stdout=log, stderr=log, **run)
        try:
            _wait_until_ready(server, psql, folder)
            yield f"postgresql://watchword@/postgres?host={folder}"
        finally:
            server.send_signal(signal.SIGQUIT)  # at once: nothing in it is worth a clean end
            server.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(server: subprocess.Popen[bytes], psql: str, folder: Path) -> None:
    ask = [psql, "-h", str(folder), "-U", "watchword", "-d", "postgres", "-c", "select 1"]
    for _ in range(200):
        if subprocess.run(ask, capture_output=True, check=False).returncode == 0:
            return
        try:
            server.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"PostgreSQL did not start:\n{(folder / 'log').read_text()}")
