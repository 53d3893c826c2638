"""Decides what the policies of a payer's subnets permit.

Discovery, selection, auctions and routing between regions use these functions. Pure.
Reference: features.md (Subnets and policies).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from core.message import Message
from core.records.statuses import PolicyType

_REFUSING: Final = (
    PolicyType.DENY_CAPABILITY,
    PolicyType.REQUIRE_APPROVAL,
    PolicyType.DENY_REGION,
)


class Policy(Message, frozen=True, kw_only=True):
    """A policy of a subnet.

    `capability`: the id of a capability, or a prefix with `*`; None: every capability. `region`:
    the region of a region policy; None in all other policies. `limit_per_minute`: the nodes per
    member and minute that a `rate_limit` policy allows; None in all other policies.
    """

    id: str
    subnet_id: str
    kind: PolicyType
    capability: str | None = None
    region: str | None = None
    limit_per_minute: int | None = None

    def is_about(self, capability_id: str, region: str | None) -> bool:
        """Return whether a region policy names the region, or a different policy the capability."""
        if self.region is not None:
            return self.region == region
        named = self.capability
        if named is None or named == capability_id:
            return True
        return named[-1] == "*" and capability_id.startswith(named[:-1])


class NodeRate(Message, frozen=True):
    """The nodes of a publish that a `rate_limit` policy counts, and the limit of the policy."""

    policy_id: str
    limit_per_minute: int
    nodes: int


class Decision(NamedTuple):
    """Whether a node is allowed, and the policy that refuses the node, if one does."""

    is_allowed: bool
    policy: Policy | None = None


def decide(
    policies: Iterable[Policy],
    capability_id: str,
    region: str | None = None,
    *,
    is_own: bool = False,
) -> Decision:
    """Decide whether a node of a capability may run in a region.

    A policy names a node if it names the capability or the region of the node. A node is refused if
    a refusing policy names it. It is also refused if a subnet has `allow_` policies of one kind and
    none of them names the node. Policies of other subnets do not change this.

    Args:
        policies: the policies of all subnets that the payer has joined. If several policies refuse
            the node, one of them is returned.
        capability_id: the capability of the node.
        region: the region in which the node would run. None: the region is not chosen yet, and the
            region policies do not apply.
        is_own: whether the region is this deployment's own. `allow_region` policies never refuse
            the own region.
    """
    allowing: set[tuple[PolicyType, str]] = set()
    # By type and subnet, the first `allow_` policy that does not name the node.
    others: dict[tuple[PolicyType, str], Policy] = {}
    for one in policies:
        if one.kind is PolicyType.RATE_LIMIT or (one.region is not None and region is None):
            continue
        if one.kind is PolicyType.ALLOW_REGION and is_own:
            continue
        is_about = one.is_about(capability_id, region)
        if one.kind in _REFUSING:
            if is_about:
                return Decision(False, one)
        elif is_about:
            allowing.add((one.kind, one.subnet_id))
        else:
            others.setdefault((one.kind, one.subnet_id), one)
    for pair, policy in others.items():
        if pair not in allowing:
            return Decision(False, policy)
    return Decision(True)


def may_leave(policies: Iterable[Policy], capability_id: str, region: str) -> Decision:
    """Decide whether the inputs of a node may be sent to another region.

    The inputs may be sent if an `allow_region` policy names the region and `decide` allows the node
    in this region.
    """
    known = tuple(policies)
    is_named = any(one.kind is PolicyType.ALLOW_REGION and one.region == region for one in known)
    decision = decide(known, capability_id, region)
    return decision if is_named or not decision.is_allowed else Decision(False)


def find_rates(policies: Iterable[Policy], capability_ids: Iterable[str]) -> tuple[NodeRate, ...]:
    """Return, for each `rate_limit` policy, how many nodes of a publish it counts.

    Policies that count no node are left out.

    Args:
        policies: the policies of all subnets that the payer has joined.
        capability_ids: the capability of each node of the publish.
    """
    rates = [one for one in policies if one.kind is PolicyType.RATE_LIMIT]
    if not rates:
        return ()
    counts, found = Counter(capability_ids), []
    for rate in rates:
        nodes = sum(count for one, count in counts.items() if rate.is_about(one, None))
        if nodes:
            found.append(NodeRate(rate.id, rate.limit_per_minute or 0, nodes))
    return tuple(found)
