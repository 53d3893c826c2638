"""What a command costs in the writer's Postgres backend and in the writer, in two checkouts.

Run as `python -m bench.batch_cost OTHER [--pairs N] [--flows N]`: OTHER is the folder of the
checkout to compare with. Each side has a Postgres of its own and commits workflows of three nodes
through its store: published, three times paid, the last time ended, four commands each. `--flows`
go together through each step, so that a batch has as many commands. The sides take turns, in an
order that changes from pair to pair. Counted are the CPU time of the backend, by
`/proc/PID/schedstat`, that of the writer's thread, and the bytes of WAL; full page
writes are off, because they depend on checkpoints. Prints; asserts nothing about times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from core.ids import uuid7
from core.workflow.events import AttemptFinished, NodeChanged, NodePaid, Record, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import Command
from ledger.embedded.server import DATABASE, SUPERUSER, EmbeddedPostgres
from ledger.features.accounts import Deposit
from ledger.features.member_leases import MemberLeases
from ledger.features.shards import JoinCluster, TakeShards
from ledger.features.workflow_commands import AdvanceWorkflow, PublishWorkflow
from ledger.migrate import migrate
from ledger.writer.store import Genesis, LedgerStore, boot_time_ms

NODES: Final = ("fetch", "summarize", "translate")
COMMANDS_PER_FLOW: Final = 1 + len(NODES)
PRICE_MICRO: Final = 20_000
PAYERS, AGENTS = 20, 50
MANIFEST: Final = json.dumps(
    {
        "nodes": {
            name: {"capabilityId": f"cap.bench.{name}.v1", "dependsOn": list(NODES[:place][-1:])}
            for place, name in enumerate(NODES)
        }
    }
)
RESULT: Final = json.dumps({"text": "a short answer of an agent, as they come, " * 4})
FIGURES: Final = {
    "backend µs": "backend_us",
    "writer µs": "writer_us",
    "sum µs": "sum_us",
    "WAL bytes": "wal_bytes",
}


class Flows:
    """A ledger in which workflows are published and paid, a step of all of them at a time."""

    def __init__(self, store: LedgerStore, member: str, epoch: int) -> None:
        self._store = store
        self._member, self._epoch = member, epoch
        self._number = 0

    @classmethod
    async def open(cls, url: str) -> Flows:
        """Open the ledger, register a member, give the payers money."""
        leases = MemberLeases(boot_time_ms)
        store = await LedgerStore.open(
            url, genesis=Genesis("bench", 500), now_ms=now_ms(), leases=leases
        )
        member = uuid7(at_ms=now_ms(), entropy=os.urandom(10))
        joining = JoinCluster(
            key=f"join:{member}", member=member, machine="", address="bench", version="bench"
        )
        deposits = [
            Deposit(
                key=f"deposit:{number}",
                request_hash=b"",
                actor_did=_payer(number),
                owner_did=_payer(number),
                amount_micro=10**13,
                description="bench",
            )
            for number in range(PAYERS)
        ]
        await store.commit([joining, *deposits], now_ms())
        leases.follow(store.cluster)
        # All shards have one epoch, before and after.
        shards = tuple((shard, held.epoch) for shard, held in enumerate(store.cluster.shards))
        taking = TakeShards(key=f"take:{member}", member=member, shards=shards)
        (taken,) = await store.commit([taking], now_ms())
        return cls(store, member, int(taken.result["taken"]["0"]))

    @property
    def backend_pid(self) -> int:
        """The process that commits."""
        return self._store._connection.info.backend_pid

    async def run(self, flows: int) -> None:
        """Take this many workflows together from their publish to their end."""
        numbers = range(self._number, self._number + flows)
        self._number += flows
        ids = [uuid7(at_ms=now_ms(), entropy=os.urandom(10)) for _ in numbers]
        steps = [[self._publish(one, number) for one, number in zip(ids, numbers, strict=True)]]
        for place in range(len(NODES)):
            steps.append(
                [self._step(one, number, place) for one, number in zip(ids, numbers, strict=True)]
            )
        for commands in steps:
            for outcome in await self._store.commit(commands, now_ms()):
                assert outcome.error is None, outcome

    def _publish(self, workflow_id: str, number: int) -> Command:
        at = now_ms()
        started = WorkflowChanged(WorkflowStatus.RUNNING, at)
        return PublishWorkflow(
            key=f"publish:{workflow_id}",
            request_hash=b"",
            actor_did=_payer(number),
            member=self._member,
            shard_epoch=self._epoch,
            workflow_id=workflow_id,
            task_id=uuid7(at_ms=at, entropy=os.urandom(10)),
            payer_did=_payer(number),
            intent="measure what a command costs",
            manifest_json=MANIFEST,
            created_ms=at,
            deadline_ms=at + 300_000,
            estimate_micro=3 * PRICE_MICRO,
            hold_micro=3 * PRICE_MICRO,
            reserved_json="{}",
            fee_bps=500,
            has_hold=True,
            records=(started, _dispatched(number, 0, at)),
        )

    def _step(self, workflow_id: str, number: int, place: int) -> Command:
        at = now_ms()
        agent, node = _agent(number, place), NODES[place]
        records: list[Record] = [
            AttemptFinished(
                node,
                1,
                agent,
                "success",
                at,
                at + 5,
                input_hash="sha256:" + "1" * 64,
                output_hash="sha256:" + "2" * 64,
            ),
            NodeChanged(
                node,
                NodeStatus.SUCCESS,
                attempt=1,
                agent_did=agent,
                price_micro=PRICE_MICRO,
                dispatched_ms=at,
                deadline_ms=at + 60_000,
                result_json=RESULT,
                started_ms=at,
                completed_ms=at + 5,
                cost_micro=PRICE_MICRO,
                metrics={"latency_ms": 5},
            ),
            NodePaid(node, agent, PRICE_MICRO),
        ]
        if place + 1 < len(NODES):
            records.append(_dispatched(number, place + 1, at))
        else:
            records.append(WorkflowChanged(WorkflowStatus.SUCCESS, at))
        return AdvanceWorkflow(
            key=f"step:{workflow_id}:{place}",
            member=self._member,
            shard_epoch=self._epoch,
            workflow_id=workflow_id,
            actor_did=agent,
            records=tuple(records),
        )


def _dispatched(number: int, place: int, at: int) -> NodeChanged:
    return NodeChanged(
        NODES[place],
        NodeStatus.DISPATCHED,
        attempt=1,
        agent_did=_agent(number, place),
        price_micro=PRICE_MICRO,
        dispatched_ms=at,
        deadline_ms=at + 60_000,
        started_ms=at,
    )


def _payer(number: int) -> str:
    return f"did:bench:payer:{number % PAYERS}"


def _agent(number: int, place: int) -> str:
    return f"did:bench:agent:{(number * len(NODES) + place) % AGENTS}"


def now_ms() -> int:
    """Return Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


