"""Commands about agents: their cards, and the counts that their reputation is made of.

Plain values, as `ledger/commands.py` says. Reference: features.md (Agent cards).
"""

from __future__ import annotations

from core.records.statuses import OwnershipProof
from ledger.authority import AuthorizedCommand, OwnersCommand


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
