"""What the values in a path are: one class per kind of thing that a path names.

The members are the names in braces of an operation's path, in their order. An id whose form the
service itself gives (a UUID, a node's name) is looked up: a value of another form names nothing
that exists. One whose form is public (a DID, a capability's id, a number) is refused as invalid.
contract.md section 2 (Ids in paths, Texts) and section 6 (unknown is 404).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from core.records.api.kinds import AgentName, CapabilityId, Did, EntryNumber, NodeName, Uuid, text
from core.records.api.shape import Body

KEY_ID_CHARS_MAX = 128
MACHINE_CHARS_MIN, MACHINE_CHARS_MAX = 6, 64


class PathValues(Body):
    """The values of a path.

    `looked_up`: the name of what they lead to, which is not known under values of another form;
    None: such values are invalid.
    """

    looked_up: ClassVar[str | None] = None


class WorkflowPath(PathValues):
    """A workflow."""

    looked_up = "the workflow"
    workflow_id: Annotated[Uuid, "the workflow's id"]


class NodePath(WorkflowPath):
    """A node of a workflow."""

    looked_up = "the node"
    node: Annotated[NodeName, "the node's name"]


class TaskPath(PathValues):
    """A task."""

    looked_up = "the task"
    task_id: Annotated[Uuid, "the `taskId` that publishing answered with"]


class InvoicePath(PathValues):
    """An invoice."""

    looked_up = "the invoice"
    invoice_id: Annotated[Uuid, "the invoice's id"]


class DisputePath(PathValues):
    """A dispute."""

    looked_up = "the dispute"
    dispute_id: Annotated[Uuid, "the dispute's id"]


class KeyPath(PathValues):
    """An API key."""

    looked_up = "the key"
    key_id: Annotated[str, text(1, KEY_ID_CHARS_MAX), "the key's id"]


class MachinePath(PathValues):
    """A machine of the cluster."""

    looked_up = "the machine"
    machine: Annotated[
        str, text(MACHINE_CHARS_MIN, MACHINE_CHARS_MAX), "its id in Ray, or how that alone begins"
    ]


class NamePath(PathValues):
    """An agent's name."""

    looked_up = "the name"
    name: Annotated[AgentName, "the name, in any case"]


class RecoveryPath(PathValues):
    """A request to replace an agent's key."""

    looked_up = "the recovery"
    recovery_id: Annotated[Uuid, "the request's id"]


class EntryPath(PathValues):
    """An audit entry."""

    audit_id: Annotated[EntryNumber, "the entry's id"]


class CapabilityPath(PathValues):
    """A capability."""

    capability_id: Annotated[CapabilityId, "the capability's id"]


class DidPath(PathValues):
    """A DID."""

    did: Annotated[Did, "the DID, raw or percent-encoded"]


class AnyDidPath(PathValues):
    """A DID that is only read of: of a text that is none, nothing is known."""

    did: Annotated[str, "the DID, raw or percent-encoded"]
