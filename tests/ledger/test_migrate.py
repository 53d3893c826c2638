"""The migration: from nothing, again, and as `python -m ledger.migrate`."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from alembic.util import CommandError

from ledger.commands import Outcome
from ledger.errors import SchemaTooNew
from ledger.features.head_row import WRITER_LOCK
from ledger.migrate import (
    MIGRATIONS,
    SchemaUnknown,
    StopNeeded,
    check_upgradable,
    main,
    migrate,
)
from ledger.schema import driver_url, engine_url, metadata
from ledger.tables.table import Table
from ledger.tables.write_function import FUNCTION, TABLES, lock_of
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import connect
from tests.ledger.making import (
    AT,
    CREDIT,
    GENESIS,
    ToldLives,
    deposit,
    open_store,
    open_with_member,
)


def test_second_migration_changes_nothing(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect(database.owner_url) as connection:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    assert row is not None
    assert migrate(database.owner_url) == row[0]
    assert main(["--url", database.owner_url]) == 0
    assert f"schema is at {row[0]}" in capsys.readouterr().out


def _migration(folder: Path, number: int, phase: str, body: str) -> None:
    """Write a migration that follows the newest real one."""
    before = max(path.name[:4] for path in folder.glob("[0-9]*.py"))
    (folder / f"{number}_test.py").write_text(
        f"""from alembic import op
from ledger.migrations.steps import require_code_version
revision, down_revision, phase = "{number}", "{before}", "{phase}"


def upgrade():
    {body}
"""
    )


def test_what_old_code_cannot_live_with_waits_for_the_second_step(
    database: Database, tmp_path: Path
) -> None:
    versions = _versions(tmp_path)
    _migration(versions, 9001, "pre", 'op.execute("CREATE TABLE callboard.one (a int)")')
    _migration(versions, 9002, "post", "require_code_version(7)")
    _migration(versions, 9003, "pre", 'op.execute("CREATE TABLE callboard.two (a int)")')
    url = database.owner_url
    assert migrate(url, phase="pre", versions=versions) == "9001"
    assert migrate(url, phase="pre", versions=versions) == "9001"
    asyncio.run(_open(database))
    assert migrate(url, versions=versions) == "9003"
    with pytest.raises(SchemaTooNew, match="needs code of version 7, this is 2"):
        asyncio.run(_open(database))


def test_code_that_needs_what_comes_after_a_stop_is_not_rolled_out(
    database: Database, tmp_path: Path
) -> None:
    """A release was left out: its own migrations come first, and one of them needs a stop."""
    versions = _versions(tmp_path)
    _migration(versions, 9001, "pre", 'op.execute("CREATE TABLE callboard.one (a int)")')
    _migration(versions, 9002, "post", "require_code_version(7)")
    url = database.owner_url
    check_upgradable(url, versions=versions)
    _migration(versions, 9003, "pre", 'op.execute("CREATE TABLE callboard.two (a int)")')
    with pytest.raises(StopNeeded, match="9003 comes after one that needs a stop"):
        check_upgradable(url, versions=versions)
    assert migrate(url, versions=versions) == "9003"
    check_upgradable(url, versions=versions)
    with pytest.raises(SchemaTooNew, match="needs code of version 7, this is 2"):
        check_upgradable(url)


def test_code_of_before_starts_again_between_the_two_steps(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`callboard up` migrates first: it knew nothing of the newer revision, and did not start."""
    newer = _versions(tmp_path)
    _migration(newer, 9001, "pre", 'op.execute("CREATE TABLE callboard.one (a int)")')
    _migration(newer, 9002, "post", "require_code_version(7)")
    url = database.owner_url
    assert migrate(url, phase="pre", versions=newer) == "9001"
    for arguments in (["--url", url], ["--url", url, "--phase", "pre"]):
        assert main(arguments) == 0
        said = "schema is at 9001, ahead of this code, whose version 2 it still allows"
        assert said in capsys.readouterr().out
    asyncio.run(_open(database))
    assert migrate(url, versions=newer) == "9002"
    assert main(["--url", url]) == 1
    assert "the schema needs code of version 7, this is 2" in capsys.readouterr().out


