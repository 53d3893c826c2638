"""Stakes at risk in the machine: who is asked next when a lock is refused, and what is freed.

That every lock is freed once, in every ending, `Engine` asserts in all of these tests' neighbours.
Reference: money.md (Slashing, Stakes).
"""

from __future__ import annotations

import pytest

from core.errors import NodeErrorCode
from core.workflow.actions import Decision
from core.workflow.events import AttemptFailed, Failure, StakeUnlocked, Verdict
from tests.core.workflow.engine import Engine, chain, engine
from tests.core.workflow.stake_book import StakeBook

ONE, TWO = "did:x:one", "did:x:two"


def test_an_agent_whose_stake_is_elsewhere_gives_way_without_a_retry_used_up() -> None:
    run = engine(chain("a", maxRetries=0), stakes=StakeBook(free={ONE: 1, TWO: 2}))
    assert [(d.node, d.agent_did) for d in run.open] == [("a", TWO)]
    assert run.rows["a"].retries_used == 0
    assert run.history[0].error_code == NodeErrorCode.NO_CANDIDATE
    run.run_to_end()
    assert run.status == "success"


def test_when_nobody_has_stake_to_spare_the_node_waits_and_tries_the_same_agents_again() -> None:
    run = Engine(chain("a", maxRetries=1), {"cap.work": {ONE: 10}}, stakes=StakeBook(free={}))
    run.accept()
    assert run.rows["a"].status == "ready"
    assert run.stakes.free is not None
    run.stakes.free[ONE] = 2
    run.wait_retry("a")
    assert run.rows["a"].agent_did == ONE
    assert run.rows["a"].stake_micro == 2
    run.run_to_end()
    assert run.status == "success"


def test_a_target_without_stake_to_spare_is_waited_for_until_retries_are_used_up() -> None:
    manifest = chain("a", targetAgentId=ONE, maxRetries=2)
    run = engine(manifest, stakes=StakeBook(free={TWO: 100}))
    run.wait_retry("a")
    run.wait_retry("a")
    assert run.statuses() == {"a": "failed"}
    assert run.error_code("a") == NodeErrorCode.NO_CANDIDATE
    assert {line.agent_did for line in run.history} == {ONE}


def blamed(*decisions: Decision) -> list[tuple[str, int, NodeErrorCode | None]]:
    """Return of every lock that ended: its agent, its attempt, what it is blamed for."""
    return [
        (record.agent_did, record.attempt, record.failure_code)
        for decision in decisions
        for record in decision.records
        if isinstance(record, StakeUnlocked)
    ]


@pytest.mark.parametrize(
    "code",
    [
        NodeErrorCode.AGENT_ERROR,
        NodeErrorCode.INVALID_REPLY,
        NodeErrorCode.OUTPUT_SCHEMA,
    ],
)
def test_an_agent_is_blamed_when_another_takes_over(code: NodeErrorCode) -> None:
    run = engine(chain("a"))
    assert blamed(run.fail("a", Verdict.FINAL_FOR_AGENT, code)) == [(ONE, 1, code)]
    assert blamed(run.succeed("a")) == [(TWO, 2, None)]
    assert run.status == "success"


def test_an_agent_is_blamed_by_the_node_that_ends_with_its_attempt() -> None:
    run = engine(chain("a", targetAgentId=ONE, maxRetries=1))
    first = run.fail("a", code=NodeErrorCode.AGENT_TIMEOUT)
    run.wait_retry("a")
    last = run.fail("a", code=NodeErrorCode.AGENT_TIMEOUT)
    assert blamed(first, last) == [(ONE, 1, None), (ONE, 2, NodeErrorCode.AGENT_TIMEOUT)]
    assert run.statuses() == {"a": "timeout"}


def test_each_agent_that_is_given_up_is_blamed_for_its_own_attempt() -> None:
    run = engine(chain("a"))
    ends = [run.fail("a", Verdict.FINAL_FOR_AGENT) for _ in range(3)]
    assert [did for did, _, code in blamed(*ends) if code is not None] == [ONE, TWO, "did:x:three"]
    assert run.statuses() == {"a": "failed"}


def test_a_rejected_result_is_blamed_when_no_attempt_is_left() -> None:
    run = engine(chain("a", requiresVerification=True, maxRetries=0))
    run.succeed("a")
    rejected = run.judge("a", approved=False)
    assert blamed(rejected) == [(ONE, 1, NodeErrorCode.VERIFICATION_REJECTED)]


@pytest.mark.parametrize(("approved", "has_crashed"), [(None, False), (False, True)])
def test_a_rejection_that_says_nothing_or_is_of_an_unknown_verifier_is_not_blamed(
    approved: bool | None, has_crashed: bool
) -> None:
    """A restart does not know whether the verifier was trusted: money.md (Verifiers)."""
    run = engine(chain("a", requiresVerification=True, maxRetries=0))
    run.succeed("a")
    if has_crashed:
        run.crash()
    assert blamed(run.judge("a", approved=approved)) == [(ONE, 1, None)]
    assert run.statuses() == {"a": "failed"}


@pytest.mark.parametrize(
    "failure",
    [
        Failure(NodeErrorCode.AGENT_UNAVAILABLE, "away", Verdict.FINAL_FOR_AGENT),
        Failure(NodeErrorCode.AGENT_ERROR, "429", Verdict.FINAL_FOR_AGENT, is_spared=True),
        Failure(NodeErrorCode.AGENT_ERROR, "no url", Verdict.FINAL_FOR_AGENT, is_refusal=True),
        Failure(NodeErrorCode.AGENT_ERROR, "our process ended", Verdict.LOST),
        Failure(NodeErrorCode.BUDGET_EXCEEDED, "too dear", Verdict.FINAL),
        Failure(NodeErrorCode.POLICY_DENIED, "forbidden", Verdict.FINAL),
    ],
)
def test_case_29_an_agent_that_did_no_wrong_is_not_blamed(failure: Failure) -> None:
    run = engine(chain("a"))
    ended = run.hear(AttemptFailed("a", 1, failure, run.at_ms, run.at_ms))
    assert blamed(ended) == [(ONE, 1, None)]


def test_case_29_cancel_runtime_and_revocation_blame_nobody() -> None:
    for end in (Engine.cancel, Engine.exceed_runtime, lambda run: run.revoke(ONE)):
        run = engine(chain("a"))
        assert blamed(end(run)) == [(ONE, 1, None)]


def test_a_wrong_signature_is_said_of_its_own_attempt_although_another_agent_succeeds() -> None:
    run = engine(chain("a"))
    forged = Failure(NodeErrorCode.INVALID_REPLY, "forged", Verdict.FINAL_FOR_AGENT, is_forged=True)
    failed = run.hear(AttemptFailed("a", 1, forged, run.at_ms, run.at_ms))
    succeeded = run.succeed("a")
    freed = [
        (record.agent_did, record.is_forged)
        for decision in (failed, succeeded)
        for record in decision.records
        if isinstance(record, StakeUnlocked)
    ]
    assert freed == [(ONE, True), (TWO, False)]
    assert run.status == "success"
