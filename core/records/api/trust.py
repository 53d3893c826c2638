"""Revocations, the audit chain and its proofs, signed results and receipts.

Reference: features.md (Revocation, Signed results, Receipts); money.md (Audit chain, Checkpoints).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from core.records.api.kinds import (
    Count,
    Credits,
    Did,
    EntryId,
    Flag,
    Hash,
    LastEventId,
    Limit,
    NodeName,
    TimeMs,
    Timestamp,
    Uuid,
    text,
)
from core.records.api.market import REASON_CHARS_MAX
from core.records.api.record import Done, Page, PageQuery, Record
from core.records.api.shape import Body, Json, Kind, Maybe, MaybeNull, Mismatch, Named
from core.records.audit import AuditEventType
from core.wording import did_you_mean, got_of


class RevocationRequest(Body, is_closed=True):
    """The agent to revoke, and why."""

    did: Did
    evidence: Json
    reason: Annotated[str, text(1, REASON_CHARS_MAX), "Reason in words."]
    expires_at: Annotated[
        MaybeNull[TimeMs], "Time at which the revocation ends. Default: never."
    ] = None


class Revocation(Record):
    """Whether an agent is revoked, since when and why."""

    did: Annotated[Did, "The DID that was looked up."]
    revoked: Annotated[bool, "Whether it is revoked now."]
    reason: Annotated[str | None, "Reason in words; null: not revoked."]
    revoked_at: Annotated[Timestamp | None, "Time of the revocation; null: not revoked."]
    expires_at: Annotated[Timestamp | None, "Time at which it ends; null: never, or not revoked."]
    revoked_by_did: Annotated[Maybe[Did], "DID of the caller who revoked it."]
    evidence: Annotated[Maybe[Json], "Evidence; shown to both parties and administrators."]


class Revoked(Revocation, Done):
    """An agent that was revoked."""

    id: Annotated[Did, "DID of the agent."]


class Unrevoked(Revocation, Done):
    """An agent whose revocation was lifted."""

    id: Annotated[Did, "DID of the agent."]
    unrevoked_at: Annotated[Maybe[Timestamp], "Time at which it was lifted."]


class RevocationPage(Page[Revocation], plural="revocations"):
    """A page of revocations, ordered by DID."""


class AuditEvent(Record):
    """One event of a command."""

    type: Annotated[str, "Type of the event."]
    target_type: str
    target_id: str
    payload: Annotated[Json, "Details, such as amounts."]


class AuditAuthority(Record):
    """The single right that permitted a command."""

    right: Annotated[str, "The right."]
    reason: Annotated[str, "Reason that the caller gave in `x-callboard-reason`."]


class AuditPayload(Record, is_open=True):
    """What a command did. The first entry of the chain holds the fixed terms of the ledger
    instead.
    """

    events: Annotated[
        Maybe[list[AuditEvent]],
        "All events of the command; the first one gives the entry its type.",
    ]
    authority: Annotated[Maybe[AuditAuthority], "Absent when no single right was used."]


class AuditEntry(Record):
    """One entry of the audit chain. `hash` covers the canonical form of all other members.

    The type, the target and the action are those of the command's first event. A caller without
    `audit:all` that is no party of the entry sees only its id, type and hash.
    """

    id: Annotated[int, "Number of the entry; without gaps, in commit order."]
    event_type: Annotated[str, "Type of the command's first event."]
    actor_did: Annotated[Maybe[str], "DID of the caller."]
    target_type: Maybe[str]
    target_id: Maybe[str]
    action: Annotated[Maybe[str], "Action of the first event, the last part of its type."]
    payload: Annotated[Maybe[AuditPayload], "Events of the command."]
    hash: Annotated[Hash, "Hash of this entry."]
    prev_hash: Annotated[Maybe[Hash], "Hash of the previous entry."]
    created_at: Maybe[Timestamp]


class AuditPage(Page[AuditEntry], plural="entries"):
    """A page of audit entries, newest first."""


def _event_type(value: str) -> str:
    if value not in _EVENT_TYPES:
        # Types of the same resource come first, because only the first ones are compared.
        known = sorted(_EVENT_TYPES, key=lambda one: one[:4] != value[:4])
        raise Mismatch(got_of(value), "an event type" + did_you_mean(value, known))
    return value


_EVENT_TYPES: Final = [*map(str, AuditEventType)]
EventType = Annotated[str, Kind({"enum": _EVENT_TYPES}, _event_type)]


class AuditQuery(PageQuery):
    """Filters of the list of audit entries."""

    limit: Annotated[Maybe[Limit], "Maximum number of rows, 1 to 1,000. Default 100."] = None
    event_type: Annotated[Maybe[EventType], "Only entries with an event of this type."] = None
    actor_did: Annotated[Maybe[str], "Only entries of this caller."] = None
    target_type: Annotated[Maybe[str], "Only entries with an event about this kind of target."] = (
        None
    )
    target_id: Annotated[Maybe[str], "Only entries with an event about this target."] = None
    start_time: Annotated[Maybe[TimeMs], "Start of the period, included."] = None
    end_time: Annotated[Maybe[TimeMs], "End of the period, excluded."] = None


EventTypes = Annotated[
    frozenset[str],
    Kind(
        {"type": "string", "examples": ["node.succeeded,node.failed"]},
        lambda value: frozenset(map(_event_type, value.split(","))),
    ),
]


class StreamQuery(Body):
    """Where a stream of events begins."""

    last_event_id: Annotated[
        Maybe[LastEventId],
        "The stream begins after this audit entry. The header `Last-Event-ID` takes precedence.",
    ] = None


class EventsQuery(StreamQuery):
    """Where a stream of events begins, and its filters."""

    event_type: Annotated[
        Maybe[EventTypes], "Only entries with an event of one of these types, parted by commas."
    ] = None
    workflow_id: Annotated[Maybe[Uuid], "Only entries about this workflow."] = None


class CheckpointQuery(Body):
    """Which checkpoint to read."""

    size: Annotated[
        Maybe[EntryId],
        "The first checkpoint that covers this entry. Default: the newest checkpoint.",
    ] = None


class ProofQuery(Body):
    """The entry to prove, and the tree that holds it."""

    id: Annotated[EntryId, "Id of the audit entry."]
    size: Annotated[
        Maybe[EntryId], "Size of the tree, at most that of the newest checkpoint, the default."
    ] = None


class ConsistencyQuery(Body):
    """The two trees to compare."""

    from_size: Annotated[EntryId, Named("from"), "Size of the older tree."]
    to_size: Annotated[
        Maybe[EntryId],
        Named("to"),
        "Size of the newer tree, at most that of the newest checkpoint, the default.",
    ] = None


class ExportQuery(Body):
    """Where an export begins."""

    from_id: Annotated[Maybe[EntryId], Named("from"), "Id of the first entry. Default 1."] = None


class VerifyQuery(ExportQuery):
    """The entries to check."""

    limit: Annotated[
        Maybe[Limit],
        "Maximum number of entries to check, 1 to 10,000 and about 1 MiB. Default 1,000.",
    ] = None


class SignedCheckpoint(Record):
    """A signed checkpoint of the audit log, which the service sends as text."""

    note: Annotated[str, "The signed note."]


class InclusionProof(Record):
    """A proof that the tree of the audit log holds an entry (RFC 6962)."""

    id: Annotated[int, "Id of the audit entry, which is leaf `id` - 1."]
    size: Annotated[Count, "Number of entries in the tree."]
    leaf_hash: Annotated[Hash, "Leaf hash: SHA-256 of 0x00 and the body of the entry."]
    hashes: Annotated[list[Hash], "Hashes of the neighbours, from the leaf to the root."]
    root: Annotated[Hash, "Root of the tree."]


class ConsistencyProof(Record):
    """A proof that a tree continues an older one (RFC 6962)."""

    from_size: Annotated[Count, Named("from"), "Number of entries in the older tree."]
    to_size: Annotated[Count, Named("to"), "Number of entries in the newer tree."]
    hashes: Annotated[list[Hash], "Hashes of the proof."]
    from_root: Annotated[Hash, "Root of the older tree."]
    to_root: Annotated[Hash, "Root of the newer tree."]


class AuditVerification(Record):
    """The result of a check of stored audit entries."""

    valid: Annotated[bool, "Whether no defect was found."]
    from_id: Annotated[int, Named("from"), "First entry that was checked."]
    to_id: Annotated[int | None, Named("to"), "Last entry that was checked; null: there is none."]
    entries: Annotated[Count, "Number of entries that were checked."]
    next_from: Annotated[int | None, "Where the next check begins; null: all are checked."]
    first_bad: Annotated[int | None, "First defective entry; null: none."]
    checkpoint: Annotated[str | None, "Newest checkpoint, a signed note; null: there is none yet."]


# The size of a submitted receipt in canonical form.
RECEIPT_BYTES_MAX: Final = 8 * 1024
SignatureSent = Annotated[str, text(1, 1_024)]


class SignedResultsQuery(PageQuery):
    """The page of a workflow's signed results."""

    all: Annotated[Maybe[Flag], "true: also results that are not signed."] = None


