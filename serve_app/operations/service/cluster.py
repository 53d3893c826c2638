"""The cluster: list its members, drain a machine, resume a drained machine.

The ledger stores a state per member. So draining a machine changes the state of each of its
members, and then of members that have joined meanwhile. The ledger refuses to drain the last member
that could take shards. This module also checks that such a member is on another machine. Decision
cluster-and-releases.
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

# How often the members of a machine are read. After each read, the members that are not yet in the
# requested state are changed. If the last read still finds such members, they are changed too, but
# the request is refused.
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
    """Change the state of members. Return the text of the first refusal; "" without a refusal."""
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
    """Return the id of the only machine whose id begins with a prefix.

    Raises:
        ServiceError: NOT_FOUND: no machine, or several machines.
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
