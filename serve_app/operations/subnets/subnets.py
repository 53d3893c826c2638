"""Subnets: create and list them, change their members, and set their policies.

The ledger decides who may do what (`ledger/features/subnets.py`). Reference: features.md
(Subnets and policies).
"""

from __future__ import annotations

from typing import Any, Final

from core.errors import ErrorCode, Problem, ServiceError
from core.records.api.peers import (
    MEMBERS_MAX,
    MemberChanged,
    MemberQuery,
    MemberRequest,
    PoliciesQuery,
    PolicyPage,
    PolicyRequest,
    Subnet,
    SubnetPage,
    SubnetPolicy,
    SubnetRequest,
    SubnetsQuery,
)
from core.records.api.record import Removed
from core.records.api.shape import json_name
from core.records.statuses import PolicyType, SubnetType
from core.subnets.policies import Policy
from ledger.features.subnets import (
    AddSubnetMember,
    CreatePolicy,
    CreateSubnet,
    RemovePolicy,
    RemoveSubnet,
    RemoveSubnetMember,
    policy_rows,
    subnet_rows,
)
from ledger.reads.reader import RowDict
from serve_app.http.calls import Call, Json, Operations, found, invalid
from serve_app.http.lists import id_after, listed, page_of
from serve_app.operations.views import shown

# The most subnets of a page. It is small, because a subnet may have 200 members.
ROWS_MAX: Final = 20
# The body member that each type of policy requires.
_NEEDED: Final = {
    PolicyType.ALLOW_CAPABILITY: "capability",
    PolicyType.DENY_CAPABILITY: "capability",
    PolicyType.RATE_LIMIT: "limit_per_minute",
    PolicyType.ALLOW_REGION: "region",
    PolicyType.DENY_REGION: "region",
}
_TERMS: Final = ("capability", "region", "limit_per_minute")

OPERATIONS = Operations("federation")


@OPERATIONS.add("POST", "/v1/federation/subnets", body=SubnetRequest, reply=Subnet)
async def create_subnet(call: Call) -> Json:
    """Create a subnet, which the caller joins.

    A listed DID becomes a member when it joins. The caller's own agents join at once.
    """
    if call.caller.is_stranger:
        detail = "nothing is stored of the DID of the caller: register an agent or create a key"
        raise ServiceError(ErrorCode.FORBIDDEN, f"{detail} for it before it creates a subnet")
    body = call.given(SubnetRequest)
    member_dids = tuple(dict.fromkeys((call.caller.did, *(body.member_dids or ()))))
    if len(member_dids) > MEMBERS_MAX:
        got, most = f"{len(member_dids)} DIDs with the caller", f"at most {MEMBERS_MAX}"
        raise invalid("memberDids", got, most)
    subnet_id = call.services.new_id()
    command = CreateSubnet(
        subnet_id=subnet_id,
        name=body.name,
        description=body.description or "",
        policy_type=SubnetType(body.policy_type),
        member_dids=member_dids,
    )
    await call.commit(command, until_known=True)
    return await _shown_subnet(call, subnet_id)


@OPERATIONS.add("GET", "/v1/federation/subnets", query=SubnetsQuery, reply=SubnetPage)
async def list_subnets(call: Call) -> Json:
    """List the subnets that the caller may see, oldest first.

    These are all subnets that are not private, and the private subnets that the caller owns or is
    listed in.
    """
    query = call.given(SubnetsQuery)
    page = page_of(call, query, default=ROWS_MAX, most=ROWS_MAX)
    rows = await subnet_rows(
        call.services.reader,
        call.party_did,
        member_did=query.member_did,
        after=id_after(page),
        **page.rows,
    )
    return listed("subnets", rows, page, lambda row: row["id"], form=_subnet)


@OPERATIONS.add("GET", "/v1/federation/subnets/{subnet_id}", reply=Subnet)
async def get_subnet(call: Call) -> Json:
    """Read a subnet that the caller may see."""
    return await _shown_subnet(call, call.path_values["subnet_id"])


@OPERATIONS.add("DELETE", "/v1/federation/subnets/{subnet_id}", reply=Removed)
async def remove_subnet(call: Call) -> Json:
    """Remove a subnet of the caller with its members and policies.

    If the subnet was private, agents whose cards name it stay hidden from other owners.
    """
    subnet_id = call.path_values["subnet_id"]
    await call.commit(RemoveSubnet(subnet_id=subnet_id), until_known=True)
    return {"success": True, "id": subnet_id}