class SignedResult(Record):
    """The result with which a node has succeeded, and its agent's signature."""

    node_id: str
    agent_did: Did
    attempt: Annotated[int, "Number of the attempt, from 1."]
    result_hash: Annotated[Hash, "Hash of the result's canonical form."]
    signature: Annotated[
        str | None, "Signature over `nodeId:workflowId:resultHash`; null: not signed."
    ]
    public_key: Annotated[str | None, "Key that verified it on arrival, base64; null: not signed."]
    timestamp: Annotated[Timestamp, "Time at which the result arrived."]


class SignedResultPage(Page[SignedResult], plural="results"):
    """A page of a workflow's signed results, in the order in which they arrived."""


class ResultClaim(Body):
    """The result that is compared with the stored result of a node."""

    workflow_id: Uuid
    result_hash: Annotated[MaybeNull[Hash], "Hash of a result. Default: the stored one."] = None
    result: Annotated[MaybeNull[Any], "A result, which is hashed; null counts as absent."] = None
    signature: Annotated[MaybeNull[SignatureSent], "A signature. Default: the stored one."] = None
    public_key: Annotated[
        MaybeNull[SignatureSent], "Key of the signature, base64. Default: the stored one."
    ] = None


class ResultVerified(Record):
    """Whether a result is the stored one, and signed by its agent."""

    valid: Annotated[bool, "Whether the hash matches and the signature is valid."]
    hash_matches: Annotated[bool, "Whether the result, and its hash, are the stored ones."]
    signature_valid: Annotated[
        bool, "Whether the signature over the hash is by a key that is, or was, the agent's."
    ]
    signed_by: Annotated[Did | None, "DID of the agent; null without a valid signature."]
    reason: Annotated[str | None, "Why it is not valid; null if it is valid."]


