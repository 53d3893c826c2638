"""The index of audit entries by party: whose each is, and that each is indexed once.

Reference: money.md (Audit chain); decision audit-chain.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from core.errors import ErrorCode, ServiceError
from core.market.auction import Bid
from core.market.pricing import FixedPrice
from core.workflow.events import AuctionClosed, NodeChanged, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.auctions.auction_commands import KeepBid
from ledger.audit import party_index
from ledger.audit.party_index import PartyIndex
from ledger.commands import Command
from ledger.disputes.dispute_commands import GiveFeedback
from ledger.identity.name_commands import RegisterName
from ledger.keys.key_commands import RevokeKey
from ledger.tasks.task_commands import SettleTask, settle_task_key
from tests.conftest import Database
from tests.ledger import test_auctions as auctions
from tests.ledger.checking import Auditor, connect
from tests.ledger.disputing import about, decide
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    PAYER,
    Flow,
    api_key,
    card,
    deposit,
    new_key,
    open_with_member,
    revoke,
)
from tests.ledger.test_inheritances import HEIR, OPERATOR, run, set_heir, stake
from tests.ledger.test_prices import priced
from tests.ledger.test_quotas import quota
from tests.ledger.test_recoveries import CUSTODIAN, ONE, TWO, guardians

pytestmark = pytest.mark.anyio

# Of the migration 0018.
LATER_MAX = 2_000
OWNER, OTHER, ADMIN = "did:test:owner", "did:test:other", "did:test:admin"
# The end of a workflow for a reason that looks like a member of the entry's body.
NAMING = WorkflowChanged(WorkflowStatus.FAILED, AT + 100, reason=f'","agentDid":"{OTHER}"')


@pytest.fixture
async def index(database: Database) -> AsyncIterator[PartyIndex]:
    """The index of the test's ledger."""
    opened = PartyIndex(database.service_url)
    yield opened
    await opened.close()


async def parties_after(index: PartyIndex, auditor: Auditor, audit_id: int) -> list[set[str]]:
    """Index all, and return the parties of each entry after one, in order."""
    await index.catch_up()
    rows = auditor.connection.execute(
        "SELECT a.id, p.party FROM audit a LEFT JOIN audit_party p ON p.audit_id = a.id"
        " WHERE a.id > %s ORDER BY a.id",
        (audit_id,),
    )
    parties: dict[int, set[str]] = defaultdict(set)
    for one, party in rows:
        parties[one] |= {party} if party is not None else set()
    return list(parties.values())


async def test_each_entry_has_the_parties_of_its_events(
    database: Database, auditor: Auditor, index: PartyIndex
) -> None:
    store, epoch = await open_with_member(database.service_url)
    paid, failed = Flow(epoch), Flow(epoch)
    dispute = about(paid, respondent_did=AGENT)
    begun = int(auditor.one("SELECT audit_seq FROM head"))
    name = RegisterName(
        key=new_key(), actor_did=ADMIN, is_admin=True, name="mine", agent_did=AGENT, months=12,
        owner_names_max=9, agent_names_max=9,
    )  # fmt: skip
    feedback = GiveFeedback(
        key="feedback", request_hash=b"f", actor_did=PAYER, workflow_id=paid.id, agent_did=AGENT,
        payer_did=PAYER, rating_milli=875, comment=f"as good as {OTHER}",
    )  # fmt: skip
    settled = SettleTask(
        key=settle_task_key(paid.id), request_hash=b"s", actor_did=ADMIN, workflow_id=paid.id,
        task_id="a task",
    )  # fmt: skip
    kept = KeepBid(
        key="kept", request_hash=b"k", actor_did=AGENT, is_admin=False, agent_did=AGENT,
        workflow_id=paid.id, node="a", amount_micro=CREDIT, eta_ms=7, stake_offered_micro=1,
    )  # fmt: skip
    agents = {AGENT, OWNER}
    cases: list[tuple[Command, set[str]]] = [
        (card(owner_did=OWNER, proof=OPERATOR), agents),
        (deposit(CREDIT, owner_did=OTHER), {OTHER}),
        (paid.publish(), {PAYER}),
        (kept, agents | {PAYER}),
        (replace(paid.pay(CREDIT), actor_did="member-1"), agents | {PAYER}),
        (replace(paid.end(), actor_did="member-1"), {PAYER}),
        (failed.publish(), {PAYER}),
        (
            failed.advance(NodeChanged("a", NodeStatus.FAILED, attempt=1, agent_did=AGENT)),
            agents | {PAYER},
        ),
        (replace(failed.advance(NAMING), actor_did="member-1"), {PAYER}),
        (feedback, agents | {PAYER}),
        (settled, {PAYER, ADMIN}),
        (dispute, agents | {PAYER}),
        (decide(dispute), agents | {PAYER, ADMIN}),
        (replace(stake(OTHER, 1), is_admin=True), agents | {OTHER}),
        (name, agents | {ADMIN}),
        (replace(guardians(), actor_did=OWNER), agents | {ONE, TWO, CUSTODIAN}),
        (replace(set_heir(), actor_did=OWNER), agents | {HEIR}),
        (api_key("k", b"k" * 32, owner_did=OTHER), {OTHER}),
        (RevokeKey(key="gone", actor_did=ADMIN, key_id="k", owner_did=None), {OTHER, ADMIN}),
        (replace(quota(per_day=5), did=OTHER), {OTHER, ADMIN}),
        (priced(FixedPrice(250_000)), {ADMIN}),
        (revoke(), agents),
    ]
    for outcome in await store.commit([command for command, _ in cases], AT + 50):
        assert outcome.error is None, outcome
    await store.close()
    found = await parties_after(index, auditor, begun)
    assert OTHER in str(auditor.one("SELECT body FROM audit WHERE body LIKE '%%\"reason%%'"))
    named = [type(command).__name__ for command, _ in cases]
    assert list(zip(named, found, strict=True)) == [
        (name, parties) for name, (_, parties) in zip(named, cases, strict=True)
    ]
    # What the service does by itself, and the fixed terms, have no party.
    assert auditor.one("SELECT count(*) FROM audit_party WHERE party NOT LIKE 'did:%%'") == 0
    assert (await parties_after(index, auditor, 0))[0] == set()


