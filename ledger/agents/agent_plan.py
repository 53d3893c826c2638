"""Planning agents: cards are registered and taken out of service.

Spec: Agent card, Authentication; contract.md section 3.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from core.errors import ErrorCode
from core.records.audit import AuditEventType
from ledger.agents.agent_commands import DeregisterAgent, RegisterAgent
from ledger.commands import Outcome
from ledger.identity.agent_key_plan import check_new_key, key_payload, replace_key
from ledger.tables.encoding import hex_text
from ledger.tables.market_tables import AGENTS, DEREGISTERED
from ledger.tables.table import Row
from ledger.writer.batch import (
    Batch,
    Refusal,
)
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownAgent, stake_address, wallet_address


def plan_register_agent(command: RegisterAgent, batch: Batch) -> Outcome:
    """Store an agent's card: the first to bring a DID owns it (contract.md section 3)."""
    known = batch.cache.agents.get(command.did)
    if known is not None and not (
        known.owner_did == command.owner_did or command.is_admin or command.is_signed
    ):
        raise Refusal(ErrorCode.FORBIDDEN, f"{command.did} is registered by another owner")
    if known is None:
        _check_claim(command, batch)
    if command.revision_expected is not None and (
        known is None
        or known.revision != command.revision_expected
        # A change needs an active agent; a card of a new version brings it back.
        or not (known.is_active or command.is_signed)
    ):
        raise Refusal(ErrorCode.CONFLICT, f"the card of {command.did} has changed meanwhile")
    if command.is_unchanged:
        assert known is not None, command
        return batch.decided(command.key, result=_registered(command, known, is_new=False))
    if _brings_new_key(command, known):
        assert known is not None and command.public_key is not None, command
        check_new_key(command.did, known, command.public_key, batch)
    agent = _after_registration(command, known, batch)
    if known is None or not known.is_active:
        _count_agent(command, agent.counted_did, batch)
    batch.cache.agents[command.did] = agent
    batch.cache.callers.add(agent.owner_did)
    secret = command.secret_encrypted
    row: Row = {
        "did": command.did,
        "owner_did": agent.owner_did,
        "card": command.card_json,
        "endpoint": command.endpoint,
        "capability_ids": list(command.capability_ids),
        "public_key": command.public_key,
        "signing_secret": hex_text(secret) if secret is not None else None,
        "revision": agent.revision,
        "token_revision": agent.token_revision,
        "key_number": agent.key_number,
    }
    if command.public_key is not None:
        row["key_from_ms"] = agent.key_from_ms
    # A deregistration earlier in the batch would be written after this row.
    batch.drop(DEREGISTERED, command.did)
    # A second card in the same batch replaces the first one's row: a key or secret that only the
    # first brought must survive that.
    earlier = batch.row(AGENTS, command.did)
    if earlier is not None:
        for kept in ("public_key", "key_from_ms", "signing_secret"):
            row[kept] = row[kept] if row.get(kept) is not None else earlier.get(kept)
    batch.put(AGENTS, command.did, row)
    batch.is_directory_changed = True
    audit_id = _record_registration(command, known, agent, batch)
    result = _registered(command, agent, is_new=known is None)
    return batch.decided(command.key, result=result, audit_id=audit_id)


def _record_registration(
    command: RegisterAgent, known: KnownAgent | None, agent: KnownAgent, batch: Batch
) -> int:
    """Add the events of a card that is stored; return the id of its audit entry."""
    audit_id = batch.record(
        AuditEventType.AGENT_REGISTERED,
        actor_did=command.actor_did,
        target=("agent", command.did),
        payload={
            "endpoint": command.endpoint,
            "capabilities": list(command.capability_ids),
            "revision": agent.revision,
            "cardSha256": hashlib.sha256(command.card_json.encode()).hexdigest(),
        },
    )
    if known is not None and agent.key_number > known.key_number:
        batch.record(
            AuditEventType.AGENT_KEY_ROTATED,
            actor_did=command.actor_did,
            target=("agent", command.did),
            payload=key_payload(command.did, known, agent, batch.now_ms),
        )
    return audit_id


