"""Measures the restart of a workflow owner after kill -9, with many unfinished workflows.

Run as `python -m bench.restart [--count N] [--nodes K] [--agent hold|accept] [--checkout DIR]`:
starts a deployment of its own, publishes N chains of K nodes to an agent that never replies (or
accepts with 202 and never delivers), kills their owner, and prints its successor's times: first
dispatch, everything restored, deadlines met, memory. Asserts nothing.

Timeline: the kill; the successor's process exists; its first dispatch reaches the agent; its ping
reports that it is ready and drives every workflow without a near deadline. Some workflows have
deadlines within a minute after the kill: their lateness shows whether deadlines were kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg

from bench.checkouts import Checkout
from bench.figures.owner_replies import OwnerReplies, owner_replies
from bench.figures.process_usage import OWNER, members, owner_of
from bench.load.clients import Api, Target, chain, unique
from bench.workflows import stub

HOUR_MS = 3_600_000
CAPABILITY = "cap.bench.recovery.v1"
COUNT_MIN = 10
# Of the workflows with near deadlines: how many at most, the first deadline and the last.
NEAR_MAX = 100
NEAR_FIRST_MS, NEAR_LAST_MS = 5_000, 55_000
LOOK_S = 0.05
MIB = 1024 * 1024

_ENDS = """
SELECT status, deadline_ms, completed_ms FROM callboard.workflow
WHERE payer_did = %s AND deadline_ms - created_ms < %s"""


@dataclass(slots=True)
class Timeline:
    """Times of the monotonic clock; None until they are observed."""

    killed_s: float
    awaits_dispatch: bool = True
    successor_s: float | None = None
    dispatched_s: float | None = None
    restored_s: float | None = None
    owners: set[int] = field(default_factory=set)
    rss_peak: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every time was observed."""
        is_dispatched = self.dispatched_s is not None or not self.awaits_dispatch
        return is_dispatched and None not in (self.successor_s, self.restored_s)


