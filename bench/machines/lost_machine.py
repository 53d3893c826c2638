"""Measures how work goes on after one of several machines is lost, with much unfinished work.

Run as `python -m bench.machines.lost_machine [--count N] [--nodes K] [--raylets M] [--agent
hold|accept]`: starts a deployment on M raylets of this machine, publishes N chains of K nodes to an
agent that never replies, kills -9 every process of a raylet that has an owner and no other single
process, and prints when the others' first dispatch reached the agent, when they drove every
workflow, what memory they took, and how late deadlines were kept. Asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.checkouts import Checkout
from bench.figures.owner_replies import OwnerReplies, owner_replies
from bench.load.clients import Target, unique
from bench.machines.raylets import SINGLE, Machine, add_raylets, machines_of
from bench.restart import (
    COUNT_MIN,
    LOOK_S,
    MIB,
    NEAR_LAST_MS,
    first_dispatch_s,
    near_of,
    publish,
    wait_near_ends,
)
from bench.workflows import stub

OWNERS_WITHIN_S = 120.0
# A ping that was answered before the kill may be read so much later.
LATE_S = 0.3


@dataclass(slots=True)
class Seen:
    """Times of the monotonic clock; None until they are observed. `running`: by owner, now."""

    killed_s: float
    dispatched_s: float | None = None
    restored_s: float | None = None
    rss_peak: int = 0
    running: dict[str, int] = field(default_factory=dict)


def await_owners(home: Path, count: int) -> None:
    """Return when so many machines have an owner.

    Raises:
        SystemExit: not in time.
    """
    until = time.monotonic() + OWNERS_WITHIN_S
    while sum(bool(machine.owner_pid) for machine in machines_of(home)) < count:
        if time.monotonic() > until:
            raise SystemExit(f"got no {count} owners in {OWNERS_WITHIN_S:.0f} s")
        time.sleep(LOOK_S)


def doomed_of(home: Path) -> Machine:
    """Return a machine with an owner and nothing that exists once.

    Raises:
        SystemExit: there is none.
    """
    for machine in machines_of(home):
        if machine.owner_pid and not SINGLE & set(machine.kinds.values()):
            return machine
    raise SystemExit("every machine has the ledger, the timekeeper or a part of Serve")


def await_running(replies: OwnerReplies, far: int, limit_s: float) -> dict[str, int]:
    """Return how many workflows each owner drives, once they are as many as expected."""
    running: dict[str, int] = {}
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        for reply in replies.iterate_replies():
            running[reply["owner"]] = reply["running"]
        if sum(running.values()) >= far:
            break
        time.sleep(LOOK_S)
    return running


def follow(
    doomed: Machine,
    survivors: list[psutil.Process],
    replies: OwnerReplies,
    agent: subprocess.Popen[str],
    *,
    far: int,
    limit_s: float,
) -> Seen:
    """Kill a machine and watch the others until they drive everything, or the timeout.

    Args:
        survivors: the owners' processes on the other machines.
        far: workflows that do not end meanwhile.
        limit_s: timeout, seconds from the kill.
    """
    first_dispatch_s(agent)  # those before the kill
    doomed.kill()
    seen = Seen(time.monotonic())
    while time.monotonic() - seen.killed_s < limit_s:
        if seen.dispatched_s is None:
            seen.dispatched_s = first_dispatch_s(agent)
        for reply in replies.iterate_replies():
            if reply["s"] > seen.killed_s + LATE_S:  # else it may be of the lost machine
                seen.running[reply["owner"]] = reply["running"]
        if seen.restored_s is None and sum(seen.running.values()) >= far:
            seen.restored_s = time.monotonic()
        seen.rss_peak = max(seen.rss_peak, *(one.memory_info().rss for one in survivors))
        if None not in (seen.dispatched_s, seen.restored_s):
            break
        time.sleep(LOOK_S)
    return seen


def show(seen: Seen, rows: list[tuple[str, int, int | None]], rss_before: int) -> None:
    """Print the results."""

    def since_kill(moment_s: float | None) -> str:
        return "not seen" if moment_s is None else f"{moment_s - seen.killed_s:.1f} s"

    print(f"kill -9 of a machine -> first dispatch by another: {since_kill(seen.dispatched_s)}")
    print(f"kill -9 of a machine -> everything restored: {since_kill(seen.restored_s)}")
    peak = seen.rss_peak / MIB
    print(f"RSS of the largest owner: {rss_before / MIB:.0f} MiB before, {peak:.0f} MiB after")
    print(f"workflows by owner afterwards: {sorted(seen.running.values())}")
    late = [ended - due for _, due, ended in rows if ended is not None]
    print(f"near deadlines: {len(late)} of {len(rows)} workflows ended")
    if late:
        print(f"  the latest {max(late) / 1_000:.2f} s after its deadline")


def main() -> None:
    """Measure once and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="unfinished workflows")
    parser.add_argument("--nodes", type=int, default=3, help="nodes of each")
    parser.add_argument("--raylets", type=int, default=3)
    parser.add_argument("--agent", choices=("hold", "accept"), default="hold")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds to watch at most")
    parser.add_argument("--toml", default="", help="settings of the deployment")
    options = parser.parse_args()
    if options.count < COUNT_MIN:
        parser.error(f"--count: got {options.count}, expected {COUNT_MIN} or more")
    checkout = Checkout.at(None)
    far = options.count - near_of(options.count)
    with checkout.deployment(options.toml) as home, stub(home, options.agent) as (agent, port):
        add_raylets(home, options.raylets - 1)
        await_owners(home, options.raylets)
        target, did = Target.at(home), unique("did:bench:payer-")
        with owner_replies(checkout, home) as replies:
            began = time.monotonic()
            asyncio.run(publish(target, port, did, options))
            before = await_running(replies, far, options.limit)
            print(
                f"{checkout.commit}: {options.count} workflows of {options.nodes} nodes published"
                f" in {time.monotonic() - began:.0f} s, by owner {sorted(before.values())}",
                flush=True,
            )
            doomed = doomed_of(home)
            owners = [psutil.Process(one.owner_pid) for one in machines_of(home) if one.owner_pid]
            survivors = [one for one in owners if one.pid != doomed.owner_pid]
            rss_before = max(one.memory_info().rss for one in owners)
            seen = follow(
                doomed,
                survivors,
                replies,
                agent,
                far=far,
                limit_s=options.limit,
            )
        rows = wait_near_ends(target, did, NEAR_LAST_MS / 1_000 + 10.0)
        show(seen, rows, rss_before)


if __name__ == "__main__":
    main()
