"""Which agent takes a node, and which takes over. Reference: features.md (Targeted routing)."""

from __future__ import annotations

import pytest

from core.errors import NodeErrorCode
from core.workflow.actions import SelectAgent
from core.workflow.events import Verdict
from tests.core.workflow.engine import Engine, chain, engine


def targeted(
    others: dict[str, int] | None = None, *, hold_micro: int = 1_000_000, **node: int
) -> Engine:
    """Return an engine whose node has a target, which others may stand in for, if there are any."""
    return engine(
        chain("a", targetAgentId="did:x:three", allowBroadcastFallback=True, **node),
        agents={"cap.work": {"did:x:three": 30, **(others or {})}},
        hold_micro=hold_micro,
    )


def test_final_for_agent_changes_the_agent_at_once_and_at_most_three_try() -> None:
    run = engine(chain("a", maxRetries=0))
    run.fail("a", Verdict.FINAL_FOR_AGENT)
    run.fail("a", Verdict.FINAL_FOR_AGENT)
    assert not run.timers
    run.fail("a", Verdict.FINAL_FOR_AGENT)
    assert [d.agent_did for d in run.dispatched] == ["did:x:one", "did:x:two", "did:x:three"]
    assert run.status == "failed"
    assert run.rows["a"].retries_used == 0


def test_without_fallback_agents_a_retry_goes_to_the_same_agent() -> None:
    run = engine({**chain("a"), "settings": {"allowFallbackAgents": False}})
    run.fail("a")
    run.wait_retry("a")
    action = run.selections[-1]
    assert isinstance(action, SelectAgent) and action.target_agent_id == "did:x:one"
    # By these a directory knows that the machine has named a peer, not the payer.
    assert (action.attempt, action.allow_fallback) == (2, False)


def test_a_selection_knows_when_the_workflow_ends() -> None:
    run = engine({**chain("a"), "settings": {"maxRuntimeMs": 7_000}})
    (action,) = run.selections
    assert isinstance(action, SelectAgent)
    assert action.deadline_ms == run.deadline_ms == run.at_ms + 7_000


def test_last_agents_failure_explains_the_node_when_nobody_else_is_there() -> None:
    run = engine(chain("a"), agents={"cap.work": {"did:x:one": 10}})
    run.fail("a", Verdict.FINAL_FOR_AGENT)
    assert run.error_code("a") == "AGENT_ERROR"


def test_agent_that_vanishes_during_back_off_gets_the_remaining_retries() -> None:
    agents = {"cap.work": {"did:x:one": 10}}
    run = engine(chain("a"), agents=agents)
    run.fail("a")
    run.agents = {}
    run.wait_retry("a")
    assert run.statuses()["a"] == "ready"
    run.agents = agents
    run.wait_retry("a")
    assert run.statuses()["a"] == "dispatched"


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict.FINAL_FOR_AGENT, NodeErrorCode.AGENT_ERROR),
        (Verdict.RETRYABLE, NodeErrorCode.AGENT_UNAVAILABLE),
    ],
)
def test_target_with_broadcast_fallback_is_left(verdict: Verdict, code: NodeErrorCode) -> None:
    run = engine(chain("a", targetAgentId="did:x:three", allowBroadcastFallback=True))
    run.fail("a", verdict, code)
    assert [d.agent_did for d in run.dispatched] == ["did:x:three", "did:x:one"]


def test_target_that_is_away_is_waited_for_when_nobody_can_stand_in() -> None:
    """Its retries are its own, each look for another is made anew, and the end names the target."""
    run = targeted(maxRetries=2)
    for used in (1, 2):
        run.fail("a", code=NodeErrorCode.AGENT_UNAVAILABLE)
        assert run.statuses()["a"] == "ready"
        assert (run.rows["a"].retries_used, run.rows["a"].agents_tried) == (used, ())
        run.wait_retry("a")
        assert run.open[0].agent_did == "did:x:three"
    run.fail("a", code=NodeErrorCode.AGENT_UNAVAILABLE)
    assert run.status == "failed"
    assert run.error_code("a") == "AGENT_UNAVAILABLE"
    assert len(run.dispatched) == 3


def test_who_appears_while_the_target_is_waited_for_stands_in_at_its_next_failure() -> None:
    run = targeted()
    run.fail("a", code=NodeErrorCode.AGENT_UNAVAILABLE)
    run.wait_retry("a")
    run.agents = {"cap.work": {"did:x:three": 30, "did:x:one": 10}}
    run.fail("a", code=NodeErrorCode.AGENT_UNAVAILABLE)
    assert run.open[0].agent_did == "did:x:one"
    assert run.rows["a"].agents_tried == ("did:x:three",)
    assert run.rows["a"].retries_used == 1


def test_who_is_too_dear_cannot_stand_in_for_the_target() -> None:
    run = targeted({"did:x:one": 90}, hold_micro=50, maxRetries=1)
    run.fail("a", code=NodeErrorCode.AGENT_UNAVAILABLE)
    assert run.statuses()["a"] == "ready"
    run.wait_retry("a")
    run.fail("a", code=NodeErrorCode.AGENT_UNAVAILABLE)
    assert run.error_code("a") == "AGENT_UNAVAILABLE"


def test_target_said_to_be_no_good_is_not_waited_for() -> None:
    run = targeted()
    run.fail("a", Verdict.FINAL_FOR_AGENT)
    assert run.status == "failed"


@pytest.mark.parametrize("is_restarted", [False, True], ids=["same owner", "after a crash"])
def test_fourth_agent_never_gets_the_node_whoever_of_the_three_fails_last(
    is_restarted: bool,
) -> None:
    """Two that failed for now are in no row of the node: only the history knows them."""
    run = engine(chain("a", maxRetries=5))
    for next_one in ("did:x:two", "did:x:three"):
        run.fail("a")
        run.agents = {"cap.work": {next_one: 10}}
        run.wait_retry("a")
    assert run.open[0].agent_did == "did:x:three"
    sent_again = []
    if is_restarted:
        run.crash()
        sent_again = ["did:x:three"]
    run.agents = {"cap.work": {"did:x:four": 10, "did:x:two": 10}}
    run.fail("a", Verdict.FINAL_FOR_AGENT)
    tried = ["did:x:one", "did:x:two", "did:x:three", *sent_again, "did:x:two"]
    assert [dispatch.agent_did for dispatch in run.dispatched] == tried


def test_agent_away_after_the_target_was_left_is_waited_for() -> None:
    run = engine(chain("a", targetAgentId="did:x:three", allowBroadcastFallback=True))
    run.fail("a", Verdict.FINAL_FOR_AGENT)
    run.fail("a", code=NodeErrorCode.AGENT_UNAVAILABLE)
    assert run.statuses()["a"] == "ready"
    assert run.rows["a"].agents_tried == ("did:x:three",)
