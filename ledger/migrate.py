"""Brings a database to the newest schema: `python -m ledger.migrate --url URL [--phase pre]`.

Run it as the owner of the database; the service itself has no right to change tables. It may be run
again, and by several processes at once. It reads only its arguments.

To upgrade without a stop, run `--phase pre` while the previous release runs. Then roll out the new
release. When no process of the previous release is left, run the phase `post`. Before `post`, the
previous release may start again: it finds a newer schema and changes nothing.

After the migrations it creates the described tables that the schema still lacks, so a new table
needs no migration; a migration that adds a column to a table says `ALTER TABLE IF EXISTS`. Then it
creates the function that commits batches, whose name contains the hash of its text. `post` drops
the functions of other releases, except those that a running writer or standby holds with a shared
advisory lock.
"""

from __future__ import annotations

import argparse
import time
from itertools import takewhile
from pathlib import Path
from typing import Final

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from alembic.util import CommandError

from ledger.code_version import CODE_VERSION
from ledger.errors import SchemaTooNew
from ledger.schema import READER_ROLE, SCHEMA, engine_url
from ledger.tables.write_function import FUNCTION, TABLES, TEXT, lock_of


class StopNeeded(Exception):
    """The missing migrations cannot be applied while the previous release runs.

    Args:
        revision: a missing migration of the phase `pre` that follows one of the phase `post`.
    """

    def __init__(self, revision: str) -> None:
        super().__init__(revision)
        self.revision = revision

    def __str__(self) -> str:
        return (
            f"the migration {self.revision} comes after one that needs a stop: upgrade to the"
            " previous release first, or stop the service"
        )


class SchemaUnknown(CommandError):
    """The schema has a revision that this code does not know and that is not a later one.

    Args:
        found: the revision of the schema.
        newest: the newest revision that this code knows.
    """

    def __init__(self, found: str, newest: str) -> None:
        super().__init__(
            f"the database has schema revision {found!r}, which no release can upgrade; expected"
            f" {newest} or none. It was made by code from before the first release: start with an"
            " empty data folder or an empty database"
        )


MIGRATIONS: Final = Path(__file__).parent / "migrations"
# An arbitrary constant: a second migration of the same database waits for the first.
_MIGRATION_LOCK: Final = 0x0CA11B0A
_LOCK_POLL_S: Final = 0.05
_FUNCTIONS: Final = sqlalchemy.text(
    f"SELECT '{SCHEMA}.' || proname FROM pg_proc WHERE pronamespace = '{SCHEMA}'::regnamespace"
    " AND proname ~ '^commit_batch_[0-9a-f]{12}$'"
)


