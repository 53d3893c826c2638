"""The words for where nodes, workflows, triggers, subnets, peers and agents stand, each list once.

`core/workflow/transitions.py` and `core/market/agent_liveness.py` decide what moves between them.
Reference: features.md (States, Targeted routing).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class NodeStatus(StrEnum):
    """Where a node stands. Reference: features.md (States)."""

    PENDING = "pending"
    READY = "ready"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    SKIPPED = "skipped"
    TIMEOUT = "timeout"


class WorkflowStatus(StrEnum):
    """Where a workflow stands. Reference: features.md (States)."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


class TriggerKind(StrEnum):
    """What causes the runs of a trigger. Reference: features.md (Triggers)."""

    SCHEDULED = "scheduled"
    WEBHOOK = "webhook"
    EVENT = "event"


class TriggerStatus(StrEnum):
    """The state of a trigger; an ended one starts no more runs."""

    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"


class RunStatus(StrEnum):
    """The result of one due time, hook call or event: a workflow, a refusal, or nothing."""

    STARTED = "started"
    FAILED = "failed"
    SKIPPED = "skipped"


class SubnetType(StrEnum):
    """Who may see and join a subnet."""

    PRIVATE = "private"
    INVITE_ONLY = "invite_only"
    PUBLIC = "public"


class PolicyType(StrEnum):
    """What a policy does."""

    ALLOW_CAPABILITY = "allow_capability"
    DENY_CAPABILITY = "deny_capability"
    REQUIRE_APPROVAL = "require_approval"
    RATE_LIMIT = "rate_limit"
    ALLOW_REGION = "allow_region"
    DENY_REGION = "deny_region"


class PeerStatus(StrEnum):
    """State of a peer by the age of its last heartbeat. `added`: it has sent none."""

    ADDED = "added"
    ACTIVE = "active"
    STALE = "stale"
    UNREACHABLE = "unreachable"


class RoutingReason(StrEnum):
    """Why a peer was chosen, in the order of the choices."""

    PREFERRED_REGION = "preferred_region"
    FALLBACK_REGION = "fallback_region"
    LEAST_LOADED = "least_loaded"


class OverlapPolicy(StrEnum):
    """What a due time does while a run of its schedule has not ended."""

    SKIP = "skip"
    QUEUE = "queue"
    ALLOW = "allow"


class Availability(StrEnum):
    """What a caller is told of an agent; only an available one is a candidate."""

    AVAILABLE = "available"
    UNHEALTHY = "unhealthy"
    OFFLINE = "offline"
    INACTIVE = "inactive"


# The words that agents use for themselves in a heartbeat. Closed: an unknown word is refused, since
# guessing its meaning would give work to the dead or withhold it from the living.
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
    """What shows that an agent's DID is its owner's. Decision signed-requests-and-claims."""

    # Its key signed a card that names the owner and this deployment.
    SIGNATURE = "signature"
    # Registered with a credential of the DID itself.
    OWN_CREDENTIAL = "own_credential"
    # An administrator named the owner.
    OPERATOR = "operator"
