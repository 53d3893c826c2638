"""Three regions, each a peer of both others: nodes of one workflow run in all of them.

After each test every pair of books agrees order by order. Reference: features.md (Routing between
regions).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from typing import Any

import httpx
import pytest

from callboard import Client
from tests.contract.conftest import answer
from tests.contract.test_federation import PEERS, addition, describe
from tests.faults.test_peers import CAPABILITY, TIMEOUT_MS, start_region
from tests.faults.victims import find_all, frozen, wait
from tests.platform.deployments import RunningDeployment, free_port

Json = dict[str, Any]
NAMES = ("ap", "eu", "us")
PREFUND = 100.0


class Region:
    """A region with its operator's clients."""

    def __init__(self, stack: ExitStack, folder: Path, name: str) -> None:
        self.name = name
        self.running: RunningDeployment
        self.http: httpx.Client
        more = 'fallback_regions = ["ap", "us"]\n'
        self.running, self.http = start_region(stack, folder, name, free_port(), more)
        url, key = self.running.url, self.running.admin_key
        self.books = stack.enter_context(Client(url, api_key=key))

    def add(self, other: Region) -> None:
        """Add the other region as a peer, which has credits here."""
        named = {"peerId": other.name, **addition(other.running.url, describe(other.http))}
        did = answer(self.http.post(PEERS, json=named))["did"]
        answer(self.http.post("/v1/ledger/deposit", json={"amount": PREFUND, "ownerDid": did}))

    def run(self, nodes: Json) -> Json:
        """Run a workflow; return its record."""
        body = {"nodes": nodes, "settings": {"federate": True}}
        headers = {"Prefer": "wait=30"}
        return answer(self.http.post("/v1/workflows/publish", json=body, headers=headers))

    def runs_in(self, region: str) -> str:
        """Return where a node runs that asks for a region."""
        node = {"capabilityId": CAPABILITY, "region": region, "timeoutMs": TIMEOUT_MS}
        return place(self.run({"n": node})["nodes"]["n"])


def place(node: Json) -> str:
    """Return the region in which a node ran, "" for its own."""
    return str(node.get("selection", {}).get("peer", {}).get("region", ""))


@pytest.fixture(scope="module")
def regions(short_folder: Path) -> Iterator[dict[str, Region]]:
    with ExitStack() as stack:
        made = {name: Region(stack, short_folder, name) for name in NAMES}
        for one, other in permutations(made.values(), 2):
            one.add(other)
        for one, other in permutations(made.values(), 2):
            wait(lambda a=one, b=other: a.runs_in(b.name) == b.name, "a node that runs there")
        yield made


@pytest.fixture(autouse=True)
def _books_agree(regions: dict[str, Region]) -> Iterator[None]:
    yield
    for one, other in permutations(regions.values(), 2):
        wait(lambda a=one, b=other: a.books.check_peer(b.name).agrees, "books that agree")


def test_one_workflow_runs_in_three_regions(regions: dict[str, Region]) -> None:
    before = {
        (one.name, other.name): one.books.peer_balance(other.name).clearing_credits
        for one, other in permutations(regions.values(), 2)
    }
    for one in regions.values():
        others = [name for name in NAMES if name != one.name]
        nodes: Json = {"own": {"capabilityId": CAPABILITY}}
        for name in others:
            nodes[name] = {"capabilityId": CAPABILITY, "region": name, "dependsOn": ["own"]}
        record = one.run(nodes)
        assert record["status"] == "success", record
        assert {name: place(node) for name, node in record["nodes"].items()} == {
            "own": "",
            **{name: name for name in others},
        }
    for (name, other), held in before.items():
        now = regions[name].books.peer_balance(other).clearing_credits
        assert now - held == pytest.approx(0.01, abs=1e-9), (name, other)


def test_a_region_that_does_not_answer_is_replaced_by_the_next_in_order(
    regions: dict[str, Region],
) -> None:
    """And takes work again when it is back."""
    eu, us = regions["eu"], regions["us"]
    with frozen([*find_all(us.running, "proxy"), *find_all(us.running, "replica")]):
        # On a busy machine ap may be too late, too: then an agent here does the work.
        wait(lambda: eu.runs_in("us") == "ap", "a node that runs in ap")
    wait(lambda: eu.runs_in("us") == "us", "a node that runs in us again")