@OPERATIONS.add(
    "POST", "/v1/federation/subnets/{subnet_id}/members", body=MemberRequest, reply=MemberChanged
)
async def add_member(call: Call) -> Json:
    """List a DID in a subnet, or join the subnet.

    If the caller owns the subnet, the DID is listed. If the DID is the caller's own DID or one of
    the caller's agents, it joins.
    """
    subnet_id, did = call.path_values["subnet_id"], call.given(MemberRequest).member_did
    command = AddSubnetMember(subnet_id=subnet_id, member_did=did)
    outcome = await call.commit(command, until_known=True)
    return _changed(subnet_id, did, is_joined=outcome.result["isJoined"])


@OPERATIONS.add(
    "DELETE", "/v1/federation/subnets/{subnet_id}/members", query=MemberQuery, reply=MemberChanged
)
async def remove_member(call: Call) -> Json:
    """Remove a DID from a subnet, or leave the subnet."""
    subnet_id, did = call.path_values["subnet_id"], call.given(MemberQuery).member_did
    command = RemoveSubnetMember(subnet_id=subnet_id, member_did=did)
    await call.commit(command, until_known=True)
    return _changed(subnet_id, did, is_joined=False)


@OPERATIONS.add(
    "POST",
    "/v1/federation/policies",
    body=PolicyRequest,
    reply=SubnetPolicy,
    errors=(ErrorCode.NOT_FOUND,),
)
async def create_policy(call: Call) -> Json:
    """Add a policy to a subnet of the caller."""
    body = call.given(PolicyRequest)
    _check_members(body)
    policy = Policy(
        id=call.services.new_id(),
        subnet_id=body.subnet_id,
        kind=PolicyType(body.policy_type),
        capability=body.capability,
        region=body.region,
        limit_per_minute=body.limit_per_minute,
    )
    outcome = await call.commit(CreatePolicy(policy=policy), until_known=True)
    row = {name: getattr(policy, name) for name in policy.__struct_fields__}
    created_ms = outcome.result["createdMs"]
    return _policy({**row, "type": policy.kind.value, "created_ms": created_ms})


@OPERATIONS.add("GET", "/v1/federation/policies", query=PoliciesQuery, reply=PolicyPage)
async def list_policies(call: Call) -> Json:
    """List the policies of the subnets that the caller may see, oldest first."""
    query = call.given(PoliciesQuery)
    page = page_of(call, query)
    rows = await policy_rows(
        call.services.reader,
        call.party_did,
        subnet_id=query.subnet_id,
        after=id_after(page),
        **page.rows,
    )
    return listed("policies", rows, page, lambda row: row["id"], form=_policy)


@OPERATIONS.add("DELETE", "/v1/federation/policies/{policy_id}", reply=Removed)
async def remove_policy(call: Call) -> Json:
    """Remove a policy of a subnet of the caller."""
    policy_id = call.path_values["policy_id"]
    await call.commit(RemovePolicy(policy_id=policy_id), until_known=True)
    return {"success": True, "id": policy_id}


def _check_members(body: PolicyRequest) -> None:
    """Refuse a policy that lacks the member of its type, or has a member of another type.

    Any policy that is not about a region may also name a capability.

    Raises:
        ServiceError: INVALID_REQUEST with all problems.
    """
    needed = _NEEDED.get(PolicyType(body.policy_type))
    may_have = {needed, "capability"} if needed != "region" else {needed}
    problems = []
    for name in _TERMS:
        path, is_given = json_name(name), getattr(body, name) is not None
        if is_given and name not in may_have:
            problems.append(Problem(path, "a value", f"no value with {body.policy_type}"))
        elif name == needed and not is_given:
            problems.append(Problem(path, "nothing", f"a value for {body.policy_type}"))
    if problems:
        detail = f"the members do not fit the policy type {body.policy_type}"
        raise ServiceError(ErrorCode.INVALID_REQUEST, detail, tuple(problems))


def _changed(subnet_id: str, did: str, *, is_joined: bool) -> Json:
    return {"success": True, "subnetId": subnet_id, "memberDid": did, "isJoined": is_joined}


async def _shown_subnet(call: Call, subnet_id: str) -> Json:
    rows = await subnet_rows(call.services.reader, call.party_did, subnet_id=subnet_id)
    return _subnet(found(rows[0] if rows else None, "the subnet"))


def _subnet(row: RowDict) -> dict[str, Any]:
    return shown(Subnet, row, subnet_id=str(row["id"]))


def _policy(row: RowDict) -> dict[str, Any]:
    return shown(SubnetPolicy, row, policy_type=str(row["type"]))
