"""When a change of an agent counts in the choices of three owners, and what it costs them.

Run as `python -m bench.in_force [--rounds N] [--seconds S] [--only delay|cost] [--checkout DIR]
[--raylets]`: starts a deployment with three owners on this machine, `--raylets`: each of a raylet
of its own, as on three machines. Issue "Registry and planning", decision 0293.

Delay: an agent A that is dearer than another of its capability is changed through the API. From the
answer on, workflows of one node are published, three every 5 ms, until each owner has published one
whose stored reasons show A as changed. What is printed lies between the answer and the moment in
which that owner made the choice, by its clock, which is this machine's: 0 where its first choice
after the answer shows the change. It is never shorter than the truth, and longer by the time
between two choices of the owner.

Cost: 1,000 agents a second are changed for so many seconds, each kind of change by itself, as a
replica makes them but past HTTP, which does not take so many on two cores. The CPU of each owner's
process (/proc), less that of an idle run, is printed as per cent of a core, with the rate that was
reached. Counts of outcomes are added by the writer's statement, since nodes that end cost their
owner far more than that.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import psutil
import psycopg

from actors.transport.ledger_route import LedgerRoute
from bench.checkouts import Checkout
from bench.figures.process_usage import OWNER, members, owner_of
from bench.load.clients import Api, Target, unique
from bench.machines.raylets import add_raylets
from bench.workflows import stub
from core.market.pricing import FixedPrice
from core.shards.shard import SHARDS, shard_of
from ledger.agents.agent_commands import DeregisterAgent
from ledger.agents.agent_live import Heartbeat, LivenessStore
from ledger.commands import Command
from ledger.prices.price_commands import SetPrice
from ledger.trust.trust_commands import RevokeAgent
from serve_app.settings_from_env import read_settings

OWNERS: Final = 3
SETTINGS: Final = "trial_share_bps = 0\nworkflow_actors_per_machine = "
STEP_S: Final = 0.005
# Two choices of each owner settle what it knew before.
BEFORE: Final = 2 * OWNERS
LIMIT_S: Final = 3.0
WITHIN_S: Final = 120.0
CHANGES_PER_S: Final = 1_000
# Changes of one batch, and registrations of one bulk.
BATCH: Final = 50
BULK: Final = 500
# Between two loads.
SETTLED_S: Final = 3.0

# What the reasons of a choice show of an agent.
Shown = tuple[Any, ...]

_CHOICES: Final = """
    SELECT w.id::text, w.created_ms, n.selection_json FROM callboard.workflow w
    JOIN callboard.node n ON n.workflow_id = w.id
    WHERE w.id = ANY (%s::uuid[])
"""
# As the writer's statement does it, with its notice.
_COUNTED: Final = """
    WITH counted AS (
        UPDATE callboard.reputation SET total = total + 1, successful = successful + 1,
            latency_ms_sum = latency_ms_sum + 100, updated_ms = %s
        WHERE agent_did = ANY (%s::text[])
    )
    SELECT pg_notify('callboard_directory', '')
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """The agent that is changed, and the capability that it offers beside a cheaper agent."""

    capability: str
    did: str

    def shown(self, selection: str | None) -> Shown:
        """Return what the reasons of a choice show of it; the load of its open orders aside."""
        if selection is None:  # no other agent offers the capability
            return ("absent",)
        _, _, _, _, ranked, excluded = orjson.loads(selection)
        for did, asked, _, _, load, *standing in ranked:
            if did == self.did:
                return (asked, load, *standing)
        reasons = [reason for did, _, reason in excluded if did == self.did]
        return (*reasons, "excluded") if reasons else ("absent",)


