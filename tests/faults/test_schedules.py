"""Each due time runs once, whichever process ends while due times are taken.

Goal: no due time is lost, none runs twice, and the books balance.
Method: schedules whose last hour of due times was missed, as after an outage; while they are taken
one after the other, the timekeeper, the ledger or an owner is killed at drawn numbers of runs.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import psycopg
import pytest

from tests.contract.conftest import answer
from tests.contract.stub_agent import stub_agent
from tests.faults.victims import kill, superuser_url, wait
from tests.ledger.checking import check_books
from tests.platform.deployments import RunningDeployment

pytestmark = pytest.mark.slow

Json = dict[str, Any]
SCHEDULES, MINUTES = 8, 60
MINUTE_MS = 60_000
KINDS = ("timekeeper", "ledger", "workflows")


def make_schedule(admin: httpx.Client, capability: str) -> str:
    """Create a schedule that is due every minute, paused."""
    node = {"capabilityId": capability, "payload": {}}
    body = {
        "name": "every minute", "cronExpression": "* * * * *", "overlapPolicy": "allow",
        "catchUpWindowMs": 24 * 60 * MINUTE_MS, "enabled": False,
        "workflowTemplate": {"nodes": {"a": node}, "settings": {"maxBudgetCredits": 0.01}},
    }  # fmt: skip
    return str(answer(admin.post("/v1/schedules", json=body))["id"])


def make_overdue(connection: psycopg.Connection, schedule_id: str) -> str:
    """Return a copy of a schedule, active, that came due first an hour ago."""
    row = connection.execute(
        "INSERT INTO callboard.trigger SELECT (json_populate_record(t, json_build_object("
        " 'id', %s::text, 'status', 'active', 'reason', NULL, 'due_ms',"
        " due.ms))).* FROM callboard.trigger t, (SELECT"
        " (extract(epoch FROM now())::bigint / 60 - %s) * 60000 AS ms) AS due"
        " WHERE t.id = %s RETURNING id::text, due_ms",
        (str(uuid.uuid4()), MINUTES, schedule_id),
    ).fetchone()
    assert row is not None
    return str(row[0])


def runs_of(connection: psycopg.Connection, ids: list[str]) -> list[tuple[Any, ...]]:
    """Return the trigger, due time, status and workflow of each run."""
    return connection.execute(
        "SELECT trigger_id::text, due_ms, status, workflow_id::text FROM callboard.trigger_run"
        " WHERE trigger_id = ANY(%s::uuid[]) ORDER BY due_ms",
        (ids,),
    ).fetchall()


def run_with_kills(victim: RunningDeployment, seed: int, kills: int) -> None:
    """Let an hour of due times run, and kill processes meanwhile."""
    draw = random.Random(seed)
    headers = {"x-api-key": victim.admin_key}
    capability = f"cap.test.due-{draw.getrandbits(64):x}.v1"
    with (
        httpx.Client(base_url=victim.url, headers=headers, timeout=60) as admin,
        psycopg.connect(superuser_url(victim), autocommit=True) as connection,
        stub_agent() as stub,
    ):
        offer = {"id": capability, "description": "d", "price_cents": 1}
        did = f"did:net:due-{draw.getrandbits(64):x}"
        card = {"did": did, "endpoint": stub.url, "version": 1, "capabilities": [offer]}
        answer(admin.post("/v1/agents/register", json={"acard": card}))
        answer(admin.post("/v1/ledger/deposit", json={"amount": 100}))
        answer(admin.post("/v1/stakes", json={"amount": 50, "agentDid": did}))
        paused = [make_schedule(admin, capability) for _ in range(SCHEDULES)]
        ids = [make_overdue(connection, one) for one in paused]
        struck: list[tuple[int, str]] = []

        def states() -> str:
            query = (
                "SELECT status, reason, runs, refusals FROM callboard.trigger WHERE id = ANY(%s)"
            )
            return f"all runs after {struck}: {connection.execute(query, (ids,)).fetchall()}"

        for number in sorted(draw.sample(range(SCHEDULES * (MINUTES - 5)), kills)):
            wait(lambda: len(runs_of(connection, ids)) >= number, states)  # noqa: B023
            struck.append((number, draw.choice(KINDS)))
            kill(victim, struck[-1][1])
        least = SCHEDULES * (MINUTES + 1)
        wait(lambda: len(runs_of(connection, ids)) >= least, states)
        for one in ids:
            answer(admin.delete(f"/v1/schedules/{one}"))
        runs = runs_of(connection, ids)
        assert {status for _, _, status, _ in runs} == {"started"}, (seed, struck)
        for one in ids:
            times = [due_ms for trigger_id, due_ms, _, _ in runs if trigger_id == one]
            expected = range(times[0], times[0] + len(times) * MINUTE_MS, MINUTE_MS)
            assert times == list(expected), (seed, struck)
        workflows = {workflow_id for _, _, _, workflow_id in runs}
        assert len(workflows) == len(runs)

        def published(where: str = "true") -> int:
            row = connection.execute(
                "SELECT count(*) FROM callboard.workflow"  # type: ignore[arg-type]
                f" WHERE template_id = ANY(%s::uuid[]) AND {where}",
                (ids,),
            ).fetchone()
            assert row is not None
            return int(row[0])

        assert published() == len(runs), (seed, struck)
        wait(lambda: published("completed_ms IS NULL") == 0, "the runs to end")
        assert published("status = 'success'") == len(runs), (seed, struck)
        assert answer(admin.get(f"/v1/balances/{did}"))["balance"] > 0
    check_books(superuser_url(victim))


def test_each_due_time_runs_once_with_processes_killed_at_random(
    victim: RunningDeployment,
) -> None:
    run_with_kills(victim, seed=13, kills=3)


@pytest.mark.soak
def test_each_due_time_runs_once_whatever_is_killed(
    victim: RunningDeployment, drawn_from: int, has_time: Callable[[], bool]
) -> None:
    """Many kills, of seeds that no other run has had."""
    for seed in range(drawn_from, drawn_from + 5):
        run_with_kills(victim, seed=seed, kills=10)
        if not has_time():
            break
