"""Stakes: whose credits they are, what comes back, what another's claim of a DID cannot reach."""

from __future__ import annotations

from core.errors import ErrorCode
from ledger.commands import Outcome, OutcomeStatus
from ledger.features.stakes import DepositStake, WithdrawStake
from ledger.writer.store import LedgerStore
from tests.ledger.checking import Auditor
from tests.ledger.making import AGENT, AT, CREDIT, card, deposit, errors, leave, new_key

OTHER = "did:test:other"


def stake(
    micro: int, *, agent: str = AGENT, actor: str = AGENT, is_admin: bool = False, key: str = ""
) -> DepositStake:
    """Put credits into an agent's stake."""
    return DepositStake(
        key=key or new_key(),
        request_hash=b"s",
        actor_did=actor,
        is_admin=is_admin,
        agent_did=agent,
        amount_micro=micro,
    )


def unstake(
    micro: int, *, agent: str = AGENT, actor: str = AGENT, is_admin: bool = False
) -> WithdrawStake:
    """Take credits out of an agent's stake."""
    return WithdrawStake(
        key=new_key(),
        request_hash=b"u",
        actor_did=actor,
        is_admin=is_admin,
        agent_did=agent,
        amount_micro=micro,
    )


async def first(store: LedgerStore, *commands: DepositStake | WithdrawStake) -> Outcome:
    """Commit commands and return the first outcome."""
    return (await store.commit(commands, AT))[0]


def parts(auditor: Auditor, did: str = AGENT) -> tuple[int, int]:
    """Return the free and the locked part of a stake as stored."""
    query = (
        "SELECT f.balance, l.balance FROM stake s JOIN account f ON f.id = s.free_account_id"
        " JOIN account l ON l.id = s.locked_account_id WHERE s.agent_did = %s"
    )
    row = auditor.connection.execute(query, (did,)).fetchone()
    assert row is not None
    return row[0], row[1]


async def test_a_registrant_takes_nothing_of_what_was_there_before_it(
    empty_store: LedgerStore,
) -> None:
    """Issue row 10: an agent's owner has no right to what the DID's holder has put up."""
    await empty_store.commit([deposit(2 * CREDIT, owner_did=AGENT), card(owner_did=OTHER)], AT)
    await empty_store.commit([stake(CREDIT)], AT)
    assert (await first(empty_store, unstake(CREDIT, actor=OTHER))).error is ErrorCode.FORBIDDEN
    await empty_store.commit([leave(owner_did=OTHER), card(owner_did=OTHER)], AT)
    assert (await first(empty_store, unstake(1, actor=OTHER))).error is ErrorCode.FORBIDDEN
    assert (await first(empty_store, unstake(CREDIT))).result["balanceMicro"] == 2 * CREDIT


async def test_an_administrator_acts_in_the_agents_name_alone(
    empty_store: LedgerStore, auditor: Auditor
) -> None:
    money = [deposit(CREDIT, owner_did=AGENT), deposit(CREDIT, owner_did=OTHER)]
    await empty_store.commit(money, AT)
    staked = await first(empty_store, stake(CREDIT, actor=OTHER, is_admin=True))
    assert staked.result["walletDid"] == AGENT
    back = await first(empty_store, unstake(CREDIT, actor=OTHER, is_admin=True))
    assert back.result["walletDid"] == AGENT
    assert (auditor.balance(AGENT), auditor.balance(OTHER)) == (CREDIT, CREDIT)


async def test_a_did_with_a_stake_is_claimed_by_itself_alone(empty_store: LedgerStore) -> None:
    """An agent's owner may take its stake out: so none but the DID itself may register it then."""
    await empty_store.commit([deposit(CREDIT, owner_did=AGENT), stake(CREDIT)], AT)
    assert await errors(empty_store, card(owner_did=OTHER)) == [ErrorCode.FORBIDDEN]
    refused = await first(empty_store, unstake(CREDIT, actor=OTHER))
    assert refused.error is ErrorCode.FORBIDDEN
    (claimed,) = await empty_store.commit([card(owner_did=AGENT)], AT)
    assert claimed.status is OutcomeStatus.APPLIED
    # Bare wallets are no hindrance: earnings of others cannot be reached by owning an agent.
    (free,) = await empty_store.commit([card("did:test:second", owner_did=OTHER)], AT)
    assert free.status is OutcomeStatus.APPLIED
