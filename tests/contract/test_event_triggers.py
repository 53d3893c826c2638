"""Event triggers: an audit entry of which their creator is a party starts a run, once.

Reference: features.md (Triggers).
"""

from __future__ import annotations

import pytest

from tests.contract.conftest import (
    Caller,
    Json,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    refusal,
    wait,
)
from tests.contract.stub_agent import refuse


@pytest.fixture
def agent(make_agent: MakeAgent) -> RegisteredAgent:
    return make_agent()


@pytest.fixture
def failing(make_agent: MakeAgent) -> RegisteredAgent:
    return make_agent(refuse)


def work(capability: str) -> Json:
    return {"nodes": {"a": {"capabilityId": capability, "maxRetries": 0}}}


def made(owner: Caller, capability: str, event_type: str, **config: object) -> Json:
    """Publish an event trigger; return the reply."""
    nodes = {"a": {"capabilityId": capability, "inputMappings": {"event": "$.trigger.result"}}}
    trigger = {"type": "event", "config": {"eventType": event_type, **config}}
    return answer(owner.publish({"nodes": nodes, "trigger": trigger}))


def runs_of(owner: Caller, stored: Json) -> list[Json]:
    return list(answer(owner.http.get(f"/v1/triggers/{stored['id']}/runs"))["runs"])


def reasons_of(owner: Caller, stored: Json) -> list[tuple[str, str | None]]:
    """What became of each cause, the oldest first."""
    return [(run["status"], run["reason"]) for run in reversed(runs_of(owner, stored))]


def test_an_event_that_its_filter_matches_starts_a_run(
    payer: Caller, agent: RegisteredAgent, failing: RegisteredAgent
) -> None:
    """Goal: of two ends the failed one starts a run, which maps the event."""
    stored = made(
        payer, agent.capability, "workflow.finished", filter={"status": ["failed", "timeout"]}
    )
    assert "hookUrl" not in stored
    good = payer.run(work(agent.capability))
    bad = payer.run(work(failing.capability))
    wait(lambda: len(runs_of(payer, stored)) == 1, "the run")
    (run,) = runs_of(payer, stored)
    record = payer.finished(f"/v1/workflows/{run['workflowId']}")
    assert (good["status"], bad["status"], record["status"]) == ("success", "failed", "success")
    event = agent.stub.dispatches[-1]["inputs"]["event"]
    assert (event["eventType"], event["targetType"]) == ("workflow.finished", "workflow")
    assert event["targetId"] == event["workflowId"] == bad["id"]
    assert event["payload"]["status"] == "failed"
    entry = answer(payer.http.get(f"/v1/audit?targetId={bad['id']}"))
    assert event["id"] in [one["id"] for one in entry["entries"]]
    assert run["key"] == str(event["id"])


def test_events_of_others_and_events_before_start_nothing(
    payer: Caller, make_caller: MakeCaller, agent: RegisteredAgent
) -> None:
    """Goal: a later event of the payer's own is the only one; the log is read in order."""
    payer.run(work(agent.capability))
    stored = made(payer, agent.capability, "workflow.published", maxRuns=1)
    other = make_caller(10)
    strange = other.run(work(agent.capability))
    own = answer(payer.publish(work(agent.capability)))
    wait(lambda: bool(runs_of(payer, stored)), "the run")
    (run,) = runs_of(payer, stored)
    payer.finished(f"/v1/workflows/{run['workflowId']}")
    (event,) = [one["inputs"]["event"] for one in agent.stub.dispatches if one["inputs"]]
    assert event["workflowId"] == own["workflowId"] != strange["id"]
    shown = answer(payer.http.get(f"/v1/triggers/{stored['id']}"))
    assert (shown["status"], shown["reason"]) == ("ended", "maxRuns")
    assert (shown["eventType"], shown["filter"]) == ("workflow.published", {})


def test_a_chain_of_runs_ends_at_its_depth(payer: Caller, agent: RegisteredAgent) -> None:
    stored = made(payer, agent.capability, "workflow.finished")
    payer.run(work(agent.capability))
    wait(lambda: len(runs_of(payer, stored)) == 7, "the chain")
    runs = runs_of(payer, stored)[::-1]
    assert [run["depth"] for run in runs] == [0, 1, 2, 3, 4, 5, 5]
    assert reasons_of(payer, stored) == [("started", None)] * 6 + [("skipped", "depth")]


def test_events_beyond_the_rate_start_no_run_and_are_noted_once(
    payer: Caller, agent: RegisteredAgent
) -> None:
    stored = made(payer, agent.capability, "escrow.held", maxRunsPerMinute=1)
    for _ in range(3):
        payer.run(work(agent.capability))
    wait(lambda: len(runs_of(payer, stored)) >= 2, "the refusal")
    found = reasons_of(payer, stored)
    assert found[:2] == [("started", None), ("skipped", "rate")]
    # A minute may end meanwhile.
    assert found.count(("skipped", "rate")) <= 2


def test_an_event_trigger_takes_the_right_to_read_events(
    payer: Caller, make_caller: MakeCaller, agent: RegisteredAgent
) -> None:
    narrow = make_caller(ownerDid=payer.did, scopes=["workflows:write", "schedules:write"])
    whole = {**work(agent.capability), "trigger": {"type": "event", "config": {}}}
    whole["trigger"]["config"]["eventType"] = "ledger.deposited"
    refusal(narrow.publish(whole), 403, "INSUFFICIENT_SCOPE")
    path = f"/v1/triggers/{answer(payer.publish(whole))['id']}"
    change = {"workflowTemplate": work(agent.capability)}
    refusal(narrow.http.patch(path, json=change), 403, "INSUFFICIENT_SCOPE")
    assert answer(narrow.http.delete(path))["status"] == "ended"


def test_a_trigger_pauses_when_the_key_of_its_creator_ends(
    make_caller: MakeCaller, admin: Caller, agent: RegisteredAgent
) -> None:
    owner = make_caller(10)
    stored = made(owner, agent.capability, "ledger.deposited")
    answer(admin.http.delete(f"/v1/keys/{owner.key_id}"))
    answer(admin.http.post("/v1/ledger/deposit", json={"amount": 1, "ownerDid": owner.did}))
    path = f"/v1/triggers/{stored['id']}"
    wait(lambda: answer(admin.http.get(path))["status"] == "paused", "the pause")
    assert answer(admin.http.get(path))["reason"] == "credentialEnded"
    assert agent.stub.dispatches == []
