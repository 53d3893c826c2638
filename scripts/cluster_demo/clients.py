"""What people do with the cluster, as a program on the operator's host: publish, count, compare.

`python -m scripts.cluster_demo.clients article OWN KEY URL…` runs the demonstration's workflow
through the API of each machine, with the six agents of `examples/article_report` on this host.
`… wide OWN KEY URL… --workflows N --nodes N --delay S --machines N` publishes graphs in which one
node is followed by all others, in turn through each API, and prints from how many machines the
dispatches came; a line `N nodes done` tells the reader of the output how far it is.
OWN is this host's address, KEY the administrator's key.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from aiohttp import web

from callboard.cli.agents import read_card
from callboard.client import Client
from callboard.demo.books import books_of
from callboard.demo.processes import AGENTS, EXAMPLE, AgentProcesses
from callboard.errors import CallboardError

CAPABILITY = "cap.demo.count.v1"
PRICE_CREDITS = 0.01
DEADLINE_S = 300.0
_TOLD_EVERY = 50


def run_article(own: str, key: str, urls: list[str]) -> bool:
    """Run the demonstration's workflow through each API; return whether all succeeded."""
    programs = {
        name: (
            "-c",
            f"from examples.article_report.{name} import agent;"
            f"agent.run(host={own!r}, register=False, until_eof=True)",
        )
        for name in AGENTS
    }
    with AgentProcesses(Path("agents"), programs) as agents, _served(EXAMPLE, own) as document:
        addresses = agents.wait_ready()
        with Client(urls[0], key) as admin:
            admin.deposit(1)
            for address in addresses.values():
                admin.register_agent(read_card(address))
        # One after the other, and all of them also when one has failed.
        ends = [_run_article_at(url, key, f"{document}/article.html") for url in urls]
        return all(ends)


def _run_article_at(url: str, key: str, document: str) -> bool:
    manifest = json.loads((EXAMPLE / "workflow.json").read_text(encoding="utf-8"))
    manifest["nodes"]["fetch"]["payload"]["url"] = document
    began = time.monotonic()
    with Client(url, key) as client:
        record = client.publish(manifest).result(DEADLINE_S)
        took_s = time.monotonic() - began
        entries = client.transactions(workflow_id=record["id"], limit=100)["transactions"]
        books = books_of(entries)
    is_good = record["status"] == "success" and books.is_balanced
    print(
        f"{url}: {record['status']} in {took_s:.2f} s, {len(record['nodes'])} nodes, escrow"
        f" {books.held} = paid {books.paid_in_all} + fee {books.fees_in_all}"
        f" + returned {books.refunded}",
        flush=True,
    )
    return is_good