async def test_bidders_are_parties_of_their_round(
    database: Database, auditor: Auditor, index: PartyIndex
) -> None:
    store, flow = await auctions.auctioned(database.service_url, auctions.A, auctions.B)
    await store.commit([card("did:test:c", owner_did=OWNER)], AT)
    begun = int(auditor.one("SELECT audit_seq FROM head"))
    (bidding,) = await store.commit([auctions.bid(flow, auctions.A, 5)], AT)
    assert bidding.error is None
    standing = Bid("did:test:c", 10, None, None, 0, is_standing=True)
    closed = AuctionClosed(
        "a", 1, auctions.A, 5, (Bid(auctions.A, 5, None, None, AT + 1), standing)
    )
    dispatched = NodeChanged(
        "a", NodeStatus.DISPATCHED, attempt=1, agent_did=auctions.A, auction_round=1
    )
    advance = replace(flow.advance(closed, dispatched), actor_did="member-1")
    await store.commit([advance], auctions.CLOSES)
    await store.close()
    placed, awarded = await parties_after(index, auditor, begun)
    assert placed - {PAYER} < awarded
    assert auctions.A in awarded
    assert not {"did:test:c", OWNER} & awarded, "standing bids are counted, not listed"
    assert auctions.B not in placed | awarded, "it may bid, and has not"


async def test_an_agents_owner_is_the_one_that_it_had_then(
    database: Database, auditor: Auditor, index: PartyIndex
) -> None:
    """Indexed late, as after an upgrade: a claim that gave way, and then an heir."""
    store, _ = await open_with_member(database.service_url)
    begun = int(auditor.one("SELECT audit_seq FROM head"))
    claimed, proven = card(owner_did=OTHER), card(owner_did=PAYER, proof=OPERATOR)
    again = card(owner_did=PAYER, proof=OPERATOR)
    outcomes = await store.commit([claimed, proven, again, set_heir()], AT)
    auditor.connection.execute("UPDATE readiness SET seen_ms = %s", (AT + 400 * 86_400_000,))
    outcomes += await store.commit([run(), card(owner_did=HEIR, proof=OPERATOR)], AT + 1)
    assert [outcome.error for outcome in outcomes] == [None] * 6
    await store.close()
    assert await parties_after(index, auditor, begun) == [
        {AGENT, OTHER},
        {AGENT, OTHER, PAYER},
        {AGENT, PAYER},
        {AGENT, PAYER, HEIR},
        {AGENT, PAYER, HEIR},
        {AGENT, HEIR},
    ]


