"""Planning stakes at risk: locked with an attempt, freed at its end, and slashed.

Slashed is an agent that is given up for a failure of its own, signs a result wrongly, is found to
have defrauded the payer, or is slashed by an administrator. All of it within the command that
stores the attempt or decides. A lock that the agent's free stake does not cover does not happen;
the outcome says so, and nothing is sent. A slash takes of its own node's lock alone, and ends it:
no attempt is slashed twice. Reference: money.md (Slashing, Stakes). Decisions stakes-and-slashing
and refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from core.errors import NodeErrorCode
from core.market.slashing import SlashTrigger, slash_bps, slash_micro
from core.money import credits_text
from core.records.audit import AuditEventType
from core.workflow.events import NodeChanged, StakeFreed, StakeLocked
from ledger.connections.connecting import fetch
from ledger.stakes.stake_commands import SlashStake
from ledger.stakes.stake_plan import stake_accounts, stake_parts
from ledger.tables.work_tables import ENDED_LOCKS, NODES
from ledger.workflows.workflow_commands import AdvanceWorkflow, PublishWorkflow
from ledger.writer.batch import Batch, Result, conflict, not_found
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import (
    Account,
    stake_address,
    wallet_address,
)

_NODE: Final = """
SELECT w.payer_did, n.agent_did, n.attempt, n.stake_micro
FROM callboard.node n JOIN callboard.workflow w ON w.id = n.workflow_id
WHERE n.workflow_id = %(workflow)s::uuid AND n.name = %(node)s
"""
# By what happens to a lock: the kind and the description of its entry.
_ENTRIES: Final = {
    AuditEventType.STAKE_LOCKED: ("stake_lock", "stake at risk with a node"),
    AuditEventType.STAKE_UNLOCKED: ("stake_unlock", "stake free again"),
    AuditEventType.STAKE_SLASHED: ("stake_slash", "stake lost by a failure or by fraud"),
}


@dataclass(frozen=True, slots=True)
class _Lock:
    """The stake locked with an attempt.

    Without an attempt: nothing is locked for this node, or for any of the workflow's. `is_sealed`:
    its amount would tell the payer what the winner of an auction has bid.
    """

    agent_did: str
    workflow_id: str
    node: str | None
    attempt: int | None
    is_sealed: bool = False

    @property
    def place(self) -> dict[str, Any]:
        """Where it belongs, as audit records say it."""
        place: dict[str, Any] = {"workflowId": self.workflow_id, "nodeId": self.node}
        return place if self.attempt is None else {**place, "attempt": self.attempt}


def add_risk_reads(
    workflow_id: str, record: StakeLocked | StakeFreed | NodeChanged, read_set: ReadSet
) -> None:
    """Add what has to be in the state cache before a lock begins, goes on or ends."""
    match record:
        case NodeChanged():
            if record.stake_micro:
                read_set.staked.add((workflow_id, record.node))
        case StakeLocked() | StakeFreed():
            read_set.agent_dids.add(record.agent_did)
            read_set.add_stake(record.agent_did)
            if type(record) is StakeFreed:
                read_set.staked.add((workflow_id, record.node))
                read_set.ending.add(workflow_id)  # whose payer a slash would go to


def move_stakes(command: PublishWorkflow | AdvanceWorkflow, batch: Batch) -> list[str]:
    """Lock and free what the command's records say; return the nodes whose lock was refused.

    After the command's rows and its release, so that the payer's wallet has room for both. A row
    that says that stake is locked is corrected last: its owner may not have heard yet that the lock
    was refused, or ended by a dispute.
    """
    unstaked: list[str] = []
    at_risk: list[NodeChanged] = []
    for record in command.records:
        match record:
            case StakeLocked():
                if not _lock(command, record, batch):
                    unstaked.append(record.node)
            case StakeFreed():
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
    """What an agent is found guilty of: at which node, None for all of the workflow; for whom.

    `locks`: of its open attempts there, each with its node, its number and the stake locked with
    it, micro-credits. `bps` of each is taken. `evidence`: what the record says besides the place.
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
    """End the locks of the guilty, the payer's part first; return that, micro-credits.

    A node that has ended has nothing locked, so its agent loses nothing: there is an event only.
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
    """A node that was dispatched: whose it is, and what is locked with its attempt."""

    payer_did: str
    agent_did: str | None
    attempt: int
    locked_micro: int


async def load_slash(
    connection: Connection, command: SlashStake, read_set: ReadSet
) -> SlashReads | None:
    """Return the node that an agent is slashed for, None when it was never dispatched."""
    place = {"workflow": command.workflow_id, "node": command.node}
    read_set.agent_dids.add(command.agent_did)
    read_set.add_stake(command.agent_did)
    for row in await fetch(connection, _NODE, place):
        stored = SlashReads(*row)
        read_set.addresses.add(wallet_address(stored.payer_did))
        return stored
    return None


@plans(SlashStake, load=load_slash)
def plan_slash_stake(command: SlashStake, batch: Batch) -> Result:
    """Take what an agent has locked for a node because an administrator says so.

    Steps: (1) the node was dispatched, (2) it is this agent's, (3) its lock ends.
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
    command: PublishWorkflow | AdvanceWorkflow, record: StakeLocked | StakeFreed
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


def _free(command: AdvanceWorkflow, record: StakeFreed, batch: Batch) -> None:
    """End a lock: the payer's part first, the rest is the agent's again.

    A lock that was refused or has ended, of which its owner had no notice yet, has nothing to end.
    A refund may have taken from the locked stake meanwhile: then less is left than was locked.
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


def _slash_trigger(record: StakeFreed) -> tuple[SlashTrigger, NodeErrorCode] | None:
    """Say what the end of an attempt costs its agent stake for: a wrong signature, or a failure of
    its own after which it is given up for the node."""
    if record.is_forged:
        return SlashTrigger.WRONG_SIGNATURE, NodeErrorCode.INVALID_REPLY
    if record.failure_code is not None:
        return SlashTrigger.NODE_FAILED, record.failure_code
    return None


def _slash(
    lock: _Lock, account: Account | None, locked_micro: int, guilt: Guilt, batch: Batch
) -> int:
    """Move a share of a lock to the payer, without a fee; return it, micro-credits.

    Args:
        account: the agent's locked stake.
        locked_micro: what of it is locked for this attempt.
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
    """Give the agent back what is left of a lock."""
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
    """Add the entry of what happens to a lock, none for nothing, and its audit record."""
    entry_ids = batch.transfer(
        *accounts, micro, *_ENTRIES[event], workflow_id=lock.workflow_id, node_id=lock.node
    )
    payload = {**members, "entryIds": entry_ids}
    if event is AuditEventType.STAKE_SLASHED or not lock.is_sealed:
        payload["amountCredits"] = credits_text(micro)
    batch.record(event, ("stake", lock.agent_did), **payload)