@dataclass(slots=True)
class Bench:
    """A deployment with its owners, an API client, and a connection to its database."""

    home: Path
    api: Api
    rows: psycopg.AsyncConnection[Any]
    port: int
    owner_of: dict[int, str] = field(default_factory=dict)

    async def find_owners(self) -> None:
        """Learn who holds each shard, once three owners share all of them."""
        ends_s = time.monotonic() + WITHIN_S
        while len(set(self.owner_of.values())) < OWNERS or len(self.owner_of) < SHARDS:
            if time.monotonic() > ends_s:
                raise SystemExit(f"got owners {set(self.owner_of.values())}, expected {OWNERS}")
            await asyncio.sleep(0.5)
            query = "SELECT id, member FROM callboard.shard WHERE member IS NOT NULL"
            self.owner_of = dict(await (await self.rows.execute(query)).fetchall())
        await asyncio.sleep(5)  # shards that still move, and the replica's map of them

    async def register(self, capability: str, cents: int | None, did: str | None = None) -> str:
        """Register an agent."""
        offer: dict[str, Any] = {"id": capability, "description": ""}
        if cents is not None:
            offer["price_cents"] = cents
        did = did or unique("did:bench:agent-")
        card = {
            "did": did,
            "endpoint": f"http://127.0.0.1:{self.port}",
            "version": 1,
            "maxConcurrency": 512,
            "capabilities": [offer],
        }
        await self.api.must("POST", "/v1/agents/register", {"acard": card})
        return did

    async def publish(self, capability: str, count: int) -> list[str]:
        """Publish workflows of one node; return their ids."""
        node = {"capabilityId": capability, "payload": {}}
        return await self.api.publish_bulk({"intent": "bench", "nodes": {"a": node}}, count)

    async def choices(self, subject: Subject, ids: list[str]) -> list[tuple[str, int, Shown]]:
        """Return (owner, time, what was shown) of the choices of these workflows."""
        found = await (await self.rows.execute(_CHOICES, (ids,))).fetchall()
        return [
            (self.owner_of[shard_of(one)], at_ms, subject.shown(selection))
            for one, at_ms, selection in found
        ]

    async def settle(self, subject: Subject) -> Shown:
        """Return what all owners show of the agent, once they agree for a second."""
        agreed_s, last = time.monotonic(), None
        while last is None or time.monotonic() - agreed_s < 1.0:
            ids = await self.publish(subject.capability, BEFORE)
            seen = {shown for _, _, shown in await self.choices(subject, ids)}
            if len(seen) != 1 or seen != last:
                agreed_s, last = time.monotonic(), seen
            await asyncio.sleep(0.2)
        (shown,) = last
        return shown

    async def follow(self, subject: Subject, before: Shown) -> dict[str, float]:
        """Publish until every owner shows the agent as changed; return after how many ms each."""
        answered_ms = time.time() * 1_000
        found: dict[str, float] = {}
        # Owners that have made a choice after the answer which does not show the change.
        late: set[str] = set()
        # Replies may overtake each other, so that the earliest choice comes last.
        under_way: set[asyncio.Task[None]] = set()

        async def step() -> None:
            ids = await self.publish(subject.capability, OWNERS)
            for owner, at_ms, shown in await self.choices(subject, ids):
                if shown != before:
                    took_ms = at_ms - answered_ms
                    found[owner] = min(took_ms, found.get(owner, took_ms))
                elif at_ms > answered_ms:
                    late.add(owner)

        began_s = time.monotonic()
        for number in itertools.count(1):
            under_way.add(task := asyncio.create_task(step()))
            task.add_done_callback(under_way.discard)
            if len(found) == OWNERS or time.monotonic() - began_s > LIMIT_S:
                break
            await asyncio.sleep(max(0.0, began_s + number * STEP_S - time.monotonic()))
        await asyncio.gather(*under_way)
        return {owner: took_ms if owner in late else 0.0 for owner, took_ms in found.items()}


# Prepares an agent and returns it with the change to make.
Change = Callable[[], Awaitable[object]]
Kind = Callable[[Bench], Awaitable[tuple[Subject, Change]]]


async def _pair(bench: Bench, cents: int | None = 2) -> Subject:
    """Register a cheap agent, which gets all work, and a dearer one beside it."""
    capability = unique("cap.bench.n") + ".v1"
    await bench.register(capability, 1)
    return Subject(capability, await bench.register(capability, cents))


def _beat(bench: Bench, subject: Subject, **body: Any) -> Awaitable[Any]:
    return bench.api.must("POST", f"/v1/agents/{subject.did}/heartbeat", body)


