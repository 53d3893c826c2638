"""The load under a fault, as a program on the operator's host: chains, and small publishes.

`python -m scripts.cluster_demo.chains OWN KEY FILE URL…` publishes chains in turn through each API,
and until they have ended one workflow of a single node after the other, through the APIs that
answer. Each thing that happens is a line of FILE, a JSON object with the time `at` by the machine's
monotonic clock, which all hosts share (`timeline.py` reads it). OWN is this host's address, KEY the
administrator's key. Exit status 0 when every accepted workflow has succeeded.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle, pairwise
from pathlib import Path
from typing import IO, Any

from callboard.client import Client
from callboard.errors import CallboardError
from scripts.cluster_demo.clients import PRICE_CREDITS, CountingAgent

DEADLINE_S = 300.0
# In the line that says how it went.
ENDED = "accepted workflows succeeded"
REPLY_TIMEOUT_S = 5.0
_PAUSE_S = 0.5
_POLL_S = 1.0


class Events:
    """Writes what happens, a line each, from several threads.

    Args:
        file: for the lines.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._lock = threading.Lock()

    def write(self, kind: str, **members: Any) -> None:
        """Write one event, now."""
        line = json.dumps({"at": time.monotonic(), "kind": kind, **members})
        with self._lock:
            self._file.write(f"{line}\n")
            self._file.flush()


class Apis:
    """A client of each API; what one does not answer, the next is asked.

    Args:
        urls: of the APIs.
        key: the administrator's.
    """

    def __init__(self, urls: list[str], key: str) -> None:
        self._stack = ExitStack()
        clients = [Client(url, key, timeout_s=REPLY_TIMEOUT_S) for url in urls]
        self.clients = [self._stack.enter_context(client) for client in clients]
        self.urls = urls
        self._turn = 0

    def __enter__(self) -> Apis:
        return self

    def __exit__(self, *_failure: object) -> None:
        self._stack.close()

    def status(self, workflow_id: str) -> str:
        """Return a workflow's status, `unknown` while nothing answers."""
        for _ in self.clients:
            try:
                return self.clients[self._turn].workflow(workflow_id)["status"]
            except CallboardError:
                self._turn = (self._turn + 1) % len(self.clients)
        return "unknown"


def chain(capability: str, nodes: int) -> dict[str, Any]:
    """Return the manifest of a chain.

    Args:
        capability: of each node.
        nodes: how many.
    """
    names = [f"n{number}" for number in range(nodes)]
    own: dict[str, Any] = {
        name: {"capabilityId": capability, "payload": {}, "maxRetries": 5} for name in names
    }
    for parent, child in pairwise(names):
        own[child]["dependsOn"] = [parent]
    settings = {"maxBudgetCredits": nodes * PRICE_CREDITS * 1.2}
    return {"intent": "Count", "settings": settings, "nodes": own}


def publish_small(
    apis: Apis, capability: str, events: Events, stop: threading.Event, accepted: list[str]
) -> None:
    """Publish workflows of one node through each API in turn until told to stop."""
    for client, url in cycle(zip(apis.clients, apis.urls, strict=True)):
        if stop.wait(_PAUSE_S):
            return
        began = time.monotonic()
        try:
            workflow_id = client.publish(chain(capability, 1)).workflow_id
        except CallboardError as error:
            took_s = time.monotonic() - began
            events.write("refused", via=url, took_s=took_s, error=type(error).__name__)
            continue
        accepted.append(workflow_id)
        events.write("accepted", via=url, took_s=time.monotonic() - began, workflow=workflow_id)


def await_ends(apis: Apis, workflow_ids: list[str], events: Events) -> Iterator[str]:
    """Yield the status of each workflow when it has ended, or `unfinished` at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    waiting = list(workflow_ids)
    while waiting and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        for workflow_id in list(waiting):
            status = apis.status(workflow_id)
            if status == "unknown":
                break
            if status not in ("pending", "running"):
                waiting.remove(workflow_id)
                events.write("ended", workflow=workflow_id, status=status)
                yield status
    for workflow_id in waiting:
        events.write("ended", workflow=workflow_id, status="unfinished")
        yield "unfinished"


def run(arguments: argparse.Namespace) -> bool:
    """Run the load; return whether every accepted workflow has succeeded."""
    capability = f"cap.demo.chain{time.time_ns()}.v1"
    with ExitStack() as stack:
        events = Events(stack.enter_context(Path(arguments.file).open("w", encoding="utf-8")))
        agent = CountingAgent(
            arguments.own,
            arguments.delay,
            lambda address, body: events.write(
                "call", machine=address, workflow=body["workflowId"], node=body["nodeId"]
            ),
        )
        stack.enter_context(agent)
        apis = stack.enter_context(Apis(arguments.urls, arguments.key))
        # A thread's own clients: a connection serves one request at a time.
        others = stack.enter_context(Apis(arguments.urls, arguments.key))
        apis.clients[0].deposit(1_000)
        apis.clients[0].register_agent(agent.card(capability))
        long = []
        for _, client in zip(range(arguments.workflows), cycle(apis.clients)):
            long.append(client.publish(chain(capability, arguments.nodes)).workflow_id)
            events.write("published", workflow=long[-1])
        stop, small = threading.Event(), list[str]()
        publishing = threading.Thread(
            target=publish_small, args=(others, capability, events, stop, small)
        )
        publishing.start()
        try:
            ends = list(await_ends(apis, long, events))
        finally:
            stop.set()
            publishing.join()
        ends += await_ends(apis, small, events)
    wrong = [status for status in ends if status != "success"]
    print(f"{len(ends) - len(wrong)} of {len(ends)} {ENDED} {wrong[:5] or ''}")
    return not wrong


def main() -> int:
    """Run the load; exit status 0 if every accepted workflow succeeded."""
    parser = argparse.ArgumentParser(prog="python -m scripts.cluster_demo.chains")
    parser.add_argument("own")
    parser.add_argument("key")
    parser.add_argument("file")
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--workflows", type=int, default=24)
    parser.add_argument("--nodes", type=int, default=40)
    parser.add_argument("--delay", type=float, default=0.8)
    return 0 if run(parser.parse_args()) else 1


if __name__ == "__main__":
    sys.exit(main())
