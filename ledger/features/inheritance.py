"""Inheritance: an owner names an heir, who gets the agent when it is silent for long enough.

The code calls the stored setting a switch (dead man's switch). Reference: features.md
(Inheritance). Decision agent-identity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import sqlalchemy as sql

from core.errors import ErrorCode
from core.money import MICRO_MAX, credits_text
from core.records.audit import AuditEventType
from core.trust.identity.succession import DAY_MS
from ledger.authority import OwnersCommand
from ledger.commands import Command
from ledger.connections.connect import fetch
from ledger.features.agent_keys import change_identity, check_proven
from ledger.features.keys import end_api_keys, others_keys_below
from ledger.features.stakes import settled_shares, store_shares
from ledger.reads.reader import LedgerReader, RowDict
from ledger.tables.identity_tables import ENDED_INHERITANCES, INHERITANCES, INHERITED_NAMES
from ledger.writer.batch import Batch, Refusal, Result, conflict, forbidden, invalid, not_found
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import (
    KnownAgent,
    wallet_address,
)


class SetInheritance(OwnersCommand, frozen=True, kw_only=True):
    """Set the heir who gets an agent after it was silent for `days`. Only its owner may do so.

    A new switch replaces the previous one, and the time of silence starts again. `needs_proof`: the
    claim must be proven (the setting `claims`). A switch takes effect only for a proven claim.
    Rejections: NOT_FOUND, FORBIDDEN, INVALID_REQUEST (the heir is the agent or its owner).
    Result: {"revision"}.
    """

    did: str
    heir_did: str
    days: int
    requires_inactivity: bool
    needs_proof: bool = False


class CancelInheritance(OwnersCommand, frozen=True, kw_only=True):
    """Cancel a switch that has not taken effect. Only the agent's owner may do so.

    Rejections: NOT_FOUND, FORBIDDEN, NOT_CANCELLABLE (it has taken effect). Result:
    {"cancelledMs"}.
    """

    did: str


class RunInheritance(Command, frozen=True, kw_only=True):
    """Transfer an agent to its heir, if the switch of this revision is due.

    The heir gets the agent, its names, its wallet, and the shares of the agent and its owner in its
    stake. The key is `inherit:{did}:{revision}`. Rejection: CONFLICT, not stored: the switch is not
    due, or has another revision. Result: {"movedMicro"}.
    """

    actor_did: str
    did: str
    revision: int
    owner_did: str
    heir_did: str


# How long an agent with a switch has been silent, computed in the same way for the writer and the
# readers. A heartbeat of the agent ends the silence. If the switch requires the owner's inactivity,
# a command of the owner ends it too. The silence begins when the switch was set, or later. It
# counts only time in which the service was ready.

# Every switch, with `silent_ms` and `limit_ms`. The switch of a previous owner or of an unproven
# claim is never due.
SWITCHES: Final = f"""
    SELECT i.*, l.heartbeat_ms, i.days * {DAY_MS}::bigint AS limit_ms,
        CASE WHEN i.status = 'armed' AND a.owner_did = i.owner_did
                AND a.proven_by IS NOT NULL
            THEN callboard.ready_ms_since(greatest(i.set_ms, l.heartbeat_ms, CASE
                WHEN i.requires_inactivity THEN (
                    SELECT u.created_ms FROM callboard.audit u WHERE u.actor_did = i.owner_did
                    ORDER BY u.id DESC LIMIT 1) END))
            ELSE 0 END AS silent_ms
    FROM callboard.inheritance i JOIN callboard.agent a ON a.did = i.agent_did
    LEFT JOIN callboard.agent_live l ON l.did = i.agent_did"""
_ONE: Final = sql.text(f"SELECT * FROM ({SWITCHES}) AS s WHERE s.agent_did = :did")
# Reads some switches at a time in the order of the index `inheritance_switch`. No index can find
# the due switches, because heartbeats postpone nearly all switches. The silence is measured only
# for switches that would be due if the service had always been ready.
_DUE: Final = sql.text(
    f"""
    SELECT s.agent_did, s.owner_did, s.heir_did, s.revision,
        CASE WHEN s.status = 'armed' AND greatest(s.set_ms, s.heartbeat_ms) + s.limit_ms
                < extract(epoch FROM clock_timestamp()) * 1000
            THEN s.silent_ms >= s.limit_ms ELSE false END AS is_due
    FROM ({SWITCHES}) AS s
    WHERE s.agent_did IN (
        SELECT i.agent_did FROM callboard.inheritance i
        WHERE i.status = 'armed' AND i.agent_did > :after
        ORDER BY i.agent_did LIMIT :limit
    )
    ORDER BY s.agent_did
    """
)


async def switch_row(reader: LedgerReader, did: str) -> RowDict | None:
    """Return an agent's switch, with `heartbeat_ms`, `silent_ms` and `limit_ms`."""
    return await reader.row(_ONE, {"did": did})