async def heartbeat_load(bench: Bench) -> tuple[Subject, Change]:
    """Say a higher load; the agent takes work before and after."""
    subject = await _pair(bench)
    await _beat(bench, subject, status="healthy", load=0.1)
    return subject, lambda: _beat(bench, subject, status="healthy", load=0.7)


async def heartbeat_health(bench: Bench) -> tuple[Subject, Change]:
    """Say that the agent takes no work any more."""
    subject = await _pair(bench)
    await _beat(bench, subject, status="healthy")
    return subject, lambda: _beat(bench, subject, status="unhealthy")


async def price(bench: Bench) -> tuple[Subject, Change]:
    """Set the registered price, which counts for a card without one."""
    subject = await _pair(bench, None)
    path = f"/v1/capabilities/{subject.capability}/price"
    await bench.api.must("PUT", path, {"price_cents": 3})
    return subject, lambda: bench.api.must("PUT", path, {"price_cents": 4})


async def reputation(bench: Bench) -> tuple[Subject, Change]:
    """End a node of the agent; the answer is that of a publish that waits for its end."""
    subject = await _pair(bench)
    node = {"capabilityId": subject.capability, "payload": {}, "targetAgentId": subject.did}
    body = {"intent": "bench", "nodes": {"a": node}}

    async def run() -> None:
        reply = await bench.api.must("POST", "/v1/workflows/publish", body, Prefer="wait=30")
        if reply.get("status") != "success":
            raise SystemExit(f"a node of {subject.did}: {reply}")

    return subject, run


async def rebuild(bench: Bench) -> tuple[Subject, Change]:
    """Count outcomes again, after one was added that history does not have."""
    subject, run = await reputation(bench)
    await run()
    await bench.rows.execute(_COUNTED, (int(time.time() * 1_000), [subject.did]))
    return subject, lambda: bench.api.must("POST", "/v1/reputation/rebuild", {})


async def revocation(bench: Bench) -> tuple[Subject, Change]:
    """Revoke the agent."""
    subject = await _pair(bench)
    body = {"did": subject.did, "reason": "bench", "evidence": {}}
    return subject, lambda: bench.api.must("POST", "/v1/trust/revoke", body)


async def deregistration(bench: Bench) -> tuple[Subject, Change]:
    """Take the agent out of service."""
    subject = await _pair(bench)
    return subject, lambda: bench.api.must("DELETE", f"/v1/agents/{subject.did}")


async def registration(bench: Bench) -> tuple[Subject, Change]:
    """Register the agent."""
    capability, did = unique("cap.bench.n") + ".v1", unique("did:bench:agent-")
    for cents in (1, 1):
        await bench.register(capability, cents)
    return Subject(capability, did), lambda: bench.register(capability, 2, did)


KINDS: Final[tuple[Kind, ...]] = (
    heartbeat_load,
    heartbeat_health,
    price,
    reputation,
    rebuild,
    revocation,
    deregistration,
    registration,
)


async def measure_delays(bench: Bench, rounds: int) -> None:
    """Print after how many milliseconds each owner follows each kind of change."""
    print(f"ms from the answer to a choice that follows it, {rounds} changes of each kind")
    names = {owner: number for number, owner in enumerate(sorted(set(bench.owner_of.values())), 1)}
    for kind in KINDS:
        took: dict[str, list[float]] = {owner: [] for owner in names}
        missed = 0
        for _ in range(rounds):
            subject, change = await kind(bench)
            before = await bench.settle(subject)
            await change()
            found = await bench.follow(subject, before)
            missed += OWNERS - len(found)
            for owner, ms in found.items():
                took[owner].append(ms)
        for owner, number in names.items():
            print(f"{kind.__name__:16} owner {number}: {_quantiles(took[owner])}", flush=True)
        if missed:
            print(f"{kind.__name__:16} not followed in {LIMIT_S:.0f} s: {missed}")


