"""The connection to SQL: engine, pragmas, schema, and transactions that repeat nothing by halves."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from pipeline.config.engine import StoreConfig
from pipeline.store.file_system import network_file_system
from pipeline.store.migrate import migrate

T = TypeVar("T")

BUSY_TIMEOUT_S = 10.0
"""How long SQLite waits for another process's write before it says "database is locked"."""


class UnusableDatabase(ValueError):
    """The configured database can't serve; the text names the field and says what to do."""


class Database:
    """Reads run side by side; writes of this process one after the other, since SQLite has one writer (R70)."""

    def __init__(self, config: StoreConfig) -> None:
        """Makes the folder if need be, and brings the schema up to date.

        Raises ``SQLAlchemyError``, ``OSError``; :class:`UnusableDatabase` for a bad URL, a driver that is not installed
        or SQLite on a network file system; :class:`pipeline.store.migrate.SchemaMismatch`.
        """
        config.data_dir.mkdir(parents=True, exist_ok=True)
        url = database_url(config)
        self.is_sqlite = url.get_backend_name() == "sqlite"
        if self.is_sqlite:
            _refuse_network_folder(url)
        try:
            # Errors name the statement but not its values: those are what people look like.
            self._engine = create_engine(url, hide_parameters=True, pool_pre_ping=not self.is_sqlite)
        except ModuleNotFoundError as error:
            extra = "; install watchword[postgres]" if url.get_backend_name() == "postgresql" else ""
            raise UnusableDatabase(f"store.url: {url.drivername} needs the package {error.name}{extra}") from None
        if self.is_sqlite:
            event.listen(self._engine, "connect", _prepare_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        self._writing = self._engine.execution_options(watchword_write=True)
        self._lock: AbstractContextManager[Any] = threading.Lock() if self.is_sqlite else nullcontext()
        try:
            with self._writing.connect() as connection, connection.begin():
                migrate(connection, url.render_as_string(hide_password=True))
        except BaseException:
            self.close()
            raise

    def read(self, work: Callable[[Session], T]) -> T:
        """Runs ``work`` on one snapshot."""
        with Session(self._engine) as session:
            return work(session)

    def write(self, work: Callable[[Session], T]) -> T:
        """Runs ``work`` in one transaction: all of it is stored when this returns, nothing when it raises.

        Another process may insert the same row at the same moment (a server that locks rows can't lock one that isn't
        there yet); the second look then finds it.
        """
        with self._lock:
            try:
                return self._write_once(work)
            except IntegrityError:
                return self._write_once(work)

    def close(self) -> None:
        """Closes the connections."""
        self._engine.dispose()

    def _write_once(self, work: Callable[[Session], T]) -> T:
        with Session(self._writing, expire_on_commit=False) as session, session.begin():
            return work(session)


def database_url(config: StoreConfig) -> URL:
    """``store.url``, by default SQLite in the data folder. PostgreSQL means psycopg 3 where no driver is named."""
    if not config.url:
        return URL.create("sqlite", database=str(config.data_dir / "watchword.db"))
    url = make_url(config.url)
    if url.drivername in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise UnusableDatabase(f"store.url: {url.get_backend_name()} is not supported; allowed are sqlite, postgresql")
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise UnusableDatabase("store.url: SQLite in memory is one database a thread; give it a file")
    return url


def _refuse_network_folder(url: URL) -> None:
    folder = Path(url.database or "").absolute().parent
    kind = network_file_system(folder)
    if kind is not None:
        raise UnusableDatabase(
            f"SQLite can't be used in {folder}: it is on a network file system ({kind}), whose locks don't hold; set "
            "store.data_dir (or store.url) to a local folder, or store.url to PostgreSQL"
        )


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver must not begin transactions by itself: it would do so too late and as readers (see the dialect's docs).
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    write_ahead(cursor)
    # A killed process loses nothing that was committed; only a power cut may lose the last moments, never the file.
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def write_ahead(cursor: Any) -> None:
    """Switches to the write-ahead log. SQLite does not wait for others who switch a new file at the same moment,
    whatever the timeout: it says at once that the file is locked (https://www.sqlite.org/wal.html, section 9)."""
    until = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= until:
                raise
            time.sleep(random.uniform(0.005, 0.05))


def _begin_sqlite(connection: Connection) -> None:
    # A write that began as a read fails at once when another wrote meanwhile, whatever the timeout; this one waits.
    write = connection.get_execution_options().get("watchword_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
