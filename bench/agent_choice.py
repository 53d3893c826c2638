"""Measures what choosing an agent costs: `python -m bench.agent_choice`. Decision 0063.

Prints CPU microseconds of one process: of a choice alone with its reasons, of a choice with the
beginning and the end of its order, and of computing the reasons for a reader.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from actors.directory.agent_directory import Directory
from actors.ports import Contact
from core.market.ranking import render_reasons
from core.market.reputation import Tally
from core.trust.deployment_keys import DeploymentKeys
from core.workflow.actions import SelectAgent
from core.workflow.events import AgentSelected

CAPABILITY: Final = "cap.bench.v1"
AGENTS: Final = (1, 2, 10, 100, 1_000, 10_000)
IN_FLIGHT: Final = 64
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
    """Choices among so many agents, and the orders that follow from them."""

    def __init__(self, agents: int) -> None:
        self._known = build_directory(agents)
        self._in_flight: deque[str] = deque()
        self._number = 0

    def choose(self) -> AgentSelected:
        """Choose for another node."""
        self._number += 1
        node = SelectAgent("n", CAPABILITY, None, False, (), 10**9, workflow_id=str(self._number))
        found = self._known.select(node, 0)
        assert isinstance(found, AgentSelected), found
        return found

    def work(self) -> None:
        """Choose, begin the order, and end the one that is open for the longest."""
        did = self.choose().agent_did
        self._known.begin(did)
        self._in_flight.append(did)
        if len(self._in_flight) > IN_FLIGHT:
            self._known.note_outcome(self._in_flight.popleft(), Contact.REACHED, 0)


def main() -> None:
    """Print what a choice costs beside the number of agents."""
    for agents in AGENTS:
        choosing = Choosing(agents)
        text = choosing.choose().selection_json or "{}"
        alone_us, working_us = median_us(choosing.choose), median_us(choosing.work)
        shown_us = median_us(partial(render_reasons, text))
        print(
            f"{agents:6} agents: {alone_us:5.1f} µs a choice, {working_us:5.1f} with the begin and"
            f" the end of an order; {len(text):5} bytes of reasons,"
            f" {len(render_reasons(text)):5} as they are shown, which takes {shown_us:5.1f} µs"
        )


if __name__ == "__main__":
    main()