def migrate(url: str, *, phase: str = "post", versions: Path | None = None) -> str:
    """Apply missing migrations in order and return the revision of the schema.

    A schema that is newer than these migrations stays as it is.

    Args:
        url: `postgresql://…` of a role that owns the database; it needs CREATEROLE unless the three
            roles exist.
        phase: `pre`: stop before the first migration that must wait until the previous release has
            ended; `post`: apply all migrations, and drop commit functions that no process uses.
        versions: the folder of the migrations, for tests.

    Raises:
        SchemaTooNew: the schema is newer and requires newer code.
        SchemaUnknown: the schema has a revision that cannot be upgraded.
    """
    config = _config(versions)
    scripts = ScriptDirectory.from_config(config)
    engine = sqlalchemy.create_engine(engine_url(url), poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        _lock(connection)
        connection.execute(sqlalchemy.text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        connection.commit()
        missing = applied = _missing(connection, scripts)
        if phase == "pre":
            applied = list(takewhile(_is_pre, missing))
        if applied:
            config.attributes["connection"] = connection
            command.upgrade(config, applied[-1].revision)
            connection.commit()
        reached = _revision(connection) or ""
        is_ahead = _is_ahead(scripts, reached)
        if not any(map(_is_pre, missing[len(applied) :])):
            if not is_ahead:
                _create_tables(connection)
            _create_function(connection)
        if phase == "post" and not is_ahead:
            _drop_unused_functions(connection)
    engine.dispose()
    return reached


def check_upgradable(url: str, *, versions: Path | None = None) -> None:
    """Check that this code works after the migrations that the phase `pre` can apply.

    Args:
        url, versions: as for `migrate`.

    Raises:
        StopNeeded: a migration of the phase `post` precedes one that this code needs.
        SchemaTooNew, SchemaUnknown: as for `migrate`.
    """
    scripts = ScriptDirectory.from_config(_config(versions))
    engine = sqlalchemy.create_engine(engine_url(url), poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        missing = _missing(connection, scripts)
    engine.dispose()
    for script in missing[len(list(takewhile(_is_pre, missing))) :]:
        if _is_pre(script):
            raise StopNeeded(script.revision)


def _missing(connection: sqlalchemy.Connection, scripts: ScriptDirectory) -> list[Script]:
    """Return the migrations that the schema lacks, in order; an empty list if the schema is
    newer."""
    current = _revision(connection)
    known = {script.revision for script in scripts.walk_revisions()}
    if current is None or current in known:
        return list(scripts.iterate_revisions("head", current or "base"))[::-1]
    if not _is_ahead(scripts, current):
        raise SchemaUnknown(current, max(known))
    _check_code_version(connection)
    return []


def _is_pre(script: Script) -> bool:
    phase: str = script.module.phase
    return phase == "pre"


def _create_tables(connection: sqlalchemy.Connection) -> None:
    """Create the described tables that the schema lacks, with the readers' right to read them."""
    known = sqlalchemy.inspect(connection).get_table_names(schema=SCHEMA)
    driver = connection.connection.driver_connection
    assert driver is not None
    for table in TABLES:
        if table.name not in known:
            # Not through SQLAlchemy, which would read a percent sign as a parameter.
            driver.execute(table.ddl)
            driver.execute(f"GRANT SELECT ON {SCHEMA}.{table.name} TO {READER_ROLE}")
    connection.commit()


def _create_function(connection: sqlalchemy.Connection) -> None:
    """Create this code's commit function, with the writer's grants, unless it exists."""
    if FUNCTION not in connection.scalars(_FUNCTIONS).all():
        driver = connection.connection.driver_connection
        assert driver is not None
        # Not through SQLAlchemy: the text has many statements, and percent signs and colons.
        driver.execute(TEXT)
    connection.commit()


def _drop_unused_functions(connection: sqlalchemy.Connection) -> None:
    """Drop the commit functions of other releases that no running process holds."""
    try_lock = sqlalchemy.text("SELECT pg_try_advisory_lock(:key)")
    for function in connection.scalars(_FUNCTIONS).all():
        if function != FUNCTION and connection.scalar(try_lock, {"key": lock_of(function)}):
            connection.execute(sqlalchemy.text(f"DROP FUNCTION {function}"))
    connection.commit()


def _config(versions: Path | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", str(versions or MIGRATIONS / "versions"))
    return config


def _lock(connection: sqlalchemy.Connection) -> None:
    """Take the migration lock; wait while another migration holds it. This function polls in short
    transactions, because CREATE INDEX waits for every open snapshot."""
    try_lock = sqlalchemy.text("SELECT pg_try_advisory_lock(:key)")
    while not connection.scalar(try_lock, {"key": _MIGRATION_LOCK}):
        connection.commit()
        time.sleep(_LOCK_POLL_S)
    connection.commit()


def _revision(connection: sqlalchemy.Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
    revision = context.get_current_revision()
    connection.commit()
    return revision


def _is_ahead(scripts: ScriptDirectory, current: str) -> bool:
    """Say whether a revision is newer than all revisions that this code knows."""
    known = {script.revision for script in scripts.walk_revisions()}
    return current not in known and current > max(known)


def _check_code_version(connection: sqlalchemy.Connection) -> None:
    """Refuse a newer schema that requires newer code."""
    query = sqlalchemy.text(f"SELECT min_code_version FROM {SCHEMA}.compatibility")
    needed = connection.scalar(query)
    connection.commit()
    if needed > CODE_VERSION:
        raise SchemaTooNew(needed, CODE_VERSION)


def main(arguments: list[str] | None = None) -> int:
    """Migrate the database named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m ledger.migrate", description=__doc__)
    parser.add_argument("--url", required=True, help="postgresql:// address of the owner role")
    parser.add_argument(
        "--phase",
        choices=("pre", "post"),
        default="post",
        help="pre: only what the previous release can live with",
    )
    options = parser.parse_args(arguments)
    try:
        reached = migrate(options.url, phase=options.phase)
    except (SchemaTooNew, SchemaUnknown) as error:
        print(error)
        return 1
    ahead = ""
    if _is_ahead(ScriptDirectory.from_config(_config(None)), reached):
        ahead = f", ahead of this code, whose version {CODE_VERSION} it still allows"
    print(f"schema is at {reached}{ahead}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
