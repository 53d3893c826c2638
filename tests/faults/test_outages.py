"""Postgres away, and processes that freeze and come back believing that nothing has happened.

Goal: while Postgres is away publishes are told to come again, replies of agents wait with the time
of their arrival, nothing is lost. Who was replaced while it was frozen is fenced off and ends.
Method: SIGSTOP and SIGCONT, and a supervisor that is kept from starting Postgres again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import psycopg
import pytest

from ledger.embedded.server import DATABASE, SERVICE, EmbeddedPostgres
from ledger.writer.store import Genesis, LedgerStore
from serve_app.supervisor.deployment import run_folder_of
from tests.faults.checks import check
from tests.faults.load import Load
from tests.faults.market_load import chain
from tests.faults.victims import (
    await_one,
    find_all,
    frozen,
    kill,
    postgres_frozen,
    superuser_url,
    wait,
)
from tests.ledger.making import ToldLives
from tests.platform.deployments import RunningDeployment

pytestmark = pytest.mark.slow

PROGRESS = 10
SHORT_OUTAGE_S = 10.0
LONG_OUTAGE_S = 30.0
AGENT_DELAY_S = 3.0
# A reply that is dated by its commit, or by a try of it, is dated later than this before the end.
BEFORE_END_MS = 1_000


@contextmanager
def postgres_killed(victim: RunningDeployment) -> Iterator[None]:
    """Postgres is gone, and the supervisor may start it again only after the block."""
    with frozen([await_one(victim, "supervisor")]):
        kill(victim, "postgres")
        yield


def during_outage(
    victim: RunningDeployment,
    load: Load,
    outage: Callable[[RunningDeployment], object],
    outage_s: float,
) -> None:
    """Agents answer in the middle of an outage; see what became of it afterwards."""
    load.wait_progress(PROGRESS)
    slow = [load.publish(chain(delay_s=AGENT_DELAY_S)) for _ in range(5)]
    # Their first dispatch has reached an agent: the reply comes while Postgres is away.
    wait(lambda: set(slow) <= load.workflows_seen(), "dispatches")
    refused_before = load.refused
    with outage(victim):  # type: ignore[attr-defined]
        time.sleep(outage_s)  # the length of the outage is what is tested
        # A caller that waits for a silent Postgres gives up after a while.
        wait(lambda: load.refused > refused_before, "a publish that is refused")
        ends_ms = time.time_ns() // 1_000_000
    load.wait_progress(PROGRESS)
    check(load, victim)
    for workflow_id, arrived_ms in first_arrivals(victim, slow).items():
        assert arrived_ms < ends_ms - BEFORE_END_MS, (
            f"the reply is dated by its commit, not its arrival: {workflow_id}"
        )


def first_arrivals(victim: RunningDeployment, ids: list[str]) -> dict[str, int]:
    """Return when the successful reply of node `a` arrived, by workflow."""
    query = (
        "SELECT workflow_id::text, completed_ms FROM callboard.attempt WHERE node = 'a'"
        " AND outcome = 'success' AND kind = 'primary' AND workflow_id = ANY(%s::uuid[])"
    )
    with psycopg.connect(superuser_url(victim)) as connection:
        found = dict(connection.execute(query, (ids,)).fetchall())
    assert set(found) == set(ids)
    return found


def is_running(pid: int) -> bool:
    """Say whether the process still exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


OUTAGES = {"frozen": postgres_frozen, "killed": postgres_killed}


@pytest.mark.parametrize("kind", OUTAGES)
def test_postgres_away_for_a_while(kind: str, victim: RunningDeployment, load: Load) -> None:
    during_outage(victim, load, OUTAGES[kind], SHORT_OUTAGE_S)


@pytest.mark.soak
@pytest.mark.parametrize("kind", OUTAGES)
def test_postgres_away_for_half_a_minute(kind: str, victim: RunningDeployment, load: Load) -> None:
    during_outage(victim, load, OUTAGES[kind], LONG_OUTAGE_S)


def test_a_frozen_owner_is_replaced_and_ends(victim: RunningDeployment, load: Load) -> None:
    """Longer silent than an owner may be; the process that comes back must not go on."""
    load.wait_progress(PROGRESS)
    old = await_one(victim, "workflows")
    with frozen([old]):
        wait(
            lambda: not is_running(old) or any(p != old for p in find_all(victim, "workflows")),
            "the end of the frozen owner, or its successor",
        )
    wait(lambda: not is_running(old), "the end of the owner that was replaced")
    load.wait_progress(PROGRESS)
    check(load, victim)


def test_a_frozen_ledger_is_replaced_and_ends(victim: RunningDeployment, load: Load) -> None:
    """Nothing wakes it up: commits go on by its successor, which the timekeeper asked for."""
    load.wait_progress(PROGRESS)
    old = await_one(victim, "ledger")
    with frozen([old]):
        wait(lambda: any(p != old for p in find_all(victim, "ledger")), "its successor")
        load.wait_progress(PROGRESS)
    wait(lambda: not is_running(old), "the end of the ledger that was replaced")
    check(load, victim)


def test_a_frozen_ledger_gives_the_head_to_a_second_one(
    victim: RunningDeployment, load: Load
) -> None:
    """A second writer takes the head; the first wakes up, stands by and takes it back."""
    load.wait_progress(PROGRESS)
    old = await_one(victim, "ledger")
    server = EmbeddedPostgres(victim.home, run_folder_of(victim.home))

    async def take_over() -> None:
        store = await LedgerStore.open(
            server.url_for(SERVICE, DATABASE),
            genesis=Genesis("never", 0),
            now_ms=0,
            leases=ToldLives(),
        )
        await store.close()

    with frozen([old]):
        asyncio.run(take_over())
    load.wait_progress(PROGRESS)
    check(load, victim)
    assert "ledger lost" in (victim.home / "logs" / "ledger.jsonl").read_text(encoding="utf-8")
