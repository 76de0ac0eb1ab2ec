"""Schema versions: new, unversioned, current and too new databases, on SQLite and, where there is one, PostgreSQL."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text

from pipeline.config.engine import StoreConfig
from pipeline.store import EventFilter, EventStore
from pipeline.store.database import database_url, write_ahead
from pipeline.store.migrate import SchemaMismatch, alembic_config
from pipeline.store.schema import Base
from tests.pipeline.material import crop_of, jpeg_of

UNVERSIONED = Path(__file__).with_name("unversioned.sql")
"""A dump of a database from before versions were kept, with one described event."""


def version_of(config: StoreConfig, change_to: str | None = None) -> str:
    engine = create_engine(database_url(config))
    with engine.begin() as connection:
        if change_to is not None:
            connection.execute(text("UPDATE alembic_version SET version_num = :v"), {"v": change_to})
        version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
    engine.dispose()
    return version


def head() -> str:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        newest = ScriptDirectory.from_config(alembic_config(connection)).get_current_head()
    assert newest is not None
    return newest


def test_a_new_database_has_the_newest_version_and_the_very_schema_of_the_models(store_config):
    """Alembic's comparison finds nothing to do, and does not so much as see the shadow tables of FTS5."""
    EventStore(store_config).close()
    assert version_of(store_config) == head()

    engine = create_engine(database_url(store_config))
    with engine.connect() as connection:
        config = alembic_config(connection)
        found: list[object] = []
        scripts = ScriptDirectory.from_config(config)

        def compare(_revision, context):
            found.extend(compare_metadata(context, Base.metadata))
            return []

        with EnvironmentContext(config, scripts, fn=compare):
            scripts.run_env()
        tables = inspect(connection).get_table_names()
    engine.dispose()
    assert found == []
    if store_config.url is None:
        assert {"event_search", "event_search_data", "event_search_idx"} <= set(tables), "there is something to hide"


def test_a_database_without_a_version_is_adopted_with_its_events_and_they_are_found(tmp_path):
    config = StoreConfig(data_dir=tmp_path)
    connection = sqlite3.connect(tmp_path / "watchword.db")
    connection.executescript(UNVERSIONED.read_text())
    connection.close()

    store = EventStore(config)
    [found] = store.list_events(EventFilter(text="red jacket", camera="front")).events

    assert (found.id, found.description, found.state) == ("front.a-1", "A person in a red jacket.", "ended")
    request = store.description("front.a-1")
    assert (request.meta.model, request.meta.pictures, request.meta.question) == ("tiny", (), "")
    assert version_of(config) == head()
    assert store.add_crop(crop_of("x", track="front/new"), jpeg_of()).crop is not None
    store.close()


def test_the_first_version_is_what_databases_without_a_version_have(tmp_path):
    """Column by column and index by index, but for the order in which they were made."""

    def layout(path: Path) -> dict[str, object]:
        engine = create_engine(f"sqlite:///{path}")
        seen = inspect(engine)
        layout = {
            name: (
                {(c["name"], str(c["type"]), c["nullable"]) for c in seen.get_columns(name)},
                {(i["name"], tuple(i["column_names"])) for i in seen.get_indexes(name)},
                seen.get_pk_constraint(name)["constrained_columns"],
                [(k["constrained_columns"], k["referred_table"], k["options"]) for k in seen.get_foreign_keys(name)],
                [u["column_names"] for u in seen.get_unique_constraints(name)],
            )
            for name in seen.get_table_names()
            if name != "alembic_version"
        }
        engine.dispose()
        return layout

    connection = sqlite3.connect(tmp_path / "old.db")
    connection.executescript(UNVERSIONED.read_text())
    connection.close()
    engine = create_engine(f"sqlite:///{tmp_path / 'new.db'}")
    with engine.begin() as migrated:
        command.upgrade(alembic_config(migrated), "0001")
    engine.dispose()

    assert layout(tmp_path / "new.db") == layout(tmp_path / "old.db")


def test_a_newer_database_is_refused_with_both_versions_and_left_as_it_is(store_config):
    EventStore(store_config).close()
    version_of(store_config, change_to="0999")

    with pytest.raises(SchemaMismatch, match=r"0999.*knows up to " + head()):
        EventStore(store_config)
    assert version_of(store_config) == "0999"


def test_foreign_tables_of_our_names_are_refused_by_name(tmp_path):
    connection = sqlite3.connect(tmp_path / "watchword.db")
    connection.execute("CREATE TABLE events (id TEXT, what TEXT)")
    connection.close()
    with pytest.raises(SchemaMismatch, match=r"crops is missing.*another database"):
        EventStore(StoreConfig(data_dir=tmp_path))
    with sqlite3.connect(tmp_path / "watchword.db") as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("events",)]


def test_a_migration_that_fails_leaves_the_database_as_it_was(tmp_path, monkeypatch):
    config = StoreConfig(data_dir=tmp_path)
    connection = sqlite3.connect(tmp_path / "watchword.db")
    connection.executescript(UNVERSIONED.read_text())
    connection.execute("CREATE TABLE event_texts (number INTEGER)")  # which 0002 is about to make
    connection.close()
    before = sqlite3.connect(tmp_path / "watchword.db").execute("SELECT name, sql FROM sqlite_master").fetchall()
    for _ in range(2):
        with pytest.raises(Exception, match="event_texts already exists"):
            EventStore(config)
        after = sqlite3.connect(tmp_path / "watchword.db").execute("SELECT name, sql FROM sqlite_master").fetchall()
        assert after == before


def test_processes_that_start_at_once_migrate_once(store_config):
    with ThreadPoolExecutor(6) as pool:
        stores = list(pool.map(lambda _: EventStore(store_config), range(6)))
    stores[0].add_crop(crop_of("e"), jpeg_of())
    assert all(store.get("front.a-1") is not None for store in stores)
    for store in stores:
        store.close()
    assert version_of(store_config) == head()


def test_a_file_that_another_switches_to_its_log_is_waited_for(tmp_path):
    """SQLite does not wait there by itself, whatever its timeout."""
    path = tmp_path / "watchword.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE something (number INTEGER)")
    other.execute("BEGIN EXCLUSIVE")
    with closing(sqlite3.connect(path, timeout=0)) as plain, pytest.raises(sqlite3.OperationalError, match="locked"):
        plain.execute("PRAGMA journal_mode = WAL")
    asked = threading.Event()

    class Cursor:
        """Says when the switch was refused for the first time."""

        def __init__(self, cursor: sqlite3.Cursor) -> None:
            self.execute_once = cursor.execute

        def execute(self, statement: str) -> None:
            try:
                self.execute_once(statement)
            finally:
                asked.set()

    def switch() -> str:
        with closing(sqlite3.connect(path, timeout=0)) as mine:
            write_ahead(Cursor(mine.cursor()))
            return str(mine.execute("PRAGMA journal_mode").fetchone()[0])

    with ThreadPoolExecutor(1) as pool:
        switched = pool.submit(switch)
        assert asked.wait(20)
        other.execute("ROLLBACK")
        assert switched.result(20) == "wal"
    other.close()


def test_a_password_in_the_url_is_in_no_error(tmp_path):
    url = "mysql://watch:S3cret@host/db"
    with pytest.raises(ValueError, match="mysql is not supported") as caught:
        EventStore(StoreConfig(url=url, data_dir=tmp_path))
    assert "S3cret" not in str(caught.value)
