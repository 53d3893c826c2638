"""Planning stakes at risk: locked with an attempt, freed at its end, slashed when the node failed.

All of it within the command that stores the attempt. A lock that the agent's free stake does not
cover does not happen; the outcome says so, and nothing is sent. Spec: Settlement rules 8;
contract.md section 6 (Slash triggers); money.md cases 26 to 29. Decision 0074.
"""

from __future__ import annotations

from typing import Final

from core.errors import NodeErrorCode
from core.market.slashing import SlashTrigger, is_agents_failure, slash_micro
from core.money import MICRO_MAX, credits_text
from core.records.audit import AuditEventType
from core.workflow.events import NodeChanged, StakeFreed, StakeLocked
from core.workflow.transitions import NodeStatus
from ledger.batch import Batch
from ledger.books import Account, stake_address, stake_locked_address, wallet_address
from ledger.commands import AdvanceWorkflow, PublishWorkflow
from ledger.needs import Needs
from ledger.planning_stakes import stake_accounts

_FAILED: Final = (NodeStatus.FAILED, NodeStatus.TIMEOUT)


def risk_needs(workflow_id: str, record: StakeLocked | StakeFreed, wanted: Needs) -> None:
    """Add what has to be in the books before a lock begins or ends."""
    wanted.addresses |= {stake_address(record.agent_did), stake_locked_address(record.agent_did)}
    if type(record) is StakeFreed:
        wanted.staked.add((workflow_id, record.node))
        wanted.ending.add(workflow_id)  # whose payer a slash would go to


def move_stakes(command: PublishWorkflow | AdvanceWorkflow, batch: Batch) -> list[str]:
    """Lock and free what the command's records say; return the nodes whose lock was refused.

    After the command's rows and its release, so that the payer's wallet has room for both.
    """
    unstaked: list[str] = []
    for record in command.records:
        match record:
            case StakeLocked():
                if not _lock(command, record, batch):
                    unstaked.append(record.node)
                    batch.nodes[command.workflow_id, record.node].pop("stake_micro", None)
            case StakeFreed():
                assert isinstance(command, AdvanceWorkflow), "nothing ends at publish"
                _free(command, record, batch)
            case _:
                pass
    return unstaked


def _lock(command: PublishWorkflow | AdvanceWorkflow, record: StakeLocked, batch: Batch) -> bool:
    known = batch.books.accounts.get(stake_address(record.agent_did))
    if known is None or known.balance < record.micro:
        return False
    free, locked = stake_accounts(record.agent_did, batch)
    entry_id = batch.move(
        free,
        locked,
        record.micro,
        kind="stake_lock",
        description="stake at risk with a node",
        command_id=command.key,
        workflow_id=command.workflow_id,
        node_id=record.node,
    )
    batch.books.staked[command.workflow_id, record.node] = (record.attempt, record.micro)
    batch.record(
        AuditEventType.STAKE_LOCKED,
        actor_did=command.actor_did,
        target=("stake", record.agent_did),
        payload={
            "workflowId": command.workflow_id,
            "nodeId": record.node,
            "attempt": record.attempt,
            "amountCredits": credits_text(record.micro),
            "entryIds": [entry_id],
        },
    )
    return True


def _free(command: AdvanceWorkflow, record: StakeFreed, batch: Batch) -> None:
    """End a lock: the payer's part first, the rest is the agent's again.

    A refused lock, of which its owner had not heard yet, has nothing to end. A dispute may have
    taken from the locked stake meanwhile: then less is left than was locked.
    """
    staked = batch.books.staked.pop((command.workflow_id, record.node), None)
    if staked is None or staked[0] != record.attempt:
        return
    free, locked = stake_accounts(record.agent_did, batch)
    micro = min(staked[1], locked.balance)
    code = _failure_code(command, record)
    if code is not None:
        micro -= _slash(command, record, locked, micro, code, batch)
    if micro == 0:
        return
    entry_id = batch.move(
        locked,
        free,
        micro,
        kind="stake_unlock",
        description="stake free again",
        command_id=command.key,
        workflow_id=command.workflow_id,
        node_id=record.node,
    )
    batch.record(
        AuditEventType.STAKE_UNLOCKED,
        actor_did=command.actor_did,
        target=("stake", record.agent_did),
        payload={
            "workflowId": command.workflow_id,
            "nodeId": record.node,
            "attempt": record.attempt,
            "amountCredits": credits_text(micro),
            "entryIds": [entry_id],
        },
    )


def _failure_code(command: AdvanceWorkflow, record: StakeFreed) -> NodeErrorCode | None:
    """Return the code of the node's end in this command, if that end is its agent's failure."""
    for change in command.records:
        if type(change) is NodeChanged and change.node == record.node:
            error = change.error or {}
            is_last = change.status in _FAILED and change.attempt == record.attempt
            if not is_last or "code" not in error:
                return None
            code = NodeErrorCode(error["code"])
            is_spared = error.get("isSpared") is True
            return code if is_agents_failure(code, is_spared=is_spared) else None
    return None


def _slash(
    command: AdvanceWorkflow,
    record: StakeFreed,
    locked: Account,
    locked_micro: int,
    code: NodeErrorCode,
    batch: Batch,
) -> int:
    """Move a share of what is locked for this attempt to the payer, without a fee; return it."""
    escrow = batch.books.escrows[command.workflow_id]
    assert escrow is not None, command
    payer = batch.account(wallet_address(escrow.payer_did), "wallet", escrow.payer_did)
    micro = min(slash_micro(locked_micro, command.slash_bps), MICRO_MAX - payer.balance)
    entry_ids: list[int] = []
    if micro:
        entry_ids.append(
            batch.move(
                locked,
                payer,
                micro,
                kind="stake_slash",
                description="stake lost by a failed node",
                command_id=command.key,
                workflow_id=command.workflow_id,
                node_id=record.node,
            )
        )
    batch.record(
        AuditEventType.STAKE_SLASHED,
        actor_did=command.actor_did,
        target=("stake", record.agent_did),
        payload={
            "reason": SlashTrigger.NODE_FAILED.value,
            "evidence": {
                "workflowId": command.workflow_id,
                "nodeId": record.node,
                "attempt": record.attempt,
                "code": code.value,
            },
            "payerDid": escrow.payer_did,
            "lockedCredits": credits_text(locked_micro),
            "amountCredits": credits_text(micro),
            "entryIds": entry_ids,
        },
    )
    return micro
