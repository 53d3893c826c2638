"""Two writers take turns on one ledger: what one has begun the next one finishes.

Method: a ledger in the middle of its work, and what else rows are written of, so that every table
is written to by some command and every member of every row is held against its description.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

import pytest
from msgspec.structs import replace

from core.errors import QuarantineCode
from core.market.pricing import FixedPrice
from core.records.statuses import OwnershipProof
from core.shards.lease_messages import MemberState
from core.trust.identity.recovery import recovery_id
from ledger.agents.agent_commands import RebuildReputation
from ledger.commands import Command, OutcomeStatus
from ledger.disputes.dispute_commands import GiveFeedback
from ledger.errors import LedgerUnavailable
from ledger.invoices.invoice_content import with_content
from ledger.keys.key_commands import RevokeKey
from ledger.reads.reader import LedgerReader
from ledger.shards.shard_commands import ChangeMember
from ledger.tables.write_function import WRITES
from ledger.workflows.workflow_commands import QuarantineWorkflow
from ledger.writer.batch import Batch
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger import begun_work as work
from tests.ledger import test_capability_versions as versions
from tests.ledger import test_invoices as invoices
from tests.ledger import test_names as names
from tests.ledger import test_recoveries as recoveries
from tests.ledger.checking import Auditor, connect
from tests.ledger.making import (
    AGENT,
    MEMBER,
    PAYER,
    Flow,
    card,
    deposit,
    give,
    join,
    new_key,
    open_store,
    unrevoke,
)
from tests.ledger.test_agents_leave import leave
from tests.ledger.test_former_keys import rotate
from tests.ledger.test_inheritances import cancel as strike_heir_out
from tests.ledger.test_inheritances import run, set_heir
from tests.ledger.test_prices import priced
from tests.ledger.test_quarantine import resume
from tests.ledger.test_quotas import quota

pytestmark = pytest.mark.anyio

OTHER = "member-3"
GUEST = "did:test:guest"
KEPT, OWN, HEIR = "did:test:kept", "did:test:own", "did:test:heir"
INVOICE = "0199c0de-0000-7000-8000-0000000000e1"
HALTED = "0199c0de-0000-7000-8000-0000000000f1"


async def begin(database: Database) -> None:
    """Do the first half: the work in its middle, and rows that it does not have."""
    await work.begin(database.service_url, CheckedWriter)
    store = await open_store(database.service_url, CheckedWriter)
    halted = Flow(1, id=HALTED)
    await _apply(
        store,
        priced(FixedPrice(250_000)),
        quota(per_day=50),
        versions.publish("1.0.0", 0, is_admin=True),
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
            member=MEMBER,
            shard_epoch=1,
            workflow_id=HALTED,
            code=QuarantineCode.NOT_RESTORABLE,
        ),
        join(OTHER),
        give(OTHER),
        ChangeMember(key="drain", actor_did=PAYER, member=MEMBER, state=MemberState.DRAINING),
        *_identity_begun(),
    )
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        asked = invoices.of_workflow(work.FINISHED, invoice_id=INVOICE)
        invoice = await with_content(reader, asked)
    await _apply(store, invoice)
    await store.close()


async def finish(database: Database) -> None:
    """Do the second half."""
    store = await open_store(database.service_url, CheckedWriter)
    await _apply(
        store,
        replace(resume(Flow(2, id=HALTED), 2), member=OTHER),
        card(GUEST, owner_did=GUEST),
        invoices.settle(INVOICE, "void"),
        unrevoke(work.REVOKED),
        leave(work.REVOKED),
        versions.deprecate("1.0.0", is_admin=True),
        RevokeKey(key="gone", actor_did=PAYER, key_id="k", owner_did=PAYER),
        *_identity_gone_on(),
    )
    await _apply(store, replace(run(2, heir=HEIR), key="inherited", did=KEPT))
    for more in (1, -1):
        await _apply(store, _correction(store, more))
    await store.close()
    await work.finish(database.service_url, CheckedWriter)


def _identity_begun() -> list[Command]:
    """Return what an owner says of an agent that it registers, as an administrator grants it."""
    recovers = (recoveries.ONE, recoveries.TWO)
    return [
        card(KEPT, public_key="K1", proof=OwnershipProof.OPERATOR),
        card(OWN, owner_did=OWN, public_key="O1", proof=OwnershipProof.OPERATOR),
        *(card(did, owner_did=did, public_key=f"key of {did}") for did in recovers),
        names.register("kept", KEPT, most=9),
        names.register("left", KEPT, most=9),
        replace(rotate("K2", "K1", overlap_ms=60_000), did=KEPT),
        set_heir(KEPT, heir=HEIR),
        recoveries.guardians(did=KEPT),
        recoveries.guardians(key=new_key(), actor_did=OWN, did=OWN),
        _recovery(recoveries.ONE),
    ]


def _identity_gone_on() -> list[Command]:
    """Return the rest of it: the key is recovered, an heir named again, a stolen key at work."""
    return [
        names.renew("kept"),
        names.release("left"),
        names.transfer("kept", OWN),
        replace(names.transfer("kept", KEPT), actor_did=PAYER),
        _recovery(recoveries.TWO),
        replace(strike_heir_out(), did=KEPT),
        set_heir(KEPT, heir=HEIR),
        recoveries.guardians(key=new_key(), actor_did=OWN, did=OWN, custodian_did=None),
    ]


def _recovery(signer: str) -> Command:
    asked = recoveries.request(recoveries.SOCIAL, signer, new="K3")
    return replace(asked, did=KEPT, recovery_id=recovery_id(KEPT, "K3"))


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


def untouched(database: Database) -> set[str]:
    """Return the tables that hold nothing."""
    with connect(database.superuser_url) as connection:
        names = connection.execute(
            "SELECT table_name::text FROM information_schema.tables"
            " WHERE table_schema = 'callboard' AND table_type = 'BASE TABLE'"
        ).fetchall()
        counts = {
            name: connection.execute(f"SELECT count(*) FROM {name}").fetchone() for (name,) in names
        }
    return {name for name, count in counts.items() if count == (0,)}


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


async def test_work_begun_by_one_writer_is_finished_by_the_next(
    database: Database, auditor: Auditor
) -> None:
    await begin(database)
    auditor.check()
    await finish(database)
    auditor.check()
    operational = {"agent_live", "blob", "http_reply", "offer", "offer_word", "outage"}
    operational |= {"audit_party", "rate_lease", "request_nonce"}
    assert untouched(database) == operational
    owner = auditor.one("SELECT owner_did || public_key FROM agent WHERE did = %s", KEPT)
    assert owner == f"{HEIR}K3"
    states = "SELECT string_agg(name || ' ' || owner_did || ' ' || (released_ms IS NULL), ',')"
    assert auditor.one(f"{states} FROM agent_name") == f"kept {HEIR} true,left {HEIR} false"
    assert (
        auditor.one(
            "SELECT json_array_length(replaced) FROM guardian_set WHERE agent_did = %s", OWN
        )
        == 1
    )
    held = auditor.one("SELECT array_agg(DISTINCT (member, epoch)::text) FROM shard")
    assert held == [f"({work.FINISHER},3)"]
    states = auditor.connection.execute("SELECT id, state FROM member ORDER BY id").fetchall()
    # The other lost its last shard to the one that finished; whoever drains says when it ends.
    assert states == [(MEMBER, "draining"), (work.FINISHER, "ready"), (OTHER, "gone")]


async def test_a_later_writer_fences_the_earlier_one_off(
    database: Database, auditor: Auditor
) -> None:
    fenced = await open_store(database.service_url)
    await _apply(fenced, deposit(5))
    current = await open_store(database.service_url)
    with pytest.raises(LedgerUnavailable):
        await fenced.commit([deposit(5)], work.LATER)
    with pytest.raises(LedgerUnavailable):
        await fenced.beat()
    await current.beat()
    await _apply(current, deposit(5))
    assert auditor.balance(PAYER) == 10
    for store in (fenced, current):
        await store.close()
