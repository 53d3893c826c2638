"""Brings a database to the newest schema: `python -m ledger.migrate --url URL [--phase pre]`.

Runs as the owner of the database; the service itself has no right to change tables. Safe to run
again and by several at once. It reads nothing but its arguments.

A deployment without a stop: `--phase pre` while the code of before runs, then the new code, then,
when nothing of the old code is left, the rest. Between the two the code of before may start again:
it finds a schema that is ahead of it and changes nothing. Decision 0132.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from ledger.code_version import CODE_VERSION
from ledger.errors import SchemaTooNew
from ledger.schema import SCHEMA, engine_url


class StopNeeded(Exception):
    """The missing migrations cannot be applied while code of before runs.

    Args:
        revision: of the phase `pre`, behind one of the phase `post`.
    """

    def __init__(self, revision: str) -> None:
        super().__init__(revision)
        self.revision = revision

    def __str__(self) -> str:
        return (
            f"the migration {self.revision} comes after one that needs a stop: upgrade to the"
            " release before first, or stop the service"
        )


MIGRATIONS: Final = Path(__file__).parent / "migrations"
# Any constant; it makes a second migration of the same database wait for the first.
_MIGRATION_LOCK: Final = 0x0CA11B0A
_LOCK_POLL_S: Final = 0.05


def migrate(
    url: str, *, phase: str = "post", until: str = "head", versions: Path | None = None
) -> str:
    """Apply missing migrations in order and return the revision of the schema.

    A schema that is ahead of these migrations stays as it is.

    Args:
        url: `postgresql://…` of a role that owns the database; it needs CREATEROLE unless the three
            roles exist.
        phase: `pre`: stop before the first missing migration that must wait until no earlier code
            runs; `post`: apply those too.
        until: the last revision to apply.
        versions: the folder of the migrations, for tests.

    Raises:
        SchemaTooNew: the schema is ahead, and asks for newer code than this.
    """
    config = _config(versions)
    scripts = ScriptDirectory.from_config(config)
    engine = sqlalchemy.create_engine(engine_url(url), poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        _lock(connection)
        connection.execute(sqlalchemy.text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        connection.commit()
        current = _revision(connection)
        if current is not None and _is_ahead(scripts, current):
            _check_code_version(connection)
        else:
            target = until if phase == "post" else _before_post(scripts, current, until)
            if target is not None:
                config.attributes["connection"] = connection
                command.upgrade(config, target)
                connection.commit()
        reached = _revision(connection)
    engine.dispose()
    return reached or ""


def check_rollable(url: str, *, versions: Path | None = None) -> None:
    """Check that this code works with what `migrate` with the phase `pre` can apply.

    Args:
        url, versions: as of `migrate`.

    Raises:
        StopNeeded: it does not; `post` comes before what this code needs.
        SchemaTooNew: as of `migrate`.
    """
    scripts = ScriptDirectory.from_config(_config(versions))
    engine = sqlalchemy.create_engine(engine_url(url), poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        current = _revision(connection)
        if current is not None and _is_ahead(scripts, current):
            _check_code_version(connection)
            missing = []
        else:
            missing = list(reversed(list(scripts.iterate_revisions("head", current or "base"))))
    engine.dispose()
    phases = [script.module.phase for script in missing]
    for place, script in enumerate(missing):
        if script.module.phase == "pre" and "post" in phases[:place]:
            raise StopNeeded(script.revision)


def _config(versions: Path | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", str(versions or MIGRATIONS / "versions"))
    return config


def _lock(connection: sqlalchemy.Connection) -> None:
    """Wait for a migration that runs; without a snapshot, for which CREATE INDEX would wait."""
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
    """Say whether newer code has migrated the database already; revisions are numbered."""
    known = {script.revision for script in scripts.walk_revisions()}
    return current not in known and current > max(known)


def _check_code_version(connection: sqlalchemy.Connection) -> None:
    """Refuse a schema that this code must not use: migrations that it lacks have asked for more."""
    query = sqlalchemy.text(f"SELECT min_code_version FROM {SCHEMA}.compatibility")
    needed = connection.scalar(query)
    connection.commit()
    if needed > CODE_VERSION:
        raise SchemaTooNew(needed, CODE_VERSION)


def _before_post(scripts: ScriptDirectory, current: str | None, until: str) -> str | None:
    """Return the last missing revision before the first of the phase `post`, if there is one."""
    reached = None
    missing = list(scripts.iterate_revisions(until, current or "base"))
    for script in reversed(missing):
        if script.module.phase == "post":
            break
        reached = script.revision
    return reached


def main(arguments: list[str] | None = None) -> int:
    """Migrate the database named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m ledger.migrate", description=__doc__)
    parser.add_argument("--url", required=True, help="postgresql:// address of the owner role")
    parser.add_argument(
        "--phase",
        choices=("pre", "post"),
        default="post",
        help="pre: only what code of before can live with",
    )
    options = parser.parse_args(arguments)
    try:
        reached = migrate(options.url, phase=options.phase)
    except SchemaTooNew as error:
        print(error.reason)
        return 1
    ahead = ""
    if _is_ahead(ScriptDirectory.from_config(_config(None)), reached):
        ahead = f", ahead of this code, whose version {CODE_VERSION} it still allows"
    print(f"schema is at {reached}{ahead}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
