"""Agents that decline: the node moves on at once, and they are no agents that failed it.

money.md (Full agents).
"""

from __future__ import annotations

import pytest

from core.errors import NodeErrorCode
from core.workflow.events import AttemptFailed, Failure
from core.workflow.rules.retry import MOVES_MAX
from core.workflow.terms import NodeTerms
from tests.core.workflow.engine import Engine, chain, engine

FULL = Failure(
    NodeErrorCode.AGENT_ERROR, "HTTP 429", retry_after_ms=7_000, is_spared=True, is_declined=True
)
MANY = {"cap.work": {f"did:x:{number}": 10 for number in range(6)}}


def decline(run: Engine, node: str = "a") -> None:
    """Let the agent of a node's open attempt decline it."""
    attempt = run.find(node).attempt
    run.hear(AttemptFailed(node, attempt, FULL, run.at_ms, run.at_ms))


def agents(run: Engine) -> list[str]:
    """Return the agents of all dispatches in order."""
    return [dispatch.agent_did for dispatch in run.dispatched]


def test_a_declined_node_goes_to_another_agent_at_once_without_a_retry() -> None:
    run = engine(chain("a", maxRetries=0), agents=MANY)
    for _ in range(5):
        decline(run)
    assert agents(run)[:2] == ["did:x:0", "did:x:1"], "the one that declined is left at once"
    row = run.rows["a"]
    assert (row.retries_used, row.agents_tried, row.attempt, len(run.history)) == (0, (), 6, 5)
    run.succeed("a")
    assert run.status == "success"


def test_agents_that_declined_are_none_of_the_three_that_may_fail_a_node() -> None:
    run = engine(chain("a", maxRetries=1), agents=MANY)
    for away in ("did:x:0", "did:x:1", "did:x:2"):
        decline(run)
        run.away.add(away)
    run.fail("a")
    run.wait_retry("a")
    assert run.find("a").agent_did == "did:x:3"


def test_an_agent_that_nobody_can_replace_is_asked_again_after_its_retry_after() -> None:
    run = engine(chain("a", maxRetries=1), agents={"cap.work": {"did:x:0": 10}})
    decline(run)
    assert run.timers["a"] == run.at_ms + 7_000
    assert run.rows["a"].retries_used == 1
    run.wait_retry("a")
    decline(run)
    assert (run.status, run.error_code("a")) == ("failed", "AGENT_ERROR")


def test_agents_that_decline_cannot_keep_a_node_busy_for_ever() -> None:
    run = engine(chain("a", maxRetries=0), agents=MANY)
    for _ in range(MOVES_MAX):
        assert run.status == "running"
        decline(run)
    assert (run.status, len(run.history)) == ("failed", MOVES_MAX)


@pytest.mark.parametrize(
    ("node", "settings"),
    [({}, {"allowFallbackAgents": False}), ({"targetAgentId": "did:x:0"}, {})],
    ids=["no fallback agents", "a target"],
)
def test_a_node_that_is_bound_to_its_agent_keeps_it(
    node: dict[str, str], settings: dict[str, bool]
) -> None:
    run = engine({**chain("a", **node), "settings": settings}, agents=MANY)
    decline(run)
    run.wait_retry("a")
    assert agents(run) == ["did:x:0", "did:x:0"]


def test_a_restored_node_goes_on_after_a_decline() -> None:
    run = engine(chain("a", maxRetries=0), agents=MANY)
    decline(run)
    run.crash()
    decline(run)
    run.succeed("a")
    assert run.status == "success"


def test_a_free_agent_that_declines_leaves_the_node_its_money() -> None:
    """Two nodes share a budget; what the free agent did not ask is nobody else's meanwhile."""
    offers = {"cap.work": {"did:x:free": 0, "did:x:dear": 60, "did:x:other": 50}}
    manifest = {"nodes": {name: {"capabilityId": "cap.work"} for name in "ab"}}
    run = engine(manifest, agents=offers, hold_micro=120, reserved={"a": 60, "b": 60})
    assert agents(run) == ["did:x:free", "did:x:free"]
    for name in "ab":
        decline(run, name)
    assert agents(run)[2:] == ["did:x:dear", "did:x:dear"]
    run.run_to_end()
    assert (run.status, run.paid_micro) == ("success", 120)


def test_a_node_pays_no_more_than_its_limit_though_others_leave_money() -> None:
    offers = {"cap.work": {"did:x:free": 0, "did:x:dear": 60}}
    run = engine(
        chain("a", maxRetries=0),
        agents=offers,
        hold_micro=120,
        reserved={"a": 30},
        terms={"a": NodeTerms(limit_micro=30)},
    )
    decline(run)
    assert run.status == "failed"
    error = run.rows["a"].error
    assert error is not None
    assert error["message"].startswith("HTTP 429; "), "both say why"


def test_an_agent_leaves_what_the_verifier_asks() -> None:
    offers = {"cap.work": {"did:x:dear": 60, "did:x:fair": 50}, "cap.check": {"did:x:check": 20}}
    node = {"requiresVerification": True, "verifierCapabilityId": "cap.check"}
    run = engine(
        chain("a", **node),
        agents=offers,
        hold_micro=70,
        reserved={"a": 70},
        terms={"a": NodeTerms(verifier_micro=20)},
    )
    run.run_to_end()
    assert (run.status, run.paid_micro) == ("success", 70)


def test_a_verification_moves_on_from_a_verifier_that_declines() -> None:
    offers = {"cap.work": {"did:x:0": 10}, "cap.check": {"did:x:full": 0, "did:x:check": 0}}
    node = {"requiresVerification": True, "verifierCapabilityId": "cap.check", "maxRetries": 0}
    run = engine(chain("a", **node), agents=offers)
    run.succeed("a")
    run.judge("a", failure=FULL)
    assert run.find("a").verify_attempt
    assert run.find("a").agent_did == "did:x:check"
    run.judge("a", approved=True)
    assert run.status == "success"
