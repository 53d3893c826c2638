"""What the policies of a payer's subnets permit.

Pure. Discovery, selection, auctions and routing between regions ask these functions. Reference:
features.md (Subnets and policies).
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

    `capability`: the id of a capability, or a prefix and `*`; None: all. `region`: of the region
    policies, None of the others. `limit_per_minute`: of `rate_limit`, nodes per member.
    """

    id: str
    subnet_id: str
    kind: PolicyType
    capability: str | None = None
    region: str | None = None
    limit_per_minute: int | None = None

    def is_about(self, capability_id: str, region: str | None) -> bool:
        """Say whether the policy names a capability, or a region if it is a region policy."""
        if self.region is not None:
            return self.region == region
        named = self.capability
        if named is None or named == capability_id:
            return True
        return named[-1] == "*" and capability_id.startswith(named[:-1])


class NodeRate(Message, frozen=True):
    """How many nodes of a publish a `rate_limit` policy counts, and how many it allows."""

    policy_id: str
    limit_per_minute: int
    nodes: int


class Decision(NamedTuple):
    """Whether a node is allowed, and the policy that refuses it."""

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

    A policy that refuses wins. A subnet with an `allow_` policy of a kind refuses what none of its
    policies of this kind names, whatever other subnets allow.

    Args:
        policies: those of all subnets that the payer has joined. The first that refuses is named.
        region: None: the region is not chosen yet, so the region policies do not apply.
        is_own: it is this deployment's own, which `allow_region` policies never refuse.
    """
    allowing: set[tuple[PolicyType, str]] = set()
    # By type and subnet, the first `allow_` policy that does not name it.
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
    """Decide whether policies permit the inputs of a node to leave to another region.

    Returns: allowed only if an `allow_region` policy names the region, and `decide` allows it.
    """
    known = tuple(policies)
    is_named = any(one.kind is PolicyType.ALLOW_REGION and one.region == region for one in known)
    decision = decide(known, capability_id, region)
    return decision if is_named or not decision.is_allowed else Decision(False)


def find_rates(policies: Iterable[Policy], capability_ids: Iterable[str]) -> tuple[NodeRate, ...]:
    """Return how many nodes of a publish each `rate_limit` policy counts.

    Args:
        capability_ids: one for each node.
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
