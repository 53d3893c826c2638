"""`make federation-demo`: two regions on one machine, each with its own Ray, database and key.

1. Start the regions eu and us, each with an agent, and make them peers of each other.
2. An operator of us deposits credits for eu (`callboard peer fund`).
3. A payer in eu publishes a chain of three nodes; the middle one runs in us.
4. Print the ledgers of both regions side by side, and compare the books order by order.
5. End us. The same workflow runs again, and an agent in eu does the middle node.

Prints what it does with its times; exit status 1 at the first wrong result.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from callboard import Client

ROOT: Final = Path(__file__).resolve().parent.parent
PORTS: Final = {"eu": 8_110, "us": 8_120}
TRANSLATE, WRITE = "cap.translate.v1", "cap.write.v1"
WAIT_S: Final = 60.0
_BEGAN_S: Final = time.monotonic()


def say(text: str) -> None:
    """Print a line with its time."""
    print(f"{time.monotonic() - _BEGAN_S:6.1f} s  {text}", flush=True)


def expect(is_right: bool, what: str) -> None:
    """End the demo unless this is right."""
    if not is_right:
        raise SystemExit(f"wrong: {what}")


def wait(condition: Callable[[], bool], what: str) -> None:
    """Return when the condition holds."""
    until_s = time.monotonic() + WAIT_S
    while not condition():
        expect(time.monotonic() < until_s, f"waited in vain for {what}")
        time.sleep(0.1)


@contextmanager
def agent(region: str) -> Iterator[str]:
    """Serve an agent that says in which region it works; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            dispatch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            result = {"region": region, "inputs": dispatch["inputs"]}
            body = json.dumps({"status": "success", "result": result}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def supervise(verb: str, home: Path, *options: str) -> None:
    """Start or end a region by the command line."""
    command = [sys.executable, "-m", "serve_app.supervisor", verb, "--home", str(home), *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    expect(ended.returncode == 0, ended.stdout + ended.stderr)


def start(region: str, home: Path) -> Client:
    """Start a region and return its operator's client."""
    home.mkdir()
    (home / "callboard.toml").write_text(f'region = "{region}"\n', encoding="utf-8")
    supervise("up", home, "--port", str(PORTS[region]), "--detach")
    url = (home / "url").read_text(encoding="utf-8").strip()
    return Client(url, api_key=(home / "admin.key").read_text(encoding="utf-8").strip())


def register(client: Client, region: str, address: str, capability: str, cents: int) -> None:
    """Register an agent of one capability."""
    offered = {"id": capability, "description": "A demo's", "price_cents": cents}
    card = {"did": f"did:demo:{region}:{capability}", "endpoint": address, "version": 1}
    client.register_agent({**card, "capabilities": [offered]})


def add_peer(client: Client, name: str, other: Client) -> None:
    """Add the other region as a peer."""
    described = other.service_description()
    key = described["signingKeys"][0]["publicKey"]
    endpoint = f"http://127.0.0.1:{PORTS[name]}"
    client.add_peer(endpoint, name, key, peer_id=name, did=described["did"])


def chain() -> dict[str, Any]:
    """Return a chain of three nodes whose middle one asks for the region us."""
    middle = {"capabilityId": TRANSLATE, "region": "us", "dependsOn": ["write"], "timeoutMs": 6_000}
    middle["inputMappings"] = {"text": "$.write.result.inputs.text"}
    last = {"capabilityId": WRITE, "dependsOn": ["translate"]}
    last["inputMappings"] = {"text": "$.translate.result.inputs.text"}
    first = {"capabilityId": WRITE, "payload": {"text": "hello"}}
    return {"nodes": {"write": first, "translate": middle, "print": last}}


def show_books(eu: Client, us: Client) -> None:
    """Print what both ledgers say of the orders, side by side."""
    orders = {one["intent"]: one for one in us.workflows().rows}
    print(f"\n{'eu: order':<38} {'paid':>9} {'received':>9} | {'us: workflow':<38} {'charged':>8}")
    for line in eu.peer_statement("us").rows:
        there = orders.get(f"order {line.order_id}", {})
        print(
            f"{line.order_id:<38} {line.paid_credits:>9} {line.received_credits:>9} |"
            f" {there.get('id', '-'):<38} {there.get('spentCredits', '-'):>8}"
        )
    balance = eu.peer_balance("us")
    print(f"clearing account in eu: {balance.clearing_credits}, left in us: {balance.own_credits}")
    check = eu.check_peer("us")
    print(f"books agree: {check.agrees}, lost: {check.lost_credits}\n", flush=True)
    expect(check.agrees, f"the books differ: {check.differences}")


def run(stack: ExitStack, folder: Path) -> None:
    """Run the steps."""
    eu, us = (stack.enter_context(start(region, folder / region)) for region in PORTS)
    for region in PORTS:
        stack.callback(supervise, "down", folder / region)
    say("two regions run")  # 1
    here, there = (stack.enter_context(agent(region)) for region in PORTS)
    register(eu, "eu", here, WRITE, 10)
    register(us, "us", there, TRANSLATE, 100)
    add_peer(us, "eu", eu)
    add_peer(eu, "us", us)
    wait(lambda: bool(eu.peer("us").offers), "the offers of us")
    say(f"eu knows what us offers: {[one['id'] for one in eu.peer('us').offers]}")
    us.deposit(20, owner_did=us.peer("eu").did)  # 2
    eu.deposit(100)
    say("20 credits are deposited in us for eu")
    trial = {**chain(), "dryRun": True}
    wait(lambda: bool(eu.publish(trial)["candidates"]["translate"]), "a route")
    node = eu.publish(chain()).result(WAIT_S).nodes["translate"]  # 3
    expect(node.result["region"] == "us", str(node))
    say(f"the middle node ran in {node.selection['peer']['region']} and cost {node.cost_credits}")
    show_books(eu, us)  # 4
    register(eu, "eu", here, TRANSLATE, 100)
    supervise("down", folder / "us")  # 5
    say("us has ended")
    node = eu.publish(chain()).result(WAIT_S).nodes["translate"]
    expect(node.result["region"] == "eu", str(node))
    say(f"the middle node ran in eu, at attempt {node.attempts}, and was paid once")


def main() -> None:
    """Run the demo in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="regions-") as name, ExitStack() as stack:
        run(stack, Path(name))


if __name__ == "__main__":
    main()
