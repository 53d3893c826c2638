"""The writer of now and the one of before, on one schema: they take turns on the same ledger.

Goal: a deployment without a stop, where code of before goes on after the `pre` migrations. Method:
the work of the dumps, and what else rows are written of, is begun by one and finished by the other;
the tables then hold what they hold when one of them has done all. Decisions 0132 and 0138.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

import pytest

from core.errors import QuarantineCode
from core.market.pricing import FixedPrice
from ledger.agents.agent_commands import RebuildReputation
from ledger.commands import Command, OutcomeStatus
from ledger.disputes.dispute_commands import GiveFeedback
from ledger.errors import LedgerFenced
from ledger.invoices.invoice_content import with_content
from ledger.keys.key_commands import RevokeKey
from ledger.owners.owner_commands import ClaimWorkflows, RegisterOwner
from ledger.reads.reader import LedgerReader
from ledger.tables.write_function import WRITES
from ledger.workflows.workflow_commands import QuarantineWorkflow
from ledger.writer.batch import Batch
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger import test_invoices as invoices
from tests.ledger.checking import Auditor, connect
from tests.ledger.dumps import work
from tests.ledger.first_writer import FirstWriter
from tests.ledger.making import (
    AGENT,
    OWNER,
    PAYER,
    Flow,
    card,
    deposit,
    new_key,
    open_store,
    unrevoke,
)
from tests.ledger.test_agents_leave import leave
from tests.ledger.test_prices import priced
from tests.ledger.test_quarantine import resume
from tests.ledger.test_quotas import quota

pytestmark = pytest.mark.anyio

Writer = type[LedgerStore]
SILENT = "owner-2"
GUEST = "did:test:guest"
INVOICE = "0199c0de-0000-7000-8000-0000000000e1"
HALTED, CLAIMED = (f"0199c0de-0000-7000-8000-0000000000f{number}" for number in (1, 2))
# What differs from run to run: ids that the database gives, and what is hashed or named with them.
RANDOM = {
    "audit": {"body", "hash"},
    "command": {"id", "result"},
    "head": {"hash"},
    "workflow": {"task_id"},
}


async def begin(database: Database, writer: Writer) -> None:
    """Do the first half: the dumps' work, and rows that it does not have."""
    await work.begin(database.service_url, writer)
    store = await open_store(database.service_url, writer)
    owned, silent = await _apply(store, *(_owner(name) for name in (OWNER, SILENT)))
    epoch = int(owned.result["epoch"])
    halted = Flow(epoch, id=HALTED)
    await _apply(
        store,
        priced(FixedPrice(250_000)),
        quota(per_day=50),
        card(GUEST, owner_did=GUEST, public_key="k", secret_encrypted=b"s"),
        GiveFeedback(
            key="feedback",
            request_hash=b"f",
            actor_did=PAYER,
            workflow_id=work.FINISHED,
            agent_did=AGENT,
            payer_did=PAYER,
            rating_milli=875,
            comment="well done",
        ),
        halted.publish(),
        QuarantineWorkflow(
            key="quarantine",
            owner=halted.owner,
            owner_epoch=epoch,
            workflow_id=HALTED,
            code=QuarantineCode.NOT_RESTORABLE,
        ),
        Flow(int(silent.result["epoch"]), id=CLAIMED, owner=SILENT).publish(),
    )
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        asked = invoices.of_workflow(work.FINISHED, invoice_id=INVOICE)
        invoice = await with_content(reader, asked)
    await _apply(store, invoice)
    await store.close()


