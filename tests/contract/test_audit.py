"""The audit chain over HTTP, row by row. Spec: Audit entry, Events 2."""

from __future__ import annotations

import hashlib

import pytest
import rfc8785

from core.records.audit import AuditEventType
from tests.contract.audit_events import events_of
from tests.contract.conftest import (
    Caller,
    Json,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    refusal,
)

FIELDS = {
    "id",
    "eventType",
    "actorDid",
    "targetType",
    "targetId",
    "action",
    "payload",
    "hash",
    "prevHash",
    "createdAt",
}


def entries_of(payer: Caller, **query: str) -> list[Json]:
    rows: list[Json] = answer(payer.http.get("/v1/audit", params=query))["entries"]
    return rows


def test_entries_have_the_specified_fields_newest_first(admin: Caller) -> None:
    page = answer(admin.http.get("/v1/audit?limit=3"))
    assert page["limit"] == 3
    ids = [entry["id"] for entry in page["entries"]]
    assert ids == [ids[0], ids[0] - 1, ids[0] - 2]
    for entry in page["entries"]:
        assert set(entry) >= FIELDS


def test_every_hash_covers_its_entry_and_the_one_before(admin: Caller) -> None:
    entries: list[Json] = []
    page = answer(admin.http.get("/v1/audit?limit=1000"))
    while True:
        entries += page["entries"]
        if page["nextCursor"] is None:
            break
        page = answer(admin.http.get(f"/v1/audit?limit=1000&cursor={page['nextCursor']}"))
    entries.reverse()
    assert [entry["id"] for entry in entries] == list(range(1, len(entries) + 1))
    before = "sha256:" + "0" * 64
    for entry in entries:
        assert entry["prevHash"] == before
        body = {name: value for name, value in entry.items() if name != "hash"}
        assert entry["hash"] == "sha256:" + hashlib.sha256(rfc8785.dumps(body)).hexdigest()
        before = entry["hash"]


def test_a_workflow_leaves_its_events_in_the_chain(payer: Caller, make_agent: MakeAgent) -> None:
    workflow_id = payer.run(chain_of(make_agent().capability))["id"]
    entries = entries_of(payer, targetId=workflow_id, limit="100")
    types = [[event["type"] for event in events_of(entry)] for entry in reversed(entries)]
    assert types[0][:2] == ["workflow.published", "escrow.held"]
    assert entries[-1]["eventType"] == "workflow.published"
    told = {kind for entry in types for kind in entry}
    assert {"node.succeeded", "payment.settled", "workflow.finished", "escrow.released"} <= told
    for entry in entries:
        listed = entry["payload"]["events"]
        assert (entry["eventType"], entry["targetId"]) == (listed[0]["type"], workflow_id)


def test_a_filter_matches_any_event_of_an_entry(payer: Caller, make_agent: MakeAgent) -> None:
    workflow_id = payer.run(chain_of(make_agent().capability, "a"))["id"]
    (paid,) = entries_of(payer, eventType="payment.settled", targetId=workflow_id)
    assert paid["eventType"] == "node.succeeded"
    (amounts,) = [e["payload"] for e in events_of(paid) if e["type"] == "payment.settled"]
    assert {"agentCredits", "feeCredits", "entryIds"} <= set(amounts)
    (held,) = entries_of(payer, eventType="escrow.held", targetType="workflow", actorDid=payer.did)
    assert held["eventType"] == "workflow.published"
    assert entries_of(payer, eventType="escrow.held", targetType="agent") == []


@pytest.mark.parametrize("known", [AuditEventType.WORKFLOW_PUBLISHED, [*AuditEventType][-1]])
def test_a_filter_by_an_unknown_event_type_is_400_and_names_the_nearest(
    payer: Caller, known: str
) -> None:
    reply = payer.http.get(f"/v1/audit?eventType={known[:-2]}")
    (problem,) = refusal(reply, 400, "INVALID_REQUEST")["errors"]
    assert problem["path"] == "eventType"
    assert problem["expected"] == f"an event type; did you mean '{known}'?"


def test_filters_eventType_actorDid_targetType_time(payer: Caller, make_agent: MakeAgent) -> None:
    workflow_id = payer.run(chain_of(make_agent().capability))["id"]
    (published,) = entries_of(payer, eventType="workflow.published", actorDid=payer.did)
    assert (published["targetType"], published["targetId"]) == ("workflow", workflow_id)
    (same,) = entries_of(
        payer,
        targetType="workflow",
        targetId=workflow_id,
        eventType="workflow.published",
        startTime=published["createdAt"],
    )
    assert same == published
    assert entries_of(payer, targetId=workflow_id, endTime=published["createdAt"]) == []
    response = payer.http.get("/v1/audit?startTime=yesterday")
    refusal(response, 400, "INVALID_REQUEST")


