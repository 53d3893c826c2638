"""The cluster: who its members are, and machines that drain or take work again.

A state belongs to a member, so draining a machine changes each of its members, and again those that
have joined meanwhile. The ledger keeps the last member that could take shards from draining; that
it is on another machine is asked here. Decision cluster-and-releases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from core.errors import ErrorCode, ServiceError
from core.records.api.operators.cluster import Cluster, MachineChanged
from core.records.api.path_values import MachinePath
from core.shards.lease_messages import Lease, MemberState, MemberView
from core.shards.machines import find_machines, has_other_holder
from core.trust.access import ADMIN
from ledger.shards.shard_commands import ChangeMember
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Operation, Repeats, Reply, not_found

# Looks at a machine's members, after each but the last of which those that differ are changed.
LOOKS_MAX: Final = 4


async def get_cluster(call: Call) -> Reply:
    """Show the members and what they hold."""
    lease = await call.services.gateway.read_cluster()
    live = {one.member for one in lease.members if one.is_live}
    unheld = sum(held.member not in live for held in lease.shards)
    members = _shown(lease, lease.members)
    return Reply({"members": members, "unheldShards": unheld, "version": lease.cluster_version})


async def drain(call: Call) -> Reply:
    """Let the members of a machine give everything away."""
    return await _change_machine(call, MemberState.DRAINING)


async def resume(call: Call) -> Reply:
    """Let the members of a machine take shards again."""
    return await _change_machine(call, MemberState.READY)


async def _change_machine(call: Call, state: MemberState) -> Reply:
    prefix, refusal = call.given(MachinePath).machine, ""
    for _ in range(LOOKS_MAX):
        lease = await call.services.gateway.read_cluster()
        machine = _machine_of(lease, prefix)
        members = [one for one in lease.members if one.machine == machine]
        different = [one.member for one in members if one.state is not state]
        if not different:
            drain_ms = call.services.settings.drain_ms
            shown = _shown(lease, members)
            return Reply(
                {"success": True, "machine": machine, "members": shown, "drainMs": drain_ms}
            )
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


def _shown(lease: Lease, members: Iterable[MemberView]) -> list[dict[str, Any]]:
    counts = Counter(held.member for held in lease.shards)
    return [
        {
            "id": one.member,
            "machine": one.machine,
            "address": one.address,
            "version": one.version,
            "state": one.state.value,
            "isLive": one.is_live,
            "load": one.load,
            "openCalls": one.open_calls,
            "shards": counts[one.member],
            "isDrained": one.is_drained,
        }
        for one in members
    ]


OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/cluster",
        handler=get_cluster,
        summary="Read the members of the cluster",
        scope=ADMIN,
        rate=RateClass.READ,
        tag="cluster",
        reply=Cluster,
    ),
    Operation(
        method="POST",
        path="/v1/cluster/machines/{machine}/drain",
        path_values=MachinePath,
        handler=drain,
        summary="Drain a machine: its work moves to other machines",
        scope=ADMIN,
        rate=RateClass.WRITE,
        tag="cluster",
        reply=MachineChanged,
        errors=(ErrorCode.NOT_FOUND, ErrorCode.CONFLICT),
        is_body_optional=True,
        repeats=Repeats.BY_REPLY,
    ),
    Operation(
        method="POST",
        path="/v1/cluster/machines/{machine}/resume",
        path_values=MachinePath,
        handler=resume,
        summary="Resume a drained machine",
        scope=ADMIN,
        rate=RateClass.WRITE,
        tag="cluster",
        reply=MachineChanged,
        errors=(ErrorCode.NOT_FOUND, ErrorCode.CONFLICT),
        is_body_optional=True,
        repeats=Repeats.BY_REPLY,
    ),
)
