"""Agents that are revoked at work: who goes on, what counts. money.md (Settlement)."""

from __future__ import annotations

import pytest

from core.errors import NodeErrorCode
from core.workflow.actions import AbortDispatch, Decision
from core.workflow.events import AgentRevoked, AttemptSucceeded, Failure
from tests.core.workflow.auction_engine import auctioned
from tests.core.workflow.engine import AGENTS, chain, engine

AWAY = Failure(NodeErrorCode.AGENT_UNAVAILABLE, "away")


@pytest.mark.parametrize("is_accepted", [False, True])
def test_the_work_goes_to_another_at_once_and_the_agent_is_told(is_accepted: bool) -> None:
    run = engine(chain("a", "b"))
    if is_accepted:
        run.accept_later("a")
    decision = run.revoke("did:x:one")
    assert [(one.agent_did, one.attempt) for one in run.open] == [("did:x:two", 2)]
    assert run.aborted == [AbortDispatch("a", 1, "did:x:one", "policy_violation")]
    assert isinstance(decision.actions[0], AbortDispatch), "before the next one is sent"
    line = run.history[-1]
    assert (line.agent_did, line.outcome, line.error_code) == ("did:x:one", "discarded", "REVOKED")
    run.run_to_end()
    assert {paid.agent_did for paid in run.payments.values()} == {"did:x:two"}


def test_what_it_still_hands_in_is_late() -> None:
    run = engine(chain("a"))
    run.revoke("did:x:one")
    late = AttemptSucceeded("a", 1, "{}", "sha256:1", "sha256:2", run.at_ms, run.at_ms, {})
    assert run.machine.step(late) == Decision()


def test_what_it_was_paid_for_stays() -> None:
    run = engine(chain("a", "b"))
    run.succeed("a")
    run.revoke("did:x:one")
    run.run_to_end()
    assert [paid.agent_did for paid in run.payments.values()] == ["did:x:one", "did:x:two"]


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_result_that_is_not_verified_yet_counts_for_nothing(is_waiting: bool) -> None:
    """Judged at that moment, or waiting for a verifier: the agent's node is another's."""
    run = engine(chain("a", requiresVerification=True))
    run.succeed("a")
    if is_waiting:
        run.judge("a", failure=AWAY)
        assert run.timers
    run.revoke("did:x:one")
    assert [one.agent_did for one in run.open] == ["did:x:two"]
    told = [one.agent_did for one in run.aborted]
    assert told == ([] if is_waiting else ["did:x:judge"])
    run.run_to_end()
    assert run.payments["a"].agent_did == "did:x:two"


def test_a_judgement_goes_to_another_verifier() -> None:
    run = engine(chain("a", requiresVerification=True))
    run.succeed("a")
    run.revoke("did:x:judge")
    assert [one.agent_did for one in run.open] == ["did:x:judge2"]
    run.run_to_end()
    assert {line: paid.agent_did for line, paid in run.payments.items()} == {
        "a": "did:x:one",
        "a#verify2": "did:x:judge2",
    }


@pytest.mark.parametrize(
    "manifest",
    [
        chain("a", targetAgentId="did:x:one"),
        {**chain("a"), "settings": {"allowFallbackAgents": False}},
    ],
    ids=["a target alone", "no fallback agents"],
)
def test_where_no_other_may_the_node_fails(manifest: dict[str, object]) -> None:
    run = engine(manifest)
    run.revoke("did:x:one")
    assert run.status == "failed"
    assert run.error_code("a") == "REVOKED"
    assert not run.payments


def test_every_node_of_the_agent_and_no_other() -> None:
    run = engine({"nodes": {name: {"capabilityId": "cap.work"} for name in "abc"}})
    before = {one.node: one.agent_did for one in run.open}
    assert set(before.values()) == {"did:x:one"}
    run.fail("c", code=NodeErrorCode.AGENT_TIMEOUT)
    assert run.timers.keys() == {"c"}
    run.revoke("did:x:one")
    assert {one.node: one.agent_did for one in run.open} == dict.fromkeys("ab", "did:x:two")
    run.revoke("did:x:four")
    assert len(run.aborted) == 2
    run.run_to_end()
    assert {paid.agent_did for paid in run.payments.values()} == {"did:x:two"}


def test_the_third_agent_is_the_last() -> None:
    run = engine(chain("a"))
    for did in list(AGENTS["cap.work"])[:3]:
        run.revoke(did)
    assert run.status == "failed"
    assert run.error_code("a") == "REVOKED"


def test_an_auctioned_node_has_its_next_round_without_the_winner() -> None:
    run = auctioned("a", standing={"did:x:one": 40, "did:x:two": 60, "did:x:three": 70})
    run.revoke("did:x:one")
    assert [(one.round, one.winner_did, one.price_micro) for one in run.closed] == [
        (1, "did:x:one", 60),
        (2, "did:x:two", 70),
    ]


def test_who_has_no_work_here_changes_nothing() -> None:
    run = engine(chain("a"))
    assert run.machine.step(AgentRevoked("did:x:three", run.at_ms)) == Decision()
    assert run.machine.agents_at_work() == {"did:x:one"}


def test_a_verifier_that_was_waited_for_is_not_asked_when_its_time_comes() -> None:
    """The node has ended, another still runs."""
    run = engine(
        {
            "nodes": {
                "a": {
                    "capabilityId": "cap.work",
                    "requiresVerification": True,
                    "targetAgentId": "did:x:one",
                },
                "b": {"capabilityId": "cap.work", "targetAgentId": "did:x:two"},
            }
        }
    )
    run.succeed("a")
    run.judge("a", failure=AWAY)
    run.revoke("did:x:one")
    assert run.statuses() == {"a": "failed", "b": "dispatched"}
    assert run.wait_retry("a") == Decision()
    run.succeed("b")
    assert run.status == "failed"
    assert set(run.payments) == {"b"}
