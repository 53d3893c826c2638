"""A peer that is killed, frozen, slowed or cut off while workflows run across two regions.

Method: the region `us` is reached through a relay that can delay and hold back bytes. 50 workflows
a second are published here, each with one node that asks for `us`; an agent here offers the same.
During the trouble and after it each accepted workflow ends well and is paid once; after it both
books agree, but for what the peer charged for orders that had ended here, which the check names.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from callboard import Client
from tests.contract.conftest import answer, client
from tests.contract.stub_agent import stub_agent
from tests.contract.test_federation import PEERS, addition, describe
from tests.faults.victims import find_all, frozen, kill, wait
from tests.platform.deployments import RunningDeployment, free_port, start_deployment

Json = dict[str, Any]
CAPABILITY, RATE, TROUBLE_S = "cap.across.v1", 50, 8.0
TIMEOUT_MS = 6_000
# After an attempt's timeout its node has an end elsewhere within this time.
REROUTED_S = 10.0
QUIET_SETTINGS = (
    "owner_silence_ms = 60_000\nledger_silence_ms = 60_000\ntimekeeper_silence_ms = 60_000\n"
    "serve_silence_ms = 60_000\n"
)


@dataclass
class Relay:
    """Passes the bytes of connections on; `delay_s` late, and none while `is_cut`."""

    to: int
    port: int = 0
    delay_s: float = 0.0
    is_cut: bool = False
    sockets: list[socket.socket] = field(default_factory=list)

    def serve(self, server: socket.socket) -> None:
        """Accept connections until the socket is closed."""
        while True:
            try:
                near, _ = server.accept()
            except OSError:
                return
            self.sockets.append(near)
            try:
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                near.close()
            else:
                self.sockets.append(far)
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self.pump, args=(one, other), daemon=True).start()

    def pump(self, source: socket.socket, target: socket.socket) -> None:
        """Pass on what one side sends."""
        with suppress(OSError):
            while data := source.recv(65_536):
                time.sleep(self.delay_s)
                while self.is_cut:
                    time.sleep(0.05)
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def relay(to: int) -> Iterator[Relay]:
    """Serve a relay to a port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = Relay(to, server.getsockname()[1])
        threading.Thread(target=made.serve, args=(server,), daemon=True).start()
        yield made
        for one in made.sockets:
            one.close()


@dataclass
class Regions:
    """Two regions, the relay between them, and the operator's clients of both."""

    us: RunningDeployment
    relay: Relay
    here: httpx.Client
    there: httpx.Client
    books: Client
    did: str
    clearing_did: str
    local_did: str

    def balance(self, did: str) -> float:
        """Return what a DID has here."""
        query = {"ownerDid": did}
        return float(answer(self.here.get("/v1/ledger/balance", params=query))["balance"])


def start_region(
    stack: ExitStack, folder: Path, name: str, port: int, more: str = ""
) -> tuple[RunningDeployment, httpx.Client]:
    """Start a region with an agent and a rich operator; return it and the operator's client.

    Args:
        more: settings.
    """
    home = folder / f"peer-{name}"
    home.mkdir()
    text = f'region = "{name}"\n{QUIET_SETTINGS}{more}'
    (home / "callboard.toml").write_text(text, encoding="utf-8")
    running = start_deployment(home, port=port)
    stack.callback(running.down)
    http = stack.enter_context(client(running.url, running.admin_key))
    stub = stack.enter_context(stub_agent())
    offered = {"id": CAPABILITY, "description": "A test's", "price_cents": 1}
    card = {"did": f"did:net:{name}", "endpoint": stub.url, "version": 1}
    card |= {"capabilities": [offered], "maxConcurrency": 64}
    answer(http.post("/v1/agents/register", json={"acard": card}))
    answer(http.post("/v1/ledger/deposit", json={"amount": 10_000}))
    return running, http


