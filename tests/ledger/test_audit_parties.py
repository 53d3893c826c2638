"""The parties of audit entries, which are written with them.

Reference: money.md (Audit chain); decision audit-chain.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
from msgspec.structs import replace

from core.market.auction import Bid
from core.market.pricing import FixedPrice
from core.workflow.events import AuctionClosed, NodeChanged, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import Command
from ledger.features.auctions import KeepBid
from ledger.features.disputes import GiveFeedback
from ledger.features.keys import RevokeKey
from ledger.features.names import RegisterName, RenewName
from ledger.features.tasks import SettleTask, settle_task_key
from ledger.writer.store import LedgerStore
from tests.ledger import test_auctions as auctions
from tests.ledger.checking import Auditor
from tests.ledger.disputing import about, decide, slash
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    PAYER,
    Flow,
    NextWriter,
    api_key,
    card,
    deposit,
    errors,
    new_key,
    revoke,
    unrevoke,
)
from tests.ledger.test_inheritances import HEIR, OPERATOR, run, set_heir, stake
from tests.ledger.test_invoices import of_period, settle
from tests.ledger.test_prices import priced
from tests.ledger.test_quotas import quota
from tests.ledger.test_recoveries import CUSTODIAN, ONE, TWO, guardians
from tests.ledger.test_subnets import added, ended, lifted, policy, removed, subnet
from tests.ledger.test_triggers import changed, due, ending, note, trigger

OWNER, OTHER, ADMIN = "did:test:owner", "did:test:other", "did:test:admin"
# The end of a workflow for a reason that looks like a member of the entry's body.
NAMING = WorkflowChanged(WorkflowStatus.FAILED, AT + 100, reason=f'","agentDid":"{OTHER}"')


def parties_after(auditor: Auditor, audit_id: int) -> list[set[str]]:
    """Return the parties of each entry after one, in order."""
    rows = auditor.connection.execute(
        "SELECT a.id, p.party FROM audit a LEFT JOIN audit_party p ON p.audit_id = a.id"
        " WHERE a.id > %s ORDER BY a.id",
        (audit_id,),
    )
    parties: dict[int, set[str]] = defaultdict(set)
    for one, party in rows:
        parties[one] |= {party} if party is not None else set()
    return list(parties.values())


def list_cases() -> list[tuple[Command, set[str]]]:
    """Return commands, each with the parties of its entry."""
    paid, failed = Flow(), Flow()
    dispute = about(paid, respondent_did=AGENT)
    name = RegisterName(
        key=new_key(), actor_did=ADMIN, is_admin=True, name="mine", agent_did=AGENT, months=12,
        owner_names_max=9, agent_names_max=9,
    )  # fmt: skip
    renewed = RenewName(key=new_key(), actor_did=OWNER, is_admin=False, name="mine", months=1)
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
    invoice = of_period(0, AT, read_entry_id=1_000, read_audit_id=1_000)
    agents = {AGENT, OWNER}
    return [
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
        (renewed, agents),
        (replace(guardians(), actor_did=OWNER), agents | {ONE, TWO, CUSTODIAN}),
        (replace(set_heir(), actor_did=OWNER), agents | {HEIR}),
        (api_key("k", b"k" * 32, owner_did=OTHER), {OTHER}),
        (RevokeKey(key="gone", actor_did=ADMIN, key_id="k", owner_did=None), {OTHER, ADMIN}),
        (replace(quota(per_day=5), did=OTHER), {OTHER, ADMIN}),
        (priced(FixedPrice(250_000)), {ADMIN}),
        (invoice, {PAYER}),
        (replace(settle(invoice.invoice_id, "paid"), actor_did=ADMIN), {PAYER, ADMIN}),
        (slash(paid), agents | {PAYER, ADMIN}),
        (trigger(actor_did=OTHER), {OTHER}),
        (changed(1, actor_did=ADMIN, is_admin=True, is_enabled=False), {OTHER, ADMIN}),
        (changed(2, actor_did=OTHER), {OTHER}),
        (note(due(version=3, due_ms=None)), {OTHER}),
        (ending(OTHER), {OTHER}),
        (subnet(PAYER, OTHER, actor_did=OTHER), {OTHER}),
        (added(HEIR, actor_did=OTHER), {OTHER, HEIR}),
        (added(AGENT, is_admin=True, actor_did=ADMIN), agents | {OTHER, ADMIN}),
        (policy(actor_did=OTHER), {OTHER}),
        (lifted(actor_did=OTHER), {OTHER}),
        (removed(HEIR, actor_did=OTHER), {OTHER, HEIR}),
        (ended(actor_did=OTHER), {OTHER}),
        (revoke(), agents),
        (unrevoke(), agents),
    ]


@pytest.mark.parametrize("is_new_writer", [False, True])
async def test_each_entry_has_the_parties_of_its_events(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor, is_new_writer: bool
) -> None:
    """Also where each command meets a writer that remembers nothing."""
    begun = int(auditor.one("SELECT audit_seq FROM head"))
    cases = list_cases()
    batches = [[command for command, _ in cases]]
    if is_new_writer:
        batches = [[command] for command in batches[0]]
    for batch in batches:
        if is_new_writer:
            store = await next_writer()
        for outcome in await store.commit(batch, AT + 50):
            assert outcome.error is None, outcome
    found = parties_after(auditor, begun)
    assert OTHER in str(auditor.one("SELECT body FROM audit WHERE body LIKE '%%\"reason%%'"))
    named = [type(command).__name__ for command, _ in cases]
    assert list(zip(named, found, strict=True)) == [
        (name, parties) for name, (_, parties) in zip(named, cases, strict=True)
    ]
    # What the service does by itself, and the fixed terms, have no party.
    assert auditor.one("SELECT count(*) FROM audit_party WHERE party NOT LIKE 'did:%%'") == 0
    assert parties_after(auditor, 0)[0] == set()


async def test_bidders_are_parties_of_their_round(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    flow = await auctions.auctioned(store, auctions.A, auctions.B)
    await store.commit([card("did:test:c", owner_did=OWNER)], AT)
    begun = int(auditor.one("SELECT audit_seq FROM head"))
    assert await errors(store, auctions.bid(flow, auctions.A, 5)) == [None]
    standing = Bid("did:test:c", 10, None, None, 0, is_standing=True)
    closed = AuctionClosed(
        "a", 1, auctions.A, 5, (Bid(auctions.A, 5, None, None, AT + 1), standing)
    )
    dispatched = NodeChanged(
        "a", NodeStatus.DISPATCHED, attempt=1, agent_did=auctions.A, auction_round=1
    )
    advance = replace(flow.advance(closed, dispatched), actor_did="member-1")
    store = await next_writer()
    await store.commit([advance], auctions.CLOSES)
    placed, awarded = parties_after(auditor, begun)
    assert placed - {PAYER} < awarded
    assert auctions.A in awarded
    assert not {"did:test:c", OWNER} & awarded, "standing bids are counted, not listed"
    assert auctions.B not in placed | awarded, "it may bid, and has not"


async def test_an_agents_owner_is_the_one_that_it_had_then(
    store: LedgerStore, auditor: Auditor
) -> None:
    """A claim that gave way, and then an heir."""
    begun = int(auditor.one("SELECT audit_seq FROM head"))
    claimed = card(owner_did=OTHER)
    proven = card(owner_did=PAYER, proof=OPERATOR, lines_taken=())
    again = card(owner_did=PAYER, proof=OPERATOR)
    outcomes = await store.commit([claimed, proven, again, set_heir()], AT)
    auditor.connection.execute("UPDATE readiness SET seen_ms = %s", (AT + 400 * 86_400_000,))
    outcomes += await store.commit([run(), card(owner_did=HEIR, proof=OPERATOR)], AT + 1)
    assert [outcome.error for outcome in outcomes] == [None] * 6
    assert parties_after(auditor, begun) == [
        {AGENT, OTHER},
        {AGENT, OTHER, PAYER},
        {AGENT, PAYER},
        {AGENT, PAYER, HEIR},
        {AGENT, PAYER, HEIR},
        {AGENT, HEIR},
    ]
