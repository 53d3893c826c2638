"""The closed lists of statuses, types and reasons that records contain. Each list is defined once.

`core/workflow/transitions.py` and `core/market/agent_liveness.py` decide the changes of status.
Reference: features.md (States, Targeted routing).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class NodeStatus(StrEnum):
    """The status of a node. Reference: features.md (States)."""

    PENDING = "pending"
    READY = "ready"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    SKIPPED = "skipped"
    TIMEOUT = "timeout"


class WorkflowStatus(StrEnum):
    """The status of a workflow. Reference: features.md (States)."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


class TriggerKind(StrEnum):
    """The kind of a trigger: what causes its runs. Reference: features.md (Triggers)."""

    SCHEDULED = "scheduled"
    WEBHOOK = "webhook"
    EVENT = "event"


class TriggerStatus(StrEnum):
    """The status of a trigger. An ended trigger starts no more runs."""

    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"


class RunStatus(StrEnum):
    """The result of one due time, hook call or event: a workflow, a refusal, or nothing."""

    STARTED = "started"
    FAILED = "failed"
    SKIPPED = "skipped"


class SubnetType(StrEnum):
    """The type of a subnet: who may see and join it."""

    PRIVATE = "private"
    INVITE_ONLY = "invite_only"
    PUBLIC = "public"


class PolicyType(StrEnum):
    """The type of a policy of a subnet: what the policy does."""

    ALLOW_CAPABILITY = "allow_capability"
    DENY_CAPABILITY = "deny_capability"
    REQUIRE_APPROVAL = "require_approval"
    RATE_LIMIT = "rate_limit"
    ALLOW_REGION = "allow_region"
    DENY_REGION = "deny_region"


class PeerStatus(StrEnum):
    """The status of a peer, by the age of its last heartbeat. `added`: no heartbeat has arrived."""

    ADDED = "added"
    ACTIVE = "active"
    STALE = "stale"
    UNREACHABLE = "unreachable"


class RoutingReason(StrEnum):
    """Why a peer was chosen. The reasons are in the order in which peers are tried."""

    PREFERRED_REGION = "preferred_region"
    FALLBACK_REGION = "fallback_region"
    LEAST_LOADED = "least_loaded"


class OverlapPolicy(StrEnum):
    """What happens at a due time while an earlier run of the schedule has not ended."""

    SKIP = "skip"
    QUEUE = "queue"
    ALLOW = "allow"


class Availability(StrEnum):
    """Whether an agent is available. Only an available agent is a candidate."""

    AVAILABLE = "available"
    UNHEALTHY = "unhealthy"
    OFFLINE = "offline"
    INACTIVE = "inactive"


# The statuses that agents may send in a heartbeat. An unknown status is refused, because a wrong
# guess could give work to a stopped agent, or no work to a healthy one.
HEARTBEAT_STATUSES: Final = {
    **dict.fromkeys(
        ("healthy", "active", "available", "online", "ok", "ready", "idle", "busy", "degraded"),
        Availability.AVAILABLE,
    ),
    **dict.fromkeys(
        ("unhealthy", "overloaded", "draining", "maintenance", "error"), Availability.UNHEALTHY
    ),
    **dict.fromkeys(("offline", "stopping", "stopped"), Availability.OFFLINE),
}


class OwnershipProof(StrEnum):
    """The evidence that a DID belongs to its owner. Decision signed-requests-and-claims."""

    # The agent's key signed a card that names the owner and this deployment.
    SIGNATURE = "signature"
    # The registration was authenticated with a credential of the DID itself.
    OWN_CREDENTIAL = "own_credential"
    # An administrator named the owner.
    OPERATOR = "operator"
