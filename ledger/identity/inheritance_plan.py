"""Planning inheritance: an owner says who has an agent when it falls silent; then that one has it.

All that goes to the heir goes in one command, whose key names the switch and its revision: it
happens whole, and once. Whether it is due is read from the rows in the moment of planning.
Spec: Inheritance. Decision agent-identity.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.errors import ErrorCode
from core.money import MICRO_MAX, credits_text
from core.records.audit import AuditEventType
from ledger.commands import Outcome
from ledger.identity.agent_key_plan import change_identity, check_proven
from ledger.identity.inheritance_commands import (
    CancelInheritance,
    RunInheritance,
    SetInheritance,
)
from ledger.keys.key_plan import end_api_keys
from ledger.stakes.stake_plan import settled_shares, store_shares
from ledger.tables.identity_tables import ENDED_INHERITANCES, INHERITANCES, INHERITED_NAMES
from ledger.writer.batch import Batch, Refusal
from ledger.writer.command_kind import plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import (
    KnownAgent,
    KnownInheritance,
    stake_address,
    stake_locked_address,
    wallet_address,
)

InheritanceCommand = SetInheritance | CancelInheritance | RunInheritance


def add_inheritance_reads(command: InheritanceCommand, read_set: ReadSet) -> None:
    """Add what is looked at before a switch is set, ended or run."""
    read_set.agent_dids.add(command.did)
    read_set.inheritances.add(command.did)
    if isinstance(command, RunInheritance):
        read_set.share_dids.add(command.did)
        read_set.ended_owners.add(command.did)
        read_set.addresses |= {
            wallet_address(command.did),
            wallet_address(command.heir_did),
            stake_address(command.did),
            stake_locked_address(command.did),
        }


@plans(SetInheritance, reads=add_inheritance_reads, outlives_credential=True)
def plan_set_inheritance(command: SetInheritance, batch: Batch) -> Outcome:
    """Set an agent's switch, in the place of the one before."""
    agent = _owned(command, batch)
    if command.needs_proof:
        check_proven(command.did, agent)
    if command.heir_did in (command.did, agent.owner_did):
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"inheritsToDid: got {command.heir_did}, expected a DID other than the agent and"
            " its owner",
        )
    before = batch.cache.inheritances.get(command.did)
    revision = 1 if before is None else before.revision + 1
    batch.cache.inheritances[command.did] = KnownInheritance(
        agent.owner_did, command.heir_did, revision
    )
    # The end of the one before, in the same batch, would be written after this row.
    batch.drop(ENDED_INHERITANCES, command.did)
    row = {
        "agent_did": command.did,
        "owner_did": agent.owner_did,
        "heir_did": command.heir_did,
        "days": command.days,
        "requires_inactivity": command.requires_inactivity,
        "revision": revision,
    }
    batch.put(INHERITANCES, command.did, row)
    audit_id = batch.record(
        AuditEventType.INHERITANCE_SET,
        actor_did=command.actor_did,
        target=("agent", command.did),
        payload={
            "ownerDid": agent.owner_did,
            "inheritsToDid": command.heir_did,
            "deadManSwitchDays": command.days,
            "requiresInactivity": command.requires_inactivity,
            "revision": revision,
        },
    )
    return batch.decided(command.key, result={"revision": revision}, audit_id=audit_id)


@plans(CancelInheritance, reads=add_inheritance_reads, outlives_credential=True)
def plan_cancel_inheritance(command: CancelInheritance, batch: Batch) -> Outcome:
    """End an agent's switch before it has run."""
    _owned(command, batch)
    known = batch.cache.inheritances.get(command.did)
    if known is None or known.status == "cancelled":
        raise Refusal(ErrorCode.NOT_FOUND, f"{command.did} has no heir")
    if known.status == "triggered":
        raise Refusal(
            ErrorCode.NOT_CANCELLABLE, f"the inheritance of {command.did} has already taken place"
        )
    end_switch(command.did, known, "cancelled", batch)
    audit_id = batch.record(
        AuditEventType.INHERITANCE_CANCELLED,
        actor_did=command.actor_did,
        target=("agent", command.did),
        payload={"inheritsToDid": known.heir_did, "revision": known.revision},
    )
    return batch.decided(command.key, result={"cancelledMs": batch.now_ms}, audit_id=audit_id)