@pytest.fixture(scope="module")
def regions(short_folder: Path) -> Iterator[Regions]:
    """Start both regions, each a peer of the other."""
    with ExitStack() as stack:
        port = free_port()
        passed = stack.enter_context(relay(port))
        urls = f'signed_urls = ["http://127.0.0.1:{passed.port}"]\n'
        eu, here = start_region(stack, short_folder, "eu", free_port())
        us, there = start_region(stack, short_folder, "us", port, urls)
        home_peer = {"peerId": "eu", **addition(eu.url, describe(here))}
        did = answer(there.post(PEERS, json=home_peer))["did"]
        url = f"http://127.0.0.1:{passed.port}"
        us_peer = {"peerId": "us", **addition(url, describe(there))}
        clearing_did = answer(here.post(PEERS, json=us_peer))["clearingDid"]
        answer(there.post("/v1/ledger/deposit", json={"amount": 1_000, "ownerDid": did}))
        books = stack.enter_context(Client(eu.url, api_key=eu.admin_key))
        found = Regions(us, passed, here, there, books, did, clearing_did, "did:net:eu")
        wait(lambda: runs_across(found), "a node that runs in us")
        yield found


def manifest() -> Json:
    node = {"capabilityId": CAPABILITY, "region": "us", "timeoutMs": TIMEOUT_MS}
    return {"nodes": {"n": node}}


def publish(regions: Regions, seconds: float) -> list[str]:
    """Publish workflows at the rate for so long; return their ids."""
    ids: list[str] = []
    began_s = time.monotonic()
    while (now_s := time.monotonic() - began_s) < seconds:
        response = regions.here.post("/v1/workflows/publish", json=manifest())
        ids.append(answer(response)["workflowId"])
        time.sleep(max(0.0, len(ids) / RATE - now_s))
    return ids


def runs_across(regions: Regions) -> bool:
    """Say whether a node runs in the other region now."""
    headers = {"Prefer": "wait=30"}
    response = regions.here.post("/v1/workflows/publish", json=manifest(), headers=headers)
    return bool(answer(response)["nodes"]["n"]["agentDid"] == regions.clearing_did)


@contextmanager
def killed(regions: Regions) -> Iterator[None]:
    """Kill what answers for the region; its supervisor starts it anew."""
    for kind in ("proxy", "replica", "workflows", "ledger"):
        kill(regions.us, kind)
    yield


@contextmanager
def stopped(regions: Regions) -> Iterator[None]:
    kinds = ("proxy", "replica", "workflows", "ledger", "timekeeper")
    with frozen([pid for kind in kinds for pid in find_all(regions.us, kind)]):
        yield


@contextmanager
def cut_off(regions: Regions) -> Iterator[None]:
    regions.relay.is_cut = True
    yield
    regions.relay.is_cut = False


@contextmanager
def slowed(regions: Regions) -> Iterator[None]:
    regions.relay.delay_s = 2.0
    yield
    regions.relay.delay_s = 0.0


TROUBLES: tuple[Callable[[Regions], Any], ...] = (killed, stopped, cut_off, slowed)


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda one: one.__name__)
def test_no_work_is_lost_and_nothing_is_paid_twice(
    regions: Regions, trouble: Callable[[Regions], Any]
) -> None:
    wait(lambda: runs_across(regions), "a node that runs in us")
    before = {did: regions.balance(did) for did in (regions.clearing_did, regions.local_did)}
    ids = publish(regions, 1.0)
    with trouble(regions):
        ids += publish(regions, TROUBLE_S)
    ids += publish(regions, 1.0)
    ends_s = time.monotonic() + TIMEOUT_MS / 1_000 + REROUTED_S
    records = []
    for workflow_id in ids:
        left_s = max(0.0, ends_s - time.monotonic())
        headers = {"Prefer": f"wait={left_s:.1f}"}
        path = f"/v1/workflows/{workflow_id}"
        records.append(answer(regions.here.get(path, headers=headers)))
    assert {one["status"] for one in records} == {"success"}, [
        one["nodes"]["n"] for one in records if one["status"] != "success"
    ][:3]
    by = [one["nodes"]["n"]["agentDid"] for one in records]
    assert set(by) <= {regions.clearing_did, regions.local_did}
    # A peer that is slow, but in time, keeps its nodes.
    assert trouble is slowed or regions.local_did in by, "the trouble was felt"

    # Each is paid once: what both accounts got is the price of each node, less the fee of 5 %.
    across = by.count(regions.clearing_did)
    got = {did: regions.balance(did) - had for did, had in before.items()}
    assert got[regions.clearing_did] == pytest.approx(0.01 * across, abs=1e-6)
    assert got[regions.local_did] == pytest.approx(0.0095 * (len(by) - across), abs=1e-6)
    wait(lambda: runs_across(regions), "a node that runs in us again")

    def agrees() -> bool:
        found = regions.books.check_peer("us")
        assert found.agrees, found
        return not found.open_orders

    wait(agrees, "the end of all orders")
