"""What is due about identity happens once, wherever a timekeeper ends.

Goal: a dead man's switch gives each agent to its heir once, and a time lock replaces each key once.
Method: rows are dated into the past in turns, so that they are due; the timekeeper is killed at
drawn moments: before it looks, among what it does, as its successor begins.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Callable
from typing import Any

import httpx
import psycopg
import pytest
from nacl.signing import SigningKey

from tests.contract.conftest import answer
from tests.faults.victims import kill, superuser_url, wait
from tests.ledger.checking import check_books
from tests.platform.deployments import RunningDeployment

pytestmark = pytest.mark.slow

Json = dict[str, Any]
AGENTS = 4  # in a turn, every second one with a switch, the others with a time lock
CREDITS = 2
# A round of the timekeeper and the start of its successor lie within it.
MOMENT_S_MAX = 4.0
RUNS = 5


def new_key(seed: str) -> str:
    """Return a public key."""
    raw = bytes(SigningKey(seed.encode().ljust(32, b".")[:32]).verify_key)
    return base64.b64encode(raw).decode()


def prepare(admin: httpx.Client, did: str, heir: str | None) -> None:
    """Register an agent with credits, and with an heir or a time lock that has begun."""
    capability = {"id": "cap.test.heir.v1", "description": "d"}
    card = {"did": did, "endpoint": "", "version": 1, "capabilities": [capability]}
    card |= {"endpoint": "http://127.0.0.1:9", "publicKey": new_key(f"{did[-24:]}:old")}
    answer(admin.post("/v1/agents/register", json={"acard": card}))
    answer(admin.post("/v1/ledger/deposit", json={"amount": CREDITS, "ownerDid": did}))
    if heir is not None:
        body: Json = {"agentDid": did, "inheritsToDid": heir, "deadManSwitchDays": 1}
        answer(admin.post("/v1/identity/inheritance", json=body))
        return
    guardians = {"guardians": [], "threshold": 0, "delayHours": 1}
    answer(admin.put(f"/v1/identity/guardians/{did}", json=guardians))
    body = {"agentDid": did, "recoveryType": "time_lock_recovery"}
    body |= {"newPublicKey": new_key(f"{did[-24:]}:new")}
    assert answer(admin.post("/v1/identity/recover", json=body))["status"] == "waiting"


class Rows:
    """What the database has of the agents of this test."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def make_due(self, dids: list[str]) -> None:
        """Date these agents' switches and time locks into the past."""
        with self._connection.transaction():
            for statement in (
                "UPDATE callboard.inheritance SET set_ms = set_ms - 2 * 86400000"
                " WHERE agent_did = ANY(%s)",
                "UPDATE callboard.recovery SET waiting_ms = waiting_ms - 2 * 3600000"
                " WHERE agent_did = ANY(%s)",
            ):
                self._connection.execute(statement, (dids,))

    def done(self, dids: list[str]) -> list[str]:
        """Return the targets of what was done, one for each event."""
        rows = self._connection.execute(
            "SELECT event_type || ' ' || target_id FROM callboard.audit_event"
            " WHERE event_type IN ('agent.inherited', 'agent.recovered') AND target_id = ANY(%s)",
            (dids,),
        ).fetchall()
        return [row[0] for row in rows]


def kill_at_random(victim: RunningDeployment, draw: random.Random) -> None:
    """Kill the timekeeper at a drawn moment, and sometimes its successor at another."""
    pid = None
    for _ in range(draw.choice((1, 1, 2))):
        moment = time.monotonic() + draw.uniform(0, MOMENT_S_MAX)
        wait(lambda: time.monotonic() >= moment, "the moment")  # noqa: B023
        pid = kill(victim, "timekeeper", after=pid)


def run_with_kills(victim: RunningDeployment, seed: int, turns: int) -> None:
    """Let switches and time locks run in turns, in each of which the timekeeper is killed."""
    draw = random.Random(seed)
    headers = {"x-api-key": victim.admin_key}
    everyone: list[str] = []
    with (
        httpx.Client(base_url=victim.url, headers=headers, timeout=60) as admin,
        psycopg.connect(superuser_url(victim), autocommit=True) as connection,
    ):
        rows, heir = Rows(connection), f"did:net:heir-{draw.getrandbits(64):x}"
        for _ in range(turns):
            dids = [f"did:net:due-{draw.getrandbits(64):x}" for _ in range(AGENTS)]
            everyone += dids
            for number, did in enumerate(dids):
                prepare(admin, did, heir if number % 2 else None)
            rows.make_due(dids)
            kill_at_random(victim, draw)
        wait(lambda: len(rows.done(everyone)) >= len(everyone), "all of it to be done")
        done = rows.done(everyone)
        assert sorted(done) == sorted(set(done)), f"each once, seed {seed}"
        balance = answer(admin.get(f"/v1/balances/{heir}"))["balance"]
        assert balance == CREDITS * len(everyone) // 2
        for did in everyone[::2]:
            page = answer(admin.get(f"/v1/trust/key-history/{did}"))["keyHistory"]
            assert [key["publicKey"] for key in page] == [
                new_key(f"{did[-24:]}:new"), new_key(f"{did[-24:]}:old"),
            ]  # fmt: skip
    check_books(superuser_url(victim))


def test_each_runs_once_with_the_timekeeper_killed_at_random(victim: RunningDeployment) -> None:
    run_with_kills(victim, seed=8, turns=2)


@pytest.mark.soak
def test_each_runs_once_whenever_the_timekeeper_is_killed(
    victim: RunningDeployment, drawn_from: int, has_time: Callable[[], bool]
) -> None:
    """Many turns, of seeds that no other run has had."""
    for seed in range(drawn_from, drawn_from + RUNS):
        run_with_kills(victim, seed=seed, turns=10)
        if not has_time():
            break
