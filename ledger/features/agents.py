"""Agents: commands and plans that register cards, replace them and deregister agents.

Reference: features.md (Agent cards, Registration), http.md (Authentication).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import sqlalchemy as sql

from core.canonical import hash_bytes, hash_text
from core.peers.documents import DEPLOYMENT_DID
from core.records.audit import AuditEventType
from core.records.statuses import OwnershipProof
from core.trust.identity.did_web import is_did_web
from ledger.authority import AuthorizedCommand, OwnersCommand
from ledger.features.agent_keys import (
    change_identity,
    check_new_key,
    key_payload,
    replace_key,
)
from ledger.features.capability_versions import KnownLine, read_lines
from ledger.features.inheritance import (
    KnownInheritance,
    end_switch,
    move_names,
    read_switch,
)
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import agent_card
from ledger.tables.market_tables import (
    AGENT_CARDS,
    AGENTS,
    CAPABILITY_LINES,
    DEREGISTERED,
    UNREVOCATIONS,
    YIELDED,
)
from ledger.writer.batch import Batch, Result, conflict, forbidden, invalid
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import KnownAgent, stake_address, wallet_address

# Commands that store cards, deregister agents, and correct the tallies behind reputations.


class RegisterAgent(OwnersCommand, frozen=True, kw_only=True):
    """Store an agent card. `owner_did` claims a new DID; a known DID needs the same owner.

    With `is_admin` or `is_signed` (the DID's current key signed the card) `owner_did` may be
    another owner.
    `proof`: the evidence that the DID belongs to `owner_did`; None: no evidence. An unproven claim
    of another owner yields to the proof.
    `card_counter`: the counter in the signed card, None for an unsigned card.
    `secret_encrypted`: the encrypted secret for signing dispatches; None keeps the stored one.
    `revision_expected`: the revision of the stored card that the caller has read; None for any.
    `is_unchanged`: only the signature of the stored card is new, so nothing is stored.
    `card_hash`: hash of the card without its standing bids; None: the hash of `card_json`.
    `card_version`: the version number in the card.
    `metadata`: name, author and model in the card; lists of agents filter by them.
    `lines_taken`: capabilities whose lines of versions pass to `owner_did` if an unproven claim
    yields; None if the caller saw no such claim.
    `subnet_id`: the subnet that the card names.
    `owner_agents_max`: maximum number of active agents of the owner; None: no maximum.
    Rejections: FORBIDDEN; CONFLICT when the card was changed or the DID was claimed meanwhile, the
    counter is not above the stored one, or the owner has the maximum of agents.
    Result: {"did", "ownerDid", "registered": number of capabilities, "isNew": bool,
    "tokenRevision": int}.
    """

    owner_did: str
    is_signed: bool
    proof: OwnershipProof | None = None
    card_counter: int | None = None
    did: str
    card_json: str
    card_hash: str | None = None
    card_version: int = 1
    metadata: tuple[str | None, str | None, str | None] = (None, None, None)
    endpoint: str
    capability_ids: tuple[str, ...]
    public_key: str | None
    secret_encrypted: bytes | None
    revision_expected: int | None = None
    is_unchanged: bool = False
    owner_agents_max: int | None = None
    lines_taken: tuple[str, ...] | None = None
    subnet_id: str | None = None


class DeregisterAgent(OwnersCommand, frozen=True, kw_only=True):
    """Take an agent out of service. Its card stays readable, and its DID stays claimed.

    Rejections: NOT_FOUND, FORBIDDEN. Result: {"did", "wasActive": bool}.
    """

    owner_did: str
    did: str


class RebuildReputation(AuthorizedCommand, frozen=True, kw_only=True):
    """Correct the stored tallies of agents by the differences between history and tallies.

    `changes`: by agent and member of its tally, the value in history minus the stored value, read
    as of audit entry `read_audit_id`.
    Rejections: OVERLOADED, not stored, when tallies were corrected since. Result: {"changed"}.
    """

    changes: dict[str, dict[str, int]]
    read_audit_id: int


# The lineage of an agent's cards is a list. Each of its entries (places) contains the hash of the
# previous one, so no entry can be removed. `hash` is the SHA-256 of the canonical form of
# `{cardHash, did, number, previousHash}`. `cardHash` is the hash of the card without its standing
# bids, because the few digits of a bid could be found by trial. Only the hash of a replaced card is
# stored. With a saved copy of the card anyone can prove that it was the agent's card.

# Columns for a card's metadata: name, author, model.
META_COLUMNS: Final = ("meta_name", "meta_author", "meta_model")


def continue_lineage(
    command: RegisterAgent, known: KnownAgent | None, agent: KnownAgent, batch: Batch
) -> KnownAgent:
    """Add a card to the agent's lineage; return the agent with the new place.

    If an active agent registers its stored card again, the lineage does not change. A lineage
    belongs to the DID and continues under another owner.
    """
    card_hash = command.card_hash or hash_bytes(command.card_json.encode())
    number, previous_hash = 1, None
    if known is not None:
        if known.is_active and known.card_hash == card_hash:
            return replace(
                agent,
                card_number=known.card_number,
                card_hash=card_hash,
                lineage_hash=known.lineage_hash,
            )
        number, previous_hash = known.card_number + 1, known.lineage_hash
    place = {
        "cardHash": card_hash,
        "did": command.did,
        "number": number,
        "previousHash": previous_hash,
    }
    own_hash = hash_text(place)
    batch.store(
        AGENT_CARDS,
        (command.did, number),
        command,
        number=number,
        card_hash=card_hash,
        previous_hash=previous_hash,
        hash=own_hash,
        registered_by_did=command.actor_did,
    )
    return replace(agent, card_number=number, card_hash=card_hash, lineage_hash=own_hash)


# Plans of registration and deregistration.


def add_agent_reads(command: RegisterAgent | DeregisterAgent, read_set: ReadSet) -> None:
    """Add the keys of the rows that planning a registration or deregistration reads."""
    read_set.agent_dids.add(command.did)
    if isinstance(command, RegisterAgent):
        read_set.registered.add((command.did, command.owner_did))
        if command.public_key is not None:
            read_set.new_keys.add((command.did, command.public_key))
        read_set.claimed_dids.add(command.did)
        read_set.trusted.add(command.did)
        read_set.wallets.add(command.did)
        read_set.stakes.add(command.did)


@dataclass(frozen=True, slots=True)
class ClaimReads:
    """The inheritance, which ends when the agent's claim yields, and the lines of versions, which
    then get another owner."""

    switch: KnownInheritance | None
    lines: Mapping[str, KnownLine]


async def load_claim(
    connection: Connection, command: RegisterAgent, read_set: ReadSet
) -> ClaimReads:
    """Return the inheritance and the lines of versions of a claim that may yield to a proof."""
    lines = await read_lines(connection, command.lines_taken or ())
    return ClaimReads(await read_switch(connection, command.did), lines)


@plans(
    RegisterAgent,
    reads=add_agent_reads,
    load=load_claim,
    # Most registrations with a proof are for new agents or for agents of the same owner. They need
    # no `load`, and a transaction for each of them would be slow.
    alone_when=lambda command: command.lines_taken is not None,
    outlives_credential=True,
)
def plan_register_agent(command: RegisterAgent, batch: Batch) -> Result:
    """Store an agent's card. The first owner to register a DID keeps it, unless another owner has a
    proof.

    Steps: (1) check that the caller may register the DID, (2) check that the card is newer than the
    stored one, (3) check the owner's maximum of agents, (4) remove what a yielding claim had set,
    (5) store the card.
    """
    known = batch.cache.agents.get(command.did)
    is_yielding = _is_yielding(command, known)
    if known is None:  # (1)
        _check_claim(command, batch)
    elif is_yielding and command.lines_taken is None:
        raise conflict(f"{command.did} was claimed by another request: repeat the registration")
    elif not (
        known.owner_did == command.owner_did or command.is_admin or command.is_signed or is_yielding
    ):
        raise forbidden(f"{command.did} is registered by another owner")
    _check_card_is_newer(command, known)  # (2)
    if command.is_unchanged:
        assert known is not None, command
        return _registered(command, known, is_new=False)
    is_counted_anew = known is None or not known.is_active or is_yielding
    counted_did = command.owner_did
    if known is not None and not is_yielding and known.owner_did != command.owner_did:
        counted_did = known.counted_did
    if is_counted_anew:  # (3)
        _check_room(command, counted_did, batch)
    agent = _after_registration(command, known, batch, is_yielding=is_yielding)
    if is_counted_anew:
        counts = batch.cache.agent_counts
        counts[counted_did] = counts.get(counted_did, 0) + 1
    agent = _counted_for_heir(command, known, agent, batch)
    if is_yielding:  # (4)
        assert known is not None, command
        _yield_claim(command, known, batch)
    agent = continue_lineage(command, known, agent, batch)
    batch.cache.agents[command.did] = agent
    batch.cache.callers.add(agent.owner_did)
    _store(command, agent, batch, is_yielding=is_yielding)  # (5)
    _record_registration(command, known, agent, batch, is_yielding=is_yielding)
    return _registered(command, agent, is_new=known is None)


def _record_registration(
    command: RegisterAgent,
    known: KnownAgent | None,
    agent: KnownAgent,
    batch: Batch,
    *,
    is_yielding: bool,
) -> None:
    """Add the audit events of a stored card."""
    batch.record(
        AuditEventType.AGENT_REGISTERED,
        ("agent", command.did),
        endpoint=command.endpoint,
        capabilities=list(command.capability_ids),
        revision=agent.revision,
        cardSha256=(agent.card_hash or "").removeprefix("sha256:"),
        lineageHash=agent.lineage_hash,
        **({"publicKey": agent.public_key} if agent.public_key else {}),
        **_claim(command, agent, known, is_yielding=is_yielding),
    )
    if known is not None and agent.key_number > known.key_number:
        batch.record(
            AuditEventType.AGENT_KEY_ROTATED,
            ("agent", command.did),
            **key_payload(command.did, known, agent, batch.now_ms),
        )


def _store(command: RegisterAgent, agent: KnownAgent, batch: Batch, *, is_yielding: bool) -> None:
    new_key = _bound_key(command, agent)
    earlier = batch.row(AGENTS, command.did)
    batch.store(
        AGENTS,
        command.did,
        command,
        agent,
        card=command.card_json,
        public_key=new_key,
        key_from_ms=None if new_key is None else agent.key_from_ms,
        signing_secret=command.secret_encrypted,
        inherited_from_did=None,
        **dict(zip(META_COLUMNS, command.metadata, strict=True)),
    )
    row = batch.row(AGENTS, command.did) or {}
    # A deregistration earlier in the batch would be written after this row.
    batch.drop(DEREGISTERED, command.did)
    # A second card of the agent in one batch replaces the row of the first card. A key or secret
    # that only the first card has must still be stored.
    if earlier is not None:
        for kept in ("public_key", "key_from_ms", "signing_secret"):
            row[kept] = row[kept] if row[kept] is not None else earlier[kept]
    if is_yielding:
        given = {column.name: row.get(column.name) for column in YIELDED.given}
        batch.put(YIELDED, command.did, given)
    batch.is_directory_changed = True


def _is_yielding(command: RegisterAgent, known: KnownAgent | None) -> bool:
    """Say whether an unproven claim yields to the proof of another owner. Decision
    signed-requests-and-claims."""
    return (
        known is not None
        and known.proven_by is None
        and command.proof is not None
        and known.owner_did != command.owner_did
    )


def _yield_claim(command: RegisterAgent, known: KnownAgent, batch: Batch) -> None:
    """Undo the settings of the owner of an unproven claim: revocation, agent count and inheritance.

    Names and lines of versions of the claim pass to the owner who has proven the DID.
    """
    if known.is_active and known.counted_did in batch.cache.agent_counts:
        batch.cache.agent_counts[known.counted_did] -= 1
    revocation = batch.cache.revoked.get(command.did)
    if revocation is not None and revocation.by_did == known.owner_did:
        batch.cache.revoked[command.did] = None
        row = {"did": command.did, "ended_by_did": command.owner_did}
        batch.put(UNREVOCATIONS, command.did, row)
        batch.record(AuditEventType.AGENT_UNREVOKED, ("agent", command.did))
    reads: ClaimReads = batch.loaded
    switch = reads.switch
    if switch is not None and switch.status == "armed" and switch.owner_did == known.owner_did:
        end_switch(command.did, "cancelled", batch)
    move_names(command.did, known.owner_did, command.owner_did, batch)
    for capability_id in command.lines_taken or ():
        line = reads.lines.get(capability_id)
        if line is not None and line.owner_did == known.owner_did:
            own = {"capability_id": capability_id, "owner_did": command.owner_did}
            batch.store(CAPABILITY_LINES, capability_id, line, **own)


def _claim(
    command: RegisterAgent, agent: KnownAgent, known: KnownAgent | None, *, is_yielding: bool
) -> dict[str, object]:
    """Return the audit payload about the claim, empty if the registration did not change it."""
    before = None if known is None else known.proven_by
    if agent.proven_by is None or (agent.proven_by is before and not is_yielding):
        return {}
    claim: dict[str, object] = {"ownerDid": agent.owner_did, "provenBy": agent.proven_by}
    if is_yielding and known is not None:
        claim["yieldedBy"] = known.owner_did
        if command.lines_taken:
            claim["versionsOf"] = list(command.lines_taken)
    return claim


def _check_card_is_newer(command: RegisterAgent, known: KnownAgent | None) -> None:
    """Refuse a card older than the stored one, and a change that was based on an older card."""
    if command.revision_expected is not None and (
        known is None
        or known.revision != command.revision_expected
        # A change needs an active agent; a signed card may make the agent active again.
        or not (known.is_active or command.is_signed)
    ):
        raise conflict(
            f"the card of {command.did} was changed by another request: read it and repeat the"
            " change"
        )
    # The owner of an unproven claim has chosen its counter, so the proof of another owner ignores
    # the counter.
    counts = known is not None and not _is_yielding(command, known)
    if (
        counts
        and known is not None
        and command.card_counter is not None
        and command.card_counter <= known.card_counter
    ):
        raise conflict(
            f"got a card of {command.did} signed for counter {command.card_counter}, expected more"
            f" than {known.card_counter}"
        )


def _check_room(command: RegisterAgent, owner_did: str, batch: Batch) -> None:
    """Refuse an active agent above the owner's maximum. Decision registry-and-discovery."""
    count = batch.cache.agent_counts.get(owner_did, 0)
    if command.owner_agents_max is not None and count >= command.owner_agents_max:
        raise conflict(
            f"{owner_did} has {count} active agents, expected fewer than"
            f" {command.owner_agents_max}: deregister one first"
        )


def _counted_for_heir(
    command: RegisterAgent, known: KnownAgent | None, agent: KnownAgent, batch: Batch
) -> KnownAgent:
    """Count an inherited agent towards the heir, from the registration of the heir's first card on.

    If the heir has the maximum of agents, an active agent continues to count towards the previous
    owner, so that its card can still be changed.
    """
    heir = command.owner_did
    if known is None or known.owner_did != heir or known.counted_did == heir:
        return agent
    if known.is_active:
        counts, most = batch.cache.agent_counts, command.owner_agents_max
        if most is not None and counts.get(heir, 0) >= most:
            return agent
        counts[heir] = counts.get(heir, 0) + 1
        if known.counted_did in counts:
            counts[known.counted_did] -= 1
    agent = replace(agent, inherited_from_did=heir)
    change_identity(command.did, agent, batch, inherited_from_did=heir)
    return agent


def _registered(command: RegisterAgent, agent: KnownAgent, *, is_new: bool) -> dict[str, object]:
    return {
        "did": command.did,
        "ownerDid": agent.owner_did,
        "registered": len(command.capability_ids),
        "isNew": is_new,
        "tokenRevision": agent.token_revision,
    }


def _check_claim(command: RegisterAgent, batch: Batch) -> None:
    """Refuse to claim a DID in use, except by itself, with a proof, or by an administrator.

    A DID is in use if it has a wallet or stake account, or has had API keys or agents. DIDs of
    deployments and of their clearing accounts cannot be agents. Decision stakes-and-slashing.
    """
    if command.did.startswith(DEPLOYMENT_DID):
        detail = f"{command.did}: DIDs that begin with {DEPLOYMENT_DID} are those of deployments"
        raise invalid(detail)
    if command.owner_did == command.did or command.is_admin or command.proof is not None:
        return
    accounts = (wallet_address(command.did), stake_address(command.did))
    has_account = any(batch.cache.accounts.get(address) is not None for address in accounts)
    if has_account or command.did in batch.cache.callers:
        raise forbidden(
            f"{command.did} is in use: it has a wallet account or a stake account, or has had API"
            " keys or agents. Register it with its own credential, with a cardProof, or as an"
            " administrator"
        )


def _bound_key(command: RegisterAgent, agent: KnownAgent) -> str | None:
    """Return the key that a card sets for its agent, None if it sets none.

    The key of a `did:web` is in its DID document. Without a proof any caller could set another key
    by a card.
    """
    is_bound = not is_did_web(command.did) or agent.proven_by is not None
    return command.public_key if is_bound else None


def _after_registration(
    command: RegisterAgent, known: KnownAgent | None, batch: Batch, *, is_yielding: bool
) -> KnownAgent:
    """Return the agent after its registration.

    Reactivation and a yielding claim invalidate earlier heartbeat tokens. A card with another key
    rotates the key without an overlap. The key of a yielding claim does not become a former key,
    because it may not belong to the DID.
    """
    counter = command.card_counter or 0
    # If an administrator names no owner, the administrator owns the agent, and the claim is proven.
    is_operators = command.is_admin and command.owner_did == command.actor_did
    proof = command.proof or (OwnershipProof.OPERATOR if is_operators else None)
    if known is None or is_yielding:
        revision = 1 if known is None else known.revision + 1
        agent = KnownAgent(
            command.owner_did,
            revision,
            revision,
            key_number=1 if known is None else known.key_number,
            key_from_ms=batch.now_ms,
            proven_by=proof,
            card_counter=counter,
            is_trusted=command.is_admin,
            capability_ids=command.capability_ids,
        )
        # Any key is accepted, because the history of keys belongs to a claim without proof.
        return replace(agent, public_key=_bound_key(command, agent))
    is_same_owner = known.owner_did == command.owner_did
    revision = known.revision + 1
    agent = replace(
        known,
        revision=revision,
        token_revision=known.token_revision if known.is_active else revision,
        is_active=True,
        proven_by=known.proven_by or (proof if is_same_owner else None),
        card_counter=max(known.card_counter, counter),
        is_trusted=command.is_admin or _keeps_trust(command, known),
        capability_ids=command.capability_ids,
    )
    new_key = _bound_key(command, agent)
    if new_key is None or new_key == known.public_key:
        return agent
    if known.public_key is None:
        return replace(agent, public_key=new_key, key_from_ms=batch.now_ms)
    check_new_key(command.did, known, new_key, batch)
    return replace_key(command.did, replace(agent, revision=known.revision), new_key, batch)


def _keeps_trust(command: RegisterAgent, known: KnownAgent) -> bool:
    """Say whether a trusted agent stays trusted with a card that no administrator has registered.

    Trust does not pass to an heir, and a card with an additional capability ends it.
    """
    is_more = not set(command.capability_ids) <= set(known.capability_ids)
    return known.is_trusted and known.counted_did == known.owner_did and not is_more


@plans(DeregisterAgent, reads=add_agent_reads, outlives_credential=True)
def plan_deregister_agent(command: DeregisterAgent, batch: Batch) -> Result:
    """Take an agent out of service. An inactive agent stays as it is; `wasActive` is then false."""
    known = batch.agent(command.did)
    if known.owner_did != command.owner_did and not command.is_admin:
        raise forbidden(f"{command.did} is registered by another owner")
    result = {"did": command.did, "wasActive": known.is_active}
    if not known.is_active:
        return result
    revision = known.revision + 1
    batch.cache.agents[command.did] = replace(known, revision=revision, is_active=False)
    if known.counted_did in batch.cache.agent_counts:
        batch.cache.agent_counts[known.counted_did] -= 1
    batch.put(DEREGISTERED, command.did, {"did": command.did, "revision": revision})
    batch.is_directory_changed = True
    batch.record(AuditEventType.AGENT_DEREGISTERED, ("agent", command.did), revision=revision)
    return result


async def card_rows(
    reader: LedgerReader, did: str, *, before: int | None, **page: Any
) -> list[RowDict]:
    """Return the entries (places) of an agent's lineage of cards, newest first.

    Args:
        before: only places with a lower number; None: all.
        page: `limit` and `offset`.
    """
    return await reader.listed(
        sql.select(agent_card), "number", before, is_newest_first=True, did=did, **page
    )
