"""Single rights: what an operator's key may do with one of them, and that no caller may without."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from core.trust.access import DEFAULT_SCOPES
from tests.contract.conftest import (
    Caller,
    Damage,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    refusal,
    unique,
    wait,
)
from tests.contract.test_quarantine import quarantined

Ask = Callable[[Caller, str], httpx.Response]


def set_price(caller: Caller, did: str) -> httpx.Response:
    """Register the price of a new capability."""
    path = f"/v1/capabilities/{unique('cap.test.')}.v1/price"
    return caller.http.put(path, json={"price_cents": 3})


def set_quota(caller: Caller, did: str) -> httpx.Response:
    """Limit a payer."""
    did = unique("did:net:q-")
    return caller.http.post(f"/v1/quotas/{did}", json={"maxConcurrentWorkflows": 3})


def revoke(caller: Caller, did: str) -> httpx.Response:
    """Revoke another's agent."""
    body = {"did": did, "reason": "It lies.", "evidence": {"seen": 1}}
    return caller.http.post("/v1/trust/revoke", json=body)


@pytest.mark.parametrize(
    ("right", "ask"),
    [("prices:write", set_price), ("quotas:write", set_quota), ("trust:revoke", revoke)],
)
def test_a_single_right_opens_its_own_door_alone(
    make_caller: MakeCaller, make_agent: MakeAgent, right: str, ask: Ask
) -> None:
    agent = make_agent()
    usual = make_caller(scopes=list(DEFAULT_SCOPES))
    assert ask(usual, agent.did).status_code == 403
    operator = make_caller(scopes=[*DEFAULT_SCOPES, right])
    answer(ask(operator, agent.did))
    others = {"prices:write": set_quota, "quotas:write": revoke, "trust:revoke": set_price}
    assert others[right](operator, make_agent().did).status_code == 403


def test_every_use_of_a_single_right_is_audited_with_its_reason(
    make_caller: MakeCaller, make_agent: MakeAgent, admin: Caller
) -> None:
    """Of the rights, and of `admin` on behalf of another; never where a usual key would do."""
    did = make_agent(owner=(owner := make_caller())).did
    operator = make_caller(scopes=[*DEFAULT_SCOPES, "trust:revoke", "quotas:write"])
    reason = {"x-callboard-reason": "Reported by ä customer."}
    sent = {name: text.encode() for name, text in reason.items()}
    body = {"did": did, "reason": "It lies.", "evidence": {}}
    answer(operator.http.post("/v1/trust/revoke", json=body, headers=sent))
    quota = unique("did:net:q-")
    answer(operator.http.post(f"/v1/quotas/{quota}", json={"maxConcurrentWorkflows": 3}))
    answer(admin.http.delete(f"/v1/keys/{owner.key_id}", headers=sent))
    own = unique("did:net:own-")
    answer(operator.http.post("/v1/keys", json={"name": own}))
    found = {
        (target, event): answer(
            admin.http.get("/v1/audit", params={"targetId": target, "eventType": event})
        )["entries"][0]["payload"].get("authority")
        for target, event in (
            (did, "agent.revoked"), (quota, "quota.set"), (owner.key_id, "key.revoked"),
        )
    }  # fmt: skip
    assert list(found.values()) == [
        {"right": "trust:revoke", "reason": "Reported by ä customer."},
        {"right": "quotas:write", "reason": ""},
        {"right": "admin", "reason": "Reported by ä customer."},
    ]
    newest = answer(admin.http.get("/v1/audit", params={"eventType": "key.created"}))["entries"][0]
    assert newest["actorDid"] == operator.did
    assert "authority" not in newest["payload"]


def test_what_an_administrator_does_with_anothers_workflow_says_why(
    payer: Caller, make_agent: MakeAgent, admin: Caller, damage: Damage
) -> None:
    """It is published, cancelled, resumed; the payer's own acts say nothing."""
    agent, sent = make_agent(is_held=True), {"x-callboard-reason": "The customer asked."}
    stuck = quarantined(payer, agent, damage)
    agent.stub.gate.clear()
    answer(admin.http.post(f"/v1/workflows/{stuck}/resume", headers=sent))
    manifest = {**chain_of(agent.capability, "a"), "payerDid": payer.did}
    given = answer(admin.publish(manifest, **sent))["workflowId"]
    answer(admin.cancel(f"/v1/workflows/{given}", **sent))
    said = {"right": "admin", "reason": "The customer asked."}
    for workflow_id, event, expected in (
        (stuck, "workflow.published", None),
        (stuck, "workflow.resumed", said),
        (given, "workflow.published", said),
        (given, "workflow.cancelled", said),
    ):
        asked = {"targetId": workflow_id, "eventType": event}
        (entry,) = answer(admin.http.get("/v1/audit", params=asked))["entries"]
        assert entry["payload"].get("authority") == expected, event
    agent.stub.gate.set()


def test_what_a_single_right_reads_is_noted_once_with_its_reason(
    payer: Caller, admin: Caller
) -> None:
    """Once in an hour for each reason, about the operation; never where a usual key would do."""
    path, yearly, other = f"/v1/balances/{payer.did}", unique("Yearly look "), unique("Other ")
    for reason in (yearly, yearly, other):
        answer(admin.http.get(path, headers={"x-callboard-reason": reason}))
    answer(payer.http.get(path, headers={"x-callboard-reason": yearly}))

    def noted() -> list[tuple[str, dict[str, str]]]:
        asked = {"targetId": "GET /v1/balances/{did}", "eventType": "right.used"}
        entries = answer(admin.http.get("/v1/audit", params=asked))["entries"]
        said = [(one["actorDid"], one["payload"]["authority"]) for one in entries]
        return [one for one in said if one[1]["reason"] in (yearly, other)]

    wait(lambda: len(noted()) == 2, "both notes")
    assert noted() == [
        (admin.did, {"right": "admin", "reason": reason}) for reason in (other, yearly)
    ]


@pytest.mark.parametrize("reason", ["x" * 513, "\udcff"])
def test_a_reason_is_a_short_text(admin: Caller, payer: Caller, reason: str) -> None:
    headers = {"x-callboard-reason": reason.encode(errors="surrogateescape")}
    path, body = f"/v1/quotas/{unique('did:net:q-')}", {"maxConcurrentWorkflows": 3}
    refusal(admin.http.post(path, json=body, headers=headers), 400, "INVALID_REQUEST")
    # Also where no right needs it: what is described as refused is refused.
    path = f"/v1/quotas/{payer.did}/check"
    refusal(payer.http.post(path, headers=headers), 400, "INVALID_REQUEST")


def test_the_right_to_revoke_needs_no_other(make_caller: MakeCaller, make_agent: MakeAgent) -> None:
    did = make_agent().did
    operator = make_caller(scopes=["trust:revoke"])
    assert answer(revoke(operator, did))["evidence"] == {"seen": 1}
    answer(operator.http.delete(f"/v1/revoked/{did}"))
    refusal(operator.http.get("/v1/revoked"), 403, "INSUFFICIENT_SCOPE")


def test_a_right_that_is_not_in_the_list_is_refused(payer: Caller) -> None:
    for scope in ("*:read", "tasks:read", "agents:fly"):
        refusal(payer.http.post("/v1/keys", json={"scopes": [scope]}), 400, "INVALID_REQUEST")
