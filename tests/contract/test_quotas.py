"""Quotas, row by row.

Spec: Quota check result, Limits; money.md (Quotas).
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from tests.contract.conftest import (
    Caller,
    Json,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    refusal,
    unique,
    wait,
)


@pytest.fixture(autouse=True)
def one_day() -> None:
    """Begin no test in the last minute of a UTC day: in the next one everything counts anew."""
    wait(lambda: seconds_left() > 60, "the next day")


def seconds_left() -> float:
    """Return how long the UTC day still lasts."""
    return (datetime.fromisoformat(next_midnight()) - datetime.now(UTC)).total_seconds()


def set_quota(admin: Caller, did: str, **limits: int | None) -> Json:
    """Limit a payer."""
    return answer(admin.http.post(f"/v1/quotas/{did}", json=limits))


def check(caller: Caller, did: str, cents: int | None = None) -> Json:
    """Ask whether a payer could publish."""
    body = {} if cents is None else {"estimatedSpendCents": cents}
    return answer(caller.http.post(f"/v1/quotas/{did}/check", json=body))


def next_midnight() -> str:
    """Return the next UTC midnight as the API writes it."""
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    return f"{tomorrow}T00:00:00.000Z"


def test_without_a_quota_everything_is_allowed(payer: Caller) -> None:
    assert check(payer, payer.did, 10**6) == {
        "allowed": True,
        "reason": "No quota configured",
        "currentUsage": {"dailyWorkflows": 0, "dailySpendCents": 0, "concurrentWorkflows": 0},
        "limits": None,
        "resetsAt": next_midnight(),
    }
    answer(payer.http.post(f"/v1/quotas/{payer.did}/check"))
    read = answer(payer.http.get(f"/v1/quotas/{payer.did}"))
    assert (read["did"], read["limits"], read["setByDid"]) == (payer.did, None, None)


def test_a_quota_is_set_read_and_replaced(payer: Caller, admin: Caller) -> None:
    made = set_quota(admin, payer.did, maxWorkflowsPerDay=3, maxSpendPerDayCents=0)
    limits = {"maxWorkflowsPerDay": 3, "maxConcurrentWorkflows": None, "maxSpendPerDayCents": 0}
    assert made["limits"] == limits
    assert (made["success"], made["did"], made["setByDid"]) == (True, payer.did, admin.did)
    assert "currentUsage" not in made, "the right to set quotas is no right to read usage"
    read = answer(payer.http.get(f"/v1/quotas/{payer.did}"))
    assert {**read, "success": True} == {
        **made,
        "currentUsage": check(payer, payer.did)["currentUsage"],
        "resetsAt": next_midnight(),
    }
    assert set_quota(admin, payer.did, maxWorkflowsPerDay=None)["limits"] == {
        **limits,
        "maxWorkflowsPerDay": None,
    }
    assert set_quota(admin, payer.did, maxSpendPerDayCents=None)["maxSpendPerDayCents"] is None
    assert check(payer, payer.did)["reason"] == "Within quota"


def test_only_administrators_set_quotas_and_only_ones_own_is_seen(
    payer: Caller, make_caller: MakeCaller, admin: Caller
) -> None:
    path = f"/v1/quotas/{payer.did}"
    refusal(payer.http.post(path, json={}), 403, "INSUFFICIENT_SCOPE")
    stranger = make_caller()
    refusal(stranger.http.get(path), 404, "NOT_FOUND")
    refusal(stranger.http.post(f"{path}/check", json={}), 404, "NOT_FOUND")
    assert answer(admin.http.get(path))["did"] == payer.did


@pytest.mark.parametrize("value", [-1, 1.5, "3", True, 10**13])
def test_a_bad_limit_is_400(admin: Caller, payer: Caller, value: object) -> None:
    refused = admin.http.post(f"/v1/quotas/{payer.did}", json={"maxWorkflowsPerDay": value})
    assert refusal(refused, 400, "INVALID_REQUEST")["errors"][0]["path"] == "maxWorkflowsPerDay"
    asked = payer.http.post(f"/v1/quotas/{payer.did}/check", json={"estimatedSpendCents": -1})
    refusal(asked, 400, "INVALID_REQUEST")
    refusal(admin.http.post("/v1/quotas/somebody", json={}), 400, "INVALID_REQUEST")


def test_a_publish_beyond_the_days_workflows_is_429_until_midnight(
    payer: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(price_cents=10)
    set_quota(admin, payer.did, maxWorkflowsPerDay=1)
    payer.run(chain_of(agent.capability, "a"))
    refused = payer.publish(chain_of(agent.capability, "a"))
    reason = "Daily workflows: 1 of 1 are published"
    assert refusal(refused, 429, "QUOTA_EXCEEDED")["detail"] == reason
    assert abs(int(refused.headers["retry-after"]) - seconds_left()) < 60
    told = check(payer, payer.did)
    assert (told["allowed"], told["reason"]) == (False, reason)
    assert told["currentUsage"]["dailyWorkflows"] == 1


def test_what_runs_at_once_is_429_for_a_second_and_the_key_stays_good(
    payer: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(is_held=True)
    set_quota(admin, payer.did, maxConcurrentWorkflows=1)
    first = answer(payer.publish(chain_of(agent.capability, "a")))["workflowId"]
    key = {"Idempotency-Key": unique("k")}
    refused = payer.publish(chain_of(agent.capability, "a"), **key)
    refusal(refused, 429, "QUOTA_EXCEEDED")
    assert refused.headers["retry-after"] == "1"
    agent.stub.wait_dispatched()
    agent.stub.gate.set()
    payer.finished(f"/v1/workflows/{first}")
    answer(payer.publish(chain_of(agent.capability, "a"), **key))


def test_spend_counts_the_hold_and_then_the_cost(
    payer: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(price_cents=30)
    set_quota(admin, payer.did, maxSpendPerDayCents=100)
    payer.run(chain_of(agent.capability, "a", maxBudgetCredits=0.9))
    assert check(payer, payer.did, 70)["allowed"] is True
    told = check(payer, payer.did, 71)
    assert (told["allowed"], told["currentUsage"]["dailySpendCents"]) == (False, 30)
    refused = payer.publish(chain_of(agent.capability, "a", maxBudgetCredits=0.71))
    refusal(refused, 429, "QUOTA_EXCEEDED")
    payer.run(chain_of(agent.capability, "a", maxBudgetCredits=0.7))


def test_case_38_a_hundred_publishes_at_once_never_overshoot(
    admin: Caller, make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    """A quota of 10, a balance for 5, a budget for 3 nodes."""
    agent = make_agent(price_cents=10, is_held=True)
    limited, poor = make_caller(100), make_caller(0.5)
    set_quota(admin, limited.did, maxWorkflowsPerDay=10)

    def publish(caller: Caller) -> str:
        reply = caller.publish(chain_of(agent.capability, "a"))
        return str(reply.json().get("code", reply.status_code))

    callers = [limited, poor] * 100
    with ThreadPoolExecutor(32) as threads:
        told = list(threads.map(publish, callers))
    assert Counter(told[0::2]) == {"200": 10, "QUOTA_EXCEEDED": 90}
    assert Counter(told[1::2]) == {"200": 5, "INSUFFICIENT_CREDITS": 95}
    agent.stub.gate.set()

    wide: Json = {
        "nodes": {f"n{number}": {"capabilityId": agent.capability} for number in range(4)},
        "settings": {"maxBudgetCredits": 0.3},
    }
    payer = make_caller(1)
    failed = answer(payer.publish(wide))
    assert failed["status"] == "failed", "four nodes of 10 cents do not fit into 30"
    del wide["nodes"]["n3"]
    assert payer.run(wide)["spentCredits"] == 0.3
    assert payer.balance()["balance"] == 0.7
