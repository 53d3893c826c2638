"""The commands of the audited write path: plain values that the one writer turns into rows.

A command carries its idempotency key; the same key twice returns the first outcome, a rejection
included. Nothing here knows SQL or Ray. Spec: Settlement rules; design.md section 3;
money.md sections 0 and 4.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from msgspec import field

from core.errors import ErrorCode, QuarantineCode
from core.message import Message
from core.workflow.events import Record
from ledger.market_commands import MarketCommand
from ledger.trust.trust_commands import TrustCommand

# What the keys of publishes without a client's own begin with; their workflow's id follows.
PUBLISH_KEY: Final = "publish:"


class OutcomeStatus(StrEnum):
    """How a command ended. `stale`: its owner epoch is old (nothing stored, never retried)."""

    APPLIED = "applied"
    REPEATED = "repeated"
    REJECTED = "rejected"
    STALE = "stale"


class Outcome(Message, frozen=True):
    """What became of a command. `error` and `detail` are set when it was rejected; a repeat returns
    the first outcome's `result`, `error` and `detail`."""

    status: OutcomeStatus
    result: dict[str, Any] = field(default_factory=dict)
    error: ErrorCode | None = None
    detail: str = ""


class RegisterOwner(Message, frozen=True, kw_only=True):
    """A workflow actor starts: a new epoch fences its predecessors of the same name off.

    Result: {"epoch": int}. Not stored under its key (each start is a new epoch).
    """

    key: str
    owner: str
    address: str


class ClaimWorkflows(Message, frozen=True, kw_only=True):
    """Take over every unfinished workflow of `from_owner` and fence it off (its epoch grows).

    `from_epoch`: the epoch seen as silent; if it has grown, the command is rejected (CONFLICT).
    Result: {"claimed": int}.
    """

    key: str
    from_owner: str
    from_epoch: int
    to_owner: str
    to_epoch: int


class PublishWorkflow(Message, frozen=True, kw_only=True):
    """Store a workflow, hold its budget in escrow, own it, and open its roots' attempts.

    `records` are the machine's (NodeChanged, WorkflowChanged, AttemptFinished). An estimate over
    the budget arrives as a terminal WorkflowChanged(failed) and hold_micro 0: then nothing is held.
    `reserved_json`: what each node may cost, micro-credits by node; recovery goes on with it.
    Rejections: INSUFFICIENT_CREDITS, KEY_REUSED. Result: {"workflowId", "taskId", "status"},
    and "unstaked" and "revoked" as of `AdvanceWorkflow`.
    """

    key: str
    request_hash: bytes
    actor_did: str
    owner: str
    owner_epoch: int
    workflow_id: str
    task_id: str
    payer_did: str
    intent: str
    manifest_json: str
    created_ms: int
    deadline_ms: int
    estimate_micro: int
    hold_micro: int
    reserved_json: str
    fee_bps: int
    has_hold: bool
    records: tuple[Record, ...]


class AdvanceWorkflow(Message, frozen=True, kw_only=True):
    """Store what one step of a workflow decided: node rows, attempts, payments, perhaps its end.

    A terminal WorkflowChanged releases what is left in the escrow. Payments above the rest of the
    escrow never arrive here: the machine reserves before it dispatches. `slash_bps`: the share of
    its locked stake that an agent loses by a failed node, `slash_fraud_bps` by a wrong signature.
    `is_fresh`: decided from rows that have just been read. Rejections: ESCROW_RELEASED; FORBIDDEN
    (it says what a revoked agent has done) halts the workflow: CONFLICT, not stored, until a fresh
    command comes. Any other rejection (INTERNAL_ERROR, ALREADY_SETTLED) is not stored either and
    quarantines the workflow: {"quarantined": code} is its result and that of every later step,
    CONFLICT, until `ResumeWorkflow`; only a fresh step that ends the workflow is taken before.
    Result: {"releasedMicro": int} when it ended; {"unstaked": nodes} whose agent's free stake did
    not cover the lock, {"revoked": nodes} whose agent is revoked: their attempts must not be sent.
    """

    key: str
    owner: str
    owner_epoch: int
    workflow_id: str
    actor_did: str
    records: tuple[Record, ...]
    slash_bps: int = 0
    slash_fraud_bps: int = 0
    is_fresh: bool = False


