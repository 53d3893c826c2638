"""What a payment costs in the ledger: `python -m bench.ledger [--seconds S]`; prints only.

3-node chains through the real store and a private Postgres with fsync on: one command publishes
with a hold, three advance and pay, the last one also releases. Per batch size: commands and
payments per second, CPU per command in this process (Python) and in the writer's backend
(Postgres).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from core.ids import uuid7
from core.workflow.events import AttemptFinished, NodeChanged, NodePaid, Record, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import AdvanceWorkflow, Command, Deposit, PublishWorkflow, RegisterOwner
from ledger.embedded import EmbeddedPostgres
from ledger.migrate import migrate
from ledger.store import Genesis, LedgerStore

NODES = ("fetch", "summarise", "report")
PRICE_MICRO = 250_000
MANIFEST = '{"nodes":{"fetch":{"capabilityId":"cap.web.fetch.v1","payload":{"url":"http://x"}}}}'
RESULT = '{"text":"' + "a short answer of an agent, as they come, " * 4 + '"}'
AGENTS = tuple(f"did:bench:agent{number}" for number in range(20))
PAYERS = tuple(f"did:bench:payer{number}" for number in range(10))


def now_ms() -> int:
    """Return Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


def chain(number: int, owner_epoch: int) -> Iterator[Command]:
    """Yield the four commands of one workflow."""
    at = now_ms()
    workflow_id = uuid7(at_ms=at, entropy=os.urandom(10))
    payer, agent = PAYERS[number % len(PAYERS)], AGENTS[number % len(AGENTS)]
    yield PublishWorkflow(
        key=f"publish:{workflow_id}",
        request_hash=bytes(32),
        actor_did=payer,
        owner="bench",
        owner_epoch=owner_epoch,
        workflow_id=workflow_id,
        task_id=uuid7(at_ms=at, entropy=os.urandom(10)),
        payer_did=payer,
        intent="measure",
        manifest_json=MANIFEST,
        created_ms=at,
        deadline_ms=at + 300_000,
        estimate_micro=3 * PRICE_MICRO,
        hold_micro=4 * PRICE_MICRO,
        reserved_json="{}",
        fee_bps=500,
        has_hold=True,
        records=(WorkflowChanged(WorkflowStatus.RUNNING, at), _dispatched(NODES[0], agent, at)),
    )
    for index, node in enumerate(NODES):
        records: list[Record] = [
            AttemptFinished(
                node, 1, agent, "success", at, at + 5,
                input_hash="sha256:" + "1" * 64, output_hash="sha256:" + "2" * 64,
            ),
            NodeChanged(
                node, NodeStatus.SUCCESS, attempt=1, agent_did=agent, price_micro=PRICE_MICRO,
                dispatched_ms=at, deadline_ms=at + 60_000, result_json=RESULT, started_ms=at,
                completed_ms=at + 5, cost_micro=PRICE_MICRO, metrics={"latency_ms": 5},
            ),
            NodePaid(node, agent, PRICE_MICRO),
        ]  # fmt: skip
        if index + 1 < len(NODES):
            records.append(_dispatched(NODES[index + 1], agent, at))
        else:
            records.append(WorkflowChanged(WorkflowStatus.SUCCESS, at + 10))
        yield AdvanceWorkflow(
            key=f"advance:{workflow_id}:{index + 1}",
            owner="bench",
            owner_epoch=owner_epoch,
            workflow_id=workflow_id,
            actor_did=agent,
            records=tuple(records),
        )


def _dispatched(node: str, agent: str, at: int) -> NodeChanged:
    return NodeChanged(
        node, NodeStatus.DISPATCHED, attempt=1, agent_did=agent, price_micro=PRICE_MICRO,
        dispatched_ms=at, deadline_ms=at + 60_000,
    )  # fmt: skip


def batches(size: int, owner_epoch: int) -> Iterator[Sequence[Command]]:
    """Yield batches of this size for ever: `size` workflows in step, as group commit sees them."""
    number = 0
    while True:
        running = [chain(number + index, owner_epoch) for index in range(size)]
        number += size
        for _ in range(1 + len(NODES)):
            yield [next(workflow) for workflow in running]


def backend_cpu_s(pid: int) -> float:
    """Return the CPU seconds a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(store: LedgerStore, size: int, seconds: float, owner_epoch: int) -> None:
    """Print one line for this batch size."""
    source = batches(size, owner_epoch)
    for _ in range(4):
        await store.commit(next(source), now_ms())
    pid = store.backend_pid
    commands = count = 0
    cpu, backend, began = time.process_time(), backend_cpu_s(pid), time.perf_counter()
    while time.perf_counter() - began < seconds or count % 4:
        batch = next(source)
        await store.commit(batch, now_ms())
        commands += len(batch)
        count += 1
    wall = time.perf_counter() - began
    python_us = (time.process_time() - cpu) / commands * 1e6
    postgres_us = (backend_cpu_s(pid) - backend) / commands * 1e6
    print(
        f"{size:>6} {commands / wall:>11,.0f} {commands * 0.75 / wall:>11,.0f}"
        f" {wall / count * 1000:>9.2f} {python_us:>10.0f} {postgres_us:>10.0f}"
        f" {python_us + postgres_us:>8.0f}",
        flush=True,
    )


async def run(url: str, seconds: float, sizes: Sequence[int]) -> None:
    """Measure all batch sizes on one ledger."""
    store = await LedgerStore.open(url, genesis=Genesis("bench", 500), now_ms=now_ms())
    start: list[Command] = [RegisterOwner(key="bench", owner="bench", address="")]
    start += [
        Deposit(
            key=f"bench:{payer}", request_hash=b"", actor_did=payer, owner_did=payer,
            amount_micro=10**14, description="bench",
        )
        for payer in PAYERS
    ]  # fmt: skip
    outcomes = await store.commit(start, now_ms())
    print("µs are CPU per command; 3 of 4 commands pay a node (2 entries, 2 audit records)")
    print(f"{'batch':>6} {'commands/s':>11} {'payments/s':>11} {'ms/batch':>9}", end="")
    print(f" {'Python µs':>10} {'Postgres µs':>10} {'sum µs':>7}")
    for size in sizes:
        await measure(store, size, seconds, int(outcomes[0].result["epoch"]))
    await store.close()


def main() -> None:
    """Start a private Postgres, measure, end it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="per batch size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--url", help="an existing, migrated database instead")
    arguments = parser.parse_args()
    if arguments.url:
        asyncio.run(run(arguments.url, arguments.seconds, arguments.sizes))
        return
    with tempfile.TemporaryDirectory(prefix="cbb-") as folder:
        home, run_folder = Path(folder, "pg"), Path(folder, "run")
        home.mkdir()
        run_folder.mkdir(mode=0o700)
        server = EmbeddedPostgres(home, run_folder)
        server.start()
        try:
            migrate(server.owner_url)
            asyncio.run(run(server.database_url, arguments.seconds, arguments.sizes))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