def near_of(count: int) -> int:
    """Return how many of that many workflows have near deadlines."""
    return min(NEAR_MAX, count // 10)


async def publish(target: Target, port: int, did: str, options: argparse.Namespace) -> None:
    """Publish the backlog, then the workflows with near deadlines."""
    async with Api(target.url, target.admin_key, timeout_s=180.0) as admin:
        await admin.register_agent(CAPABILITY, port)
        credits = options.count * options.nodes  # a node costs a cent
        await admin.must("POST", "/v1/ledger/deposit", {"amount": credits, "ownerDid": did})
        key = await admin.make_key(did, rateClass="unlimited")
    async with Api(target.url, key, timeout_s=180.0) as api:
        far = chain(CAPABILITY, options.nodes, timeoutMs=HOUR_MS, maxRuntimeMs=HOUR_MS)
        at_once = max(1, min(1_000, 10_000 // options.nodes))
        await api.publish_bulk(far, options.count - near_of(options.count), at_once=at_once)
        near = near_of(options.count)
        for number in range(1, near + 1):
            near_ms = NEAR_FIRST_MS + (NEAR_LAST_MS - NEAR_FIRST_MS) * number // near
            manifest = chain(CAPABILITY, options.nodes, timeoutMs=HOUR_MS, maxRuntimeMs=near_ms)
            await api.must("POST", "/v1/workflows/publish", manifest)


def follow(
    home: Path,
    replies: OwnerReplies,
    agent: subprocess.Popen[str],
    *,
    far: int,
    awaits_dispatch: bool,
    limit_s: float,
) -> Timeline:
    """Kill the owner and watch its successor until every time was observed, or the timeout.

    Args:
        far: workflows that do not end meanwhile.
        awaits_dispatch: False when the agent's concurrency is used up by accepted orders.
        limit_s: timeout, seconds from the kill.
    """
    owner = owner_of(home)
    assert owner is not None, "a deployment that is up has an owner"
    first_dispatch_s(agent)  # those before the kill
    for _ in replies.iterate_replies():
        pass
    os.kill(owner.pid, signal.SIGKILL)
    seen = Timeline(time.monotonic(), awaits_dispatch)
    while not seen.is_complete and time.monotonic() - seen.killed_s < limit_s:
        for process, kind in members(home):
            if kind == OWNER and process.pid != owner.pid:
                seen.owners.add(process.pid)
                seen.successor_s = seen.successor_s or time.monotonic()
                seen.rss_peak = max(seen.rss_peak, _rss(process))
        if seen.dispatched_s is None and seen.successor_s is not None:
            seen.dispatched_s = first_dispatch_s(agent)
        for reply in replies.iterate_replies():
            if seen.owners and reply["isReady"] and reply["running"] >= far:
                seen.restored_s = seen.restored_s or reply["s"]
        time.sleep(LOOK_S)
    return seen


def first_dispatch_s(agent: subprocess.Popen[str]) -> float | None:
    """Return when the first dispatch since the last question came."""
    assert agent.stdin is not None
    assert agent.stdout is not None
    agent.stdin.write("\n")
    agent.stdin.flush()
    first_s: float | None = json.loads(agent.stdout.readline())["firstS"]
    return first_s


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def wait_near_ends(target: Target, did: str, limit_s: float) -> list[tuple[str, int, int | None]]:
    """Return status, deadline and end (ms) of the workflows with near deadlines, once all ended."""
    deadline = time.monotonic() + limit_s
    with psycopg.connect(target.database_url, autocommit=True) as connection:
        while True:
            rows = connection.execute(_ENDS.encode(), (did, HOUR_MS)).fetchall()
            if all(row[2] is not None for row in rows) or time.monotonic() > deadline:
                return rows
            time.sleep(0.5)


def show(
    seen: Timeline, rows: list[tuple[str, int, int | None]], restored_ms: float, rss_before: int
) -> None:
    """Print the results. `restored_ms`: the wall clock when everything was restored."""

    def since(moment: float | None, start: float | None) -> str:
        return "not seen" if moment is None or start is None else f"{moment - start:.1f} s"

    print(f"successor's process after the kill: {since(seen.successor_s, seen.killed_s)}")
    print(f"successor -> first dispatch at the agent: {since(seen.dispatched_s, seen.successor_s)}")
    print(f"successor -> all restored: {since(seen.restored_s, seen.successor_s)}")
    print(f"owners' processes since the kill: {len(seen.owners)} (1: none was ended for silence)")
    peak = seen.rss_peak / MIB
    print(f"RSS of the owner: {rss_before / MIB:.0f} MiB before, at most {peak:.0f} MiB after")
    late = [(ended - due, due) for _, due, ended in rows if ended is not None]
    after = [lateness for lateness, due in late if due > restored_ms]
    print(f"near deadlines: {len(late)} of {len(rows)} workflows ended")
    if late:
        print(f"  the latest {max(ms for ms, _ in late) / 1_000:.2f} s after its deadline")
    if after:
        print(f"  of the {len(after)} due after the restore {max(after) / 1_000:.2f} s")


def main() -> None:
    """Measure once and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="unfinished workflows")
    parser.add_argument("--nodes", type=int, default=3, help="nodes of each")
    parser.add_argument("--agent", choices=("hold", "accept"), default="hold")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds to watch at most")
    parser.add_argument("--checkout", help="run the code of the checkout in this folder")
    parser.add_argument("--toml", default="", help="settings of the deployment")
    options = parser.parse_args()
    if options.count < COUNT_MIN:
        parser.error(f"--count: got {options.count}, expected {COUNT_MIN} or more")
    checkout = Checkout.at(options.checkout)
    with checkout.deployment(options.toml) as home, stub(home, options.agent) as (agent, port):
        target, did = Target.at(home), unique("did:bench:payer-")
        with owner_replies(checkout, home) as replies:
            began = time.monotonic()
            asyncio.run(publish(target, port, did, options))
            print(
                f"{checkout.commit}: {options.count} workflows of {options.nodes} nodes published"
                f" in {time.monotonic() - began:.0f} s, the agent will {options.agent}",
                flush=True,
            )
            owner = owner_of(home)
            rss_before = 0 if owner is None else _rss(owner)
            seen = follow(
                home,
                replies,
                agent,
                far=options.count - near_of(options.count),
                awaits_dispatch=options.agent == "hold",
                limit_s=options.limit,
            )
        ago_s = time.monotonic() - (seen.restored_s or time.monotonic())
        restored_ms = 1_000 * (time.time() - ago_s)
        rows = wait_near_ends(target, did, NEAR_LAST_MS / 1_000 + 10.0)
        show(seen, rows, restored_ms, rss_before)


if __name__ == "__main__":
    main()