class SubmittedReceipt(Record):
    """A receipt that the agent of a node, its owner or the payer submitted."""

    id: Annotated[Uuid, "Id of the receipt."]
    receipt_id: Annotated[Uuid, "Id of the receipt."]
    workflow_id: Uuid
    node_id: str
    agent_did: Did
    submitter_did: Annotated[Did, "DID of the caller who submitted it."]
    receipt: Annotated[Json, "The receipt as it was submitted."]
    verified: Annotated[
        bool | None,
        "Whether the submitter's key verified its signature; null: without a signature or without a"
        " registered key it was not checked.",
    ]
    created_at: Timestamp


class ReceiptSubmitted(SubmittedReceipt, Done):
    """A receipt that was submitted."""


class ReceiptSubmission(Body):
    """A receipt that the caller made. All its members are stored, even those not listed here."""

    is_open: ClassVar[bool] = True

    workflow_id: Uuid
    node_id: NodeName
    agent_did: Annotated[MaybeNull[Did], "DID of the node's agent, which is the default."] = None
    signature: Annotated[
        MaybeNull[SignatureSent],
        "By the submitter, over the canonical form of all other members but `checkpoint` and"
        " `submitted`.",
    ] = None


class Receipt(Record):
    """The deployment's receipt for a payment of an agent.

    `signature` covers the canonical form of all other members but `checkpoint` and `submitted`.
    """

    receipt_id: Annotated[str, "Id: `rcpt_` and the number of the payment's ledger entry."]
    workflow_id: Uuid
    node_id: Annotated[str, "Name of the node; for a verification with `#verify`."]
    agent_did: Did
    input_hash: Annotated[Hash | None, "Hash of the inputs; null for a verification."]
    output_hash: Annotated[Hash | None, "Hash of the result; null for a verification."]
    started_at: Annotated[Timestamp, "Time at which the request was sent."]
    completed_at: Annotated[Timestamp, "Time at which the result came."]
    compute_ms: Annotated[int, "Milliseconds between the two."]
    amount_credits: Annotated[Credits, "Credits that the agent received."]
    fee_credits: Annotated[Credits, "Protocol fee that the payer paid besides."]
    audit_id: Annotated[int, "Audit entry of the payment."]
    key_id: Annotated[str, "Id of the deployment's signing key."]
    signed_at: Annotated[Timestamp, "Time at which the receipt was signed."]
    signature: Annotated[str, "Signature, `ed25519:` and base64."]
    checkpoint: Annotated[
        str | None, "First signed checkpoint that covers the audit entry; null: not made yet."
    ]
    submitted: Annotated[
        list[SubmittedReceipt], "Receipts that the parties submitted; 1,000 in a reply, the oldest."
    ]


