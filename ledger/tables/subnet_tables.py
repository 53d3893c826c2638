"""The tables of subnets, their members and their policies.

Reference: features.md (Subnets and policies).
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import CHANGED, NOW, change, insert, upsert

# changed_id also moves when members or policies change: owners read a subnet whole.
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
# status: listed by the subnet's owner only; joined, which binds the DID to the policies.
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
    "subnets",
    SUBNET,
    fixed={"created_ms": NOW, "changed_id": CHANGED},
    without=("removed_ms",),
)
CHANGED_SUBNETS: Final = change(
    "changed_subnets", SUBNET, ["id"], key=("id",), computed={"changed_id": CHANGED}
)
REMOVED_SUBNETS: Final = change(
    "removed_subnets", SUBNET, ["id"], key=("id",), computed={"removed_ms": NOW}
)
SUBNET_MEMBERS: Final = upsert(
    "subnet_members", SUBNET_MEMBER, ("subnet_id", "did"), fixed={"changed_ms": NOW}
)
SUBNET_POLICIES: Final = insert(
    "subnet_policies", SUBNET_POLICY, fixed={"created_ms": NOW}, without=("removed_ms",)
)
REMOVED_POLICIES: Final = change(
    "removed_policies", SUBNET_POLICY, ["id"], key=("id",), computed={"removed_ms": NOW}
)
# All members and all policies of a subnet.
ENDED_MEMBERS: Final = change(
    "ended_members",
    SUBNET_MEMBER,
    ["subnet_id", "changed_by_did"],
    key=("subnet_id",),
    where="o.status <> 'removed'",
    computed={"status": "'removed'", "changed_ms": NOW},
)
ENDED_POLICIES: Final = change(
    "ended_policies",
    SUBNET_POLICY,
    ["subnet_id"],
    key=("subnet_id",),
    where="o.removed_ms IS NULL",
    computed={"removed_ms": NOW},
)
