"""What the database itself refuses to the writer, and to the owner of the tables."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.conftest import Database
from tests.ledger.checking import connect
from tests.ledger.making import AGENT, CREDIT, Flow, api_key, card, open_with_member

Session = psycopg.Connection[Any]

WRITER = "ledger_writer"
# Append-only tables, each with a column that an UPDATE may name.
HISTORY = {
    "entry": "amount",
    "audit": "created_ms",
    "audit_event": "number",
    "attempt": "started_ms",
    "command": "created_ms",
}
AUDITED = (
    "head",
    "account",
    "command",
    "entry",
    "escrow",
    "audit",
    "audit_event",
    "workflow",
    "node",
    "attempt",
    "member",
    "shard",
    "agent",
    "api_key",
)


@pytest.fixture(scope="module")
def flow(shared_database: Database) -> Flow:
    """A ledger with a running workflow that has paid a node, written by the real store."""

    async def fill() -> Flow:
        store = await open_with_member(shared_database.service_url)
        running, ended = Flow(hold=10 * CREDIT), Flow(hold=CREDIT)
        await store.commit([running.publish(), running.pay(CREDIT), card(AGENT)], 1)
        await store.commit([ended.publish(), ended.end(), api_key("k", b"k" * 32)], 1)
        await store.close()
        return running

    return asyncio.run(fill())


@contextmanager
def _rolled_back(url: str, role: str | None = None) -> Iterator[Session]:
    """Open a session of the current epoch whose one transaction is undone at the end."""
    connection = connect(url, role)
    try:
        with connection.transaction(force_rollback=True):
            _take_epoch(connection)
            yield connection
    finally:
        connection.close()


@pytest.fixture(params=["writer", "owner of the tables"])
def session(
    request: pytest.FixtureRequest, shared_database: Database, flow: Flow
) -> Iterator[Session]:
    """A session once with the writer's rights, once with the owner's."""
    database = shared_database
    is_writer = request.param == "writer"
    with _rolled_back(
        database.service_url if is_writer else database.owner_url, WRITER if is_writer else None
    ) as connection:
        yield connection


@pytest.fixture
def owner(shared_database: Database, flow: Flow) -> Iterator[Session]:
    """A session as the owner of the tables: no privilege is missing."""
    with _rolled_back(shared_database.owner_url) as connection:
        yield connection


@contextmanager
def _refused(
    connection: Session, message: str, kind: type[psycopg.Error] = psycopg.DatabaseError
) -> Iterator[None]:
    """Expect the database to refuse what is done inside; the transaction goes on after it."""
    with pytest.raises(kind, match=message), connection.transaction():
        yield


def _take_epoch(connection: Session) -> None:
    epoch = connection.execute("SELECT epoch FROM head").fetchone()
    assert epoch is not None
    connection.execute("SELECT set_config('callboard.epoch', %s, false)", (str(epoch[0]),))


def _insert_entry(connection: Session, **changes: object) -> None:
    """Insert the next entry, 1 micro-credit from the payer's wallet to the fee, with changes."""
    row = connection.execute(
        "SELECT entry_seq + 1, (SELECT id FROM account WHERE address = 'wallet:did:test:payer'),"
        " audit_seq FROM head"
    ).fetchone()
    assert row is not None
    fields: dict[str, object] = {
        "id": row[0],
        "debit_account_id": row[1],
        "credit_account_id": 2,
        "amount": 1,
        "kind": "protocol_fee",
        "description": "",
        "audit_id": row[2],
        "created_ms": 1,
        **changes,
    }
    names = ", ".join(fields)
    places = ", ".join(["%s"] * len(fields))
    query = f"INSERT INTO entry ({names}) VALUES ({places})"
    connection.execute(query, list(fields.values()))  # type: ignore[arg-type]


