"""The load of the cluster, as a program on the operator's host: long workflows and small ones.

`python -m scripts.cluster_demo.load OWN KEY FILE URL…` publishes chains (or, with `--wide`, graphs
in which one node is followed by all others) in turn through each API. Until they have ended it
publishes workflows of a single node. Each event is a line of FILE: a JSON object with the time `at`
by the machine's monotonic clock, which all hosts share (`timeline.py` reads it). OWN is this host's
address, KEY the administrator's key. Exit status 0 when every accepted workflow has succeeded.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path
from typing import IO, Any

from callboard.client import Client
from callboard.errors import CallboardError

DEADLINE_S = 300.0
# In the line that says how it went.
ENDED = "accepted workflows succeeded"
REPLY_TIMEOUT_S = 5.0
PRICE_CREDITS = 0.01
_PAUSE_S = 0.5
_POLL_S = 1.0


class Events:
    """Writes events, a line each, from several threads.

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


def status_of(clients: list[Client], workflow_id: str) -> str:
    """Return a workflow's status, `unknown` while no API replies.

    Args:
        clients: of the APIs. The first is asked; one that does not reply becomes the last.
    """
    for _ in clients:
        try:
            return str(clients[0].workflow(workflow_id)["status"])
        except CallboardError:
            clients.append(clients.pop(0))
    return "unknown"


class _AgentServer(ThreadingHTTPServer):
    request_queue_size = 2_048
    daemon_threads = True


@contextmanager
def counting_agent(own: str, delay_s: float, events: Events) -> Iterator[str]:
    """Serve an agent that writes an event per dispatch; yield its endpoint.

    Args:
        own: the address to listen on.
        delay_s: how long each node takes.
        events: get the address that each dispatch comes from.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            events.write(
                "call",
                machine=self.client_address[0],
                workflow=body["workflowId"],
                node=body["nodeId"],
            )
            time.sleep(delay_s)
            reply = {"eventId": body["eventId"], "status": "success", "result": {"n": 1}}
            content = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments: Any) -> None:
            return

    server = _AgentServer((own, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{own}:{server.server_port}"
    finally:
        server.shutdown()


def manifest(capability: str, nodes: int, *, is_wide: bool = False) -> dict[str, Any]:
    """Return a chain, or a graph in which the first node is followed by all others.

    Args:
        capability: of each node.
        nodes: how many.
    """
    own: dict[str, Any] = {}
    for number in range(nodes):
        own[f"n{number}"] = {"capabilityId": capability, "payload": {}, "maxRetries": 5}
        if number:
            own[f"n{number}"]["dependsOn"] = ["n0" if is_wide else f"n{number - 1}"]
    settings = {"maxBudgetCredits": nodes * PRICE_CREDITS * 1.2}
    return {"intent": "Count", "settings": settings, "nodes": own}


def publish_small(
    clients: dict[str, Client],
    capability: str,
    events: Events,
    stop: threading.Event,
    accepted: list[str],
) -> None:
    """Publish workflows of one node through each API in turn until told to stop."""
    for url, client in cycle(clients.items()):
        if stop.wait(_PAUSE_S):
            return
        began = time.monotonic()
        try:
            workflow_id = client.publish(manifest(capability, 1)).workflow_id
        except CallboardError as error:
            took_s = time.monotonic() - began
            events.write("refused", via=url, took_s=took_s, error=type(error).__name__)
            continue
        accepted.append(workflow_id)
        events.write("accepted", via=url, took_s=time.monotonic() - began, workflow=workflow_id)


def await_ends(clients: list[Client], workflow_ids: list[str], events: Events) -> Iterator[str]:
    """Yield the status of each workflow when it has ended, or `unfinished` at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    waiting = list(workflow_ids)
    while waiting and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        for workflow_id in list(waiting):
            status = status_of(clients, workflow_id)
            if status == "unknown":
                break
            if status not in ("pending", "running"):
                waiting.remove(workflow_id)
                events.write("ended", workflow=workflow_id, status=status)
                yield status
    for workflow_id in waiting:
        events.write("ended", workflow=workflow_id, status="unfinished")
        yield "unfinished"


def run(given: argparse.Namespace) -> bool:
    """Run the load; return whether every accepted workflow has succeeded."""
    capability = f"cap.demo.count{time.time_ns()}.v1"
    with ExitStack() as stack:
        events = Events(stack.enter_context(Path(given.file).open("w", encoding="utf-8")))
        endpoint = stack.enter_context(counting_agent(given.own, given.delay, events))

        def connect(url: str) -> Client:
            return stack.enter_context(Client(url, given.key, timeout_s=REPLY_TIMEOUT_S))

        clients = [connect(url) for url in given.urls]
        # A thread's own clients: a connection serves one request at a time.
        others = {url: connect(url) for url in given.urls}
        clients[0].deposit(1_000)
        clients[0].register_agent(
            {
                "did": f"did:demo:counting{time.time_ns()}",
                "name": "Counts dispatches",
                "endpoint": endpoint,
                "version": 1,
                "capabilities": [{"id": capability, "description": "counts", "price_cents": 1}],
                "maxConcurrency": 64,
            }
        )
        long = []
        for _, client in zip(range(given.workflows), cycle(clients[:])):
            graph = manifest(capability, given.nodes, is_wide=given.wide)
            long.append(client.publish(graph).workflow_id)
            events.write("published", workflow=long[-1])
        stop, small = threading.Event(), list[str]()
        publishing = threading.Thread(
            target=publish_small, args=(others, capability, events, stop, small)
        )
        publishing.start()
        try:
            ends = list(await_ends(clients, long, events))
        finally:
            stop.set()
            publishing.join()
        ends += await_ends(clients, small, events)
    wrong = [status for status in ends if status != "success"]
    print(f"{len(ends) - len(wrong)} of {len(ends)} {ENDED} {wrong[:5] or ''}")
    return not wrong


def main() -> int:
    """Run the load; exit status 0 if every accepted workflow succeeded."""
    parser = argparse.ArgumentParser(prog="python -m scripts.cluster_demo.load")
    parser.add_argument("own")
    parser.add_argument("key")
    parser.add_argument("file")
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--workflows", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--delay", type=float, required=True)
    parser.add_argument("--wide", action="store_true")
    return 0 if run(parser.parse_args()) else 1


if __name__ == "__main__":
    sys.exit(main())
