"""Brings a database to the newest schema: `python -m ledger.migrate --url URL`.

Runs as the owner of the database; the service itself has no right to change tables. Safe to run
again and by several at once. It reads nothing but its arguments.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from ledger.schema import SCHEMA, engine_url

# Any constant; it makes a second migration of the same database wait for the first.
_MIGRATION_LOCK = 0x0CA11B0A


def migrate(url: str) -> str:
    """Apply all missing migrations and return the schema's revision.

    Args:
        url: `postgresql://…` of a role that owns the database; it needs CREATEROLE unless the three
            roles exist.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    engine = sqlalchemy.create_engine(engine_url(url), poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        lock = sqlalchemy.text("SELECT pg_advisory_lock(:key)")
        connection.execute(lock, {"key": _MIGRATION_LOCK})
        connection.execute(sqlalchemy.text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        connection.commit()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()
    engine.dispose()
    return ScriptDirectory.from_config(config).get_current_head() or ""


def main(arguments: list[str] | None = None) -> int:
    """Migrate the database named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m ledger.migrate", description=__doc__)
    parser.add_argument("--url", required=True, help="postgresql:// address of the owner role")
    print(f"schema is at {migrate(parser.parse_args(arguments).url)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
