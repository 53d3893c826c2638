"""The tables of peers and of subnets.

Reference: features.md (Peers, Subnets and policies).
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import CHANGED, NOW, Guard, change, insert, upsert

# Peers: other Callboard deployments, their heartbeats and the agents that they have revoked.

# public_key: the key with which the peer signs, base64. clearing_did: the DID whose account gets
# the payments for work that the peer has done. capabilities: the capabilities that the peer may
# offer here; NULL: all. The row of a removed peer stays, so that its id and its clearing account
# stay reserved.
PEER: Final = Table.of(
    "peer",
    "id text PRIMARY KEY",
    "did text NOT NULL",
    "endpoint text NOT NULL",
    "region text NOT NULL",
    "public_key text NOT NULL",
    "clearing_did text NOT NULL",
    "capabilities text[]",
    "added_by_did text NOT NULL",
    "created_ms bigint NOT NULL",
    "removed_ms bigint",
    "changed_id bigint NOT NULL DEFAULT 0",
)
# Operational: written by its own statements (ledger/features/peers.py), not by batches.
# The newest heartbeat of each peer. at_ms: the time in the newest signed heartbeat; the next one
# must have a later time. heartbeat_ms: when the newest heartbeat arrived, by the database's clock.
# proven_key: the key of the newest signed heartbeat; proven_ms: when that heartbeat arrived.
# offers: by capability, [price in micro-credits, latency, version]. trust_id: the id of the peer's
# audit entry up to which its revocations were read.
PEER_LIVE: Final = Table.of(
    "peer_live",
    "peer_id text PRIMARY KEY",
    "at_ms bigint",
    "heartbeat_ms bigint",
    "proven_key text",
    "proven_ms bigint CHECK ((proven_ms IS NULL) = (proven_key IS NULL))",
    "agent_count bigint NOT NULL DEFAULT 0",
    "workflow_count bigint NOT NULL DEFAULT 0",
    "load double precision NOT NULL DEFAULT 0 CHECK (load BETWEEN 0 AND 1)",
    "offers json",
    "trust_id bigint NOT NULL DEFAULT 0",
    storage="fillfactor = 50",
)
# Operational, too. The agents that a peer has revoked. revoked_id: the id of the peer's audit
# entry. expires_ms: when the revocation ends; NULL: never.
PEER_AGENT: Final = Table.of(
    "peer_agent",
    "peer_id text NOT NULL",
    "did text NOT NULL",
    "revoked_id bigint NOT NULL",
    "expires_ms bigint",
    "PRIMARY KEY (peer_id, did)",
)

PEERS: Final = upsert(
    PEER,
    fixed={"created_ms": NOW, "changed_id": CHANGED},
    without=("removed_ms",),
    only_if="o.removed_ms IS NOT NULL AND o.did = excluded.did",
    guard=Guard("CB003", "a peer would be added twice"),
)
ROTATED_PEER_KEYS: Final = change(
    PEER,
    ["public_key"],
    where="o.removed_ms IS NULL",
    computed={"changed_id": CHANGED},
    guard=Guard("CB003", "a removed peer would get another key"),
)
REMOVED_PEERS: Final = change(
    PEER,
    where="o.removed_ms IS NULL",
    computed={"removed_ms": NOW, "changed_id": CHANGED},
    guard=Guard("CB003", "a peer would be removed twice"),
)


# changed_id also rises when members or policies change, because owner processes read a subnet
# together with them.
SUBNET: Final = Table.of(
    "subnet",
    "id text PRIMARY KEY",
    "name text NOT NULL",
    "description text NOT NULL",
    "policy_type text NOT NULL CHECK (policy_type IN ('private', 'invite_only', 'public'))",
    "owner_did text NOT NULL",
    "created_ms bigint NOT NULL",
    "removed_ms bigint",
    "changed_id bigint NOT NULL DEFAULT 0",
)
# status: `listed`: the subnet's owner has added the DID. `joined`: the DID has joined, and the
# subnet's policies bind it.
SUBNET_MEMBER: Final = Table.of(
    "subnet_member",
    "subnet_id text NOT NULL REFERENCES callboard.subnet (id)",
    "did text NOT NULL",
    "status text NOT NULL CHECK (status IN ('listed', 'joined', 'removed'))",
    "changed_by_did text NOT NULL",
    "changed_ms bigint NOT NULL",
    "PRIMARY KEY (subnet_id, did)",
)
SUBNET_POLICY: Final = Table.of(
    "subnet_policy",
    "id text PRIMARY KEY",
    "subnet_id text NOT NULL REFERENCES callboard.subnet (id)",
    "type text NOT NULL CHECK (type IN ('allow_capability', 'deny_capability',"
    " 'require_approval', 'rate_limit', 'allow_region', 'deny_region'))",
    "capability text",
    "region text CHECK ((region IS NOT NULL) = (type IN ('allow_region', 'deny_region')))",
    "limit_per_minute bigint CHECK ((limit_per_minute IS NOT NULL) = (type = 'rate_limit'))",
    "created_by_did text NOT NULL",
    "created_ms bigint NOT NULL",
    "removed_ms bigint",
)

SUBNETS: Final = insert(
    SUBNET, fixed={"created_ms": NOW, "changed_id": CHANGED}, without=("removed_ms",)
)
CHANGED_SUBNETS: Final = change(SUBNET, computed={"changed_id": CHANGED})
REMOVED_SUBNETS: Final = change(SUBNET, computed={"removed_ms": NOW})
SUBNET_MEMBERS: Final = upsert(SUBNET_MEMBER, fixed={"changed_ms": NOW})
SUBNET_POLICIES: Final = insert(SUBNET_POLICY, fixed={"created_ms": NOW}, without=("removed_ms",))
REMOVED_POLICIES: Final = change(SUBNET_POLICY, computed={"removed_ms": NOW})
# A row of these writes names a subnet. The write removes all its members or all its policies.
ENDED_MEMBERS: Final = change(
    SUBNET_MEMBER,
    ["changed_by_did"],
    key=("subnet_id",),
    where="o.status <> 'removed'",
    computed={"status": "'removed'", "changed_ms": NOW},
)
ENDED_POLICIES: Final = change(
    SUBNET_POLICY, key=("subnet_id",), where="o.removed_ms IS NULL", computed={"removed_ms": NOW}
)
