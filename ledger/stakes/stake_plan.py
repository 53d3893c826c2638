"""Planning stakes: credits go into an agent's stake and come back out of its free part.

A stake is two accounts, free and locked; what moves between them is the work's business. It belongs
to those who deposited it, each by a share, and not to its agent's registrant: a share comes back
to its depositor alone. Reference: money.md (Stakes). Decision stakes-and-slashing.
"""

from __future__ import annotations

from core.errors import ErrorCode
from core.market.slashing import settle_shares
from core.money import MICRO_MAX, credits_text
from core.records.audit import AuditEventType
from ledger.stakes.stake_commands import DepositStake, WithdrawStake
from ledger.tables.money_tables import STAKE_SHARES, STAKES
from ledger.writer.batch import Batch, Refusal, Result, forbidden, invalid
from ledger.writer.command_kind import plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import (
    Account,
    stake_address,
    stake_locked_address,
    wallet_address,
)

StakeCommand = DepositStake | WithdrawStake


def add_stake_reads(command: StakeCommand, read_set: ReadSet) -> None:
    """Add what has to be in the state cache before a stake moves."""
    read_set.agent_dids.add(command.agent_did)
    read_set.share_dids.add(command.agent_did)
    read_set.addresses |= {wallet_address(command.actor_did), wallet_address(command.agent_did)}
    read_set.add_stake(command.agent_did)


@plans(DepositStake, reads=add_stake_reads)
def plan_deposit_stake(command: DepositStake, batch: Batch) -> Result:
    """Move credits from a wallet into the free part of the agent's stake; they stay its owner's."""
    wallet_did = _wallet_did(command, batch)
    if wallet_did is None:
        raise _forbidden(command)
    known = batch.cache.accounts.get(wallet_address(wallet_did))
    available = batch.cache.balance(wallet_address(wallet_did))
    # Whatever is unlocked later must fit into the free part: the bound is on both together.
    room = MICRO_MAX - sum(stake_parts(command.agent_did, batch))
    if not 0 < command.amount_micro <= room:
        raise invalid(
            f"got a stake of {credits_text(command.amount_micro)} credits, expected more than 0"
            f" and at most {credits_text(room)}"
        )
    if command.amount_micro > available:
        raise Refusal(
            ErrorCode.INSUFFICIENT_CREDITS,
            f"the stake needs {credits_text(command.amount_micro)} credits,"
            f" {credits_text(available)} are available",
        )
    assert known is not None
    free, _ = stake_accounts(command.agent_did, batch)
    return _moved(command, batch, (known, free), wallet_did=wallet_did, wallet=known)


@plans(WithdrawStake, reads=add_stake_reads)
def plan_withdraw_stake(command: WithdrawStake, batch: Batch) -> Result:
    """Move credits from the free part of the agent's stake back to a depositor (money.md, Stakes).

    Steps: (1) the caller may move the stake, or has a share of it, (2) so much is free, (3) and the
    depositor's own, (4) of which it leaves as much as is locked: otherwise others would bear alone
    what running work may cost.
    """
    shares = settled_shares(command.agent_did, batch)
    wallet_did = _wallet_did(command, batch)
    if wallet_did is None and command.actor_did in shares:
        wallet_did = command.actor_did
    if wallet_did is None:  # (1)
        raise _forbidden(command)
    free_micro, locked_micro = stake_parts(command.agent_did, batch)
    if not 0 < command.amount_micro <= free_micro:  # (2)
        raise Refusal(
            ErrorCode.STAKE_LOCKED,
            f"got {credits_text(command.amount_micro)} credits to withdraw, expected at most"
            f" {credits_text(free_micro)}: {credits_text(locked_micro)} are locked by running work",
        )
    own_micro = shares.get(wallet_did, 0)
    if command.amount_micro > own_micro:  # (3)
        raise forbidden(
            f"got {credits_text(command.amount_micro)} credits to withdraw, expected at most"
            f" {credits_text(own_micro)}: the rest of the stake was deposited by others"
        )
    most_micro = own_micro - min(own_micro, locked_micro)
    if command.amount_micro > most_micro:  # (4)
        raise Refusal(
            ErrorCode.STAKE_LOCKED,
            f"got {credits_text(command.amount_micro)} credits to withdraw, expected at most"
            f" {credits_text(most_micro)}: {credits_text(locked_micro)} are locked by running"
            " work, and each depositor leaves that amount of its share",
        )
    wallet = batch.account(wallet_address(wallet_did), "wallet", wallet_did)
    free, _ = stake_accounts(command.agent_did, batch)
    return _moved(command, batch, (free, wallet), wallet_did=wallet_did, wallet=wallet)


