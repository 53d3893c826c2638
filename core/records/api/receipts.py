"""Signed results and receipts. Reference: features.md (Signed results, Receipts)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from core.records.api.kinds import (
    Credits,
    Did,
    Flag,
    Hash,
    NodeName,
    Timestamp,
    Uuid,
    Yes,
    text,
)
from core.records.api.record import Page, PageQuery, Record
from core.records.api.shape import Body, Json, Maybe, MaybeNull

# Of a submitted receipt in canonical form.
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


class SignedResultPage(Page[SignedResult]):
    """A page of a workflow's signed results, in the order in which they arrived."""

    plural = "results"
    row = SignedResult


class ResultClaim(Body):
    """What is compared with the result that a node has succeeded with."""

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


class ReceiptSubmitted(SubmittedReceipt):
    """A receipt that was submitted."""

    success: Yes


class ReceiptSubmission(Body):
    """A receipt of the caller's own. It is kept with all its members, also those not listed."""

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


class ReceiptPage(Page[Receipt]):
    """A page of receipts, newest first."""

    plural = "receipts"
    row = Receipt


class ReceiptClaim(Body, is_closed=True):
    """A receipt to verify."""

    receipt: Annotated[Json, "The receipt, as it was read."]


class ReceiptVerified(Record):
    """Whether a receipt was signed by this deployment."""

    valid: Annotated[bool, "Whether both of the following are true."]
    key_known: Annotated[bool, "Whether its key is, or was, a signing key of the deployment."]
    signature_valid: Annotated[bool, "Whether the signature is by that key."]
    reason: Annotated[str | None, "Why it is not valid; null if it is valid."]
