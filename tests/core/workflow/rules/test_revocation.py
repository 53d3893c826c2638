"""Agents that are revoked at work: who goes on, what counts. money.md (Settlement)."""

from __future__ import annotations

import pytest

from core.errors import NodeErrorCode
from core.workflow.actions import Decision
from core.workflow.events import AgentRevoked, Failure
from tests.core.workflow.auction_engine import auctioned
from tests.core.workflow.engine import AGENTS, chain, engine

AWAY = Failure(NodeErrorCode.AGENT_UNAVAILABLE, "away")


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