async def finish(database: Database, writer: Writer) -> None:
    """Do the second half."""
    store = await open_store(database.service_url, writer)
    owned, silent = await _apply(store, *(_owner(name) for name in (OWNER, SILENT)))
    epoch = int(owned.result["epoch"])
    halted = Flow(epoch, id=HALTED)
    await _apply(
        store,
        resume(halted, epoch),
        card(GUEST, owner_did=GUEST),
        invoices.settle(INVOICE, "void"),
        unrevoke(work.REVOKED),
        leave(work.REVOKED),
        RevokeKey(key="gone", actor_did=PAYER, key_id="k", owner_did=PAYER),
    )
    for more in (1, -1):
        await _apply(store, _correction(store, more))
    claim = ClaimWorkflows(
        key="claim",
        from_owner=SILENT,
        from_epoch=int(silent.result["epoch"]),
        to_owner=OWNER,
        to_epoch=epoch,
    )
    await _apply(store, claim)
    await store.close()
    await work.finish(database.service_url, writer)


def _owner(name: str) -> RegisterOwner:
    return RegisterOwner(key=f"start:{name}", owner=name, address="")


def _correction(store: LedgerStore, more: int) -> RebuildReputation:
    return RebuildReputation(
        key=new_key(),
        actor_did=PAYER,
        changes=((AGENT, more, 0, 0, 7 * more),),
        read_audit_id=store.cache.head.audit_seq,
    )


async def _apply(store: LedgerStore, *commands: Command) -> list[Any]:
    outcomes = await store.commit(commands, work.LATER)
    assert all(one.status is OutcomeStatus.APPLIED for one in outcomes), outcomes
    return outcomes


def tables_of(database: Database) -> dict[str, list[str]]:
    """Return all that the tables hold, without what differs from run to run."""
    with connect(database.superuser_url) as connection:
        names = connection.execute(
            "SELECT table_name, array_agg(column_name::text) FROM information_schema.columns"
            " WHERE table_schema = 'callboard' AND table_name <> 'alembic_version' GROUP BY 1"
        ).fetchall()
        held = {}
        for table, columns in names:
            kept = ", ".join(sorted(set(columns) - RANDOM.get(table, set())))
            query = f"SELECT row_to_json(r)::text FROM (SELECT {kept} FROM {table}) r ORDER BY 1"
            rows = connection.execute(query).fetchall()  # type: ignore[arg-type]
            held[table] = [row for (row,) in rows]
    return held


class CheckedWriter(LedgerStore):
    """The writer of now; every member of its rows is a column that its description has.

    JSON would let another one pass, and nothing would be stored of it.
    """

    def _statement(self, batch: Batch) -> tuple[LiteralString, Sequence[Any]]:
        for write in WRITES:
            known = {*(column.name for column in write.given), write.lines}
            for row in batch.rows(write):
                assert row.keys() <= known, (write.name, row.keys() - known)
        return super()._statement(batch)


# What the first of the runs below has left, for the others to leave as well.
_left: dict[str, list[str]] = {}


@pytest.mark.parametrize(
    ("first", "second"),
    [(FirstWriter, FirstWriter), (FirstWriter, CheckedWriter), (CheckedWriter, FirstWriter),
     (CheckedWriter, CheckedWriter)],
)  # fmt: skip
async def test_work_begun_by_one_writer_is_finished_by_the_other(
    database: Database, auditor: Auditor, first: Writer, second: Writer
) -> None:
    await begin(database, first)
    auditor.check()
    await finish(database, second)
    auditor.check()
    held = tables_of(database)
    _left.update(_left or held)
    for table, rows in held.items():
        assert rows == _left[table], table
    untouched = {name for name, rows in held.items() if not rows}
    assert untouched == {"agent_live", "blob", "http_reply", "offer", "rate_lease"}


@pytest.mark.parametrize(
    ("before", "now"), [(FirstWriter, LedgerStore), (LedgerStore, FirstWriter)]
)
async def test_either_writer_fences_the_other_off(
    database: Database, auditor: Auditor, before: Writer, now: Writer
) -> None:
    fenced = await open_store(database.service_url, before)
    await _apply(fenced, deposit(5))
    current = await open_store(database.service_url, now)
    with pytest.raises(LedgerFenced):
        await fenced.commit([deposit(5)], work.LATER)
    await _apply(current, deposit(5))
    assert auditor.balance(PAYER) == 10
    for store in (fenced, current):
        await store.close()