@pytest.fixture
def stranger(make_caller: MakeCaller) -> Caller:
    return make_caller()


def test_a_stranger_finds_nothing_about_anothers_money(
    payer: Caller, stranger: Caller, make_agent: MakeAgent
) -> None:
    workflow_id = payer.run(chain_of(make_agent().capability, "a"))["id"]
    for limit in ("1", "100"):
        for about in (
            {"targetId": payer.did, "eventType": "ledger.deposited"},
            {"targetId": payer.did},
            {"actorDid": payer.did},
            {"targetId": workflow_id},
            {"targetId": payer.key_id},
        ):
            assert entries_of(payer, **about, limit=limit) or about.get("targetId") == payer.key_id
            page = answer(stranger.http.get("/v1/audit", params={**about, "limit": limit}))
            assert (page["entries"], page["nextCursor"]) == ([], None), about
    for entry in entries_of(stranger, eventType="ledger.deposited", limit="1000"):
        assert stranger.did in str(entry)


def test_of_anothers_entries_id_type_and_hash_are_shown(
    payer: Caller, stranger: Caller, make_caller: MakeCaller
) -> None:
    (own,) = entries_of(payer, eventType="ledger.deposited", targetId=payer.did)
    link = {name: own[name] for name in ("id", "eventType", "hash")}
    path = f"/v1/audit/{own['id']}"
    assert answer(payer.http.get(path)) == own
    assert answer(stranger.http.get(path)) == link
    assert link in entries_of(stranger, limit="1000")
    assert own in entries_of(payer, limit="1000")
    auditor = make_caller(scopes=["audit:read", "audit:all"])
    assert answer(auditor.http.get(path)) == own
    assert own in entries_of(auditor, targetId=payer.did)


def test_no_filter_tells_what_a_link_leaves_out(payer: Caller, stranger: Caller) -> None:
    (own,) = entries_of(payer, eventType="ledger.deposited", targetId=payer.did)
    for told in (
        {"startTime": own["createdAt"]},
        {"endTime": own["createdAt"]},
        {"actorDid": own["actorDid"]},
        {"targetType": "account"},
        {"eventType": "ledger.deposited"},
    ):
        for entry in entries_of(stranger, **told, limit="1000"):
            assert "payload" in entry, told
            assert entry["id"] != own["id"], told


def test_an_entry_is_its_partys_as_soon_as_it_is_committed(
    admin: Caller, make_caller: MakeCaller
) -> None:
    """The index of parties is written beside the commit, and a read does not outrun it."""
    someone = make_caller()
    for amount in range(1, 6):
        deposit = {"ownerDid": someone.did, "amount": amount}
        answer(admin.http.post("/v1/ledger/deposit", json=deposit))
        (newest, *_) = entries_of(someone, eventType="ledger.deposited")
        (event,) = newest["payload"]["events"]
        assert event["payload"]["amountCredits"] == str(amount)


def test_an_agents_owner_sees_what_its_agent_did_and_was_paid(
    payer: Caller, stranger: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(owner=stranger)
    workflow_id = payer.run(chain_of(agent.capability, "a"))["id"]
    (paid,) = entries_of(stranger, eventType="payment.settled", targetId=workflow_id)
    assert paid == entries_of(payer, eventType="payment.settled", targetId=workflow_id)[0]
    kinds = {entry["eventType"] for entry in entries_of(stranger, targetId=workflow_id)}
    assert "workflow.published" not in kinds, "which only the payer is a party of"


def test_who_is_named_in_a_text_is_no_party(
    payer: Caller, stranger: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(owner=payer)
    reason = f"it sold what {stranger.did} had sent"
    revoking = {"did": agent.did, "reason": stranger.did, "evidence": {"said": reason}}
    answer(payer.http.post("/v1/trust/revoke", json=revoking))
    (revoked,) = entries_of(payer, eventType="agent.revoked", targetId=agent.did)
    assert stranger.did in str(revoked["payload"])
    assert entries_of(stranger, eventType="agent.revoked") == []


def test_limit_goes_up_to_1000_and_is_100_by_default(payer: Caller) -> None:
    assert answer(payer.http.get("/v1/audit"))["limit"] == 100
    answer(payer.http.get("/v1/audit?limit=1000"))
    refusal(payer.http.get("/v1/audit?limit=1001"), 400, "INVALID_REQUEST")


def test_one_entry_by_its_id(payer: Caller, admin: Caller) -> None:
    genesis = answer(admin.http.get("/v1/audit/1"))
    assert genesis["id"] == 1
    assert genesis["prevHash"] == "sha256:" + "0" * 64
    assert answer(payer.http.get("/v1/audit/1"))["eventType"] == "ledger.created"
    refusal(payer.http.get("/v1/audit/999999999"), 404, "NOT_FOUND")
    refusal(payer.http.get("/v1/audit/x"), 400, "INVALID_REQUEST")
