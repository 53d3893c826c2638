"""What travels between processes besides ledger commands: requests to a workflow owner and replies.

Frozen values without behaviour; how they become bytes is `wire.py`'s.
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
    `publish:{task_id}`); it stays the same when another workflow's id is chosen. `watcher`: the
    gateway to tell when it has finished, or "". `authority`: the right beyond a usual key's that
    permits it, None for none; of the others below, too. `traceparent`: the caller's, None without a
    valid one. `run`: the trigger's run that this starts; None for a caller's own publish.
    `webhook_url`: URL that gets a message when the workflow ends; None for none.
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
    """A `PublishRequest` as the bytes that travel, with what its sender needs to know of it.

    Encoded where it is made: a thousand compiled workflows at once would hold the gateway's loop.
    """

    workflow_id: str
    payer_did: str
    is_dry_run: bool
    body: bytes
    webhook_url: str | None = None


class PublishReply(Message, frozen=True, kw_only=True):
    """The workflow is stored. `is_repeat`: the key was used before, ids are the first call's."""

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
    """Tell this gateway when the workflow has finished."""

    workflow_id: str
    watcher: str


class WatchReply(Message, frozen=True, kw_only=True):
    """The workflow is driven, or quarantined, here: its watcher will be told."""


class CancelRequest(Message, frozen=True, kw_only=True):
    """Cancel a running workflow; who may do so was decided before."""

    workflow_id: str
    reason: str
    details: str
    actor_did: str
    authority: Authority | None = None


class CancelReply(Message, frozen=True, kw_only=True):
    """Committed: the workflow is cancelled."""

    workflow_id: str
    cancelled_ms: int
    nodes_affected: int
    refunded_micro: int


class ResumeRequest(Message, frozen=True, kw_only=True):
    """Drive a quarantined workflow on; who may do so was decided before."""

    workflow_id: str
    actor_did: str
    authority: Authority | None = None


class ResumeReply(Message, frozen=True, kw_only=True):
    """Committed: the workflow is not quarantined any more."""

    workflow_id: str
    resumed_ms: int


class NotYet(ServiceError):
    """The owner cannot answer yet, but soon: the gateway asks again within its own deadline.

    Any other refusal of an owner goes to the caller at once. Whether the request was carried out is
    open, unless it is a `Moved`.
    """


class Moved(NotYet):
    """Nothing of the request was or will be done here: its workflow's shard is another member's.

    Also while the shard is handed over, and for a command that the ledger has refused as stale. The
    gateway asks for the map of shards again; a publish may go to another member under another id.
    """


class NodeResultRequest(Message, frozen=True, kw_only=True):
    """An agent hands in the result of an attempt that it had accepted; its token was checked.

    `verify_attempt`: of the verification it answers, 0 for the attempt itself. A result is in
    `result_json`, or behind `result_ref` when it is large. `is_late`: the workflow is known to have
    ended, only the refusal is to be recorded. `signature`, `public_key`: the agent's words.
    `is_wide`: the result is signed, and has an integer beyond 2^53. `is_request_signed`: the
    signature is one over the members of the request, by a key of the agent.
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
    """The payer ends an attempt that its agent has accepted, and pays what it names."""

    named_micro: int | None = None
    actor_did: str = ""
    authority: Authority | None = None


class NodeResultReply(Message, frozen=True, kw_only=True):
    """Committed: the result was taken, now or before; `status` is the node's."""

    status: str
    is_repeat: bool = False


class Late(Message, frozen=True, kw_only=True):
    """The reply takes longer than others should wait for; it is asked for by this token."""

    token: int


class WorkflowEnd(Message, frozen=True, kw_only=True):
    """A workflow has succeeded: what its record shows besides what its publisher knows.

    `nodes`: the rows as they are stored, in no order.
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
# None: the workflow is not driven here; it has ended, or its row names who will drive it.
OwnerAnswer = PublishReply | WatchReply | CancelReply | ResumeReply | NodeResultReply | Late | None
OwnerReply = OwnerAnswer | ServiceError

# Bounds the time that another payer's request waits for a call to be read, decided and committed.
# Ray puts arguments above 100 KiB into its object store: such a call takes 13 ms instead of 1.8 ms.
CALL_BYTES_MAX: Final = 90 * 1024
