"""Stakes: deposits, withdrawals, locks for attempts, and slashes.

Reference: money.md (Stakes, Slashing, Accounts). Decision stakes-and-slashing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from core.errors import ErrorCode, NodeErrorCode
from core.market.slashing import SlashTrigger, settle_shares, slash_bps, slash_micro
from core.money import MICRO_MAX, credits_text
from core.records.audit import AuditEventType
from core.workflow.events import NodeChanged, StakeLocked, StakeUnlocked
from ledger.authority import AuthorizedCommand, OwnersCommand
from ledger.connections.connect import fetch
from ledger.features.workflow_commands import AdvanceWorkflow, PublishWorkflow
from ledger.tables.money_tables import STAKE_SHARES, STAKES
from ledger.tables.work_tables import ENDED_LOCKS, NODES
from ledger.writer.batch import Batch, Refusal, Result, conflict, forbidden, invalid, not_found
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import (
    Account,
    stake_address,
    stake_locked_address,
    wallet_address,
)


class DepositStake(OwnersCommand, frozen=True, kw_only=True):
    """Move credits into an agent's stake, from the wallet of the agent or of its owner.

    `is_admin`: the caller may act in the agent's name (decision stakes-and-slashing).
    Rejections: FORBIDDEN, INSUFFICIENT_CREDITS, INVALID_REQUEST above the maximum balance,
    KEY_REUSED. Result: {"walletDid", "balanceMicro", "freeMicro", "lockedMicro", "updatedMs"}.
    """

    request_hash: bytes
    agent_did: str
    amount_micro: int


class WithdrawStake(OwnersCommand, frozen=True, kw_only=True):
    """Move credits out of the unlocked part of an agent's stake, back to their depositor.

    Rejections: FORBIDDEN (also above the depositor's share), STAKE_LOCKED, KEY_REUSED.
    Result: as for `DepositStake`.
    """

    request_hash: bytes
    agent_did: str
    amount_micro: int


class SlashStake(AuthorizedCommand, frozen=True, kw_only=True):
    """Slash the stake that an agent has locked for a node, as an administrator decides.

    `slash_bps`: the part of the lock that is slashed, basis points. The lock ends, and the other
    part is unlocked.
    Rejections: NOT_FOUND (the node does not exist or was never dispatched), CONFLICT (the node
    belongs to another agent), KEY_REUSED. Result: {"payerDid", "slashedMicro", "freeMicro",
    "lockedMicro"}.
    """

    request_hash: bytes
    agent_did: str
    workflow_id: str
    node: str
    reason: str
    slash_bps: int


# Plans of deposits and withdrawals. A stake is two accounts, free (unlocked) and locked; work moves
# credits between them. The stake belongs to its depositors, not to the agent's owner. Each
# depositor has a share, which returns only to that depositor.

StakeCommand = DepositStake | WithdrawStake


def add_stake_reads(command: StakeCommand, read_set: ReadSet) -> None:
    """Add the keys of the rows that planning a deposit or withdrawal reads."""
    read_set.agent_dids.add(command.agent_did)
    read_set.share_dids.add(command.agent_did)
    read_set.wallets |= {command.actor_did, command.agent_did}
    read_set.stakes.add(command.agent_did)


@plans(DepositStake, reads=add_stake_reads)
def plan_deposit_stake(command: DepositStake, batch: Batch) -> Result:
    """Move credits from a wallet into the unlocked part of the agent's stake."""
    wallet_did = _wallet_did(command, batch)
    if wallet_did is None:
        raise _forbidden(command)
    known = batch.cache.accounts.get(wallet_address(wallet_did))
    available = batch.cache.balance(wallet_address(wallet_did))
    # Locked credits return to the unlocked part later, so the maximum is for both parts together.
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
    """Move credits from the unlocked part of the agent's stake back to a depositor (money.md,
    Stakes).

    Steps: (1) check that the caller may move the stake, or has a share of it, (2) check the
    unlocked part, (3) check the depositor's share, (4) check that the depositor leaves as much of
    its share as is locked. Without (4) only the other depositors would bear a slash of running
    work.
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
    """Return the free and the locked account of an agent's stake, opened if absent, and mark the
    stake as changed by this batch."""
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
    """Return the current shares of an agent's stake by depositor, micro-credits."""
    return settle_shares(batch.cache.shares[agent_did], sum(stake_parts(agent_did, batch)))


def store_shares(agent_did: str, shares: dict[str, int], batch: Batch) -> None:
    """Store all shares of a stake, because a command also settles the shares of other
    depositors."""
    batch.cache.shares[agent_did] = {did: micro for did, micro in shares.items() if micro}
    for did, micro in shares.items():
        row = {"agent_did": agent_did, "depositor_did": did, "micro": micro}
        batch.put(STAKE_SHARES, (agent_did, did), row)


def _wallet_did(command: StakeCommand, batch: Batch) -> str | None:
    """Return the DID whose wallet a stake comes from or returns to, None if the caller may not.

    The agent and its owner use their own wallets; an administrator uses the agent's wallet.
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
    """Move the amount and change the depositor's share; record the event and return the result."""
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


# Plans of stakes at risk: locked with an attempt, unlocked at its end, and slashed. An agent is
# slashed for four reasons: it is given up for a failure of its own, it signs a result wrongly, it
# has defrauded the payer, or an administrator slashes it. The lock or slash is a part of the
# command that stores the attempt or the decision. If the unlocked stake does not cover a lock, the
# lock is refused. The outcome then names the node, and the attempt is not sent. A slash takes only
# from the lock of its own node and ends that lock, so no attempt is slashed twice.

_NODE: Final = """
SELECT w.payer_did, n.agent_did, n.attempt, n.stake_micro
FROM callboard.node n JOIN callboard.workflow w ON w.id = n.workflow_id
WHERE n.workflow_id = %(workflow)s::uuid AND n.name = %(node)s
"""
# By event of a lock: the kind and the description of its entry.
_ENTRIES: Final = {
    AuditEventType.STAKE_LOCKED: ("stake_lock", "stake at risk with a node"),
    AuditEventType.STAKE_UNLOCKED: ("stake_unlock", "stake free again"),
    AuditEventType.STAKE_SLASHED: ("stake_slash", "stake lost by a failure or by fraud"),
}


@dataclass(frozen=True, slots=True)
class _Lock:
    """The stake locked with an attempt.

    `attempt` None: nothing is locked for the node. `node` None: nothing is locked for any node of
    the workflow.
    `is_sealed`: the amount is kept out of the audit log, because it would tell the payer what the
    winner of an auction has bid.
    """

    agent_did: str
    workflow_id: str
    node: str | None
    attempt: int | None
    is_sealed: bool = False

    @property
    def place(self) -> dict[str, Any]:
        """The workflow, node and attempt, as audit events name them."""
        place: dict[str, Any] = {"workflowId": self.workflow_id, "nodeId": self.node}
        return place if self.attempt is None else {**place, "attempt": self.attempt}


def add_risk_reads(
    workflow_id: str, record: StakeLocked | StakeUnlocked | NodeChanged, read_set: ReadSet
) -> None:
    """Add the keys of the rows that planning the begin, the continuation or the end of a lock
    reads."""
    match record:
        case NodeChanged():
            if record.stake_micro:
                read_set.staked.add((workflow_id, record.node))
        case StakeLocked() | StakeUnlocked():
            read_set.agent_dids.add(record.agent_did)
            read_set.stakes.add(record.agent_did)
            if type(record) is StakeUnlocked:
                read_set.staked.add((workflow_id, record.node))
                read_set.ending.add(workflow_id)  # loads the payer's wallet, which a slash credits


def move_stakes(command: PublishWorkflow | AdvanceWorkflow, batch: Batch) -> list[str]:
    """Lock and unlock stake as the command's records require. Return the nodes whose lock was
    refused.

    Call it after the command's node rows were added. It removes the locked stake from the row of a
    node whose lock was refused or has ended. The owner process may not know yet that a lock was
    refused, or was ended by a dispute.
    """
    unstaked: list[str] = []
    at_risk: list[NodeChanged] = []
    for record in command.records:
        match record:
            case StakeLocked():
                if not _lock(command, record, batch):
                    unstaked.append(record.node)
            case StakeUnlocked():
                assert isinstance(command, AdvanceWorkflow), "nothing ends at publish"
                _free(command, record, batch)
            case NodeChanged():
                if record.stake_micro:
                    at_risk.append(record)
            case _:
                pass
    for change in at_risk:
        place = (command.workflow_id, change.node)
        staked = batch.cache.staked.get(place)
        if staked is None or staked[0] != change.attempt:
            row = batch.row(NODES, place)
            assert row is not None, place
            row.pop("stake_micro", None)
    return unstaked


@dataclass(frozen=True, slots=True)
class Guilt:
    """Why an agent is slashed: where, for which payer, and by how much.

    `node` None: for the whole workflow. `locks`: (node, attempt number, locked micro-credits) of
    its open attempts there; `bps` of each lock is taken. `evidence`: further members of the audit
    event's evidence.
    """

    agent_did: str
    workflow_id: str
    node: str | None
    payer_did: str
    locks: tuple[tuple[str, int, int], ...]
    bps: int
    reason: SlashTrigger
    evidence: dict[str, Any]


def slash_guilty(guilt: Guilt, batch: Batch) -> int:
    """Slash and end the locks of a guilty agent; return the slashed micro-credits.

    A node that has ended has no lock. Its agent then loses nothing, and only an event is recorded.
    """
    did, workflow_id = guilt.agent_did, guilt.workflow_id
    if not guilt.locks:
        _slash(_Lock(did, workflow_id, guilt.node, None), None, 0, guilt, batch)
        return 0
    free, locked = stake_accounts(did, batch)
    slashed_micro = 0
    for node, attempt, at_risk_micro in guilt.locks:
        lock = _Lock(did, workflow_id, node, attempt)
        locked_micro = min(at_risk_micro, locked.balance)
        lost_micro = _slash(lock, locked, locked_micro, guilt, batch)
        _unlock(lock, (locked, free), locked_micro - lost_micro, batch)
        batch.cache.staked[workflow_id, node] = None
        batch.put(ENDED_LOCKS, (workflow_id, node), {"workflow_id": workflow_id, "name": node})
        slashed_micro += lost_micro
    return slashed_micro


@dataclass(frozen=True, slots=True)
class SlashReads:
    """A node that was dispatched: its payer and agent, and the stake locked with its attempt."""

    payer_did: str
    agent_did: str | None
    attempt: int
    locked_micro: int


async def load_slash(
    connection: Connection, command: SlashStake, read_set: ReadSet
) -> SlashReads | None:
    """Return the node for which an agent is slashed, None if it was never dispatched."""
    place = {"workflow": command.workflow_id, "node": command.node}
    read_set.agent_dids.add(command.agent_did)
    read_set.stakes.add(command.agent_did)
    for row in await fetch(connection, _NODE, place):
        stored = SlashReads(*row)
        read_set.wallets.add(stored.payer_did)
        return stored
    return None


@plans(SlashStake, load=load_slash)
def plan_slash_stake(command: SlashStake, batch: Batch) -> Result:
    """Slash the stake that an agent has locked for a node.

    Steps: (1) check that the node was dispatched, (2) check that it was dispatched to this agent,
    (3) end the lock.
    """
    stored: SlashReads | None = batch.loaded
    if stored is None:  # (1)
        place = f"node {command.node[:128]!r} of workflow {command.workflow_id}"
        raise not_found(f"{place} is not known or was never dispatched")
    if stored.agent_did != command.agent_did:  # (2)
        detail = f"the node is {stored.agent_did or 'no agent'}'s, expected {command.agent_did}'s"
        raise conflict(detail)
    lock = (command.node, stored.attempt, stored.locked_micro)
    guilt = Guilt(
        agent_did=command.agent_did,
        workflow_id=command.workflow_id,
        node=command.node,
        payer_did=stored.payer_did,
        locks=(lock,) if stored.locked_micro else (),
        bps=command.slash_bps,
        reason=SlashTrigger.ADMIN,
        evidence={"explanation": command.reason},
    )
    slashed_micro = slash_guilty(guilt, batch)  # (3)
    free_micro, locked_micro = stake_parts(command.agent_did, batch)
    return {
        "payerDid": stored.payer_did,
        "slashedMicro": slashed_micro,
        "freeMicro": free_micro,
        "lockedMicro": locked_micro,
    }


def _build_lock(
    command: PublishWorkflow | AdvanceWorkflow, record: StakeLocked | StakeUnlocked
) -> _Lock:
    is_sealed = any(
        type(one) is NodeChanged and one.node == record.node and one.auction_round > 0
        for one in command.records
    )
    return _Lock(record.agent_did, command.workflow_id, record.node, record.attempt, is_sealed)


def _lock(command: PublishWorkflow | AdvanceWorkflow, record: StakeLocked, batch: Batch) -> bool:
    known = batch.cache.accounts.get(stake_address(record.agent_did))
    if known is None or known.balance < record.micro:
        return False
    accounts = stake_accounts(record.agent_did, batch)
    lock = _build_lock(command, record)
    batch.cache.staked[command.workflow_id, record.node] = (record.attempt, record.micro)
    _change(AuditEventType.STAKE_LOCKED, lock, accounts, record.micro, lock.place, batch)
    return True


def _free(command: AdvanceWorkflow, record: StakeUnlocked, batch: Batch) -> None:
    """End a lock: first slash a part of it if the attempt's end requires a slash, then unlock the
    rest.

    Nothing happens if the lock was refused or has ended, which the owner process may not know yet.
    If a refund has reduced the locked stake meanwhile, only the rest is moved.
    """
    staked = batch.cache.staked.pop((command.workflow_id, record.node), None)
    if staked is None or staked[0] != record.attempt:
        return
    free, locked = stake_accounts(record.agent_did, batch)
    lock = _build_lock(command, record)
    micro = min(staked[1], locked.balance)
    trigger = _slash_trigger(record)
    if trigger is not None:
        reason, code = trigger
        escrow = batch.cache.escrows[command.workflow_id]
        assert escrow is not None, command
        bps = slash_bps(reason, failure_bps=command.slash_bps, fraud_bps=command.slash_fraud_bps)
        place, evidence = (command.workflow_id, record.node), {"code": code.value}
        guilt = Guilt(record.agent_did, *place, escrow.payer_did, (), bps, reason, evidence)
        micro -= _slash(lock, locked, micro, guilt, batch)
    _unlock(lock, (locked, free), micro, batch)


def _slash_trigger(record: StakeUnlocked) -> tuple[SlashTrigger, NodeErrorCode] | None:
    """Return why the end of an attempt causes a slash, None if it causes none. The result was
    signed wrongly, or the agent is given up for the node after a failure of its own."""
    if record.is_forged:
        return SlashTrigger.WRONG_SIGNATURE, NodeErrorCode.INVALID_REPLY
    if record.failure_code is not None:
        return SlashTrigger.NODE_FAILED, record.failure_code
    return None


def _slash(
    lock: _Lock, account: Account | None, locked_micro: int, guilt: Guilt, batch: Batch
) -> int:
    """Move a part of a lock to the payer, without a fee; return it, micro-credits.

    Args:
        account: the agent's locked stake.
        locked_micro: the part of it that is locked for this attempt.
    """
    payer = batch.account(wallet_address(guilt.payer_did), "wallet", guilt.payer_did)
    micro = slash_micro(locked_micro, guilt.bps)
    members = {
        "reason": guilt.reason.value,
        "evidence": {**lock.place, **guilt.evidence},
        "payerDid": guilt.payer_did,
        "lockedCredits": credits_text(locked_micro),
    }
    _change(AuditEventType.STAKE_SLASHED, lock, (account, payer), micro, members, batch)
    return micro


def _unlock(lock: _Lock, accounts: tuple[Account, Account], micro: int, batch: Batch) -> None:
    """Unlock the rest of a lock."""
    if micro:
        _change(AuditEventType.STAKE_UNLOCKED, lock, accounts, micro, lock.place, batch)


def _change(
    event: AuditEventType,
    lock: _Lock,
    accounts: tuple[Account | None, Account],
    micro: int,
    members: dict[str, Any],
    batch: Batch,
) -> None:
    """Add the entry (none for 0 micro-credits) and the audit event of a change of a lock."""
    entry_ids = batch.transfer(
        *accounts, micro, *_ENTRIES[event], workflow_id=lock.workflow_id, node_id=lock.node
    )
    payload = {**members, "entryIds": entry_ids}
    if event is AuditEventType.STAKE_SLASHED or not lock.is_sealed:
        payload["amountCredits"] = credits_text(micro)
    batch.record(event, ("stake", lock.agent_did), **payload)