def _quantiles(values: list[float]) -> str:
    if not values:
        return "none"
    ranked = sorted(values)
    p99 = ranked[min(len(ranked) - 1, int(0.99 * len(ranked)))]
    return f"p50 {statistics.median(ranked):6.1f}  p99 {p99:6.1f}  max {ranked[-1]:6.1f}"


@dataclass(slots=True)
class Usage:
    """The CPU seconds of each owner's process, and since when."""

    began_s: float
    owners: dict[int, float]

    @classmethod
    def now(cls, home: Path) -> Usage:
        """Read what each owner has used so far."""
        owners = {}
        for process, kind in members(home):
            if kind == OWNER:
                times = process.cpu_times()
                owners[process.pid] = times.user + times.system
        return cls(time.monotonic(), owners)

    def shares(self, home: Path) -> list[float]:
        """Return what each owner has used since, as shares of a core."""
        now = Usage.now(home)
        took_s = now.began_s - self.began_s
        return [(now.owners[pid] - spent_s) / took_s for pid, spent_s in self.owners.items()]


class Changes:
    """Changes in batches of what 50 ms bring, as a replica makes them.

    Heartbeats go through its store, commands to the ledger's socket by its client; counts of
    outcomes are added by the writer's statement.
    """

    def __init__(self, bench: Bench, count: int) -> None:
        owner = owner_of(bench.home)
        assert owner is not None, "a deployment that is up has an owner"
        self._bench = bench
        self.dids = [unique("did:bench:cost-") for _ in range(count)]
        settings = read_settings(owner.environ())
        self._route = LedgerRoute(settings)
        self._ledger = self._route.client()
        self._lives = LivenessStore(settings.database_url)
        self.kinds: dict[str, Callable[[int, int], Awaitable[object]]] = {
            "reputation": self._count,
            "heartbeat, load": self._beat_loads,
            "heartbeat, health": self._beat_health,
            "price": self._price,
            "revocation": self._revoke,
            "deregistration": self._leave,
        }

    async def prepare(self) -> None:
        """Register the agents that are changed."""
        for first in range(0, len(self.dids), BULK):
            agents = [
                {
                    "acard": {
                        "did": did,
                        "endpoint": f"http://127.0.0.1:{self._bench.port}",
                        "version": 1,
                        "capabilities": [{"id": f"cap.bench.c{n % 100}.v1", "description": ""}],
                    },
                    # Below `agents_per_owner_max`.
                    "ownerDid": f"did:bench:owner{n // 5_000}",
                }
                for n, did in enumerate(self.dids[first : first + BULK], first)
            ]
            path = "/v1/agents/register/bulk"
            reply = await self._bench.api.must("POST", path, {"agents": agents})
            refused = [one for one in reply["results"] if not one.get("ok")]
            if refused:
                raise SystemExit(f"registrations refused, the first: {refused[0]}")
        await self._bench.rows.execute(
            "INSERT INTO callboard.reputation (agent_did, total, successful, failed, cancelled,"
            " latency_ms_sum, updated_ms)"
            " SELECT did, 10, 10, 0, 0, 1000, %s FROM unnest(%s::text[]) AS did",
            (int(time.time() * 1_000), self.dids),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._lives.close()
        await self._route.close()

    async def run(self, kind: str) -> float:
        """Change every agent once; return how many a second that were."""
        began_s = time.monotonic()
        for first in range(0, len(self.dids), BATCH):
            due_s = began_s + first / CHANGES_PER_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            await self.kinds[kind](first, first + BATCH)
        return len(self.dids) / (time.monotonic() - began_s)

    async def _count(self, first: int, end: int) -> None:
        now_ms = int(time.time() * 1_000)
        await self._bench.rows.execute(_COUNTED, (now_ms, self.dids[first:end]))

    async def _beat_loads(self, first: int, end: int) -> None:
        await self._lives.store_heartbeats(
            [Heartbeat(self.dids[n], "healthy", load=n % 89 / 89) for n in range(first, end)]
        )

    async def _beat_health(self, first: int, end: int) -> None:
        await self._lives.store_heartbeats(
            [Heartbeat(did, "unhealthy") for did in self.dids[first:end]]
        )

    async def _price(self, first: int, end: int) -> None:
        await self._commit(
            SetPrice(
                key=unique("bench:"),
                actor_did="did:bench:admin",
                capability_id=f"cap.bench.c{n % 100}.v1",
                price=FixedPrice(10_000 * (1 + n // 100 % 7)),
            )
            for n in range(first, end)
        )

    async def _revoke(self, first: int, end: int) -> None:
        await self._commit(
            RevokeAgent(
                key=unique("bench:"),
                request_hash=b"",
                actor_did="did:bench:admin",
                is_admin=True,
                did=did,
                reason="bench",
                evidence_json="{}",
                expires_ms=None,
            )
            for did in self.dids[first:end]
        )

    async def _leave(self, first: int, end: int) -> None:
        await self._commit(
            DeregisterAgent(
                key=unique("bench:"),
                actor_did="did:bench:admin",
                owner_did="did:bench:admin",
                is_admin=True,
                did=did,
            )
            for did in self.dids[first:end]
        )

    async def _commit(self, commands: Iterable[Command]) -> None:
        outcomes = await asyncio.gather(
            *(self._ledger.commit(command, timeout_s=WITHIN_S) for command in commands)
        )
        refused = [outcome for outcome in outcomes if outcome.error is not None]
        if refused:
            raise SystemExit(f"{len(refused)} commands refused, the first: {refused[0]}")


async def measure_costs(bench: Bench, seconds: float) -> None:
    """Print the CPU of each owner while changes are made, kind by kind."""
    changes = Changes(bench, round(CHANGES_PER_S * seconds))
    await changes.prepare()
    await asyncio.sleep(SETTLED_S)
    usage = Usage.now(bench.home)
    await asyncio.sleep(seconds)
    idle = usage.shares(bench.home)
    print(f"\nCPU of each owner, idle: {_percents(idle)} of a core", flush=True)
    for kind in changes.kinds:
        usage = Usage.now(bench.home)
        rate = await changes.run(kind)
        shares = usage.shares(bench.home)
        more = [share - other for share, other in zip(shares, idle, strict=True)]
        print(
            f"{kind:18} {rate:5.0f} changes/s: {_percents(more)} of a core above idle", flush=True
        )
        await asyncio.sleep(SETTLED_S)
    await changes.close()


def _percents(shares: list[float]) -> str:
    return ", ".join(f"{100 * share:.2f} %" for share in shares)


@asynccontextmanager
async def running(home: Path, port: int) -> AsyncIterator[Bench]:
    """Open what the measurements need."""
    target = Target.at(home)
    rows = await psycopg.AsyncConnection.connect(target.database_url, autocommit=True)
    async with Api(target.url, target.admin_key, timeout_s=120) as api, rows:
        bench = Bench(home, api, rows, port)
        await bench.find_owners()
        await api.must("POST", "/v1/ledger/deposit", {"amount": 1_000_000})
        yield bench


async def measure(home: Path, port: int, options: argparse.Namespace) -> None:
    """Measure what was asked for."""
    async with running(home, port) as bench:
        if options.only != "cost":
            await measure_delays(bench, options.rounds)
        if options.only != "delay":
            await measure_costs(bench, options.seconds)


def main() -> None:
    """Measure once and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="changes of each kind")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load, and idle")
    parser.add_argument("--only", choices=("delay", "cost"))
    parser.add_argument("--checkout", help="a folder with another state of the service's code")
    parser.add_argument("--raylets", action="store_true", help="one for each owner")
    options = parser.parse_args()
    checkout = Checkout.at(options.checkout)
    raylets = OWNERS if options.raylets else 1
    toml = f"{SETTINGS}{OWNERS // raylets}\n"
    with checkout.deployment(toml) as home, stub(home) as (_, port):
        add_raylets(home, raylets - 1)
        load = psutil.getloadavg()[0]
        print(
            f"{checkout.commit}: {OWNERS} owners of {raylets} raylets, load {load:.1f}", flush=True
        )
        asyncio.run(measure(home, port, options))


if __name__ == "__main__":
    main()
