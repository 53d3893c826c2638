"""What travels between processes besides ledger commands: requests to a workflow owner and replies.

Plain frozen values that pickle; no behaviour besides that. design.md section 3.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from core.errors import ServiceError
from core.travelling import travels
from core.workflow.dag import CompiledWorkflow
from core.workflow.events import Failure


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest:
    """Start this compiled workflow.

    `command_key`: the idempotency key (`http:{principal}:{Idempotency-Key}`, else
    `publish:{workflow_id}`). `watcher`: the gateway to tell when it has finished, or "".
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


class PackedPublish:
    """A request to publish, pickled by itself, which arrives as the request that it was made of.

    A thousand compiled workflows at once hold a loop for half a second while they are pickled.
    """

    __slots__ = ("_body", "is_dry_run", "payer_did", "workflow_id")

    def __init__(self, request: PublishRequest) -> None:
        self.workflow_id = request.workflow_id
        self.is_dry_run = request.is_dry_run
        self.payer_did = request.payer_did
        self._body = pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (self._body,)

    @property
    def size(self) -> int:
        """Return how many bytes it travels as."""
        return len(self._body)


@travels
@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReply:
    """The workflow is stored. `is_repeat`: the key was used before, ids are the first call's."""

    workflow_id: str
    task_id: str
    status: str
    is_repeat: bool = False
    estimate_micro: int = 0
    hold_micro: int = 0
    candidates: dict[str, list[str]] = field(default_factory=dict)
    unavailable: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    """Tell this gateway when the workflow has finished."""

    workflow_id: str
    watcher: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """Cancel a running workflow; who may do so was decided before."""

    workflow_id: str
    reason: str
    details: str
    actor_did: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReply:
    """Committed: the workflow is cancelled."""

    workflow_id: str
    cancelled_ms: int
    nodes_affected: int
    refunded_micro: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequest:
    """Drive a quarantined workflow on; who may do so was decided before."""

    workflow_id: str
    actor_did: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeReply:
    """Committed: the workflow is not quarantined any more."""

    workflow_id: str
    resumed_ms: int


class NotYet(ServiceError):
    """The owner cannot answer yet, but soon: the gateway asks again within its own deadline.

    Any other refusal of an owner goes to the caller at once.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResultRequest:
    """An agent hands in the result of an attempt that it had accepted; its token was checked.

    `verify_attempt`: of the verification it answers, 0 for the attempt itself. `result` is a
    `BlobRef`, and `result_json` None, when it is large. `is_late`: the workflow is known to have
    ended, only the refusal is to be recorded. `signature`, `public_key`: the agent's words.
    """

    workflow_id: str
    node: str
    attempt: int
    verify_attempt: int
    result: Any = None
    result_json: str | None = None
    output_hash: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    is_late: bool = False
    signature: Any = None
    public_key: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResultReply:
    """Committed: the result was taken, now or before; `status` is the node's."""

    status: str
    is_repeat: bool = False


OwnerRequest = PublishRequest | WatchRequest | CancelRequest | ResumeRequest | NodeResultRequest
# To a result, None says that the workflow is not driven here.
OwnerReply = PublishReply | CancelReply | ResumeReply | NodeResultReply | None | ServiceError

# So much is made into values, decided and committed while another payer's request waits.
CALL_BYTES_MAX: Final = 128 * 1024
_REQUEST_BYTES: Final = 400  # of one that carries no text
# A compiled workflow travels as several times its manifest.
_COMPILED: Final = 3


def request_bytes(request: OwnerRequest | PackedPublish) -> int:
    """Return about how many bytes a request to an owner travels as."""
    match request:
        case PackedPublish():
            return request.size
        case PublishRequest():
            return _REQUEST_BYTES + _COMPILED * len(request.manifest_json)
        case NodeResultRequest():
            return _REQUEST_BYTES + 2 * len(request.result_json or "")
        case _:
            return _REQUEST_BYTES
