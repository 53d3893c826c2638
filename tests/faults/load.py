"""Load on a deployment: agents in processes, clients in threads, and what was accepted.

A client repeats a publish with the same Idempotency-Key until it is answered, as the contract tells
clients to; what was answered with 200 is accepted and must end. What was answered with 503 is
counted, and whether it said when to come again. What is published is said by `market_load.work`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.faults.market_load import (
    CAPABILITY,
    JUDGE,
    SCARCE,
    SCARCE_CREDITS,
    STAKE_CREDITS,
    card,
    verifier_card,
    work,
)
from tests.faults.victims import superuser_url
from tests.platform.deployments import RunningDeployment

ROOT = Path(__file__).resolve().parent.parent.parent
CLIENTS = 4
PAYER = "did:fault:payer"
DEADLINE_S = 240.0
AGENTS = 2
# What the usual run's clients wait after each workflow: without a pause four of them take both
# cores for as long as a test waits.
PAUSE_S = 0.25
# How long agents work on a node of the load: some are always in flight when a process is killed.
WORK_S = 0.05
# What is allowed from the healing to the end of everything accepted.
ENDED_S = 180.0
BIDDER = "did:fault:agent0"
# A bid that is not answered by then is too late.
BID_S = 2.0
UNFINISHED = ("pending", "running", "missing")


@dataclass
class Load:
    """Running clients and agents. `accepted`: workflow ids that were answered with 200; `doomed`:
    those of them whose last node an agent fails; `bids`: workflows in which a bid was taken;
    `failures`: every answer to a publish that was none of the service's 200, and every call without
    an answer; `publish_s`: how long each publish took, tries that failed included; `pause_s`: how
    long a client waits after each."""

    deployment: RunningDeployment
    folder: Path
    accepted: list[str] = field(default_factory=list)
    doomed: set[str] = field(default_factory=set)
    bids: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    publish_s: list[float] = field(default_factory=list)
    refused: int = 0
    refused_without_time: int = 0
    clients: int = CLIENTS
    pause_s: float = 0.0

    def start(self) -> None:
        """Register agents, fill the wallet, start the clients."""
        self._stop = threading.Event()
        self._ports: list[int] = []
        self._agents: list[subprocess.Popen[str]] = []
        self._numbers = count()
        with self.client() as client:
            self._until_answered(client, "/v1/ledger/deposit", {"amount": 100_000})
        for index in range(AGENTS):
            self.add_agent(f"did:fault:agent{index}", CAPABILITY)
        self._register(SCARCE, CAPABILITY, SCARCE_CREDITS)
        self._register_verifiers()
        self._threads = [threading.Thread(target=self._publish) for _ in range(self.clients)]
        for thread in self._threads:
            thread.start()

    def client(self) -> httpx.Client:
        """Return a client with every right."""
        return httpx.Client(
            base_url=self.deployment.url,
            headers={"x-api-key": self.deployment.admin_key},
            timeout=30.0,
        )

    def wait_progress(self, workflows: int) -> None:
        """Wait until that many more workflows have been accepted."""
        goal = len(self.accepted) + workflows
        deadline = time.monotonic() + DEADLINE_S
        while len(self.accepted) < goal:
            assert time.monotonic() < deadline, f"{len(self.accepted)} of {goal}: {self.problems}"
            assert not self.problems, self.problems
            self._stop.wait(0.02)

    def finish(self) -> list[dict[str, Any]]:
        """Stop publishing; return all accepted workflows once they have ended.

        Prints how long that took (`pytest -s` shows it): 60 s are promised, on a machine at ease.
        """
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.problems, self.problems
        began = time.monotonic()
        while unfinished := self._unfinished():
            assert time.monotonic() < began + ENDED_S, (
                f"{len(unfinished)} have not ended: {unfinished[:3]}"
            )
            time.sleep(0.1)
        took_s = time.monotonic() - began
        print(f"all {len(self.accepted)} workflows have ended, after {took_s:.1f} s")  # noqa: T201
        return self._stored()

    def dispatched(self) -> Counter[tuple[str, str]]:
        """Return how often an agent saw each node: (workflow id, node)."""
        words = (line.split() for line in self._lines())
        return Counter((workflow_id, node) for _, workflow_id, node, _ in words)

    def agent_ports(self) -> set[int]:
        """Return the ports at which the agents listen."""
        return set(self._ports)

    def workflows_seen(self) -> set[str]:
        """Return the ids of workflows of which an agent has seen a dispatch."""
        return {line.split()[1] for line in self._lines()}

    def publish(self, manifest: dict[str, Any]) -> str:
        """Publish one workflow beside the others and return its id once it is accepted."""
        with self.client() as client:
            record = self._until_answered(client, "/v1/workflows/publish", manifest)
        assert record is not None, self.problems
        self.accepted.append(record["workflowId"])
        return str(record["workflowId"])

    def restart_agent(self, index: int) -> None:
        """Kill -9 an agent and start it again where it was."""
        process = self._agents[index]
        process.kill()
        with process:
            process.wait(timeout=60)
        self._agents[index] = self._start_agent(index)

    def stop(self) -> None:
        """End clients and agents."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for process in self._agents:
            with process:  # closes its standard input, which ends it, and its output
                assert process.stdin is not None
                process.stdin.close()
                process.wait(timeout=60)

    def _lines(self) -> list[str]:
        """Return what the agents wrote down; a line that is being written is left out."""
        texts = [path.read_text() for path in sorted(self.folder.glob("agent*.log"))]
        return [line for text in texts for line in text[: text.rfind("\n") + 1].splitlines()]

    def _stored(self) -> list[dict[str, Any]]:
        """Return what the database holds of the accepted workflows; a missing one is stuck."""
        found: dict[str, tuple[str, Any]] = dict.fromkeys(self.accepted, ("missing", None))
        query = "SELECT id::text, status, error FROM callboard.workflow WHERE id = ANY(%s::uuid[])"
        with psycopg.connect(superuser_url(self.deployment)) as connection:
            rows = connection.execute(query, (self.accepted,)).fetchall()
        found.update({workflow_id: (status, error) for workflow_id, status, error in rows})
        return [{"id": key, "status": status, "error": e} for key, (status, e) in found.items()]

    def _unfinished(self) -> list[Any]:
        """Return what is to end: what was accepted, and what was and no client has heard of it."""
        query = "SELECT id::text, status FROM callboard.workflow WHERE status = ANY(%s)"
        with psycopg.connect(superuser_url(self.deployment)) as connection:
            running = connection.execute(query, (list(UNFINISHED),)).fetchall()
        return [row for row in self._stored() if row["status"] in UNFINISHED] or running

    def _start_agent(self, index: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.faults.recording_agent"]
        process = subprocess.Popen(
            [*command, str(self.folder / f"agent{index}.log"), str(self._ports[index])],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        self._ports[index] = int(process.stdout.readline())
        return process

    def add_agent(self, did: str, capability_id: str) -> None:
        """Start an agent, register it and give it a stake."""
        self._ports.append(0)
        self._agents.append(self._start_agent(len(self._ports) - 1))
        self._register(did, capability_id, STAKE_CREDITS)

    def _register(self, did: str, capability_id: str, stake_credits: float) -> None:
        """Register the agent of the newest process under this name, and stake for it once."""
        # Of another owner than the payer, whose own agents win no auction.
        made = card(did, f"http://127.0.0.1:{self._ports[-1]}", capability_id)
        body = {"acard": made, "ownerDid": f"{did}-owner"}
        stake = {"amount": stake_credits, "agentDid": did}
        funds = {"amount": stake_credits, "ownerDid": did}
        with self.client() as client:
            self._until_answered(client, "/v1/ledger/deposit", funds, key=f"funds:{did}")
            self._until_answered(client, "/v1/agents/register", body)
            self._until_answered(client, "/v1/stakes", stake, key=f"stake:{did}")

    def _register_verifiers(self) -> None:
        """Let each process judge too, as agents of another owner: no owner judges its own work."""
        with self.client() as client:
            for number, port in enumerate(self._ports):
                judge = verifier_card(number, f"http://127.0.0.1:{port}")
                body = {"acard": judge, "ownerDid": JUDGE}
                self._until_answered(client, "/v1/agents/register", body)

    def _publish(self) -> None:
        with self.client() as client:
            while not self._stop.wait(self.pause_s):
                number = next(self._numbers)
                chosen = work(number, delay_s=WORK_S)
                record = self._until_answered(client, "/v1/workflows/publish", chosen.manifest)
                if record is None:
                    continue
                self.accepted.append(record["workflowId"])
                if chosen.is_doomed:
                    self.doomed.add(record["workflowId"])
                if chosen.has_bidding:
                    self._bid(client, record["workflowId"], number)

    def _bid(self, client: httpx.Client, workflow_id: str, number: int) -> None:
        """Bid once; while something is away it may be too late, or not be heard."""
        body = {"agentDid": BIDDER, "bidAmount": (3 + number % 7) / 1000}
        with suppress(httpx.TransportError):
            path = f"/v1/auctions/{workflow_id}/a/bids"
            if client.post(path, json=body, timeout=BID_S).status_code == 200:
                self.bids.add(workflow_id)

    def _until_answered(
        self, client: httpx.Client, path: str, body: dict[str, Any], *, key: str = ""
    ) -> dict[str, Any] | None:
        """Post with one key until there is an answer; None when stopped before."""
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        began = time.monotonic()
        is_publish = path.endswith("publish")
        while time.monotonic() < began + DEADLINE_S:
            failure = ""
            try:
                reply = client.post(path, json=body, headers=headers)
            except httpx.TransportError as error:
                reply, failure = None, repr(error)
            if reply is not None and reply.status_code in (200, 201):
                if is_publish:
                    self.publish_s.append(time.monotonic() - began)
                record: dict[str, Any] = reply.json()
                return record
            if is_publish:
                self.failures.append(failure or f"{reply.status_code} {reply.text}")
            # While the API starts, Serve's proxy answers 404 in plain text by itself.
            is_ours = reply is not None and "json" in reply.headers.get("content-type", "")
            if reply is not None and is_ours and reply.status_code == 503:
                self.refused += 1
                self.refused_without_time += "Retry-After" not in reply.headers
            if reply is not None and is_ours and reply.status_code < 500:
                self.problems.append(f"{path}: {reply.status_code} {reply.text}")
                return None
            if self._stop.wait(0.05) and is_publish:
                return None
        self.problems.append(f"{path}: no answer in {DEADLINE_S} s")
        return None
