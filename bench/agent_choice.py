"""What choosing an agent costs the owner of a workflow, for `bench.registry`: CPU microseconds."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Final

from actors.directory.agent_directory import Directory
from core.market.reputation import Tally
from core.trust.deployment_keys import DeploymentKeys
from core.workflow.actions import SelectAgent
from core.workflow.events import AgentSelected

CAPABILITY: Final = "cap.bench.v1"
ROUNDS, CALLS = 7, 2_000


def build_directory(agents: int) -> Directory:
    """Return a directory of agents that differ in price and reputation; some of them are new."""
    known = Directory(
        service="callboard",
        deployment_keys=DeploymentKeys(),
        default_secret=None,
        max_concurrency=32,
    )
    dids = [f"did:key:z6MkAgentOfABenchThatChoosesAmongMany{number:07}" for number in range(agents)]
    known.put(
        {
            "did": did,
            "owner_did": f"did:bench:{number % 50}",
            "card": json.dumps({"capabilities": [{"id": CAPABILITY, "price_cents": number % 7}]}),
            "endpoint": "http://127.0.0.1:9000",
            "status": "active",
            "public_key": None,
            "signing_secret": None,
        }
        for number, did in enumerate(dids)
    )
    known.standings.apply_tallies(
        {
            did: Tally(number % 40, number % 5, 0, number % 40 * number % 9_000)
            for number, did in enumerate(dids)
        }
    )
    return known


def median_us(call: Callable[[], object]) -> float:
    """Return CPU microseconds per call, of the median round."""
    spent_us = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(CALLS):
            call()
        spent_us.append((time.process_time() - began) / CALLS * 1e6)
    return statistics.median(spent_us)


class Choosing:
    """Choices among so many agents."""

    def __init__(self, agents: int) -> None:
        self._known = build_directory(agents)
        self._number = 0

    def choose(self) -> AgentSelected:
        """Choose for another node."""
        self._number += 1
        node = SelectAgent("n", CAPABILITY, None, False, (), 10**9, workflow_id=str(self._number))
        found = self._known.select(node, 0)
        assert isinstance(found, AgentSelected), found
        return found
