"""What every fault test ends with: all that was accepted has ended well, and the books balance."""

from __future__ import annotations

import sys

from tests.conftest import RunningDeployment
from tests.faults.books import books_problems
from tests.faults.load import Load


def check(load: Load, victim: RunningDeployment) -> None:
    """End the load; every accepted workflow must succeed, every payment must be right."""
    records = load.finish()
    failed = [record for record in records if record["status"] != "success"]
    assert not failed, f"{len(failed)} of {len(records)}: {failed[:3]}"
    assert not (problems := books_problems(victim)), problems
    assert load.refused_without_time == 0, "a 503 did not say when to come again"
    dispatched = load.dispatched()
    assert len(dispatched) >= 3 * len(records), "an agent did not write down a dispatch it answered"
    repeated = [times for times in dispatched.values() if times > 1]
    sys.stdout.write(
        f"{len(records)} workflows ended; {len(repeated)} nodes were dispatched again"
        f" ({sum(repeated) - len(repeated)} times); {load.refused} refused with 503\n"
    )
