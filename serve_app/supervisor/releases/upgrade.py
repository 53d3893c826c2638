"""Upgrades a running deployment to the release of this process: `python -m …upgrade`.

`upgrade_start.py` runs this program in the environment of the new release. It prints its progress.
The exit status is 0 when no process of the previous release is left, 2 for invalid settings, else
1.

1. Check that every machine has the release, that no machine is drained, and that the schema allows
   the upgrade. A machine that Ray drains will leave the cluster. It is not checked, and the upgrade
   does not wait for owners on it.
2. Apply the migrations that the code of the previous release can work with.
3. Replace the timekeeper. The new one starts owners of this release beside the previous owners.
4. Replace the ledger, then the API's replicas.
5. Machine by machine, drain the previous owners. End them when all of them are drained, or after
   `drain_ms`. An owner is drained when it has no shard and no open call to an agent.

If the program stops before its end, it can be run again with this release or with the previous
release. Running it with the previous release undoes an upgrade. Decision cluster-and-releases.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import ray
from ray import serve

from actors.cluster.ledgers.ledger_handover import HandoverFailed, hand_over_ledger
from actors.cluster.owner_actors import cores_of_machines, owner_names
from actors.cluster.runtime import (
    UpgradeFailed,
    check_machines,
    end_actor,
    own_environment,
    replace_timekeeper,
)
from actors.cluster.scaling.ray_machines import draining_machines, working_machines
from actors.gateway.gateway import Gateway
from actors.transport.names import NAMESPACE, generation_of
from core.errors import ServiceError
from core.settings import Settings, SettingsError
from core.shards.lease_messages import Lease, MemberState, MemberView
from ledger.code_version import CODE_VERSION
from ledger.embedded.server import EmbeddedPostgres
from ledger.errors import LedgerUnavailable
from ledger.features.shards import ChangeMember
from ledger.migrate import StopNeeded, check_upgradable, migrate
from serve_app.app import APPLICATION, build
from serve_app.settings_from_env import read_settings
from serve_app.supervisor.admin_key import ADMIN_DID
from serve_app.supervisor.haproxy_config import write_lines
from serve_app.supervisor.processes import saying
from serve_app.supervisor.releases.release import Release

START_TIMEOUT_S: Final = 120.0
# The longest time for which a request that the ledger refuses or cannot answer is retried.
END_TIMEOUT_S: Final = 60.0
_PAUSE_S: Final = 0.25
T = TypeVar("T")


class Upgrade:
    """One upgrade of a running deployment.

    Args:
        settings: the settings, with the generation of this upgrade.
        gateway: the gateway of this process.
        say: prints a line of progress.
    """

    def __init__(self, settings: Settings, gateway: Gateway, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._gateway = gateway
        self._say = say

    async def run(self) -> None:
        """Replace all processes (steps 3 to 5).

        Raises:
            UpgradeFailed, HandoverFailed: a process does not start or end in time.
            ServiceError: the ledger refuses a request, or is unavailable for too long.
        """
        settings = self._settings
        leaving = await asyncio.to_thread(draining_machines)
        _check_not_drained(await self._read_cluster(), leaving)
        self._say("replacing the timekeeper")  # 3
        replace(Release.own(), generation=settings.generation).choose(Path(settings.home))
        await asyncio.to_thread(replace_timekeeper, settings)
        self._say("waiting for its owners to join")
        await self._await_joined()
        self._say("replacing the ledger")  # 4
        await hand_over_ledger(settings)
        self._say("replacing the API's replicas")
        # Serve restarts HAProxy together with the replicas. HAProxy on this machine then reads
        # these lines.
        write_lines(Path(settings.run_folder) / "h", settings, settings.deployment_keys)
        await asyncio.to_thread(_replace_replicas, settings)
        lease = await self._read_cluster()
        for machine in sorted({one.machine for one in self._before(lease)}):  # 5
            await self._end_machine(machine)

    async def _read_cluster(self) -> Lease:
        """Return the members and their shards."""
        return await _patiently(self._gateway.read_cluster)

    def _before(self, lease: Lease) -> list[MemberView]:
        # Members are compared by generation, because a machine that joined during the upgrade has
        # owners of the new release.
        own = self._settings.generation
        return [one for one in lease.members if generation_of(one.address) != own]

    async def _await_joined(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            lease = await self._read_cluster()
            # The expected owners are computed each time, because Ray may begin to drain a machine.
            missing = await asyncio.to_thread(_owners_to_join, self._settings) - {
                one.address
                for one in lease.members
                if one.is_live and one.state is MemberState.READY
            }
            if not missing:
                return
            if time.monotonic() > deadline:
                raise UpgradeFailed(
                    f"{len(missing)} owners have not joined after {START_TIMEOUT_S:.0f} s, the"
                    f" first is {min(missing)}: their log is workflows.jsonl"
                )
            await asyncio.sleep(_PAUSE_S)

    async def _end_machine(self, machine: str) -> None:
        """Drain the previous members on a machine, and end them."""
        lease = await self._read_cluster()
        members = [one for one in self._before(lease) if one.machine == machine]
        shards = sum(held.member in {one.member for one in members} for held in lease.shards)
        self._say(f"draining {len(members)} owners on {machine[:12]} that hold {shards} shards")
        for one in members:
            await self._change(one.member, MemberState.DRAINING)
        deadline = time.monotonic() + self._settings.drain_ms / 1_000
        while open_calls := await self._open_calls(members):
            if time.monotonic() > deadline:
                self._say(f"ending them with {open_calls} open calls after drain_ms")
                break
            await asyncio.sleep(_PAUSE_S)
        for one in members:
            await asyncio.to_thread(end_actor, one.address)
            await self._change(one.member, MemberState.GONE)

    async def _open_calls(self, members: Sequence[MemberView]) -> int:
        """Return the number of open calls of those members that are live and not drained.

        Such a member counts as 1 if it has no open call. So the result is 0 only if all live
        members are drained.
        """
        wanted = {one.member for one in members}
        left = [
            one
            for one in (await self._read_cluster()).members
            if one.member in wanted and one.is_live and not one.is_drained
        ]
        return sum(max(1, one.open_calls) for one in left)

    async def _change(self, member: str, state: MemberState) -> None:
        """Change a member's state; do nothing if the member has ended already.

        The ledger refuses GONE while the member has shards, so the command is retried. When other
        members have taken all its shards, the ledger itself may set GONE.
        """

        async def change() -> None:
            key = f"member:{member}:{os.urandom(8).hex()}"
            try:
                await self._gateway.commit(
                    ChangeMember(key=key, actor_did=ADMIN_DID, member=member, state=state)
                )
            except ServiceError:
                if member in {one.member for one in (await self._read_cluster()).members}:
                    raise

        await _patiently(change)


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Retry a request while the ledger refuses it or is unavailable, for `END_TIMEOUT_S`."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while True:
        try:
            return await ask()
        except ServiceError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(_PAUSE_S)


def main() -> int:
    """Upgrade the deployment and print the progress; return the exit status."""
    try:
        settings = read_settings()
    except SettingsError as defect:
        print(f"callboard: {defect}", file=sys.stderr)
        return 2
    say = saying()
    try:
        ray.init(
            address="auto", namespace=NAMESPACE, runtime_env=own_environment(),
            log_to_driver=False, logging_level=logging.WARNING,
        )  # fmt: skip
        asyncio.run(_upgrade(settings, say))
    # Ray raises a RuntimeError if its version or Python's differs from the cluster's.
    except (RuntimeError, StopNeeded, LedgerUnavailable, HandoverFailed, ServiceError) as failure:
        print(f"callboard: {failure}", file=sys.stderr)
        return 1
    return 0


async def _upgrade(settings: Settings, say: Callable[[str], None]) -> None:
    say("checking the machines")  # 1
    await asyncio.to_thread(check_machines, await asyncio.to_thread(working_machines))
    url = _owner_url(settings)
    await asyncio.to_thread(check_upgradable, url)
    reached = await asyncio.to_thread(migrate, url, phase="pre")  # 2
    say(f"the schema is at {reached}")
    gateway = await Gateway.connect(settings)
    try:
        await Upgrade(settings, gateway, say).run()
    finally:
        await gateway.close()
    say(f"all processes are of code version {CODE_VERSION}")


def _owner_url(settings: Settings) -> str:
    own = EmbeddedPostgres(Path(settings.home), Path(settings.run_folder))
    if settings.database_url == own.database_url:
        return own.owner_url
    return settings.owner_url or settings.database_url


def _owners_to_join(settings: Settings) -> frozenset[str]:
    """Return the addresses of the owners on machines that Ray does not drain. This call blocks."""
    cores, leaving = cores_of_machines(), draining_machines()
    working = {machine: count for machine, count in cores.items() if machine not in leaving}
    return frozenset(owner_names(settings, working))


def _check_not_drained(lease: Lease, leaving: Collection[str]) -> None:
    """Refuse the upgrade while an operator drains a machine: its new owners would take work again.

    Args:
        lease: the members of the cluster.
        leaving: the machines that Ray drains. They are not checked, because the new owners on them
            are drained too.

    Raises:
        UpgradeFailed: a machine is drained.
    """
    live = [one for one in lease.members if one.is_live and one.machine not in leaving]
    open_machines = {one.machine for one in live if one.state is MemberState.READY}
    for one in live:
        if one.machine not in open_machines:
            raise UpgradeFailed(
                f"the machine {one.machine} is drained: end its part, or resume it with"
                f" callboard drain {one.machine[:12]} --resume"
            )


def _replace_replicas(settings: Settings) -> None:
    """Let Serve replace the replicas; return when the last previous replica has ended."""
    serve.run(build(settings), name=APPLICATION, route_prefix="/", blocking=False)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # See `deploy.py`: `sys.exit` would disconnect from Ray first, which takes a second.
    os._exit(status)