@contextmanager
def _served(folder: Path, own: str) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *_arguments: Any) -> None:
            return

    server = ThreadingHTTPServer((own, 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{own}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class CountingAgent:
    """An agent that counts from which machine each dispatch comes; in a thread of its own.

    Args:
        own: the address to listen on.
        delay_s: how long each node takes.
        on_call: gets the address that each dispatch comes from, and its body.
    """

    def __init__(
        self,
        own: str,
        delay_s: float,
        on_call: Callable[[str, dict[str, Any]], None] = lambda _address, _body: None,
    ) -> None:
        self._own = own
        self._delay_s = delay_s
        self._on_call = on_call
        self.calls_by_machine: Counter[str] = Counter()
        self.calls_by_event: Counter[str] = Counter()
        self.address = ""
        self._is_ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> CountingAgent:
        self._thread.start()
        self._is_ready.wait()
        return self

    def card(self, capability: str) -> dict[str, Any]:
        """Return the card under which it offers a capability for `PRICE_CREDITS`."""
        return {
            "did": f"did:demo:counting{time.time_ns()}",
            "name": "Counts dispatches",
            "endpoint": self.address,
            "version": 1,
            "capabilities": [{"id": capability, "description": "counts", "price_cents": 1}],
            "maxConcurrency": 64,
        }

    def __exit__(self, *_failure: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        runner = self._loop.run_until_complete(self._listen())
        self._is_ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())

    async def _listen(self) -> web.AppRunner:
        application = web.Application()
        application.router.add_post("/callboard/node", self._answer)
        # Callers that still wait when the load ends are not waited for.
        runner = web.AppRunner(application, shutdown_timeout=0.0)
        await runner.setup()
        await web.TCPSite(runner, self._own, 0, backlog=2_048).start()
        self.address = f"http://{self._own}:{runner.addresses[0][1]}"
        return runner

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        event = f"{body['workflowId']}/{body['nodeId']}"
        self._on_call(request.remote or "", body)
        self.calls_by_machine[request.remote or ""] += 1
        self.calls_by_event[event] += 1
        is_first = self.calls_by_event[event] == 1
        await asyncio.sleep(self._delay_s)
        if is_first and len(self.calls_by_event) % _TOLD_EVERY == 0:
            print(f"{len(self.calls_by_event)} nodes done", flush=True)
        reply = {"eventId": body["eventId"], "status": "success", "result": {"n": 1}}
        return web.json_response(reply)


def run_wide(arguments: argparse.Namespace) -> bool:
    """Publish graphs in which one node is followed by all others, in turn through each API.

    Returns: whether all succeeded, with dispatches from as many machines as are named.
    """
    manifest: dict[str, Any] = {
        "intent": "Count",
        "settings": {"maxBudgetCredits": arguments.nodes * PRICE_CREDITS * 1.2},
        "nodes": {
            f"n{number}": {"capabilityId": CAPABILITY, "payload": {"n": number}, "maxRetries": 5}
            for number in range(arguments.nodes)
        },
    }
    for name, node in manifest["nodes"].items():
        node["dependsOn"] = [] if name == "n0" else ["n0"]
    with (
        CountingAgent(arguments.own, arguments.delay) as agent,
        Client(arguments.urls[0], arguments.key) as admin,
    ):
        admin.deposit(1_000)
        admin.register_agent(agent.card(CAPABILITY))
        began = time.monotonic()
        urls = [arguments.urls[n % len(arguments.urls)] for n in range(arguments.workflows)]
        with ThreadPoolExecutor(max_workers=min(32, len(urls))) as pool:
            statuses = Counter(
                pool.map(lambda url: _publish_and_wait(url, arguments, manifest), urls)
            )
        took_s = time.monotonic() - began
        _print_spread(agent, statuses, took_s, arguments.workflows * arguments.nodes)
        is_spread = len(agent.calls_by_machine) >= arguments.machines
        return is_spread and statuses == Counter({"success": arguments.workflows})


def _publish_and_wait(url: str, arguments: argparse.Namespace, manifest: dict[str, Any]) -> str:
    """Publish through one API and wait for the end; where that API is lost, ask the others."""
    deadline = time.monotonic() + DEADLINE_S
    with Client(url, arguments.key) as client:
        workflow_id = client.publish(manifest).workflow_id
    status = "unknown"
    urls = [url, *(other for other in arguments.urls if other != url)]
    turn = 0
    while time.monotonic() < deadline:
        try:
            with Client(urls[turn % len(urls)], arguments.key, timeout_s=5.0) as client:
                status = client.workflow(workflow_id)["status"]
        except CallboardError:
            turn += 1
        if status not in ("pending", "running", "unknown"):
            return status
        time.sleep(0.5)
    return f"{status} after {DEADLINE_S:.0f} s"


def _print_spread(agent: CountingAgent, ends: Counter[str], took_s: float, nodes: int) -> None:
    repeated = sum(agent.calls_by_event.values()) - len(agent.calls_by_event)
    spread = ", ".join(
        f"{machine} {calls}" for machine, calls in sorted(agent.calls_by_machine.items())
    )
    print(
        f"{dict(ends)} in {took_s:.1f} s: {len(agent.calls_by_event)} of {nodes} nodes, dispatched"
        f" by {spread}; {repeated} called again",
        flush=True,
    )


def main() -> int:
    """Run one verb; exit status 0 if every workflow succeeded."""
    parser = argparse.ArgumentParser(prog="python -m scripts.cluster_demo.clients")
    parser.add_argument("verb", choices=("article", "wide"))
    parser.add_argument("own")
    parser.add_argument("key")
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--workflows", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--machines", type=int, default=1)
    parser.add_argument("--delay", type=float, default=0.0)
    arguments = parser.parse_args()
    if arguments.verb == "article":
        is_good = run_article(arguments.own, arguments.key, arguments.urls)
    else:
        is_good = run_wide(arguments)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
