"""The work that a writer begins and another one finishes.

Ids are fixed, so that `finish` knows what `begin` has left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from core.workflow.events import AuctionClosed, NodeChanged, StakeFreed, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import Command, OutcomeStatus
from ledger.writer.store import LedgerStore
from tests.ledger import test_auctions as auctions
from tests.ledger.disputing import about, decide
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    MEMBER,
    Flow,
    ToldLives,
    api_key,
    card,
    deposit,
    join,
    open_store,
    open_with_member,
    revoke,
    succeeded,
    take,
)
from tests.ledger.test_stakes import stake
from tests.ledger.test_stakes_at_risk import AT_RISK, opened

BIDDER: Final = "did:test:bidder"
REVOKED: Final = "did:test:revoked"
# The member that ends the work.
FINISHER: Final = "member-2"
FINISHED, DISPATCHED, HALF_PAID, AT_STAKE, AUCTIONED = (
    f"0199c0de-0000-7000-8000-00000000000{number}" for number in range(1, 6)
)
DISPUTE: Final = "0199c0de-0000-7000-8000-0000000000d1"
LATER: Final = AT + 1_000
# What `finish` leaves in each wallet: 100 credits less what five workflows have cost and what the
# dispute gave back; the agent is paid for four nodes less 5 %, less a half of one.
PAYER_MICRO: Final = 100 * CREDIT - 2 * CREDIT - 3 * CREDIT - 200_000 + CREDIT
FEE_MICRO: Final = 250_000 + 10_000 - 50_000
EARNED_MICRO: Final = 4_750_000 - 950_000
BIDDER_MICRO: Final = 190_000


async def begin(url: str, writer: type[LedgerStore] = LedgerStore) -> None:
    """Let a ledger come to have some of everything, and leave it."""
    store, epoch = await open_with_member(url, writer=writer)
    done, dispatched, half, risky, sold = _flows(epoch)
    await _apply(
        store,
        [
            card(),
            card(BIDDER, owner_did=f"{BIDDER}:owner"),
            card(REVOKED),
            revoke(REVOKED),
            api_key("k", b"k" * 32),
            deposit(4 * CREDIT, owner_did=AGENT),
            stake(4 * CREDIT),
            done.publish(),
            dispatched.publish(),
            half.publish(),
            risky.publish(records=(WorkflowChanged(WorkflowStatus.RUNNING, AT), *opened())),
            sold.publish(records=(auctions.opened(), auctions.waiting())),
        ],
    )
    await _apply(store, [done.pay(2 * CREDIT), half.pay(CREDIT)])
    await _apply(store, [done.end(), auctions.bid(sold, BIDDER, 200_000)])
    await _apply(store, [about(done, dispute_id=DISPUTE)])
    await store.close()


async def finish(url: str, writer: type[LedgerStore] = LedgerStore) -> None:
    """Open the ledger as its next writer, take the work over and end all of it."""
    lives = ToldLives()
    store = await open_store(url, writer, lives=lives)
    # The lease of the process that began it is over.
    epoch = store.cluster.shards[0].epoch
    lives.ended = set(store.cluster.members)
    await _apply(store, [join(FINISHER), take(FINISHER, epoch=epoch)])
    _, dispatched, half, risky, sold = _flows(epoch + 1, member=FINISHER, steps=10)
    freed = StakeFreed("a", 1, AGENT, AT_RISK)
    await _apply(
        store,
        [
            dispatched.pay(CREDIT),
            risky.advance(freed, *succeeded("a", CREDIT)),
            auctions.end(sold),
        ],
        auctions.CLOSES,
    )
    won = NodeChanged(
        "a",
        NodeStatus.DISPATCHED,
        attempt=1,
        agent_did=BIDDER,
        price_micro=200_000,
        auction_round=1,
    )
    started = WorkflowChanged(WorkflowStatus.RUNNING, auctions.CLOSES)
    closed = AuctionClosed("a", 1, BIDDER, 200_000, ())
    await _apply(store, [sold.advance(started, closed, won)], auctions.CLOSES)
    await _apply(store, [sold.pay(200_000, agent=BIDDER)])
    await _apply(store, [one.end() for one in (dispatched, half, risky, sold)])
    await _apply(store, [decide(about(None, dispute_id=DISPUTE), CREDIT, "resolved_split")])
    await store.close()


def _flows(epoch: int, *, member: str = MEMBER, steps: int = 0) -> list[Flow]:
    ids = (FINISHED, DISPATCHED, HALF_PAID, AT_STAKE, AUCTIONED)
    return [Flow(epoch, id=workflow_id, member=member, steps=steps) for workflow_id in ids]


async def _apply(store: LedgerStore, commands: Sequence[Command], at_ms: int = LATER) -> None:
    outcomes = await store.commit(commands, at_ms)
    assert all(one.status is OutcomeStatus.APPLIED for one in outcomes), outcomes
