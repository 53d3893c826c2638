"""Subnets, their members and their policies.

Reference: features.md (Subnets and policies).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from core.records.api.kinds import (
    Did,
    LongText,
    Region,
    Timestamp,
    Uuid,
    Yes,
    text,
    whole,
    words,
)
from core.records.api.record import Page, PageQuery, Record
from core.records.api.shape import Body, Kind, Maybe, MaybeNull, Mismatch
from core.records.bounds import CAPABILITY_ID_PATTERN, NAME_CHARS_MAX
from core.records.statuses import PolicyType, SubnetType
from core.wording import got_of

# Listed or joined, with the owner.
MEMBERS_MAX: Final = 200
LIMIT_MAX: Final = 10**9
_CAPABILITY: Final = re.compile(CAPABILITY_ID_PATTERN)


def _capability(value: Any) -> str:
    if isinstance(value, str) and (value == "*" or _CAPABILITY.fullmatch(value.removesuffix("*"))):
        return value
    raise Mismatch(got_of(value), "a capability's id, a prefix of ids and *, or *")


CapabilityPattern = Annotated[str, Kind({"type": "string", "maxLength": 129}, _capability)]


class SubnetRequest(Body, is_closed=True):
    """A new subnet."""

    name: Annotated[str, text(1, NAME_CHARS_MAX), "Name of the subnet."]
    member_dids: Annotated[
        Maybe[list[Did]], "DIDs to list; each is a member once it has joined. At most 199."
    ] = None
    policy_type: Annotated[
        str,
        words(SubnetType),
        "`private`: others cannot see it or its agents. `public`: everyone may join.",
    ]
    description: Annotated[MaybeNull[LongText], "What the subnet is for."] = None


class Subnet(Record):
    """A subnet."""

    id: Annotated[Uuid, "Id of the subnet."]
    subnet_id: Annotated[Uuid, "Id of the subnet."]
    name: Annotated[str, "Name of the subnet."]
    description: Annotated[str, "What the subnet is for."]
    policy_type: Annotated[str, words(SubnetType), "Who may see and join it."]
    owner_did: Annotated[Did, "DID of its creator, who lists members and sets policies."]
    member_dids: Annotated[list[Did], "DIDs that are listed or have joined."]
    joined_dids: Annotated[list[Did], "DIDs that have joined: its policies bind them."]
    created_at: Timestamp


class SubnetRemoved(Record):
    """A removed subnet."""

    success: Yes
    id: Annotated[Uuid, "Id of the subnet."]


class SubnetPage(Page[Subnet]):
    """A page of subnets, oldest first."""

    plural = "subnets"
    row = Subnet


class SubnetsQuery(PageQuery):
    """Filters of the list of subnets, which has at most 20 a page."""

    member_did: Annotated[Maybe[Did], "Only subnets that list this DID."] = None


class MemberRequest(Body, is_closed=True):
    """A DID that is listed in a subnet, or joins it."""

    member_did: Annotated[Did, "DID of the member."]


class MemberQuery(Body):
    """The member to remove."""

    member_did: Annotated[Did, "DID of the member."]


class MemberChanged(Record):
    """A member that was listed, has joined or was removed."""

    success: Yes
    subnet_id: Annotated[Uuid, "Id of the subnet."]
    member_did: Annotated[Did, "DID of the member."]
    is_joined: Annotated[bool, "Whether the DID is a member, and not only listed."]


class PolicyRequest(Body, is_closed=True):
    """A new policy of a subnet."""

    subnet_id: Annotated[Uuid, "Id of the subnet."]
    policy_type: Annotated[str, words(PolicyType), "What the policy does."]
    capability: Annotated[
        Maybe[CapabilityPattern],
        "Capability id, or a prefix and `*`. `allow_capability` and `deny_capability` need it;"
        " default of `require_approval` and `rate_limit`: all.",
    ] = None
    region: Annotated[Maybe[Region], "Region of `allow_region` and `deny_region`."] = None
    limit_per_minute: Annotated[
        Maybe[int],
        whole(0, LIMIT_MAX),
        "Nodes that each member may publish in a minute under `rate_limit`.",
    ] = None


class SubnetPolicy(Record):
    """A policy of a subnet."""

    id: Annotated[Uuid, "Id of the policy."]
    subnet_id: Annotated[Uuid, "Id of the subnet."]
    policy_type: Annotated[str, words(PolicyType), "What the policy does."]
    capability: Annotated[str | None, "Capability id, or a prefix and `*`; null: all."]
    region: Annotated[str | None, "Region of the region policies, else null."]
    limit_per_minute: Annotated[int | None, "Limit of `rate_limit`, else null."]
    created_at: Timestamp


class PolicyPage(Page[SubnetPolicy]):
    """A page of policies, oldest first."""

    plural = "policies"
    row = SubnetPolicy


class PoliciesQuery(PageQuery):
    """Filters of the list of policies."""

    subnet_id: Annotated[Maybe[Uuid], "Only policies of this subnet."] = None


class PolicyRemoved(Record):
    """A removed policy."""

    success: Yes
    id: Annotated[Uuid, "Id of the policy."]