class ReceiptPage(Page[Receipt], plural="receipts"):
    """A page of receipts, newest first."""


class ReceiptClaim(Body, is_closed=True):
    """A receipt to verify."""

    receipt: Annotated[Json, "The receipt, as it was read."]


class ReceiptVerified(Record):
    """Whether a receipt was signed by this deployment."""

    valid: Annotated[bool, "Whether both of the following are true."]
    key_known: Annotated[bool, "Whether its key is, or was, a signing key of the deployment."]
    signature_valid: Annotated[bool, "Whether the signature is by that key."]
    reason: Annotated[str | None, "Why it is not valid; null if it is valid."]


class SigningKey(Record):
    """A key with which the deployment signs, or signed."""

    key_id: Annotated[str, "Id of the key: 16 hexadecimal digits."]
    public_key: Annotated[str, "Public key (Ed25519), base64."]
    valid_from: Annotated[Timestamp, "Time from which it signs."]
    valid_until: Annotated[Timestamp | None, "Time until which it signed; null for the key in use."]
    audit_id: Annotated[int, "Audit entry that names the key."]


class ServiceDescription(Record):
    """What a verifier needs to know about the deployment."""

    service: Annotated[str, "Name of the service."]
    did: Annotated[Did, "DID of the deployment; it stays the same when the key is rotated."]
    region: Annotated[str, "Region of the deployment."]
    origin: Annotated[str, "Origin of the checkpoints of its audit log."]
    signing_keys: Annotated[list[SigningKey], "Signing keys, the newest first."]


class SigningKeyRotated(Done):
    """The signing key that is in use now."""

    id: Annotated[str, "Id of the key."]
    key_id: str
    public_key: Annotated[str, "Public key (Ed25519), base64."]
    former_key_id: Annotated[str, "Id of the key that was in use before."]
