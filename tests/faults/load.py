"""Load on a deployment: agents in processes, clients in threads, and what was accepted.

A client repeats a publish with the same Idempotency-Key until it is answered, as the contract tells
clients to; what was answered with 200 is accepted and must end.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import RunningDeployment

ROOT = Path(__file__).resolve().parent.parent.parent
CAPABILITY = "cap.fault.v1"
CLIENTS = 4
PAYER = "did:fault:payer"
DEADLINE_S = 120.0


def chain() -> dict[str, Any]:
    """Return a manifest of three nodes in a row."""
    node = {"capabilityId": CAPABILITY, "payload": {"n": 1}}
    mapping = {"n": "$.a.result.n"}
    return {
        "intent": "fault",
        "nodes": {
            "a": node,
            "b": {**node, "dependsOn": ["a"], "inputMappings": mapping},
            "c": {**node, "dependsOn": ["b"], "inputMappings": mapping},
        },
    }


@dataclass
class Load:
    """Running clients and agents. `accepted`: workflow ids that were answered with 200."""

    deployment: RunningDeployment
    folder: Path
    accepted: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Register agents, fill the wallet, start the clients."""
        self._stop = threading.Event()
        self._agents = [self._start_agent(index) for index in range(2)]
        with self.client() as client:
            self._until_answered(client, "/v1/ledger/deposit", {"amount": 100_000})
        self._threads = [threading.Thread(target=self._publish) for _ in range(CLIENTS)]
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
        """Stop publishing and return the record of every accepted workflow once it has ended."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.problems, self.problems
        with self.client() as client:
            return [self._ended(client, workflow_id) for workflow_id in self.accepted]

    def dispatched(self) -> Counter[str]:
        """Return how often each event id was seen by an agent."""
        lines = [
            line.split()[0]
            for path in sorted(self.folder.glob("agent*.log"))
            for line in path.read_text().splitlines()
        ]
        return Counter(lines)

    def stop(self) -> None:
        """End clients and agents."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for process in self._agents:
            with process:  # closes its standard input, which ends it, and its output
                assert process.stdin is not None
                process.stdin.close()
                process.wait(timeout=10)

    def _ended(self, client: httpx.Client, workflow_id: str) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                reply = client.get(f"/v1/workflows/{workflow_id}", headers={"Prefer": "wait=20"})
                record: dict[str, Any] = reply.json()
                if reply.status_code == 200 and record["status"] not in ("pending", "running"):
                    return record
            except httpx.TransportError:
                record = {}
            assert time.monotonic() < deadline, f"not ended: {workflow_id} {record}"

    def _start_agent(self, index: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.faults.recording_agent"]
        process = subprocess.Popen(
            [*command, str(self.folder / f"agent{index}.log")],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        port = int(process.stdout.readline())
        card = {
            "did": f"did:fault:agent{index}",
            "endpoint": f"http://127.0.0.1:{port}",
            "version": 1,
            "capabilities": [{"id": CAPABILITY, "description": "works", "price_cents": 2}],
        }
        with self.client() as client:
            self._until_answered(client, "/v1/agents/register", {"acard": card})
        return process

    def _publish(self) -> None:
        with self.client() as client:
            while not self._stop.is_set():
                record = self._until_answered(client, "/v1/workflows/publish", chain())
                if record is not None:
                    self.accepted.append(record["workflowId"])

    def _until_answered(
        self, client: httpx.Client, path: str, body: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Post with one key until there is an answer; None when stopped before."""
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            try:
                reply = client.post(path, json=body, headers=headers)
            except httpx.TransportError:
                reply = None
            if reply is not None and reply.status_code in (200, 201):
                record: dict[str, Any] = reply.json()
                return record
            # While the API starts, Serve's proxy answers 404 in plain text by itself.
            is_ours = reply is not None and "json" in reply.headers.get("content-type", "")
            if reply is not None and is_ours and reply.status_code < 500:
                self.problems.append(f"{path}: {reply.status_code} {reply.text}")
                return None
            if self._stop.wait(0.05) and path.endswith("publish"):
                return None
        self.problems.append(f"{path}: no answer in {DEADLINE_S} s")
        return None
