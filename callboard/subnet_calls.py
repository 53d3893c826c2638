"""The requests about subnets, their members and their policies, as data like those of `calls.py`.

Reference: features.md (Subnets and policies).
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.calls import Call, Steps, _one, _segment, sending


@sending("POST", "/v1/federation/subnets")
def create_subnet(
    name: str,
    member_dids: Sequence[str] = (),
    *,
    policy_type: str = "private",
    description: str | None = None,
) -> None:
    """Create a subnet, which the caller joins.

    Args:
        member_dids: DIDs to list; each is a member once it has joined.
        policy_type: private, invite_only or public.
    """


def remove_subnet(subnet_id: str) -> Steps:
    """Remove a subnet of the caller with its members and policies."""
    done = {"success": True, "id": subnet_id}
    return _one(Call("DELETE", f"/v1/federation/subnets/{_segment(subnet_id)}", done=done))


@sending("POST", "/v1/federation/subnets/{subnet_id}/members")
def add_subnet_member(subnet_id: str, member_did: str) -> None:
    """List a DID in a subnet of the caller, or join one as yourself or as your agent."""


def remove_subnet_member(subnet_id: str, member_did: str) -> Steps:
    """Remove a DID from a subnet of the caller, or leave one."""
    path = f"/v1/federation/subnets/{_segment(subnet_id)}/members"
    query = {"memberDid": member_did}
    done = {"success": True, "subnetId": subnet_id, **query, "isJoined": False}
    return _one(Call("DELETE", path, query=query, done=done))


@sending("POST", "/v1/federation/policies")
def create_policy(
    subnet_id: str,
    policy_type: str,
    *,
    capability: str | None = None,
    region: str | None = None,
    limit_per_minute: int | None = None,
) -> None:
    """Add a policy to a subnet of the caller.

    Args:
        policy_type: allow_capability, deny_capability, require_approval, rate_limit, allow_region
            or deny_region.
        capability: the id of a capability, or a prefix and `*`.
    """


def remove_policy(policy_id: str) -> Steps:
    """Remove a policy of a subnet of the caller."""
    done = {"success": True, "id": policy_id}
    return _one(Call("DELETE", f"/v1/federation/policies/{_segment(policy_id)}", done=done))
