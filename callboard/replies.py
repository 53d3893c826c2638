"""What requests return, by the names of the service's document: one record type per schema.

They are declared in `core/records/api`, from which the service makes its document. Spec: Resources
and their fields.
"""

from __future__ import annotations

from callboard.errors import STILL_RUNNING, StillRunning, WorkflowFailed
from core.records.api.agents import (
    Agent,
    AgentPage,
    BulkRegistered,
    CardPlace,
    Deregistered,
    HeartbeatTaken,
    Lineage,
    Live,
    Registered,
    ServedCard,
)
from core.records.api.discovery import Discovered, Found, FoundAgent
from core.records.api.identity import (
    AgentKey,
    AgentKeyRotated,
    Conditions,
    GuardianSet,
    GuardiansSet,
    Inheritance,
    InheritanceCancelled,
    InheritanceSet,
    KeyHistory,
    Name,
    NameChanged,
    NamePage,
    NameReleased,
    NameTransferred,
    Recovery,
    RecoveryMade,
)
from core.records.api.kinds import Credits
from core.records.api.market import (
    Auction,
    AuctionRound,
    Bid,
    BidShown,
    Counts,
    CountsCompared,
    Limits,
    Price,
    PriceSet,
    Pricing,
    Quota,
    QuotaCheck,
    QuotaSet,
    Reputation,
    ReputationCompared,
    Stake,
    StakeMoved,
    StakeSlashed,
    Usage,
)
from core.records.api.money import (
    Account,
    Balance,
    Collected,
    Deposited,
    Entry,
    EntryPage,
    HistoryEvent,
    HistoryPage,
)
from core.records.api.operators.cluster import Cluster, ClusterMember, MachineChanged
from core.records.api.operators.keys import (
    Health,
    Key,
    KeyCreated,
    KeyPage,
    KeyRevoked,
    KeyRotated,
    Readiness,
)
from core.records.api.planning import Draft, DraftChoice, Suggestion
from core.records.api.problems import (
    Defect,
    Problem,
)
from core.records.api.registry.capability_versions import (
    CapabilityVersion,
    CapabilityVersionPage,
    CapabilityVersionWhole,
    Compatibility,
    MigrationStep,
    Negotiated,
    SchemaBreak,
    VersionDeprecated,
    VersionPublished,
)
from core.records.api.review import (
    Dispute,
    DisputeOpened,
    DisputePage,
    DisputeResolved,
    Feedback,
    Invoice,
    InvoiceChanged,
    InvoiceLine,
    InvoicePage,
    InvoiceWithLines,
    Paid,
    Task,
    TaskPublished,
    TaskSettled,
)
from core.records.api.trust import (
    AuditEntry,
    AuditPage,
    Revocation,
    RevocationPage,
    Revoked,
    Unrevoked,
)
from core.records.api.workflows import (
    FINISHED,
    Budget,
    BulkPublished,
    Cancelled,
    DryRun,
    Escrow,
    Node,
    NodeResultTaken,
    Published,
    Quarantine,
    ResultRef,
    Resumed,
    Workflow,
    WorkflowPage,
    WorkflowSummary,
)

__all__ = [
    "FINISHED",
    "Account",
    "Agent",
    "AgentKey",
    "AgentKeyRotated",
    "AgentPage",
    "Auction",
    "AuctionRound",
    "AuditEntry",
    "AuditPage",
    "Balance",
    "Bid",
    "BidShown",
    "Budget",
    "BulkPublished",
    "BulkRegistered",
    "Cancelled",
    "CapabilityVersion",
    "CapabilityVersionPage",
    "CapabilityVersionWhole",
    "CardPlace",
    "Cluster",
    "ClusterMember",
    "Collected",
    "Compatibility",
    "Conditions",
    "Counts",
    "CountsCompared",
    "Credits",
    "Defect",
    "Deposited",
    "Deregistered",
    "Discovered",
    "Dispute",
    "DisputeOpened",
    "DisputePage",
    "DisputeResolved",
    "Draft",
    "DraftChoice",
    "DryRun",
    "Entry",
    "EntryPage",
    "Escrow",
    "Feedback",
    "Found",
    "FoundAgent",
    "GuardianSet",
    "GuardiansSet",
    "Health",
    "HeartbeatTaken",
    "HistoryEvent",
    "HistoryPage",
    "Inheritance",
    "InheritanceCancelled",
    "InheritanceSet",
    "Invoice",
    "InvoiceChanged",
    "InvoiceLine",
    "InvoicePage",
    "InvoiceWithLines",
    "Key",
    "KeyCreated",
    "KeyHistory",
    "KeyPage",
    "KeyRevoked",
    "KeyRotated",
    "Limits",
    "Lineage",
    "Live",
    "MachineChanged",
    "MigrationStep",
    "Name",
    "NameChanged",
    "NamePage",
    "NameReleased",
    "NameTransferred",
    "Negotiated",
    "Node",
    "NodeResultTaken",
    "Paid",
    "Price",
    "PriceSet",
    "Pricing",
    "Problem",
    "Published",
    "Quarantine",
    "Quota",
    "QuotaCheck",
    "QuotaSet",
    "Readiness",
    "Recovery",
    "RecoveryMade",
    "Registered",
    "Reputation",
    "ReputationCompared",
    "ResultRef",
    "Resumed",
    "Revocation",
    "RevocationPage",
    "Revoked",
    "SchemaBreak",
    "ServedCard",
    "Stake",
    "StakeMoved",
    "StakeSlashed",
    "Suggestion",
    "Task",
    "TaskPublished",
    "TaskSettled",
    "Unrevoked",
    "Usage",
    "VersionDeprecated",
    "VersionPublished",
    "Workflow",
    "WorkflowPage",
    "WorkflowSummary",
    "successful",
]


def successful(record: Workflow) -> Workflow:
    """Return the record of a workflow that has succeeded.

    Raises:
        StillRunning: it has not ended.
        WorkflowFailed: it has ended otherwise.
    """
    if record.status == "success":
        return record
    if not record.is_finished:
        waiting = f"workflow {record.id} is {record.status}"
        raise StillRunning(STILL_RUNNING, 200, waiting)
    failed = {name: node.error for name, node in record.nodes.items() if node.error}
    # What follows from a failure of another node is the lesser reason.
    first = next((n for n, e in failed.items() if e.get("code") != "UPSTREAM_FAILED"), None)
    error = record.error or (failed[first] if first is not None else {})
    code = str(error.get("code") or record.status.upper())
    reason = error.get("message") or error.get("error") or record.status
    where = "" if first is None else f" at node {first}"
    detail = f"workflow {record.id} ended as {record.status}{where}: {reason}"
    raise WorkflowFailed(code, 200, detail, record)
