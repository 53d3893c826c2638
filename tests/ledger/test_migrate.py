"""The migration: from nothing, again, and as `python -m ledger.migrate`."""

from __future__ import annotations

import pytest
import sqlalchemy

from core.trust.access import DEFAULT_SCOPES
from ledger.migrate import main, migrate
from ledger.schema import driver_url, engine_url, metadata
from tests.conftest import Database
from tests.ledger.checking import connect


def test_second_migration_changes_nothing(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect(database.owner_url) as connection:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    assert row is not None
    assert migrate(database.owner_url) == row[0]
    assert main(["--url", database.owner_url]) == 0
    assert f"schema is at {row[0]}" in capsys.readouterr().out


def test_keys_of_before_keep_what_they_could_do_and_gain_nothing(database: Database) -> None:
    held = {
        "all": ["*:read"],
        "some": ["tasks:write", "stakes:read", "quotas:write", "key-history:read"],
        "more": ["admin", "ledger:deposit", "agents:heartbeat", "workflows:write"],
    }
    with connect(database.owner_url) as connection:
        for number, (name, scopes) in enumerate(held.items()):
            connection.execute(
                "INSERT INTO callboard.api_key (id, hash, owner_did, name, scopes, rate_class,"
                " created_ms, depth) VALUES (%s, %s, 'did:test:a', '', %s, 'standard', 1, 0)",
                (name, bytes([number]) * 32, scopes),
            )
        connection.execute("UPDATE callboard.alembic_version SET version_num = '0001'")
    migrate(database.owner_url)
    with connect(database.owner_url) as connection:
        rows = dict(connection.execute("SELECT id, scopes FROM callboard.api_key").fetchall())
    assert rows == {
        "all": [scope for scope in DEFAULT_SCOPES if scope.endswith(":read")],
        "some": ["workflows:write", "agents:read", "ledger:write"],
        "more": ["admin", "ledger:deposit", "agents:heartbeat", "workflows:write"],
    }


def test_columns_that_reads_name_are_those_of_the_tables(database: Database) -> None:
    """schema.py repeats names and types of the DDL; here they are held together."""
    engine = sqlalchemy.create_engine(engine_url(database.owner_url), poolclass=sqlalchemy.NullPool)
    inspector = sqlalchemy.inspect(engine)
    for table in metadata.tables.values():
        stored = {
            column["name"]: column["type"]
            for column in inspector.get_columns(table.name, schema="callboard")
        }
        stored.pop("one", None)  # the head's key
        assert {column.name for column in table.columns} == stored.keys(), table.name
        for column in table.columns:
            got = stored[column.name].compile(engine.dialect)
            assert got == column.type.compile(engine.dialect), f"{table.name}.{column.name}"
    engine.dispose()


def test_service_is_a_member_of_the_three_roles_and_no_owner(database: Database) -> None:
    with connect(database.service_url) as connection:
        for role in ("ledger_writer", "ledger_reader", "ops_writer"):
            connection.execute(f"SET ROLE {role}")  # type: ignore[arg-type]
            connection.execute("RESET ROLE")
        row = connection.execute(
            "SELECT pg_has_role(current_user, tableowner, 'MEMBER') FROM pg_tables"
            " WHERE schemaname = 'callboard' AND tablename = 'entry'"
        ).fetchone()
    assert row == (False,)


@pytest.mark.parametrize(
    "url", ["postgresql://u@h/d?x=postgresql", "postgresql+psycopg://u@h/d?x=postgresql"]
)
def test_address_is_spelled_for_each_driver(url: str) -> None:
    assert driver_url(url) == "postgresql://u@h/d?x=postgresql"
    assert engine_url(url) == "postgresql+psycopg://u@h/d?x=postgresql"
