"""Brings a database to the schema of this code: Alembic's versions, in one transaction, whoever comes first."""

from __future__ import annotations

import logging
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.script.revision import ResolutionError
from alembic.util.exc import CommandError

log = logging.getLogger(__name__)
logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of every look; what changes, we say ourselves

FIRST = "0001"
"""The schema of databases from before versions were kept."""
_LOCK = 0x57_57_44_42
"""Of PostgreSQL's advisory locks, the one that whoever migrates holds."""


class SchemaMismatch(RuntimeError):
    """The database can't be used with this code; the text says why and what to do."""


def migrate(connection: sa.Connection, name: str) -> None:
    """Upgrades inside the connection's transaction, which must be a writing one. Raises :class:`SchemaMismatch`.

    Args:
        name: what errors call the database; must hold no password.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    config = alembic_config(connection)
    scripts = ScriptDirectory.from_config(config)
    head = scripts.get_current_head()
    found = MigrationContext.configure(connection).get_current_revision()
    if found == head:
        return
    if found is None:
        if _is_unversioned(connection, name):
            log.info("database %s: adopted as version %s", name, FIRST)
            command.stamp(config, FIRST)
    elif not _is_known(scripts, found):
        raise SchemaMismatch(
            f"database {name} has schema version {found}, which this watchword does not know (it knows up to {head}): "
            "a newer one has used it. Install that version again, or point store.url or store.data_dir at another "
            "database, or restore a backup from before the upgrade"
        )
    log.info("database %s: schema version %s -> %s", name, found or "none", head)
    command.upgrade(config, "head")


def alembic_config(connection: sa.Connection) -> Config:
    """Alembic's settings for our folder of versions, over this connection."""
    config = Config(attributes={"connection": connection})
    # Alembic interpolates percent signs.
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _is_known(scripts: ScriptDirectory, revision: str) -> bool:
    try:
        return scripts.get_revision(revision) is not None
    except (CommandError, ResolutionError):
        return False


def _is_unversioned(connection: sa.Connection, name: str) -> bool:
    """Whether our tables are there without a version; False for an empty database. Raises SchemaMismatch for others."""
    wanted = _first_schema()
    inspector = sa.inspect(connection)
    there = wanted.keys() & set(inspector.get_table_names())
    if not there:
        return False
    wrong = [f"{table} is missing" for table in sorted(wanted.keys() - there)]
    for table in sorted(there):
        present = {column["name"] for column in inspector.get_columns(table)}
        wrong += [f"{table}.{column} is missing" for column in sorted(wanted[table] - present)]
        wrong += [f"{table}.{column} is unknown" for column in sorted(present - wanted[table])]
    if wrong:
        raise SchemaMismatch(
            f"database {name} has tables of watchword's names but no version, and of another form "
            f"({', '.join(wrong[:5])}); point store.url or store.data_dir at another database"
        )
    return True


def _first_schema() -> dict[str, set[str]]:
    """Tables and columns of version FIRST, as its own file makes them in an empty database."""
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        command.upgrade(alembic_config(connection), FIRST)
        inspector = sa.inspect(connection)
        tables = set(inspector.get_table_names()) - {"alembic_version"}
        schema = {table: {column["name"] for column in inspector.get_columns(table)} for table in tables}
    engine.dispose()
    return schema
