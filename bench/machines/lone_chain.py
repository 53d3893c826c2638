"""How long a lone chain takes on a machine other than the ledger's, beside one on the ledger's.

Run as root: `python -m bench.machines.lone_chain [--rounds N] [--count N]`. A deployment with a
second raylet on this machine, whose processes have a folder of sockets of their own, so that
batches between the two "machines" go over TCP with sealed frames. In each round the two drain in
turn, and chains of three are published one after the other, with `Prefer: wait`, while the other
one holds every shard. The API's replica is the ledger machine's: beside what a chain on another
machine sends to the ledger, its publish and its end cross as well. Prints medians and the ratio of
each round. Decision 0215.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psutil
import uvloop

from actors.transport.sockets import SOCKETS_FOLDER
from bench.checkouts import Checkout
from bench.figures.intervals import ratio_interval
from bench.load.clients import PAYER_RIGHTS, Api, Target, chain, unique
from bench.load.stub_agent import ANSWER, StubAgent, Tally
from bench.lone_step import CAPABILITY, NODES, WARM_UP, LoneClient, lone_client
from bench.machines.raylets import machines_of
from serve_app.supervisor.deployment import run_folder_of
from tests.faults.raylets import add_machine
from tests.platform.deployments import RunningDeployment

TOML = 'transport_host = "machine"\n'
DEADLINE_S = 60.0
LOOK_S = 0.1


def other_machine(deployment: RunningDeployment) -> None:
    """Start a second machine, which finds no socket of the first one's actors."""
    sockets = run_folder_of(deployment.home) / SOCKETS_FOLDER
    hide = 'mount -t tmpfs none "$0" && exec "$@"'
    add_machine(deployment, within=("unshare", "--mount", "sh", "-c", hide, str(sockets)))


def ensure_tcp(home: Path) -> None:
    """Return when the other machine's owner calls the ledger over TCP.

    Raises:
        SystemExit: it does not, so that both machines would be measured over Unix sockets.
    """
    own, other = machines_of(home)
    (ledger,) = (pid for pid, kind in own.kinds.items() if kind == "ledger actor")
    listening = {
        one.laddr.port
        for one in psutil.Process(ledger).net_connections("tcp4")
        if one.status == psutil.CONN_LISTEN
    }
    called = [
        one
        for one in psutil.Process(other.owner_pid).net_connections("tcp4")
        if one.raddr and one.raddr.port in listening
    ]
    if not called:
        raise SystemExit(f"the owner {other.owner_pid} has no connection to ports {listening}")


async def members(admin: Api) -> list[dict[str, Any]]:
    """Return the members of the cluster that live."""
    found = await admin.must("GET", "/v1/cluster")
    return [one for one in found["members"] if one["isLive"]]


async def wait_until(is_so: Callable[[list[dict[str, Any]]], bool], admin: Api) -> None:
    """Return when something holds of the members that live.

    Raises:
        TimeoutError: it has not for `DEADLINE_S`.
    """
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if is_so(await members(admin)):
                return
            await asyncio.sleep(LOOK_S)


async def hold_all(admin: Api, machine: str) -> None:
    """Return when one machine holds every shard, because all others have drained.

    Raises:
        TimeoutError: they have not.
    """
    await admin.must("POST", f"/v1/cluster/machines/{machine}/resume")
    for one in await members(admin):
        if one["machine"] != machine:
            await admin.must("POST", f"/v1/cluster/machines/{one['machine']}/drain")

    def holds_all(found: list[dict[str, Any]]) -> bool:
        shards = {one["machine"]: one["shards"] for one in found}
        return shards[machine] > 0 and sum(shards.values()) == shards[machine]

    await wait_until(holds_all, admin)


async def time_chains(client: LoneClient, body: bytes, count: int) -> float:
    """Publish chains one after the other; return the median of their times, milliseconds."""
    taken = []
    for number in range(-WARM_UP, count):
        began = time.perf_counter()
        reply = orjson.loads(
            await client.send("POST", "/v1/workflows/publish", body, {"prefer": "wait=30"})
        )
        if reply.get("status") != "success":
            raise SystemExit(f"got {reply}")
        if number >= 0:
            taken.append(1_000 * (time.perf_counter() - began))
    return statistics.median(taken)


async def measure(target: Target, rounds: int, count: int) -> None:
    """Print the times of each round, then their ratio."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(StubAgent, ANSWER, Tally()), "127.0.0.1", 0)
    payer = unique("did:bench:payer-")
    async with Api(target.url, target.admin_key) as admin:
        await wait_until(lambda found: len(found) == 2, admin)
        # The first one was there before the second raylet, with the ledger.
        own, other = (one["machine"] for one in await members(admin))
        ensure_tcp(target.home)
        key = await admin.make_key(payer, rateClass="unlimited", scopes=PAYER_RIGHTS)
        await admin.register_agent(CAPABILITY, server.sockets[0].getsockname()[1])
        await admin.must("POST", "/v1/ledger/deposit", {"amount": 100_000, "ownerDid": payer})
        body = orjson.dumps(chain(CAPABILITY, NODES))
        ratios = []
        async with lone_client(target.url, key) as client:
            for number in range(rounds):
                times = {}
                for machine in (own, other) if number % 2 else (other, own):
                    await hold_all(admin, machine)
                    times[machine] = await time_chains(client, body, count)
                ratios.append(times[other] / times[own])
                print(
                    f"round {number}: on the ledger's machine {times[own]:.2f} ms, on the other"
                    f" {times[other]:.2f} ms, ratio {ratios[-1]:.2f}",
                    flush=True,
                )
    found_ratio = ratio_interval(ratios)
    print(f"ratio {found_ratio.mean:.2f} [{found_ratio.low:.2f}, {found_ratio.high:.2f}]")
    server.close()


def main() -> None:
    """Measure once and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="4 or more")
    parser.add_argument("--count", type=int, default=100, help="workflows of each machine's turn")
    options = parser.parse_args()
    if os.geteuid():
        raise SystemExit("a folder of sockets of its own needs a mount namespace, which needs root")
    with Checkout.at(None).deployment(TOML) as home:
        target = Target.at(home)
        other_machine(RunningDeployment(home, target.url, target.admin_key))
        uvloop.run(measure(target, options.rounds, options.count))


if __name__ == "__main__":
    main()
