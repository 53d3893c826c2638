"""Targeted routing: its three rows, and every `details` of AGENT_UNAVAILABLE.

Spec: Targeted routing, Errors.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.conftest import Caller, Json, MakeAgent, MakeCaller, answer, unique, wait

NOBODY_LISTENS = "http://127.0.0.1:1"


def targeted(capability: str, target: str, **node: object) -> Json:
    """Return a manifest of one node for one agent, which is tried once and not waited for."""
    once = {"maxRetries": 0, "waitForAgentMs": 0}
    one = {"capabilityId": capability, "targetAgentId": target, **once, **node}
    return {"nodes": {"only": one}}


def register(payer: Caller, capability: str, **members: object) -> str:
    """Register an agent that cannot be reached; return its DID."""
    did = unique("did:net:target-")
    card = {
        "did": did,
        "endpoint": NOBODY_LISTENS,
        "version": 1,
        "capabilities": [{"id": capability, "description": ""}],
        **members,
    }
    answer(payer.http.post("/v1/agents/register", json={"acard": card}))
    return did


def details_of(payer: Caller, capability: str, target: str) -> str | None:
    """Return the `details` with which a targeted node fails, None when it succeeds."""
    record = payer.run(targeted(capability, target))
    node = record["nodes"]["only"]
    if node["status"] == "success":
        return None
    assert (record["status"], node["status"]) == ("failed", "failed")
    error = node["error"]
    assert (error["error"], error["targetAgentId"]) == ("AGENT_UNAVAILABLE", target), error
    assert record["spentCredits"] == 0
    details = error["details"]
    assert isinstance(details, str)
    return details


def wait_details(payer: Caller, capability: str, target: str, wanted: str | None) -> None:
    """Return when owners have learned what makes the agent unavailable, or available again."""
    wait(lambda: details_of(payer, capability, target) == wanted, f"{wanted}")


# -- the three rows --------------------------------------------------------------------------------


def test_row_1_unset_is_broadcast(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent()
    record = payer.run({"nodes": {"only": {"capabilityId": agent.capability}}})
    assert record["nodes"]["only"]["agentDid"] == agent.did


def test_row_2_set_and_available_is_that_agent_and_no_other(
    payer: Caller, make_agent: MakeAgent
) -> None:
    first = make_agent()
    second = make_agent(capability=first.capability)
    for agent in (second, first):
        record = payer.run(targeted(first.capability, agent.did))
        assert record["nodes"]["only"]["agentDid"] == agent.did


def test_row_2_set_and_unavailable_fails_although_others_offer_it(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    target = "did:net:absent"
    assert details_of(payer, agent.capability, target) == "agent_not_found"
    assert agent.stub.dispatches == []


@pytest.mark.parametrize("is_registered", [True, False])
def test_row_3_set_with_fallback_tries_the_target_then_the_others(
    payer: Caller, make_agent: MakeAgent, is_registered: bool
) -> None:
    agent = make_agent()
    target = "did:net:absent"
    if is_registered:
        target = register(payer, agent.capability)
    record = payer.run(targeted(agent.capability, target, allowBroadcastFallback=True))
    node = record["nodes"]["only"]
    assert (node["status"], node["agentDid"]) == ("success", agent.did)
    assert node["attempts"] == (2 if is_registered else 1), "the target was tried first"


def test_row_3_set_with_fallback_takes_the_target_while_it_is_available(
    payer: Caller, make_agent: MakeAgent
) -> None:
    first = make_agent()
    target = make_agent(capability=first.capability)
    record = payer.run(targeted(first.capability, target.did, allowBroadcastFallback=True))
    assert record["nodes"]["only"]["agentDid"] == target.did


def test_a_dry_run_foresees_who_takes_a_node_and_why_nobody_does(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    absent = "did:net:absent"
    node = {"capabilityId": agent.capability}
    nodes = {
        "open": node,
        "bound": {**node, "targetAgentId": agent.did},
        "lost": {**node, "targetAgentId": absent},
        "saved": {**node, "targetAgentId": absent, "allowBroadcastFallback": True},
        "nobody": {"capabilityId": unique("cap.none.")},
    }
    reply = answer(payer.publish({"nodes": nodes, "dryRun": True}))
    here = [agent.did]
    assert reply["candidates"] == {
        "open": here, "bound": here, "lost": [], "saved": here, "nobody": [],
    }  # fmt: skip
    assert set(reply["unavailable"]) == {"lost", "nobody"}
    lost = reply["unavailable"]["lost"]
    assert (lost["error"], lost["targetAgentId"]) == ("AGENT_UNAVAILABLE", absent)
    assert lost["details"] == "agent_not_found"
    assert reply["unavailable"]["nobody"]["code"] == "NO_CANDIDATE"
    assert agent.stub.dispatches == []


def test_a_dry_run_lists_no_agent_that_promises_too_late_or_accepts_no_verifier(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    late = make_agent(price={"price_cents": 1, "etaMs": 60_000})
    both = make_agent(capability=late.capability)
    alone = make_agent(price={"price_cents": 1, "etaMs": 60_000})
    judge = make_agent(price_cents=0, owner=make_caller())
    judged = {"requiresVerification": True, "verifierCapabilityId": judge.capability}
    nodes: dict[str, Json] = {
        "hasty": {"capabilityId": late.capability, "timeoutMs": 5_000},
        "patient": {"capabilityId": late.capability, "timeoutMs": 60_000},
        "late": {"capabilityId": alone.capability, "timeoutMs": 5_000},
        "judged": {"capabilityId": both.capability, **judged},
        "bound": {"capabilityId": both.capability, "targetAgentId": both.did, **judged},
        "bound_late": {
            "capabilityId": alone.capability, "targetAgentId": alone.did, "timeoutMs": 5_000
        },
    }  # fmt: skip
    reply = answer(payer.publish({"nodes": nodes, "dryRun": True}))
    assert reply["candidates"] == {
        "hasty": [both.did], "patient": [late.did, both.did], "late": [], "judged": [],
        "bound": [], "bound_late": [alone.did],
    }  # fmt: skip
    codes = {name: one["code"] for name, one in reply["unavailable"].items()}
    assert codes == dict.fromkeys(("late", "judged", "bound"), "NO_CANDIDATE")
    for name, code in codes.items():
        failed = payer.run({"nodes": {name: {**nodes[name], "waitForAgentMs": 0}}})
        assert failed["nodes"][name]["error"]["code"] == code


# -- every `details` -------------------------------------------------------------------------------


def test_details_agent_not_found_has_no_card(payer: Caller) -> None:
    assert details_of(payer, "cap.any.v1", "did:net:absent") == "agent_not_found"


def test_details_agent_inactive_was_deregistered(payer: Caller, make_agent: MakeAgent) -> None:
    capability = unique("cap.left.")
    target = register(payer, capability)
    answer(payer.http.delete(f"/v1/agents/{target}"))
    wait_details(payer, capability, target, "agent_inactive")


@pytest.mark.parametrize(
    ("status", "details"),
    [("unhealthy", "agent_unhealthy"), ("offline", "agent_offline")],
)
def test_details_follow_what_the_agent_says(
    admin: Caller, payer: Caller, make_agent: MakeAgent, status: str, details: str
) -> None:
    agent = make_agent()

    def say(word: str) -> None:
        answer(admin.http.post(f"/v1/agents/{agent.did}/heartbeat", json={"status": word}))

    say(status)
    wait_details(payer, agent.capability, agent.did, details)
    say("healthy")
    wait_details(payer, agent.capability, agent.did, None)


def test_details_agent_unhealthy_after_its_circuit_opened(payer: Caller) -> None:
    capability = unique("cap.open.")
    target = register(payer, capability)
    for _ in range(3):
        assert details_of(payer, capability, target) == "agent_offline", "connection refused"
    assert details_of(payer, capability, target) == "agent_unhealthy"


def test_details_agent_offline_for_a_card_without_an_address(payer: Caller) -> None:
    did, capability = unique("did:net:flat-"), unique("cap.flat.")
    body = {"did": did, "capabilities": [capability]}
    answer(payer.http.post("/v1/agent/register", json=body))
    assert details_of(payer, capability, did) == "agent_offline"
    record = payer.run({"nodes": {"only": {"capabilityId": capability}}})
    assert record["nodes"]["only"]["error"]["code"] == "NO_CANDIDATE", "it is no candidate either"


def test_details_capability_not_offered(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent()
    assert details_of(payer, unique("cap.other."), agent.did) == "capability_not_offered"


def test_the_first_reason_in_the_contracts_order_is_told(payer: Caller) -> None:
    target = register(payer, unique("cap.one."), endpoint=NOBODY_LISTENS)
    other = unique("cap.two.")
    assert details_of(payer, other, target) == "capability_not_offered"
    say: Callable[[str], Json] = lambda word: answer(  # noqa: E731
        payer.http.post(f"/v1/agents/{target}/heartbeat", json={"status": word})
    )
    say("offline")
    wait_details(payer, other, target, "agent_offline")
    say("maintenance")
    wait_details(payer, other, target, "agent_unhealthy")
    answer(payer.http.delete(f"/v1/agents/{target}"))
    wait_details(payer, other, target, "agent_inactive")
