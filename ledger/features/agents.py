"""Agents: their cards are registered, replaced and taken out of service.

Reference: features.md (Agent cards, Registration), http.md (Authentication).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

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

# Commands about agents: their cards, and the counts that their reputation is made of.


class RegisterAgent(OwnersCommand, frozen=True, kw_only=True):
    """Store an agent card; a new DID is claimed by `owner_did`, a known one needs the same owner.

    `is_admin` or `is_signed` (the card was signed by the DID's current key) replace ownership.
    `proof`: what shows that the DID is `owner_did`'s, None: nothing does; an unproven claim of
    another owner yields to it. `card_counter`: of what the card is signed for, None: nothing was.
    `secret_encrypted`: the dispatch signing secret, already encrypted, or None to keep the old one.
    `revision_expected`: the stored card that the command was decided from; None for any.
    `is_unchanged`: the stored card came again by its signature alone, so nothing is stored.
    `card_hash`: of the card without its standing bids, None for a card that has none.
    `card_version`: its own number. `metadata`: name, author and model, by which agents are listed.
    `lines_taken`: capabilities whose versions pass to `owner_did` where an unproven claim yields to
    it; None: there was no such claim.
    `subnet_id`: the subnet that the card names.
    `owner_agents_max`: active agents of its owner, at most; None: no bound.
    Rejections: FORBIDDEN; CONFLICT when the card has changed or the DID was claimed meanwhile, the
    counter is no higher than the stored one, or the owner has so many agents.
    Result: {"did", "ownerDid", "registered": capabilities, "isNew": bool, "tokenRevision": int}.
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
    """Take an agent out of service; its card stays readable, its DID stays its owner's.

    Rejections: NOT_FOUND, FORBIDDEN. Result: {"did", "wasActive": bool}.
    """

    owner_did: str
    did: str


class RebuildReputation(AuthorizedCommand, frozen=True, kw_only=True):
    """Correct the counts of agents' outcomes by what history has more or less of each.

    `changes`: (agent DID, successful, failed, cancelled, latency ms), each found minus stored, read
    outside the writer as of an audit record; `paid_changes`: the same of nodes with a price above
    0. Rejections: OVERLOADED, not stored, when counts were corrected since. Result: {"changed"}.
    """

    changes: tuple[tuple[str, int, int, int, int], ...]
    read_audit_id: int
    paid_changes: tuple[tuple[str, int, int, int, int], ...] = ()


# The lineage of an agent's cards: each has the hash of the one before, so none can be taken out.
# `hash` = SHA-256 over the canonical form of `{cardHash, did, number, previousHash}`, `cardHash`
# that over the card as it is stored, without its standing bids: their few digits would be found
# by trying. What is kept of a card that was replaced is its hash: who has kept the card can show
# that it was the agent's.

# Of what a card says for people: name, author, model.
META_COLUMNS: Final = ("meta_name", "meta_author", "meta_model")


def continue_lineage(
    command: RegisterAgent, known: KnownAgent | None, agent: KnownAgent, batch: Batch
) -> KnownAgent:
    """Return an agent with its card's place in the lineage, and store that place.

    The stored card of an active agent, registered again, stays where it is. A lineage is the DID's:
    it goes on under another owner.
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


# Planning agents: cards are registered and taken out of service. md (Authentication).


def add_agent_reads(command: RegisterAgent | DeregisterAgent, read_set: ReadSet) -> None:
    """Add what is looked at before an agent's card is stored or taken out of service."""
    read_set.agent_dids.add(command.did)
    if isinstance(command, RegisterAgent):
        read_set.registered.add((command.did, command.owner_did))
        if command.public_key is not None:
            read_set.new_keys.add((command.did, command.public_key))
        read_set.claimed_dids.add(command.did)
        read_set.trusted.add(command.did)
        read_set.addresses |= {wallet_address(command.did), stake_address(command.did)}


@dataclass(frozen=True, slots=True)
class ClaimReads:
    """What passes to another owner where a claim yields: its switch ends, its lines of versions."""

    switch: KnownInheritance | None
    lines: Mapping[str, KnownLine]


async def load_claim(
    connection: Connection, command: RegisterAgent, read_set: ReadSet
) -> ClaimReads:
    """Return what hangs on the claim that may yield to a proof."""
    lines = await read_lines(connection, command.lines_taken or ())
    return ClaimReads(await read_switch(connection, command.did), lines)


@plans(
    RegisterAgent,
    reads=add_agent_reads,
    load=load_claim,
    # Most proofs are of new agents, or of the owner's own: a commit of its own for each is slow.
    alone_when=lambda command: command.lines_taken is not None,
    outlives_credential=True,
)
def plan_register_agent(command: RegisterAgent, batch: Batch) -> Result:
    """Store an agent's card: the first to bring a DID owns it until another proves it to be theirs.

    Steps: (1) the caller may, (2) by a card that is not older than the stored one, (3) the owner
    may have another agent, (4) what an earlier owner brought goes, (5) the rest is stored.
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
    """Add the events of a card that is stored."""
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
    # A second card in the same batch replaces the first one's row: a key or secret that only the
    # first brought must survive that.
    if earlier is not None:
        for kept in ("public_key", "key_from_ms", "signing_secret"):
            row[kept] = row[kept] if row[kept] is not None else earlier[kept]
    if is_yielding:
        given = {column.name: row.get(column.name) for column in YIELDED.given}
        batch.put(YIELDED, command.did, given)
    batch.is_directory_changed = True


def _is_yielding(command: RegisterAgent, known: KnownAgent | None) -> bool:
    """Say whether an unproven claim gives way to the proof of another owner. Decision
    signed-requests-and-claims."""
    return (
        known is not None
        and known.proven_by is None
        and command.proof is not None
        and known.owner_did != command.owner_did
    )


def _yield_claim(command: RegisterAgent, known: KnownAgent, batch: Batch) -> None:
    """Take back what the owner of an unproven claim has set: key, secret, revocation, count, heir.

    Names and versions that hang on the claim pass to the owner who has proven the DID.
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
    """Return what a registration has changed about whose the DID is, for the audit."""
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
    """Refuse a card that is older than the stored one, and one that was decided from another."""
    if command.revision_expected is not None and (
        known is None
        or known.revision != command.revision_expected
        # A change needs an active agent; a card of a new version brings it back.
        or not (known.is_active or command.is_signed)
    ):
        raise conflict(
            f"the card of {command.did} was changed by another request: read it and repeat the"
            " change"
        )
    # The counter of an unproven claim is its claimant's: a proof by another starts anew.
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
    """Refuse another active agent of an owner beyond the bound. Decision registry-and-discovery."""
    count = batch.cache.agent_counts.get(owner_did, 0)
    if command.owner_agents_max is not None and count >= command.owner_agents_max:
        raise conflict(
            f"{owner_did} has {count} active agents, expected fewer than"
            f" {command.owner_agents_max}: deregister one first"
        )


def _counted_for_heir(
    command: RegisterAgent, known: KnownAgent | None, agent: KnownAgent, batch: Batch
) -> KnownAgent:
    """Count an inherited agent for its heir from that one's first card on, where there is room.

    An active agent goes on to count for the owner before where there is none: its card may change.
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
    """Refuse to claim a DID that another has in use, except as itself: it is not a new one.

    The DIDs of deployments and of their clearing accounts are no agent's. In use: it has a wallet
    account or a stake account, or has had API keys or agents. Decision stakes-and-slashing.
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
    """Return the key that a card brings to its agent.

    The key of a `did:web` is its document's: without a proof, the card's would be anybody's.
    """
    is_bound = not is_did_web(command.did) or agent.proven_by is not None
    return command.public_key if is_bound else None


def _after_registration(
    command: RegisterAgent, known: KnownAgent | None, batch: Batch, *, is_yielding: bool
) -> KnownAgent:
    """Return an agent as its registration leaves it; coming back and yielding make old tokens
    worthless.

    A card with another key replaces the agent's at once, which is recorded as such. The key of a
    claim that yields was never the DID's, and is no part of its history.
    """
    counter = command.card_counter or 0
    # What an administrator registers without naming an owner is granted to the administrator's own.
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
        # No key is refused: the history is that of a claim which was never the DID's.
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
    """Say whether an agent stays trusted with a card that is not an administrator's.

    Trust does not pass to an heir, and does not cover a capability that is added.
    """
    is_more = not set(command.capability_ids) <= set(known.capability_ids)
    return known.is_trusted and known.counted_did == known.owner_did and not is_more


@plans(DeregisterAgent, reads=add_agent_reads, outlives_credential=True)
def plan_deregister_agent(command: DeregisterAgent, batch: Batch) -> Result:
    """Take an agent out of service; once more changes nothing and is answered alike."""
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
    reader: LedgerReader, did: str, *, limit: int, offset: int, before: int | None
) -> list[RowDict]:
    """Return the places of an agent's cards, the newest first.

    Args:
        before: only places with lower numbers.
    """
    return await reader.listed(
        sql.select(agent_card), "number", before, limit=limit, offset=offset, is_newest_first=True,
        did=did,
    )  # fmt: skip