def test_a_schema_that_is_not_of_this_service_is_refused(database: Database) -> None:
    with connect(database.owner_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
    with pytest.raises(CommandError, match="0000"):
        migrate(database.owner_url)


def test_a_database_from_before_the_first_release_is_refused_and_left_as_it_is(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = migrate(database.owner_url)
    with connect(database.owner_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0027'")
    assert main(["--url", database.owner_url]) == 1
    said = capsys.readouterr().out
    for text in ("revision '0027'", f"expected {newest}", "empty data folder"):
        assert text in said
    with pytest.raises(SchemaUnknown):
        check_upgradable(database.owner_url)
    with connect(database.owner_url) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("0027",)


def test_a_described_table_that_the_schema_lacks_is_created_with_its_rights(
    database: Database,
) -> None:
    with connect(database.owner_url) as connection:
        connection.execute("DROP TABLE capability_price")
        connection.execute(f"DROP FUNCTION {FUNCTION}")  # type: ignore[arg-type]
    migrate(database.owner_url, phase="pre")
    with connect(database.service_url) as connection:
        for role in ("ledger_reader", "ledger_writer"):
            connection.execute(f"SET ROLE {role}")  # type: ignore[arg-type]
            connection.execute("SELECT FROM capability_price")


def test_a_described_table_may_need_a_migration_of_its_release_and_contain_a_percent_sign(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = _versions(tmp_path)
    index = "CREATE UNIQUE INDEX agent_of_owner ON callboard.agent (did, owner_did)"
    _migration(newer, 9001, "pre", f'op.execute("{index}")')
    table = Table.of(
        "agent_note",
        "did text PRIMARY KEY CHECK (did NOT LIKE 'x%')",
        "owner_did text",
        "FOREIGN KEY (did, owner_did) REFERENCES callboard.agent (did, owner_did)",
    )
    monkeypatch.setattr("ledger.migrate.TABLES", (*TABLES, table))
    assert migrate(database.owner_url, phase="pre", versions=newer) == "9001"
    with connect(database.service_url) as connection:
        connection.execute("SET ROLE ledger_reader")
        connection.execute("SELECT FROM agent_note")


OTHER = "callboard.commit_batch_00000000beef"


def _functions(database: Database) -> set[str]:
    """Return the commit functions of a database, besides this code's."""
    query = "SELECT 'callboard.' || proname FROM pg_proc WHERE proname LIKE 'commit_batch%'"
    with connect(database.owner_url) as connection:
        return {name for (name,) in connection.execute(query).fetchall()}


def test_the_function_of_another_release_stays_until_no_process_uses_it(database: Database) -> None:
    """`post` drops it, but not while a writer or a standby of that release holds it."""
    with connect(database.owner_url) as connection:
        for statement in (
            f"CREATE FUNCTION {OTHER}() RETURNS void LANGUAGE sql AS ''",
            f"DROP FUNCTION {FUNCTION}",
        ):
            connection.execute(statement)  # type: ignore[arg-type]
    migrate(database.owner_url, phase="pre")
    assert _functions(database) == {FUNCTION, OTHER}
    with connect(database.service_url) as other:
        other.execute("SELECT pg_advisory_lock_shared(%s)", (lock_of(OTHER),))
        migrate(database.owner_url)
        assert _functions(database) == {FUNCTION, OTHER}
    migrate(database.owner_url)
    assert _functions(database) == {FUNCTION}


def _held(database: Database) -> bool:
    """Say whether a process holds this code's commit function."""
    with connect(database.owner_url) as connection:
        query = "SELECT pg_try_advisory_xact_lock(%s)"
        return connection.execute(query, (lock_of(FUNCTION),)).fetchone() == (False,)


async def test_writers_and_standbys_hold_the_function_that_they_use(database: Database) -> None:
    assert not _held(database)
    store = await open_store(database.service_url)
    assert _held(database)
    await store.close()
    waits = asyncio.Event()
    async with await psycopg.AsyncConnection.connect(database.service_url) as writer:
        await writer.execute("SELECT pg_advisory_lock(%s)", (WRITER_LOCK,))
        opening = asyncio.create_task(
            LedgerStore.open(
                database.service_url,
                genesis=GENESIS,
                now_ms=AT,
                leases=ToldLives(),
                on_waiting=waits.set,
            )
        )
        await waits.wait()
        assert _held(database)
    await (await opening).close()


def test_a_schema_that_is_too_new_fences_no_writer_off(database: Database) -> None:
    async def refused() -> Outcome:
        store = await open_with_member(database.service_url)
        with connect(database.owner_url) as connection:
            connection.execute("UPDATE compatibility SET min_code_version = 3")
        (outcome,) = await store.commit([deposit(CREDIT)], AT)
        await store.close()
        with pytest.raises(SchemaTooNew):
            await open_store(database.service_url)
        return outcome

    assert asyncio.run(refused()).error is None
    with connect(database.owner_url) as connection:
        assert connection.execute("SELECT epoch FROM head").fetchone() == (1,)


async def _open(database: Database) -> None:
    await (await open_store(database.service_url)).close()


def test_two_migrations_at_once_do_not_wait_for_each_other_for_ever(
    database: Database, tmp_path: Path
) -> None:
    versions = _versions(tmp_path)
    statement = 'op.execute("CREATE INDEX one ON callboard.head (epoch)")'
    _migration(versions, 9001, "pre", statement)

    def apply(_: int) -> str:
        return migrate(database.owner_url, versions=versions)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(apply, range(2))) == ["9001", "9001"]


def _versions(folder: Path) -> Path:
    """Return a folder with the migrations that there are, to which more can be added."""
    shutil.copytree(MIGRATIONS / "versions", folder / "versions")
    return folder / "versions"


def test_columns_that_reads_name_are_those_of_the_tables(database: Database) -> None:
    """Their types are written twice: as SQL for the DDL, and as SQLAlchemy's for reads."""
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
