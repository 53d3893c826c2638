"""The cluster: who its members are, and machines that drain or take work again.

A state belongs to a member, so draining a machine changes each of its members, and again those that
have joined meanwhile. The ledger keeps the last member that could take shards from draining; that
it is on another machine is asked here. Decision cluster-and-releases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from msgspec import structs

from core.errors import ErrorCode, ServiceError
from core.records.api.operators import Cluster, ClusterMember, MachineChanged
from core.shards.lease_messages import Lease, MemberState, MemberView
from core.shards.scaling import find_machines, has_other_holder
from core.trust.access import ADMIN
from ledger.features.shards import ChangeMember
from serve_app.http.calls import Call, Json, Operations, not_found
from serve_app.operations.views import shown

# Looks at a machine's members, after each but the last of which those that differ are changed.
LOOKS_MAX: Final = 4

OPERATIONS = Operations("cluster")


@OPERATIONS.add("GET", "/v1/cluster", scope=ADMIN, reply=Cluster)
async def get_cluster(call: Call) -> Json:
    """Read the members of the cluster."""
    lease = await call.services.gateway.read_cluster()
    live = {one.member for one in lease.members if one.is_live}
    unheld = sum(held.member not in live for held in lease.shards)
    members = _members_record(lease, lease.members)
    return {"members": members, "unheldShards": unheld, "version": lease.cluster_version}


@OPERATIONS.add("POST", "/v1/cluster/machines/{machine}/drain", scope=ADMIN, reply=MachineChanged)
async def drain(call: Call) -> Json:
    """Drain a machine: its work moves to other machines."""
    return await _change_machine(call, MemberState.DRAINING)


@OPERATIONS.add("POST", "/v1/cluster/machines/{machine}/resume", scope=ADMIN, reply=MachineChanged)
async def resume(call: Call) -> Json:
    """Resume a drained machine."""
    return await _change_machine(call, MemberState.READY)


async def _change_machine(call: Call, state: MemberState) -> Json:
    prefix, refusal = call.path_values["machine"], ""
    for _ in range(LOOKS_MAX):
        lease = await call.services.gateway.read_cluster()
        machine = _machine_of(lease, prefix)
        members = [one for one in lease.members if one.machine == machine]
        different = [one.member for one in members if one.state is not state]
        if not different:
            drain_ms = call.services.settings.drain_ms
            changed = _members_record(lease, members)
            return {"success": True, "machine": machine, "members": changed, "drainMs": drain_ms}
        if state is MemberState.DRAINING and not has_other_holder(lease.members, machine):
            raise ServiceError(
                ErrorCode.CONFLICT,
                f"no process on another machine is ready to take the shards of {machine}: start"
                " another machine first",
            )
        refusal = await _change_members(call, different, state)
    raise ServiceError(
        ErrorCode.CONFLICT,
        f"the processes of the machine {machine} changed during the request:"
        f" {refusal or 'repeat the request'}",
    )


async def _change_members(call: Call, members: Iterable[str], state: MemberState) -> str:
    """Change these members' state; return why one was refused, or nothing."""
    commands = [
        ChangeMember(
            key=f"member:{call.services.new_id()}",
            actor_did=call.caller.did,
            member=member,
            state=state,
        )
        for member in members
    ]
    outcomes = await call.services.to_the_end(call.services.gateway.commit_many(commands))
    return next((one.detail for one in outcomes if one.error is not None), "")


def _machine_of(lease: Lease, prefix: str) -> str:
    """Return the one machine that is meant.

    Raises:
        ServiceError: NOT_FOUND.
    """
    found = find_machines(lease.members, prefix)
    if len(found) > 1:
        detail = f"the prefix {prefix} matches {len(found)} machines: give more of the id"
        raise ServiceError(ErrorCode.NOT_FOUND, detail)
    if not found:
        raise not_found(f"the machine {prefix}")
    return found[0]


def _members_record(lease: Lease, members: Iterable[MemberView]) -> list[dict[str, Any]]:
    counts = Counter(held.member for held in lease.shards)
    return [
        shown(
            ClusterMember,
            structs.asdict(one),
            id=one.member,
            state=one.state.value,
            shards=counts[one.member],
        )
        for one in members
    ]