def _count_agent(command: RegisterAgent, owner_did: str, batch: Batch) -> None:
    """Count another active agent of an owner; refuse it beyond the bound. Decision 0172."""
    counts = batch.cache.agent_counts
    count = counts.get(owner_did, 0)
    if command.owner_agents_max is not None and count >= command.owner_agents_max:
        raise Refusal(
            ErrorCode.CONFLICT,
            f"{owner_did} has {count} active agents, expected fewer than"
            f" {command.owner_agents_max}: deregister one first",
        )
    counts[owner_did] = count + 1


def _registered(command: RegisterAgent, agent: KnownAgent, *, is_new: bool) -> dict[str, object]:
    return {
        "did": command.did,
        "ownerDid": agent.owner_did,
        "registered": len(command.capability_ids),
        "isNew": is_new,
        "tokenRevision": agent.token_revision,
    }


def _check_claim(command: RegisterAgent, batch: Batch) -> None:
    """Refuse to claim a DID that another has in use, except as itself: it is not a new one.

    In use: it has a wallet or a stake, or has had keys or agents. Decision 0145.
    """
    if command.owner_did == command.did or command.is_admin or command.is_signed:
        return
    accounts = (wallet_address(command.did), stake_address(command.did))
    has_account = any(batch.cache.accounts.get(address) is not None for address in accounts)
    if has_account or command.did in batch.cache.callers:
        raise Refusal(
            ErrorCode.FORBIDDEN,
            f"{command.did} is in use here: only itself, its card's signature or an administrator"
            " can register it",
        )


def _brings_new_key(command: RegisterAgent, known: KnownAgent | None) -> bool:
    """Say whether a card takes another key's place."""
    old_key = None if known is None else known.public_key
    return old_key is not None and command.public_key not in (None, old_key)


def _after_registration(
    command: RegisterAgent, known: KnownAgent | None, batch: Batch
) -> KnownAgent:
    """Return an agent as its registration leaves it; coming back makes old tokens worthless.

    A card with another key replaces the agent's at once, which is recorded as such.
    """
    new_key = command.public_key
    if known is None:
        return KnownAgent(command.owner_did, 1, public_key=new_key, key_from_ms=batch.now_ms)
    revision = known.revision + 1
    agent = replace(
        known,
        revision=revision,
        token_revision=known.token_revision if known.is_active else revision,
        is_active=True,
    )
    if new_key is None or new_key == known.public_key:
        return agent
    if known.public_key is None:
        return replace(agent, public_key=new_key, key_from_ms=batch.now_ms)
    return replace_key(command.did, replace(agent, revision=known.revision), new_key, batch)


def plan_deregister_agent(command: DeregisterAgent, batch: Batch) -> Outcome:
    """Take an agent out of service; once more changes nothing and is answered alike."""
    known = batch.cache.agents.get(command.did)
    if known is None:
        raise Refusal(ErrorCode.NOT_FOUND, f"the agent {command.did} is not known")
    if known.owner_did != command.owner_did and not command.is_admin:
        raise Refusal(ErrorCode.FORBIDDEN, f"{command.did} is registered by another owner")
    result = {"did": command.did, "wasActive": known.is_active}
    if not known.is_active:
        return batch.decided(command.key, result=result)
    revision = known.revision + 1
    batch.cache.agents[command.did] = replace(known, revision=revision, is_active=False)
    if known.counted_did in batch.cache.agent_counts:
        batch.cache.agent_counts[known.counted_did] -= 1
    batch.put(DEREGISTERED, command.did, {"did": command.did, "revision": revision})
    batch.is_directory_changed = True
    audit_id = batch.record(
        AuditEventType.AGENT_DEREGISTERED,
        actor_did=command.actor_did,
        target=("agent", command.did),
        payload={"revision": revision},
    )
    return batch.decided(command.key, result=result, audit_id=audit_id)


def add_agent_reads(command: RegisterAgent | DeregisterAgent, read_set: ReadSet) -> None:
    """Add what is looked at before an agent's card is stored or taken out of service."""
    read_set.agent_dids.add(command.did)
    if isinstance(command, RegisterAgent):
        read_set.registered.add((command.did, command.owner_did))
        if command.public_key is not None:
            read_set.new_keys.add((command.did, command.public_key))
        read_set.claimed_dids.add(command.did)
        read_set.addresses |= {wallet_address(command.did), stake_address(command.did)}