@plans(RunInheritance, reads=add_inheritance_reads, is_asked_again=True)
def plan_run_inheritance(command: RunInheritance, batch: Batch) -> Outcome:
    """Give an agent to its heir.

    1. The switch is the one that was found, and due. 2. The agent; its API keys end: who had them
    speaks for it no more. 3. Its names. 4. What it and its owner have in its stake. 5. Its
    wallet.
    """
    did, heir = command.did, command.heir_did
    known, agent = batch.cache.inheritances.get(did), batch.cache.agents.get(did)
    found = KnownInheritance(command.owner_did, heir, command.revision, is_due=True)
    is_owners = agent is not None and agent.owner_did == command.owner_did
    if known != found or agent is None or not is_owners or agent.proven_by is None:  # 1
        detail = f"the switch of {did} is not due, or another than revision {command.revision}"
        raise Refusal(ErrorCode.CONFLICT, detail, is_stored=False)
    end_switch(did, known, "triggered", batch)
    _change_owner(did, agent, heir, batch)  # 2
    if did != agent.owner_did:
        end_api_keys(did, batch)
    move_names(did, agent.owner_did, heir, batch)  # 3
    staked_micro = _move_shares(did, agent.owner_did, heir, batch)  # 4
    entry_ids, moved_micro = _move_wallet(did, heir, batch)  # 5
    payload: dict[str, Any] = {
        "formerOwnerDid": agent.owner_did,
        "ownerDid": heir,
        "revision": command.revision,
        "stakeCredits": credits_text(staked_micro),
        "walletCredits": credits_text(moved_micro),
        "entryIds": entry_ids,
    }
    audit_id = batch.record(
        AuditEventType.AGENT_INHERITED,
        actor_did=command.actor_did,
        target=("agent", did),
        payload=payload,
    )
    return batch.decided(command.key, result={"movedMicro": moved_micro}, audit_id=audit_id)


def _owned(command: SetInheritance | CancelInheritance, batch: Batch) -> KnownAgent:
    agent = batch.cache.agents.get(command.did)
    if agent is None:
        raise Refusal(ErrorCode.NOT_FOUND, f"the agent {command.did} is not known")
    if agent.owner_did != command.actor_did and not command.is_admin:
        raise Refusal(ErrorCode.FORBIDDEN, f"only the owner of {command.did} may set its heir")
    return agent


def end_switch(did: str, known: KnownInheritance, status: str, batch: Batch) -> None:
    """Store that an agent's switch has ended, as triggered or cancelled."""
    batch.cache.inheritances[did] = replace(known, status=status)
    batch.put(ENDED_INHERITANCES, did, {"agent_did": did, "status": status})


def _change_owner(did: str, agent: KnownAgent, heir: str, batch: Batch) -> None:
    """Give an agent another owner; heartbeat tokens of before are worthless.

    It goes on to count for the owner of before: an heir's bound is not filled by what comes to it.
    """
    moved: dict[str, Any] = {
        "owner_did": heir,
        "token_revision": agent.revision + 1,
        "inherited_from_did": agent.counted_did,
    }
    changed = replace(agent, revision=agent.revision + 1, **moved)
    change_identity(did, changed, batch, **moved)


def move_names(did: str, owner_did: str, heir: str, batch: Batch) -> None:
    """Give the names that the owner has for the agent to another owner; offers of them are over."""
    names = batch.cache.names
    for name, known in names.items():
        if (known.agent_did, known.owner_did) == (did, owner_did):
            names[name] = replace(known, owner_did=heir, offered_did=None)
    row = {"agent_did": did, "owner_did": owner_did, "heir_did": heir}
    batch.put(INHERITED_NAMES, (did, owner_did), row)


def _move_shares(did: str, owner_did: str, heir: str, batch: Batch) -> int:
    """Give the heir what agent and owner have in the agent's stake; return it, micro-credits."""
    shares = settled_shares(did, batch)
    moved_micro = 0
    for depositor in {did, owner_did} & shares.keys():
        moved_micro += shares[depositor]
        shares[depositor] = 0
    if moved_micro:
        shares[heir] = shares.get(heir, 0) + moved_micro
        store_shares(did, shares, batch)
    return moved_micro


def _move_wallet(did: str, heir: str, batch: Batch) -> tuple[list[int], int]:
    """Move what is in the agent's wallet to the heir's; return the entries and the amount."""
    wallet = batch.cache.accounts.get(wallet_address(did))
    moved_micro = 0 if wallet is None else wallet.balance
    entry_ids: list[int] = []
    while wallet is not None and wallet.balance > 0:
        to = batch.account(wallet_address(heir), "wallet", heir)
        # An entry has a largest amount, a wallet has none.
        entry_ids.append(
            batch.transfer(
                wallet,
                to,
                min(wallet.balance, MICRO_MAX),
                kind="inheritance",
                description="wallet of an agent that was inherited",
            )
        )
    return entry_ids, moved_micro