@pytest.mark.parametrize("table", HISTORY)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {} SET {} = 0",
        "DELETE FROM {}",
        "TRUNCATE {}",
        "DELETE FROM {} WHERE false",
    ],
)
def test_history_is_append_only_for_writer_and_owner(
    session: Session, table: str, statement: str
) -> None:
    with _refused(session, "append-only|permission denied"):
        session.execute(statement.format(table, HISTORY.get(table)))  # type: ignore[arg-type]


@pytest.mark.parametrize("table", HISTORY)
def test_owner_is_stopped_by_the_trigger_not_by_rights(owner: Session, table: str) -> None:
    for statement in ("UPDATE {} SET {} = 0", "DELETE FROM {}", "TRUNCATE {}"):
        with _refused(owner, f"{table} is append-only"):
            owner.execute(statement.format(table, HISTORY.get(table)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE invoice_line SET invoice_id = gen_random_uuid()",
        "UPDATE invoice_line SET entry_id = entry_id + 1",
        "UPDATE invoice_line SET amount_micro = 1",
        "UPDATE invoice SET id = gen_random_uuid()",
    ],
)
def test_a_line_is_never_moved_to_an_invoice_that_is_not_stored(
    shared_database: Database, flow: Flow, statement: str
) -> None:
    """The trigger that replaced the foreign key looked at new lines alone."""
    with _rolled_back(shared_database.superuser_url) as connection:
        connection.execute("SET session_replication_role = replica")
        with _refused(connection, "append-only"):
            connection.execute(statement)  # type: ignore[arg-type]


@pytest.mark.parametrize("table", ["account", "escrow", "head", "member", "shard"])
def test_money_and_members_are_never_removed(owner: Session, table: str) -> None:
    for statement in ("DELETE FROM {}", "TRUNCATE {} CASCADE"):
        with _refused(owner, "is append-only"):
            owner.execute(statement.format(table, HISTORY.get(table)))  # type: ignore[arg-type]


def test_triggers_outlast_replica_mode(shared_database: Database, flow: Flow) -> None:
    with _rolled_back(shared_database.superuser_url) as connection:
        connection.execute("SET session_replication_role = replica")
        with _refused(connection, "append-only"):
            connection.execute("DELETE FROM entry")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE account SET balance = balance + 1",
        "INSERT INTO account (id, address, kind, balance, created_ms) "
        "VALUES (99, 'x', 'wallet', 5, 0)",
        "UPDATE head SET audit_seq = 0",
        "UPDATE head SET hash = decode(repeat('00', 32), 'hex')",
        "UPDATE escrow SET amount = 0",
        "UPDATE escrow SET fee_bps = 0",
        "UPDATE workflow SET payer_did = 'x'",
        "DELETE FROM workflow",
        "DELETE FROM node",
        "UPDATE api_key SET owner_did = 'x'",
        "DELETE FROM agent",
        "INSERT INTO shard (id, epoch) VALUES (1, 0)",
        "UPDATE shard SET id = 1",
        "DELETE FROM member",
        "ALTER TABLE entry DISABLE TRIGGER ALL",
        "DROP TRIGGER append_only ON entry",
        "CREATE TABLE callboard.mine (x int)",
        "SELECT * FROM rate_lease",
    ],
)
def test_writer_has_no_right_to(shared_database: Database, flow: Flow, statement: str) -> None:
    with (
        _rolled_back(shared_database.service_url, WRITER) as connection,
        _refused(connection, "permission denied|must be owner", errors.InsufficientPrivilege),
    ):
        connection.execute(statement)  # type: ignore[arg-type]


@pytest.mark.parametrize("table", AUDITED)
def test_ops_writer_cannot_touch_audited_tables(
    shared_database: Database, flow: Flow, table: str
) -> None:
    connection = connect(shared_database.service_url, "ops_writer")
    for statement in (
        f"SELECT 1 FROM {table}",
        f"INSERT INTO {table} DEFAULT VALUES",
        f"DELETE FROM {table}",
        f"TRUNCATE {table}",
        f"LOCK TABLE {table}",
        "SELECT callboard.raise_fenced()",
    ):
        with _refused(connection, "permission denied", errors.InsufficientPrivilege):
            connection.execute(statement)  # type: ignore[arg-type]
    connection.close()


