"""How workflows end: time-outs, cancellation, failure propagation, budget, verification.

Spec: Workflow statuses, Verification and budget, Events 3; money.md.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from core.trust.signing import is_signature_valid
from tests.contract.conftest import Caller, MakeAgent, MakeCaller, answer, chain_of, wait
from tests.contract.test_execution_async import begin, later, one_node, wait_node
from tests.contract.test_execution_replies import GOOD, scripted

Json = dict[str, Any]
BAD = (400, {"status": "error", "error": "cannot do this"})


def held_for(seconds: float) -> Any:
    """Reply well after this time."""

    def reply(dispatch: Json) -> tuple[int, Json]:
        time.sleep(seconds)  # the agent's work, not a wait of the test
        return GOOD

    return reply


def statuses(record: Json) -> dict[str, str]:
    """Return the status of every node."""
    return {name: node["status"] for name, node in record["nodes"].items()}


# -- time ------------------------------------------------------------------------------------------


def test_node_that_exceeds_timeoutMs_is_timeout_and_downstream_is_skipped(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(is_held=True)
    manifest = chain_of(agent.capability, "ab")
    manifest["nodes"]["a"].update(timeoutMs=1_000, maxRetries=1)
    record = payer.run(manifest)
    assert record["status"] == "failed"
    assert statuses(record) == {"a": "timeout", "b": "skipped"}
    assert record["nodes"]["a"]["attempts"] == 2
    assert record["nodes"]["a"]["error"]["code"] == "AGENT_TIMEOUT"
    assert record["nodes"]["b"]["error"]["code"] == "UPSTREAM_FAILED"
    assert payer.balance()["balance"] == 100


def test_maxRuntimeMs_ends_the_workflow_as_timeout(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(is_held=True)
    manifest = chain_of(agent.capability, "ab", maxRuntimeMs=2_000, maxBudgetCredits=5)
    record = payer.run(manifest)
    assert record["status"] == "timeout"
    assert statuses(record) == {"a": "timeout", "b": "skipped"}
    assert record["error"]["code"] == "WORKFLOW_TIMEOUT"
    assert payer.balance() == {**payer.balance(), "balance": 100, "pending": 0}


def test_maxRuntimeMs_ends_an_accepted_node_too(payer: Caller, make_agent: MakeAgent) -> None:
    first, agent = make_agent(held_for(0.2)), make_agent(later)
    manifest = chain_of(first.capability, "ab", maxRuntimeMs=5_000)
    manifest["nodes"]["b"]["capabilityId"] = agent.capability
    del manifest["nodes"]["b"]["inputMappings"]
    record = payer.run(manifest)
    assert (record["status"], statuses(record)) == ("timeout", {"a": "success", "b": "timeout"})
    assert record["spentCredits"] == 0.1, "what had succeeded stays paid"


def test_a_nodes_clock_starts_with_its_own_dispatch(payer: Caller, make_agent: MakeAgent) -> None:
    """The chain lasts longer than the timeout of each of its nodes."""
    agent = make_agent(held_for(0.4), price_cents=0)
    names = [f"n{number}" for number in range(10)]
    nodes: Json = {}
    for before, name in zip([None, *names], names, strict=False):
        nodes[name] = {"capabilityId": agent.capability, "timeoutMs": 3_000, "maxRetries": 0}
        if before is not None:
            nodes[name]["dependsOn"] = [before]
    path = begin(payer, {"nodes": nodes})
    record = payer.finished(path)
    assert record["status"] == "success"
    assert len(agent.stub.dispatches) == len(names)


# -- cancellation ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason", ["user_request", "budget_exceeded", "timeout", "error", "policy_violation"]
)
def test_cancel_discards_outputs_and_tells_the_agents_with_a_signed_notice(
    payer: Caller, make_agent: MakeAgent, reason: str
) -> None:
    agent = make_agent(is_held=True, signingSecret="hush hush hush hush")
    path = begin(payer, chain_of(agent.capability, "ab", maxBudgetCredits=4))
    agent.stub.wait_dispatched()
    answer(payer.http.post(f"{path}/cancel", json={"reason": reason}))
    agent.stub.wait_cancelled()
    notice = agent.stub.cancels[0]
    assert notice["reason"] == reason
    assert notice["eventId"] == agent.stub.dispatches[0]["eventId"]
    assert is_signature_valid(notice["raw"], "hush hush hush hush", agent.stub.cancel_signatures[0])
    agent.stub.gate.set()  # the output comes, too late
    record = answer(payer.http.get(path))
    assert (record["status"], statuses(record)) == ("cancelled", {"a": "skipped", "b": "skipped"})
    assert "result" not in record["nodes"]["a"]
    assert payer.balance() == {**payer.balance(), "balance": 100, "pending": 0}


def test_case_12_cancel_pays_what_had_succeeded_and_returns_the_rest(
    payer: Caller, make_agent: MakeAgent
) -> None:
    quick, slow = make_agent(price_cents=100), make_agent(is_held=True, price_cents=100)
    manifest = chain_of(quick.capability, "ab", maxBudgetCredits=10)
    manifest["nodes"]["b"]["capabilityId"] = slow.capability
    path = begin(payer, manifest)
    slow.stub.wait_dispatched()
    reply = answer(payer.cancel(path))
    assert reply["refundedCredits"] == 9
    record = answer(payer.http.get(path))
    assert statuses(record) == {"a": "success", "b": "skipped"}
    assert (record["spentCredits"], payer.balance()["balance"]) == (1, 99)


def test_cancel_of_a_thousand_nodes(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(later, price_cents=0)
    nodes = {f"n{number}": {"capabilityId": agent.capability} for number in range(1_000)}
    path = begin(payer, {"nodes": nodes})
    agent.stub.wait_dispatched()
    reply = answer(payer.cancel(path))
    assert reply["nodesAffected"] == 1_000
    record = answer(payer.http.get(path))
    assert record["status"] == "cancelled"
    assert set(statuses(record).values()) == {"skipped"}


# -- failure ---------------------------------------------------------------------------------------


def test_after_a_failure_running_nodes_finish_and_are_paid_and_nothing_new_begins(
    payer: Caller, make_agent: MakeAgent
) -> None:
    bad = make_agent(scripted(BAD), price_cents=100)
    slow = make_agent(is_held=True, price_cents=100)
    nodes = {
        "bad": {"capabilityId": bad.capability},
        "slow": {"capabilityId": slow.capability},
        "after bad": {"capabilityId": slow.capability, "dependsOn": ["bad"]},
        "after slow": {"capabilityId": slow.capability, "dependsOn": ["slow"]},
    }
    path = begin(payer, {"nodes": nodes, "settings": {"maxBudgetCredits": 10}})
    slow.stub.wait_dispatched()
    record = wait_node(payer, path, "failed", "bad")
    assert record["status"] == "running", "slow is still at work"
    assert record["nodes"]["after slow"]["error"]["code"] == "UPSTREAM_FAILED"
    slow.stub.gate.set()
    record = payer.finished(path)
    assert record["status"] == "failed"
    assert statuses(record) == {
        "bad": "failed",
        "slow": "success",
        "after bad": "skipped",
        "after slow": "skipped",
    }
    assert record["error"]["node"] == "bad"
    assert (record["spentCredits"], payer.balance()["balance"]) == (1, 99)
    assert len(slow.stub.dispatches) == 1


# -- budget ----------------------------------------------------------------------------------------


def test_case_03_an_estimate_above_the_budget_is_a_failed_record_and_holds_nothing(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(price_cents=100)
    reply = answer(payer.publish(chain_of(agent.capability, "ab", maxBudgetCredits=1.5)))
    assert reply["status"] == "failed"
    record = answer(payer.http.get(f"/v1/workflows/{reply['workflowId']}"))
    assert record["error"]["code"] == "BUDGET_EXCEEDED"
    assert set(statuses(record).values()) == {"skipped"}
    assert payer.balance() == {**payer.balance(), "balance": 100, "pending": 0}
    assert not agent.stub.dispatches


def test_case_01_the_hold_is_the_estimate_without_a_budget_and_retries_are_not_multiplied(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(is_held=True, price_cents=100)
    path = begin(payer, chain_of(agent.capability, "abc", maxRuntimeMs=60_000))
    agent.stub.wait_dispatched()
    assert payer.balance() == {**payer.balance(), "balance": 97, "pending": 3}
    agent.stub.gate.set()
    assert payer.finished(path)["spentCredits"] == 3
    assert payer.balance() == {**payer.balance(), "balance": 97, "pending": 0}


def test_case_08_parallel_nodes_cannot_overspend_what_prices_have_left(
    payer: Caller, make_agent: MakeAgent, admin: Caller
) -> None:
    first, agent = make_agent(is_held=True, price_cents=0), make_agent(price_cents=100)
    nodes: Json = {"first": {"capabilityId": first.capability}}
    for name in "abcd":
        nodes[name] = {"capabilityId": agent.capability, "dependsOn": ["first"], "maxRetries": 0}
    path = begin(payer, {"nodes": nodes})
    first.stub.wait_dispatched()
    assert payer.balance()["pending"] == 4
    dearer = {**agent.card, "version": 2}
    dearer["capabilities"] = [{**agent.card["capabilities"][0], "price_cents": 300}]
    answer(admin.http.post("/v1/agents/register", json={"acard": dearer}))
    wait_price(payer, agent.capability, 3)
    first.stub.gate.set()
    record = payer.finished(path)
    assert record["status"] == "failed"
    assert record["spentCredits"] <= 4
    codes = {node["error"]["code"] for node in record["nodes"].values() if node.get("error")}
    assert "BUDGET_EXCEEDED" in codes, record
    assert payer.balance() == {
        **payer.balance(),
        "balance": 100 - record["spentCredits"],
        "pending": 0,
    }


def wait_price(payer: Caller, capability: str, credits: float) -> None:
    """Return when owners know the new price: a dry run's estimate shows what they know."""
    manifest = {"nodes": {"x": {"capabilityId": capability}}, "dryRun": True}
    wait(lambda: answer(payer.publish(manifest))["estimatedCredits"] == credits, "the new price")


