"""What every fault test ends with: all that was accepted has ended well, and the books balance."""

from __future__ import annotations

import sys

from tests.faults.books import bids_on_the_chain, books_problems, market_totals
from tests.faults.load import BIDDER, Load
from tests.platform.deployments import RunningDeployment


def check(load: Load, victim: RunningDeployment) -> None:
    """End the load; every accepted workflow must succeed, every payment must be right."""
    records = load.finish()
    wrong = [record for record in records if record["status"] != _expected(load, record["id"])]
    assert not wrong, f"{len(wrong)} of {len(records)}: {wrong[:3]}"
    assert not (problems := books_problems(victim)), problems
    assert load.refused_without_time == 0, "a 503 did not say when to come again"
    dispatched = load.dispatched()
    assert len(dispatched) >= 3 * len(records), "an agent did not write down a dispatch it answered"
    # A node that is to fail is asked for twice whatever happens.
    doomed = {(workflow_id, "c") for workflow_id in load.doomed}
    again = [n - 1 - (place in doomed) for place, n in dispatched.items()]
    again = [times for times in again if times > 0]
    if load.bids:
        unheard = load.bids - bids_on_the_chain(victim, BIDDER)
        assert not unheard, f"{len(unheard)} bids were taken and not heard: {list(unheard)[:3]}"
    sys.stdout.write(
        f"{len(records)} workflows ended; {len(again)} nodes were dispatched again"
        f" ({sum(again)} times); {load.refused} refused with 503\n"
        f"the market so far: {market_totals(victim)}\n"
    )


def _expected(load: Load, workflow_id: str) -> str:
    return "failed" if workflow_id in load.doomed else "success"