async def serve(server: EmbeddedPostgres) -> None:
    """Measure as many flows as each line of the input says; print the figures of each."""
    with psycopg.connect(server.url_for(SUPERUSER, DATABASE), autocommit=True) as asking:
        asking.execute("ALTER SYSTEM SET full_page_writes = off")
        asking.execute("SELECT pg_reload_conf()")
        flows = await Flows.open(server.database_url)
        print("ready", flows.backend_pid, flush=True)
        for line in sys.stdin:
            together, rounds = map(int, line.split())
            wal = _wal_bytes(asking)
            backend, own = _cpu_ns(flows.backend_pid), time.thread_time_ns()
            for _ in range(rounds):
                await flows.run(together)
            own = time.thread_time_ns() - own
            backend = _cpu_ns(flows.backend_pid) - backend
            commands = rounds * together * COMMANDS_PER_FLOW
            counted = {
                "backend_us": backend / 1e3,
                "writer_us": own / 1e3,
                "sum_us": (backend + own) / 1e3,
                "wal_bytes": _wal_bytes(asking) - wal,
            }
            print(json.dumps({k: v / commands for k, v in counted.items()}), flush=True)


def _cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def _wal_bytes(asking: psycopg.Connection[Any]) -> int:
    query = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
    row = asking.execute(query).fetchone()
    assert row is not None
    return int(row[0])


@contextmanager
def _side(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a checkout's own copy of this file, which knows its commands; end it afterwards."""
    side = subprocess.Popen(
        [sys.executable, str(folder / "bench" / "batch_cost.py"), "--serve"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert side.stdout is not None
        assert side.stdout.readline().startswith("ready"), "the side did not start"
        yield side
    finally:
        assert side.stdin is not None
        side.stdin.close()
        side.wait(timeout=60)


def _ask(side: subprocess.Popen[str], together: int, rounds: int) -> dict[str, float]:
    assert side.stdin is not None
    assert side.stdout is not None
    side.stdin.write(f"{together} {rounds}\n")
    side.stdin.flush()
    answered: dict[str, float] = json.loads(side.stdout.readline())
    return answered


def compare(other: Path, this: Path, *, pairs: int, flows: int, rounds: int) -> None:
    """Measure two checkouts in turns and print each pair, then the medians."""
    taken: list[tuple[dict[str, float], dict[str, float]]] = []
    with ExitStack() as stack:
        sides = [stack.enter_context(_side(folder)) for folder in (other, this)]
        for side in sides:
            _ask(side, flows, rounds)
        for pair in range(pairs):
            found: list[dict[str, float]] = [{}, {}]
            for place in (0, 1) if pair % 2 == 0 else (1, 0):
                found[place] = _ask(sides[place], flows, rounds)
            taken.append((found[0], found[1]))
    print(f"{flows} commands a batch, {pairs} pairs; per command, other and this:")
    for shown, name in FIGURES.items():
        first, second = ([one[place][name] for one in taken] for place in (0, 1))
        ratios = [b / a for a, b in zip(first, second, strict=True)]
        print(
            f"{shown:<12} {statistics.median(first):>9,.1f} {statistics.median(second):>9,.1f}"
            f" {statistics.median(ratios) - 1:>+8.1%}"
            f"   pairs {min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%}"
        )


def main() -> None:
    """Compare two checkouts, or be one side of the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", nargs="?", type=Path)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--flows", type=int, default=64, help="workflows, so commands of a batch")
    parser.add_argument("--rounds", type=int, default=15, help="of all of a workflow's steps")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.serve:
        this = Path(__file__).resolve().parents[1]
        sizes = {"pairs": arguments.pairs, "flows": arguments.flows, "rounds": arguments.rounds}
        compare(arguments.other.resolve(), this, **sizes)
        return
    with tempfile.TemporaryDirectory(prefix="cbb-") as folder:
        Path(folder).chmod(0o711)  # root's Postgres is another user's
        home, run_folder = Path(folder, "pg"), Path(folder, "run")
        home.mkdir()
        run_folder.mkdir(mode=0o700)
        server = EmbeddedPostgres(home, run_folder, max_connections=20)
        server.start()
        try:
            migrate(server.owner_url)
            asyncio.run(serve(server))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