# -- verification ----------------------------------------------------------------------------------

APPROVED = (200, {"status": "success", "result": {"approved": True}})
REJECTED = (200, {"status": "success", "result": {"approved": False}})


def verified(primary: str, verifier: str, **options: Any) -> Json:
    """Return a manifest of one node whose result this capability verifies."""
    return one_node(primary, requiresVerification=True, verifierCapabilityId=verifier, **options)


def payments(payer: Caller, record: Json) -> dict[str, float]:
    """Return what was paid to agents for each line of a workflow."""
    query = f"/v1/ledger/transactions?workflowId={record['id']}&limit=100"
    entries = answer(payer.http.get(query))["transactions"]
    return {
        entry["nodeId"]: entry["amount"] for entry in entries if entry["kind"] == "node_payment"
    }


def test_case_16_an_approved_result_is_paid_and_its_verifier_on_a_line_of_its_own(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    primary = make_agent(price_cents=100)
    verifier = make_agent(scripted(APPROVED), price_cents=20, ownerDid=make_caller().did)
    record = payer.run(verified(primary.capability, verifier.capability))
    assert record["status"] == "success"
    assert payments(payer, record) == {"a": 0.95, "a#verify": 0.19}
    assert (record["spentCredits"], record["nodes"]["a"]["costCredits"]) == (1.2, 1.2)
    asked, own = verifier.stub.dispatches[0], primary.stub.dispatches[0]
    assert asked["eventId"] == own["eventId"] + "#verify"
    assert asked["inputs"]["capabilityId"] == primary.capability
    assert asked["inputs"]["inputs"] == own["inputs"]
    assert asked["inputs"]["result"] == record["nodes"]["a"]["result"]


def test_case_14_nothing_is_paid_to_the_primary_before_the_approval(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    primary = make_agent(price_cents=100)
    verifier = make_agent(
        scripted(APPROVED), price_cents=20, is_held=True, ownerDid=make_caller().did
    )
    path = begin(payer, verified(primary.capability, verifier.capability))
    verifier.stub.wait_dispatched()
    record = answer(payer.http.get(path))
    assert record["nodes"]["a"]["status"] == "running"
    assert record["spentCredits"] == 0
    verifier.stub.gate.set()
    assert payer.finished(path)["spentCredits"] == 1.2


def test_case_16_a_rejected_result_is_made_again_and_both_judgements_are_paid(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    primary = make_agent(price_cents=100)
    verifier = make_agent(scripted(REJECTED, APPROVED), price_cents=20, ownerDid=make_caller().did)
    manifest = verified(primary.capability, verifier.capability)
    manifest["settings"] = {"maxBudgetCredits": 5}
    record = payer.run(manifest)
    assert (record["status"], record["nodes"]["a"]["attempts"]) == ("success", 2)
    assert payments(payer, record) == {"a": 0.95, "a#verify": 0.19, "a#verify2": 0.19}


def test_case_14_a_result_rejected_to_the_end_is_VERIFICATION_REJECTED_and_unpaid(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    primary = make_agent(price_cents=100)
    verifier = make_agent(scripted(REJECTED), price_cents=20, ownerDid=make_caller().did)
    record = payer.run(verified(primary.capability, verifier.capability, maxRetries=0))
    node = record["nodes"]["a"]
    assert (node["status"], node["error"]["code"]) == ("failed", "VERIFICATION_REJECTED")
    assert payments(payer, record) == {"a#verify": 0.19}
    assert payer.balance()["balance"] == 99.8


def test_no_verifier_of_another_owner_is_NO_CANDIDATE(payer: Caller, make_agent: MakeAgent) -> None:
    """The agent does not begin work whose result nobody can verify."""
    primary = make_agent(price_cents=100)
    verifier = make_agent(scripted(APPROVED))
    record = payer.run(verified(primary.capability, verifier.capability, maxRetries=0))
    node = record["nodes"]["a"]
    assert (node["status"], node["error"]["code"]) == ("failed", "NO_CANDIDATE")
    assert not (primary.stub.dispatches or verifier.stub.dispatches)
    assert record["spentCredits"] == 0


def test_failing_verifier_is_asked_again_and_the_work_is_not_repeated(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    primary = make_agent(price_cents=100)
    verifier = make_agent(scripted((500, {}), APPROVED), price_cents=20, ownerDid=make_caller().did)
    record = payer.run(verified(primary.capability, verifier.capability))
    assert (record["status"], record["nodes"]["a"]["attempts"]) == ("success", 1)
    assert len(primary.stub.dispatches) == 1
    assert len(verifier.stub.dispatches) == 2
    assert record["spentCredits"] == 1.2, "a verifier that failed is not paid"