async def due_switches(
    reader: LedgerReader, *, after: str, limit: int
) -> tuple[list[RowDict], str]:
    """Return `agent_did, owner_did, heir_did, revision` of switches that are due.

    Args:
        after: the agent at which the previous call ended, "" to begin.
        limit: maximum number of switches that are read.

    Returns: the due switches, and the agent after which to continue, "" at the end.
    """
    rows = await reader.rows(_DUE, {"after": after, "limit": limit})
    last = rows[-1]["agent_did"] if len(rows) == limit else ""
    return [row for row in rows if row["is_due"]], last


# Plans. One command moves everything that the heir gets. Its key names the agent and the revision
# of the switch, so the inheritance happens completely and once. The writer reads directly before
# planning whether the switch is due.


@dataclass(frozen=True, slots=True)
class KnownInheritance:
    """An agent's switch: who set it, the heir, the number of switches set so far (`revision`).

    `status`: armed, cancelled or triggered. `is_due`: it is armed and its time has passed.
    """

    owner_did: str
    heir_did: str
    revision: int
    status: str = "armed"
    is_due: bool = False


async def read_switch(connection: Connection, did: str) -> KnownInheritance | None:
    """Return an agent's switch, None if none was ever set."""
    rows = await fetch(
        connection,
        "SELECT s.owner_did, s.heir_did, s.revision, s.status,"
        " s.status = 'armed' AND s.silent_ms >= s.limit_ms"
        f" FROM ({SWITCHES}) AS s WHERE s.agent_did = %(did)s",
        {"did": did},
    )
    return KnownInheritance(*rows[0]) if rows else None


async def load_switch(
    connection: Connection, command: SetInheritance | CancelInheritance, read_set: ReadSet
) -> KnownInheritance | None:
    """Return the switch that is replaced or cancelled."""
    read_set.agent_dids.add(command.did)
    return await read_switch(connection, command.did)


async def load_inheritance(
    connection: Connection, command: RunInheritance, read_set: ReadSet
) -> tuple[KnownInheritance | None, list[str]]:
    """Return the due switch, and the keys of other owners that are derived from the agent's
    keys."""
    did = command.did
    read_set.agent_dids.add(did)
    read_set.share_dids.add(did)
    read_set.wallets |= {did, command.heir_did}
    read_set.stakes.add(did)
    return await read_switch(connection, did), await others_keys_below(connection, did)


@plans(SetInheritance, load=load_switch, outlives_credential=True)
def plan_set_inheritance(command: SetInheritance, batch: Batch) -> Result:
    """Set an agent's switch; it replaces the previous one."""
    agent = _owned(command, batch)
    if command.needs_proof:
        check_proven(command.did, agent)
    if command.heir_did in (command.did, agent.owner_did):
        raise invalid(
            f"inheritsToDid: got {command.heir_did}, expected a DID other than the agent and"
            " its owner"
        )
    before: KnownInheritance | None = batch.loaded
    revision = 1 if before is None else before.revision + 1
    named = {"agent_did": command.did, "owner_did": agent.owner_did, "revision": revision}
    batch.store(INHERITANCES, command.did, command, **named)
    batch.record(
        AuditEventType.INHERITANCE_SET,
        ("agent", command.did),
        ownerDid=agent.owner_did,
        inheritsToDid=command.heir_did,
        deadManSwitchDays=command.days,
        requiresInactivity=command.requires_inactivity,
        revision=revision,
    )
    return {"revision": revision}