async def test_each_entry_is_indexed_once_whoever_does_it(
    database: Database,
    auditor: Auditor,
    index: PartyIndex,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In steps of two entries, two at a time, one of which ends before its transaction does."""
    monkeypatch.setattr(party_index, "ROWS_MAX", 2)
    store, epoch = await open_with_member(database.service_url)
    for _ in range(4):
        flow = Flow(epoch)
        await store.commit([flow.publish(), flow.pay(CREDIT), flow.end()], AT)
    await store.close()
    newest = int(auditor.one("SELECT audit_seq FROM head"))
    step = "SELECT indexed_to FROM index_parties(%s::jsonb, 5, 1000000, 1000)"
    with connect(database.superuser_url) as lost, lost.transaction(force_rollback=True):
        assert lost.execute(step, (party_index.party_rules_json(),)).fetchone() == (5,)
    assert auditor.one("SELECT audit_id FROM audit_party_mark") == 0
    other = PartyIndex(database.service_url)
    marks = [indexed.to for indexed in await asyncio.gather(*(
        one.index_some() for _ in range(newest // 2) for one in (index, other)
    ))]  # fmt: skip
    await other.close()
    assert max(marks) == newest
    assert auditor.one("SELECT count(DISTINCT audit_id) FROM audit_party WHERE party = %s", PAYER)
    whole = auditor.connection.execute("SELECT * FROM audit_party ORDER BY 1, 2").fetchall()
    auditor.connection.execute("TRUNCATE audit_party")
    auditor.connection.execute("UPDATE audit_party_mark SET audit_id = 0")
    monkeypatch.undo()
    assert (await index.index_some()).to == newest
    once = auditor.connection.execute("SELECT * FROM audit_party ORDER BY 1, 2").fetchall()
    assert whole == once


async def test_an_entry_of_newer_code_is_left_to_newer_code(
    database: Database, auditor: Auditor, index: PartyIndex
) -> None:
    store, _ = await open_with_member(database.service_url)
    await store.commit([deposit(CREDIT)], AT)
    await store.close()
    newest = int(auditor.one("SELECT audit_seq FROM head"))
    older = party_index.party_rules_json().replace("ledger.deposited", "ledger.former")
    query = "SELECT indexed_to FROM index_parties(%s::jsonb, 500, 1000000, 1000)"
    for _ in range(2):
        (stopped,) = auditor.connection.execute(query, (older,)).fetchone() or (None,)
        assert stopped == auditor.one(
            "SELECT min(id) - 1 FROM audit WHERE 'ledger.deposited' = ANY (event_types)"
        )
    assert await index.catch_up() == newest


async def test_a_read_is_refused_where_the_index_is_far_behind(
    database: Database,
    auditor: Auditor,
    index: PartyIndex,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(party_index, "ROWS_MAX", 2)
    monkeypatch.setattr(party_index, "BEHIND_MAX", 8)
    store, _ = await open_with_member(database.service_url)
    await store.commit([deposit(1) for _ in range(8)], AT)
    newest = int(auditor.one("SELECT audit_seq FROM head"))
    with pytest.raises(ServiceError) as refused:
        await index.catch_up()
    assert (refused.value.code, refused.value.retry_after_s) == (ErrorCode.OVERLOADED, 1)
    assert auditor.one("SELECT audit_id FROM audit_party_mark") == 0, "it is not the reader's work"
    # The oldest entries may be read as soon as they are indexed.
    indexed = await index.index_some()
    assert await index.catch_up(indexed.to) >= indexed.to
    follower = asyncio.create_task(index.follow())
    async with asyncio.timeout(10):
        while auditor.one("SELECT audit_id FROM audit_party_mark") < newest:
            await asyncio.sleep(0)
    follower.cancel()
    await asyncio.wait([follower])
    assert await index.catch_up() == newest
    await store.close()


async def test_an_agent_registered_very_often_later_holds_nothing_up(
    database: Database, auditor: Auditor, index: PartyIndex
) -> None:
    """Its owner of then is looked for among so many alone; beyond them none is a party."""
    store, _ = await open_with_member(database.service_url)
    begun = int(auditor.one("SELECT audit_seq FROM head"))
    await store.commit([replace(card(owner_did=OWNER, proof=OPERATOR), actor_did=ADMIN)], AT)
    await store.close()
    later = (
        "INSERT INTO audit_event SELECT 1000000 + n, 0, 'agent.registered', 'agent', %s"
        " FROM generate_series(1, %s) n"
    )
    auditor.connection.execute(later, (AGENT, LATER_MAX))
    assert (await parties_after(index, auditor, begun))[0] == {AGENT, OWNER, ADMIN}
    auditor.connection.execute("UPDATE audit_party_mark SET audit_id = %s", (begun,))
    auditor.connection.execute("DELETE FROM audit_party")
    auditor.connection.execute(later.replace("1000000", "2000000"), (AGENT, 1))
    assert (await parties_after(index, auditor, begun))[0] == {AGENT, ADMIN}
    # Past the trigger that refuses it: what was put there is of no entry.
    auditor.connection.execute("ALTER TABLE audit_event DISABLE TRIGGER ALL")
    auditor.connection.execute("DELETE FROM audit_event WHERE audit_id > 1000000")
    auditor.connection.execute("ALTER TABLE audit_event ENABLE TRIGGER ALL")
