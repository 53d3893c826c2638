"""Messages between processes, except ledger commands: requests to workflow owners, and replies.

Messages are frozen values without behaviour; `wire.py` encodes and decodes them.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct, field

from core.errors import ServiceError
from core.message import Message
from core.workflow.dag import CompiledWorkflow
from core.workflow.events import BlobRef, Failure, NodeChanged
from ledger.authority import Authority
from ledger.features.workflow_commands import TriggerRun


class PublishRequest(Message, frozen=True, kw_only=True):
    """Start this compiled workflow.

    `command_key`: the idempotency key (`http:{principal}:{Idempotency-Key}`, else
    `publish:{task_id}`). It stays the same if a retry uses another workflow id. `watcher`: the
    gateway to notify of the workflow's end, or "". `authority`: the single right that permits the
    request, None if none is needed; the messages below have it, too. `traceparent`: the caller's
    valid header, or None. `run`: the trigger's run that this request starts; None for a publish by
    a caller. `webhook_url`: the URL that gets a message when the workflow ends, or None.
    """

    command_key: str
    request_hash: bytes
    actor_did: str
    workflow_id: str
    task_id: str
    payer_did: str
    manifest_json: str
    compiled: CompiledWorkflow
    is_dry_run: bool = False
    watcher: str = ""
    authority: Authority | None = None
    warnings: tuple[str, ...] = ()
    traceparent: str | None = None
    run: TriggerRun | None = None
    webhook_url: str | None = None


class PackedPublish(Struct, frozen=True):
    """An encoded `PublishRequest`, with the fields that its sender needs.

    The thread that builds the request encodes it, because encoding a thousand compiled workflows
    would block the gateway's event loop.
    """

    workflow_id: str
    payer_did: str
    is_dry_run: bool
    body: bytes
    webhook_url: str | None = None


class PublishReply(Message, frozen=True, kw_only=True):
    """The reply to a publish: the workflow is stored, or the result of a dry run.

    `is_repeat`: the key was used before, and the reply has the ids of the first publish. Only of a
    dry run, by node: `candidates`: the available agents; `unavailable`: why there are none;
    `waiting`: how long the node would wait for an agent, and why.
    """

    workflow_id: str
    task_id: str
    status: str
    is_repeat: bool = False
    estimate_micro: int = 0
    hold_micro: int = 0
    candidates: dict[str, list[str]] = field(default_factory=dict)
    unavailable: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    waiting: dict[str, dict[str, Any]] = field(default_factory=dict)
    error: dict[str, Any] | None = None


class WatchRequest(Message, frozen=True, kw_only=True):
    """Notify this gateway when the workflow ends."""

    workflow_id: str
    watcher: str


class WatchReply(Message, frozen=True, kw_only=True):
    """The workflow is driven or quarantined by this owner, which will notify the watcher."""


class CancelRequest(Message, frozen=True, kw_only=True):
    """Cancel a running workflow. The sender has checked the caller's permission."""

    workflow_id: str
    reason: str
    details: str
    actor_did: str
    authority: Authority | None = None


class CancelReply(Message, frozen=True, kw_only=True):
    """The cancellation of the workflow is committed."""

    workflow_id: str
    cancelled_ms: int
    nodes_affected: int
    refunded_micro: int


class ResumeRequest(Message, frozen=True, kw_only=True):
    """Resume a quarantined workflow. The sender has checked the caller's permission."""

    workflow_id: str
    actor_did: str
    authority: Authority | None = None


class ResumeReply(Message, frozen=True, kw_only=True):
    """The resume is committed: the workflow is no longer quarantined."""

    workflow_id: str
    resumed_ms: int


class NotYet(ServiceError):
    """The owner cannot answer yet: the gateway repeats the request until the gateway's deadline.

    Other refusals of an owner go to the caller at once. The outcome of the request is unknown,
    unless the error is a `Moved`.
    """


class Moved(NotYet):
    """The owner did nothing and will do nothing: another member holds the workflow's shard.

    Also raised while the shard is being handed off, and when the ledger has refused the command as
    stale. The gateway then reads the map of shards again. A publish may go to another member with
    another workflow id.
    """


class NodeResultRequest(Message, frozen=True, kw_only=True):
    """The result of an accepted attempt, sent by its agent. The agent's token was checked.

    `verify_attempt`: the number of the verification that the result answers, 0 for the attempt
    itself. `result_json`: the result; if it is large, `result_ref` refers to it instead. `is_late`:
    the workflow is known to have ended, so the owner only records the refusal. `signature`,
    `public_key`: as the agent sent them, unchecked. `is_wide`: the result is signed and contains an
    integer beyond 2^53. `is_request_signed`: the signature covers the members of the request, and
    is made with a key of the agent.
    """

    workflow_id: str
    node: str
    attempt: int
    verify_attempt: int
    result_json: str | None = None
    result_ref: BlobRef | None = None
    output_hash: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    is_late: bool = False
    signature: Any = None
    public_key: Any = None
    is_wide: bool = False
    is_request_signed: bool = False


class SettlementRequest(NodeResultRequest, frozen=True, kw_only=True):
    """The payer ends an accepted attempt and pays for it.

    `named_micro`: the amount that the payer names, micro-credits; None: the attempt's price.
    """

    named_micro: int | None = None
    actor_did: str = ""
    authority: Authority | None = None


class NodeResultReply(Message, frozen=True, kw_only=True):
    """The result is committed, by this request or an earlier one; `status` is the node's status."""

    status: str
    is_repeat: bool = False


class Late(Message, frozen=True, kw_only=True):
    """The reply is not ready; the gateway requests it later by this token (`late_replies.py`)."""

    token: int


class WorkflowEnd(Message, frozen=True, kw_only=True):
    """A workflow has succeeded. Contains the values of its record that the gateway does not know.

    `nodes`: the nodes' rows as they are stored, in no particular order.
    """

    workflow_id: str
    created_ms: int
    started_ms: int
    completed_ms: int
    spent_micro: int
    nodes: tuple[NodeChanged, ...]


OwnerRequest = (
    PublishRequest
    | WatchRequest
    | CancelRequest
    | ResumeRequest
    | NodeResultRequest
    | SettlementRequest
)
# None: this owner does not drive the workflow. The workflow has ended, or another owner drives it.
OwnerAnswer = PublishReply | WatchReply | CancelReply | ResumeReply | NodeResultReply | Late | None
OwnerReply = OwnerAnswer | ServiceError

# Maximum bytes of a call. The limit bounds how long the requests of other payers wait while a call
# is decoded, decided and committed. Ray puts arguments above 100 KiB into its object store. A call
# with such arguments takes 13 ms instead of 1.8 ms.
CALL_BYTES_MAX: Final = 90 * 1024