@plans(CancelInheritance, load=load_switch, outlives_credential=True)
def plan_cancel_inheritance(command: CancelInheritance, batch: Batch) -> Result:
    """Cancel an agent's switch."""
    _owned(command, batch)
    known: KnownInheritance | None = batch.loaded
    if known is None or known.status == "cancelled":
        raise not_found(f"{command.did} has no heir")
    if known.status == "triggered":
        raise Refusal(
            ErrorCode.NOT_CANCELLABLE, f"the inheritance of {command.did} has already taken place"
        )
    end_switch(command.did, "cancelled", batch)
    batch.record(
        AuditEventType.INHERITANCE_CANCELLED,
        ("agent", command.did),
        inheritsToDid=known.heir_did,
        revision=known.revision,
    )
    return {"cancelledMs": batch.now_ms}


@plans(RunInheritance, load=load_inheritance, reuses_key=True)
def plan_run_inheritance(command: RunInheritance, batch: Batch) -> Result:
    """Transfer an agent to its heir.

    Steps: (1) check that the switch is the expected one and due, (2) change the agent's owner and
    end its API keys, so that their holders can no longer act for it, (3) move its names, (4) move
    the shares of the agent and its owner in its stake, (5) move its wallet.
    """
    did, heir = command.did, command.heir_did
    (known, others), agent = batch.loaded, batch.cache.agents.get(did)
    found = KnownInheritance(command.owner_did, heir, command.revision, is_due=True)
    is_owners = agent is not None and agent.owner_did == command.owner_did
    if known != found or agent is None or not is_owners or agent.proven_by is None:  # 1
        detail = f"the switch of {did} is not due, or another than revision {command.revision}"
        raise conflict(detail, is_stored=False)
    end_switch(did, "triggered", batch)
    _change_owner(did, agent, heir, batch)  # 2
    if did != agent.owner_did:
        end_api_keys(did, others, batch)
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
    batch.record(AuditEventType.AGENT_INHERITED, ("agent", did), **payload)
    return {"movedMicro": moved_micro}


def _owned(command: SetInheritance | CancelInheritance, batch: Batch) -> KnownAgent:
    agent = batch.agent(command.did)
    if not command.may_act_for(agent.owner_did):
        raise forbidden(f"only the owner of {command.did} may set its heir")
    return agent


def end_switch(did: str, status: str, batch: Batch) -> None:
    """Store that an agent's switch has ended, as triggered or cancelled."""
    batch.put(ENDED_INHERITANCES, did, {"agent_did": did, "status": status})


def _change_owner(did: str, agent: KnownAgent, heir: str, batch: Batch) -> None:
    """Change the owner of an agent, and invalidate its heartbeat tokens.

    The agent still counts towards the previous owner's maximum of agents, so that an inheritance
    does not use up the heir's maximum.
    """
    moved: dict[str, Any] = {
        "owner_did": heir,
        "token_revision": agent.revision + 1,
        "inherited_from_did": agent.counted_did,
    }
    changed = replace(agent, revision=agent.revision + 1, **moved)
    change_identity(did, changed, batch, **moved)


def move_names(did: str, owner_did: str, heir: str, batch: Batch) -> None:
    """Move the names that an owner has for an agent to another owner; their offers end."""
    row = {"agent_did": did, "owner_did": owner_did, "heir_did": heir}
    batch.put(INHERITED_NAMES, (did, owner_did), row)


def _move_shares(did: str, owner_did: str, heir: str, batch: Batch) -> int:
    """Move the shares of agent and owner in the agent's stake to the heir; return the sum in
    micro-credits."""
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
    """Move the agent's wallet to the heir's; return the entry ids and the amount, micro-credits."""
    wallet = batch.cache.accounts.get(wallet_address(did))
    moved_micro = batch.cache.balance(wallet_address(did))
    entry_ids: list[int] = []
    while wallet is not None and wallet.balance > 0:
        to = batch.account(wallet_address(heir), "wallet", heir)
        # An entry has a maximum amount, a wallet has none.
        micro, description = min(wallet.balance, MICRO_MAX), "wallet of an agent that was inherited"
        entry_ids += batch.transfer(wallet, to, micro, "inheritance", description)
    return entry_ids, moved_micro