@pytest.mark.parametrize("table", AUDITED)
def test_reader_cannot_write(shared_database: Database, flow: Flow, table: str) -> None:
    connection = connect(shared_database.service_url, "ledger_reader")
    connection.execute(f"SELECT 1 FROM {table}")  # type: ignore[arg-type]
    with _refused(connection, "permission denied", errors.InsufficientPrivilege):
        connection.execute(f"DELETE FROM {table}")  # type: ignore[arg-type]
    connection.close()


def test_entry_moves_both_balances(session: Session) -> None:
    """The control of this file: the same insert without a fault goes through."""
    query = "SELECT balance FROM account WHERE address IN ('wallet:did:test:payer', 'fee')"
    before = dict(enumerate(session.execute(query + " ORDER BY id DESC").fetchall()))
    _insert_entry(session)
    after = dict(enumerate(session.execute(query + " ORDER BY id DESC").fetchall()))
    assert after[0][0] == before[0][0] - 1
    assert after[1][0] == before[1][0] + 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"amount": 0}, "entry_amount_check"),
        ({"amount": -5}, "entry_amount_check"),
        ({"amount": 10**15}, "account_balance_bounds"),  # more than the payer has
        ({"amount": 10**15 + 1}, "entry_amount_check"),
        ({"credit_account_id": 424242}, "an account that does not exist"),
        ({"debit_account_id": 2}, "entry_check"),  # to itself
        ({"audit_id": 0}, "belongs to no audit entry"),
        ({"audit_id": 10**9}, "belongs to no audit entry"),
        ({"id": 1}, "entry_pkey"),
        ({"id": 1000}, "entry ids are not contiguous"),
        ({"kind": "gift"}, "entry_kind_check"),
    ],
)
def test_faulty_entry_is_refused(
    session: Session,
    changes: dict[str, object],
    message: str,
) -> None:
    with _refused(session, message):
        _insert_entry(session, **changes)


def test_entries_of_one_statement_have_no_gap(session: Session) -> None:
    """The first goes on where the head stands, the last is two further."""
    with _refused(session, "entry ids are not contiguous"):
        session.execute(
            "INSERT INTO entry (id, debit_account_id, credit_account_id, amount, kind,"
            " description, audit_id, created_ms)"
            " SELECT entry_seq + step, 1, 2, 1, 'deposit', '', audit_seq, 1"
            " FROM head, unnest(ARRAY[1, 3]) AS step"
        )


def test_case_09_a_node_payment_is_unique_in_the_table(session: Session, flow: Flow) -> None:
    with _refused(session, "entry_node_payment", errors.UniqueViolation):
        _insert_entry(session, kind="node_payment", workflow_id=flow.id, node_id="a")


@pytest.mark.parametrize("epoch", ["", "1000", "0"])
def test_session_without_the_current_epoch_writes_nothing(session: Session, epoch: str) -> None:
    session.execute("SELECT set_config('callboard.epoch', %s, false)", (epoch,))
    with _refused(session, "ledger writer fenced off"):
        _insert_entry(session)
    with _refused(session, "ledger writer fenced off"):
        _insert_audit(session)


def _insert_audit(
    connection: Session,
    *,
    step: int = 1,
    prev: bytes | None = None,
    digest: bytes | None = None,
    named: int | None = None,
) -> None:
    """Insert the next audit record, with a fault where one is given."""
    head = connection.execute("SELECT audit_seq, hash FROM head").fetchone()
    assert head is not None
    audit_id = head[0] + step
    previous = prev if prev is not None else head[1]
    number = named if named is not None else audit_id
    body = f'{{"id":{number},"prevHash":"sha256:{previous.hex()}"}}'
    connection.execute(
        "INSERT INTO audit (id, event_types, actor_did, created_ms, body, hash)"
        " VALUES (%s, '{x}', '', 1, %s, %s)",
        (audit_id, body, digest or hashlib.sha256(body.encode()).digest()),
    )


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"step": 2}, "audit ids are not contiguous"),
        ({"step": 0}, "audit_pkey"),
        ({"prev": bytes(32)}, "does not carry the hash before it"),
        ({"digest": bytes(32)}, "audit_check"),
        ({"named": 7777}, "does not carry the hash before it"),
    ],
)
def test_faulty_audit_record_is_refused(
    session: Session, fault: dict[str, Any], message: str
) -> None:
    with _refused(session, message):
        _insert_audit(session, **fault)