def stake_accounts(agent_did: str, batch: Batch) -> tuple[Account, Account]:
    """Return the free and the locked part of an agent's stake, opened when absent, and note that
    they change in this batch."""
    free = batch.account(stake_address(agent_did), "stake", agent_did)
    locked = batch.account(stake_locked_address(agent_did), "stake_locked", agent_did)
    row = {"agent_did": agent_did, "free_account_id": free.id, "locked_account_id": locked.id}
    batch.put(STAKES, agent_did, row)
    return free, locked


def stake_parts(agent_did: str, batch: Batch) -> tuple[int, int]:
    """Return the free and the locked part of an agent's stake, micro-credits."""
    balance = batch.cache.balance
    return balance(stake_address(agent_did)), balance(stake_locked_address(agent_did))


def settled_shares(agent_did: str, batch: Batch) -> dict[str, int]:
    """Return what of an agent's stake is whose now, by depositor, micro-credits."""
    return settle_shares(batch.cache.shares[agent_did], sum(stake_parts(agent_did, batch)))


def store_shares(agent_did: str, shares: dict[str, int], batch: Batch) -> None:
    """Write every share of a stake: those of others may have been settled by the same command."""
    batch.cache.shares[agent_did] = {did: micro for did, micro in shares.items() if micro}
    for did, micro in shares.items():
        row = {"agent_did": agent_did, "depositor_did": did, "micro": micro}
        batch.put(STAKE_SHARES, (agent_did, did), row)


def _wallet_did(command: StakeCommand, batch: Batch) -> str | None:
    """Return whose wallet a stake comes from and returns to, None for a caller without the right.

    The agent itself and its owner each use their own; an administrator acts in the agent's name.
    """
    known = batch.cache.agents.get(command.agent_did)
    is_owner = known is not None and known.owner_did == command.actor_did
    if is_owner or command.actor_did == command.agent_did:
        return command.actor_did
    if command.is_admin:
        return command.agent_did
    return None


def _forbidden(command: StakeCommand) -> Refusal:
    return forbidden(
        f"only {command.agent_did}, its owner, its depositors or an administrator may move its"
        " stake",
    )


def _moved(
    command: StakeCommand,
    batch: Batch,
    from_to: tuple[Account, Account],
    *,
    wallet_did: str,
    wallet: Account,
) -> Result:
    """Move the amount and the depositor's share with it; record and answer it."""
    is_deposit = isinstance(command, DepositStake)
    shares = settled_shares(command.agent_did, batch)
    change_micro = command.amount_micro if is_deposit else -command.amount_micro
    shares[wallet_did] = shares.get(wallet_did, 0) + change_micro
    store_shares(command.agent_did, shares, batch)
    said = ("stake_withdrawal", "stake taken back")
    if is_deposit:
        said = ("stake_deposit", "stake of an agent")
    entry_ids = batch.transfer(*from_to, command.amount_micro, *said)
    batch.record(
        AuditEventType.STAKE_DEPOSITED if is_deposit else AuditEventType.STAKE_WITHDRAWN,
        ("stake", command.agent_did),
        amountCredits=credits_text(command.amount_micro),
        walletDid=wallet_did,
        entryIds=entry_ids,
    )
    free_micro, locked_micro = stake_parts(command.agent_did, batch)
    return {
        "walletDid": wallet_did,
        "balanceMicro": wallet.balance,
        "freeMicro": free_micro,
        "lockedMicro": locked_micro,
        "updatedMs": batch.now_ms,
    }