class QuarantineWorkflow(Message, frozen=True, kw_only=True):
    """Stop a workflow for a reason that its owner has found; its status stays as it is.

    Of a workflow that is quarantined already or has ended nothing changes; the first code stays.
    Rejections: ESCROW_RELEASED. Result: {"quarantined": code}.
    """

    key: str
    owner: str
    owner_epoch: int
    workflow_id: str
    code: QuarantineCode


class ResumeWorkflow(Message, frozen=True, kw_only=True):
    """End a workflow's quarantine: the next step, decided from its rows, is taken again.

    Rejections: ESCROW_RELEASED; CONFLICT when it is not quarantined. No result.
    """

    key: str
    owner: str
    owner_epoch: int
    workflow_id: str
    actor_did: str


class Deposit(Message, frozen=True, kw_only=True):
    """Credit a wallet from outside. Result: the entry and {"balanceMicro"}. Rejections: KEY_REUSED,
    INVALID_REQUEST when the balance would exceed its bound."""

    key: str
    request_hash: bytes
    actor_did: str
    owner_did: str
    amount_micro: int
    description: str


class RegisterAgent(Message, frozen=True, kw_only=True):
    """Store an agent card; a new DID is claimed by `owner_did`, a known one needs the same owner.

    `is_admin` or `is_signed` (the card was signed by the DID's current key) replace ownership.
    `secret_encrypted`: the dispatch signing secret, already encrypted, or None to keep the old one.
    `revision_expected`: the stored card that the command was decided from; None for any.
    `is_unchanged`: the stored card came again by its signature alone, so nothing is stored.
    Rejections: FORBIDDEN; CONFLICT when the card has changed meanwhile.
    Result: {"did", "ownerDid", "registered": capabilities, "isNew": bool, "tokenRevision": int}.
    """

    key: str
    actor_did: str
    owner_did: str
    is_admin: bool
    is_signed: bool
    did: str
    card_json: str
    endpoint: str
    capability_ids: tuple[str, ...]
    public_key: str | None
    secret_encrypted: bytes | None
    revision_expected: int | None = None
    is_unchanged: bool = False


class DeregisterAgent(Message, frozen=True, kw_only=True):
    """Take an agent out of service; its card stays readable, its DID stays its owner's.

    Rejections: NOT_FOUND, FORBIDDEN. Result: {"did", "wasActive": bool}.
    """

    key: str
    actor_did: str
    owner_did: str
    is_admin: bool
    did: str


class CreateKey(Message, frozen=True, kw_only=True):
    """Store an API key by its hash (SHA-256, 32 bytes).

    `parent_id`: the key that it is made with and ends with; None for one that stands by itself.
    `owner_keys_max`, `depth_max`: keys of one owner, and keys that one stands on, at most; None: no
    bound. Rejections: UNAUTHORIZED (the parent has ended), FORBIDDEN (it expires earlier), CONFLICT
    (too many keys). Result: {"id"}.
    """

    key: str
    actor_did: str
    key_id: str
    key_hash: bytes
    owner_did: str
    name: str
    scopes: tuple[str, ...]
    rate_class: str
    rate_limits_json: str | None
    expires_ms: int | None
    parent_id: str | None = None
    owner_keys_max: int | None = None
    depth_max: int | None = None


class RevokeKey(Message, frozen=True, kw_only=True):
    """End an API key and all that stand on it. `owner_did` None: an admin may end any.

    Rejection: NOT_FOUND. Result: {"id", "ended": keys}.
    """

    key: str
    actor_did: str
    key_id: str
    owner_did: str | None


Command = (
    RegisterOwner
    | ClaimWorkflows
    | PublishWorkflow
    | AdvanceWorkflow
    | QuarantineWorkflow
    | ResumeWorkflow
    | Deposit
    | RegisterAgent
    | DeregisterAgent
    | CreateKey
    | RevokeKey
    | TrustCommand
    | MarketCommand
)