def test_sound_audit_record_is_taken(session: Session) -> None:
    """The control of the cases above."""
    _insert_audit(session)
    _insert_audit(session)


@pytest.mark.parametrize(
    ("step", "is_linked", "message"),
    [
        (1, False, "does not carry the hash before it"),
        (2, True, "audit ids are not contiguous"),
    ],
)
def test_second_record_of_a_statement_must_follow_the_first(
    owner: Session, step: int, is_linked: bool, message: str
) -> None:
    with _refused(owner, message):
        _insert_two_audits(owner, step=step, is_linked=is_linked)


def test_two_sound_records_of_a_statement_are_taken(owner: Session) -> None:
    """The control of the cases above; the head has the hash of the last."""
    _insert_two_audits(owner, step=1, is_linked=True)
    _insert_audit(owner)


def _insert_two_audits(connection: Session, *, step: int, is_linked: bool) -> None:
    """Insert the next audit record and one `step` further, with the first's hash or the head's."""
    head = connection.execute("SELECT audit_seq, hash FROM head").fetchone()
    assert head is not None
    rows: list[object] = []
    before = head[1]
    for number in (head[0] + 1, head[0] + 1 + step):
        body = f'{{"id":{number},"prevHash":"sha256:{before.hex()}"}}'
        digest = hashlib.sha256(body.encode()).digest()
        rows += [number, body, digest]
        before = digest if is_linked else before
    connection.execute(
        "INSERT INTO audit (id, event_types, actor_did, created_ms, body, hash) VALUES"
        " (%s, '{x}', '', 1, %s, %s), (%s, '{x}', '', 1, %s, %s)",
        rows,
    )


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE escrow SET amount = amount - 1", "the terms of an escrow are immutable"),
        ("UPDATE escrow SET payer_did = 'x'", "the terms of an escrow are immutable"),
        ("UPDATE escrow SET fee_bps = 0", "the terms of an escrow are immutable"),
        ("UPDATE escrow SET workflow_id = gen_random_uuid()", "the terms of an escrow"),
        (
            "UPDATE escrow SET status = 'released' WHERE status = 'held'",
            "released when its account is empty",
        ),
        ("UPDATE escrow SET status = 'lost'", "escrow_status_check"),
    ],
)
def test_escrow_keeps_its_terms_until_it_is_empty(
    owner: Session, statement: str, message: str
) -> None:
    with _refused(owner, message):
        owner.execute(statement)  # type: ignore[arg-type]


def test_released_escrow_is_never_held_again(owner: Session) -> None:
    with _refused(owner, "a released escrow stays released"):
        owner.execute("UPDATE escrow SET status = 'held' WHERE status = 'released'")


def test_case_42_an_account_of_another_currency_is_refused(
    shared_database: Database, flow: Flow
) -> None:
    with _rolled_back(shared_database.owner_url) as session:
        assert session.execute("SELECT DISTINCT currency FROM account").fetchall() == [("CREDITS",)]
        with _refused(session, "account_currency_check"):
            session.execute(
                "INSERT INTO account (id, address, kind, created_ms, currency)"
                " VALUES (999, 'wallet:x', 'wallet', 0, 'EUR')"
            )


def test_lines_of_an_invoice_that_is_not_stored_are_refused(session: Session) -> None:
    with _refused(session, "which is not stored"):
        session.execute(
            "INSERT INTO invoice_line (invoice_id, entry_id, amount_micro)"
            " SELECT gen_random_uuid(), n, 1 FROM generate_series(1, 3) AS n"
        )
