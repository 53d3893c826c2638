"""The service starts on the ledger of a deployment of before, and ends the work that it finds.

Goal: what owners read of rows, and what keys and tokens were derived from, stays readable; money
ends where it belongs to the micro-credit. Method: the dump is restored into a deployment's folder,
`up` migrates it and starts everything, real agents answer. Decision 0132.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from callboard.verify import verify_chain
from tests.contract.conftest import Caller, answer, client, wait
from tests.contract.stub_agent import Json, StubAgent, stub_agent
from tests.faults.books import books_problems
from tests.faults.victims import superuser_url
from tests.ledger.checking import Auditor
from tests.ledger.dumps.restoring import OLD_ENTRIES
from tests.platform.deployments import ROOT, RunningDeployment, free_port, start_deployment
from tests.platform.dumps import work
from tests.platform.dumps.restoring import FOLDER, restore_home

pytestmark = pytest.mark.slow

(DUMP,) = FOLDER.glob("*.sql")
KNOWN: Json = json.loads(DUMP.with_suffix(".json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def agents() -> Iterator[StubAgent]:
    """All agents of the dump, where they listen now."""
    with stub_agent(work.succeed) as serving:
        yield serving


@pytest.fixture(scope="module")
def restored(short_folder: Path, agents: StubAgent) -> Iterator[RunningDeployment]:
    """A deployment that was started on the dump."""
    home = short_folder / "restored"
    restore_home(home, DUMP, agents.url)
    running = start_deployment(home, port=free_port())
    yield running
    running.down()


@pytest.fixture(scope="module")
def admin(restored: RunningDeployment) -> Iterator[httpx.Client]:
    """The administrator, whose key is new: that of then was lost with its folder."""
    with client(restored.url, restored.admin_key) as http:
        yield http


@pytest.fixture(scope="module")
def payer(restored: RunningDeployment) -> Iterator[Caller]:
    """The payer, with the key of then."""
    key = KNOWN["keys"][work.PAYER]
    with client(restored.url, key) as http:
        yield Caller(work.PAYER, key, "", http)


@pytest.fixture(scope="module")
def records(restored: RunningDeployment, admin: httpx.Client, payer: Caller) -> dict[str, Json]:
    """The records of all workflows of the dump, by name, when everything has ended."""
    _hand_result_in(restored)
    ended = {
        name: payer.finished(f"/v1/workflows/{workflow_id}")
        for name, workflow_id in KNOWN["workflows"].items()
    }
    decision = {
        "status": "resolved_split",
        "resolution": "half of it",
        "creditsRefunded": work.REFUND_MICRO / work.CREDIT,
    }
    answer(admin.post(f"/v1/disputes/{KNOWN['disputeId']}/resolve", json=decision))
    return ended


def _hand_result_in(deployment: RunningDeployment) -> None:
    """Hand the result of the accepted node in; 503 says that its workflow is not restored yet."""
    replies: list[httpx.Response] = []
    body = {**KNOWN["accepted"], "status": "success", "result": {"n": 1}}
    with client(deployment.url) as agent:

        def is_answered() -> bool:
            replies.append(agent.post("/v1/workflows/nodeResult", json=body))
            return replies[-1].status_code != 503

        wait(is_answered, "the owner of the accepted node")
    answer(replies[-1])


def test_what_has_time_left_succeeds_and_what_is_past_its_deadline_is_timed_out(
    records: dict[str, Json],
) -> None:
    assert {name: record["status"] for name, record in records.items()} == {
        name: "timeout" if name == "expired" else "success" for name in work.SPENT_MICRO
    }
    spent = {name: round(one["spentCredits"] * work.CREDIT) for name, one in records.items()}
    assert spent == work.SPENT_MICRO
    large = records["large"]["nodes"]["b"]["result"]["inputs"]
    assert large["text"] == work.LARGE, "stored by its hash"


def test_every_wallet_holds_what_is_due_to_the_micro_credit(
    restored: RunningDeployment, records: dict[str, Json], admin: httpx.Client
) -> None:
    auditor = Auditor(superuser_url(restored))
    auditor.check()
    due = work.balances_micro()
    fee = auditor.one("SELECT balance FROM account WHERE kind = 'fee'")
    assert {"fee": fee} | {did: auditor.balance(did) for did in due if did != "fee"} == due
    kept = "SELECT coalesce(sum(balance), 0) FROM account WHERE kind IN ('escrow', 'stake_locked')"
    assert auditor.one(kept) == 0
    auditor.close()
    assert not (problems := books_problems(restored)), problems
    for did in work.STAKED:
        assert answer(admin.get(f"/v1/stakes/{did}"))["stakedAmount"] == work.STAKE_CREDITS


def test_a_dispatch_is_signed_with_the_secret_that_was_sealed_then(
    records: dict[str, Json], agents: StubAgent
) -> None:
    (dispatch,) = (
        one for one in agents.dispatches if one["workflowId"] == KNOWN["workflows"]["signed"]
    )
    body = json.dumps(dispatch, separators=(",", ":"), ensure_ascii=False).encode()
    expected = hmac.new(work.SIGNING_SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert expected in [headers.get("x-callboard-signature") for headers in agents.headers]


def test_the_chain_is_whole_from_its_first_entry_on(
    restored: RunningDeployment, records: dict[str, Json], admin: httpx.Client
) -> None:
    # The first read by the single right is noted on the chain, once an hour, beside its reply.
    wait(
        lambda: bool(answer(admin.get("/v1/audit?limit=1&eventType=right.used"))["entries"]),
        "the note of the first read",
    )
    page = answer(admin.get("/v1/audit?limit=50"))
    entries = page["entries"]
    while page["nextCursor"] is not None:
        page = answer(admin.get(f"/v1/audit?limit=50&cursor={page['nextCursor']}"))
        entries += page["entries"]
    chain = verify_chain(entries)
    assert chain.entries > len(OLD_ENTRIES.read_bytes().splitlines())
    verified = subprocess.run(
        [sys.executable, "-m", "callboard.cli", "audit", "verify", "--output", "json"],
        env={
            **os.environ,
            "CALLBOARD_URL": restored.url,
            "CALLBOARD_API_KEY": restored.admin_key,
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    said = json.loads(verified.stdout)
    assert said == {"intact": True, "entries": chain.entries, "headHash": chain.head_hash}


def test_new_work_follows_the_old(records: dict[str, Json], payer: Caller) -> None:
    before = payer.balance()["balance"]
    record = payer.run({"nodes": {"a": {"capabilityId": work.WORK}}})
    assert record["status"] == "success", record
    assert record["nodes"]["a"]["agentDid"] == work.WORKER, "not the revoked one, which costs less"
    spent = round((before - payer.balance()["balance"]) * work.CREDIT)
    assert spent == work.WORK_MICRO
