"""What the values in a path are: one class per kind of thing that a path names.

The members are the names in braces of an operation's path, in their order. An id whose form the
service itself gives (a UUID, a node's name) is looked up: a value of another form names nothing
that exists. One whose form is public (a DID, a capability's id, a number) is refused as invalid.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from core.records.api.kinds import (
    AgentName,
    CapabilityId,
    Did,
    EntryId,
    NodeName,
    TraceId,
    Uuid,
    text,
)
from core.records.api.shape import Body, members_of
from core.records.bounds import DID_CHARS_MAX

KEY_ID_CHARS_MAX = 128
MACHINE_CHARS_MIN, MACHINE_CHARS_MAX = 6, 64


# The class of a path by its names in braces, where an operation declares no other: of two classes
# of the same names the later one.
BY_NAMES: Final[dict[tuple[str, ...], type[PathValues]]] = {}


class PathValues(Body):
    """The values of a path.

    `looked_up`: the name of what they lead to, which is not known under values of another form;
    None: such values are invalid.
    """

    looked_up: ClassVar[str | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        BY_NAMES[tuple(member.name for member in members_of(cls))] = cls


class WorkflowPath(PathValues):
    """A workflow."""

    looked_up = "the workflow"
    workflow_id: Annotated[Uuid, "Id of the workflow."]


class NodePath(WorkflowPath):
    """A node of a workflow."""

    looked_up = "the node"
    node: Annotated[NodeName, "Name of the node."]


class ResultPath(PathValues):
    """A node of a workflow that the body names."""

    looked_up = "the node"
    node: Annotated[NodeName, "Name of the node."]


class ReceiptPath(PathValues):
    """A receipt, or the agent whose receipts are listed."""

    looked_up = "the receipt"
    receipt: Annotated[str, text(1, DID_CHARS_MAX), "Id of the receipt, or the DID of an agent."]


class TriggerPath(PathValues):
    """A trigger."""

    looked_up = "the trigger"
    trigger_id: Annotated[Uuid, "Id of the trigger, which is also that of its template."]


class SchedulePath(PathValues):
    """A schedule."""

    looked_up = "the schedule"
    schedule_id: Annotated[Uuid, "Id of the schedule."]


class HookPath(PathValues):
    """A hook."""

    looked_up = "the hook"
    token: Annotated[str, text(1, 64), "Token of the hook, the end of its `hookUrl`."]


class TracePath(PathValues):
    """A trace."""

    looked_up = "the trace"
    trace_id: Annotated[TraceId, "W3C trace id, the `traceId` of a workflow."]


class TaskPath(PathValues):
    """A task."""

    looked_up = "the task"
    task_id: Annotated[Uuid, "Id of the task, the `taskId` of the publish."]


class InvoicePath(PathValues):
    """An invoice."""

    looked_up = "the invoice"
    invoice_id: Annotated[Uuid, "Id of the invoice."]


class DisputePath(PathValues):
    """A dispute."""

    looked_up = "the dispute"
    dispute_id: Annotated[Uuid, "Id of the dispute."]


class KeyPath(PathValues):
    """An API key."""

    looked_up = "the key"
    key_id: Annotated[str, text(1, KEY_ID_CHARS_MAX), "Id of the key."]


class MachinePath(PathValues):
    """A machine of the cluster."""

    looked_up = "the machine"
    machine: Annotated[
        str,
        text(MACHINE_CHARS_MIN, MACHINE_CHARS_MAX),
        "Id of the machine in Ray, or a prefix of it.",
    ]


class NamePath(PathValues):
    """An agent's name."""

    looked_up = "the name"
    name: Annotated[AgentName, "The name, in any case."]


class RecoveryPath(PathValues):
    """A request to replace an agent's key."""

    looked_up = "the recovery"
    recovery_id: Annotated[Uuid, "Id of the recovery request."]


class EntryPath(PathValues):
    """An audit entry."""

    audit_id: Annotated[EntryId, "Id of the audit entry."]


class CapabilityPath(PathValues):
    """A capability."""

    capability_id: Annotated[CapabilityId, "Id of the capability."]


class DidPath(PathValues):
    """A DID."""

    did: Annotated[Did, "The DID, raw or percent-encoded."]


class AnyDidPath(PathValues):
    """A DID. A text that is no DID is not known."""

    did: Annotated[str, "The DID, raw or percent-encoded."]
