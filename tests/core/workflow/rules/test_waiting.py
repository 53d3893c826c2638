"""Waits for agents and verifiers that are away: when they begin, what they use up, how they end."""

from __future__ import annotations

from typing import Any

import orjson

from core.errors import NodeErrorCode
from tests.core.workflow.engine import Engine, chain, engine

ONE = {"cap.work": {"did:x:one": 10}}
JUDGE = {**ONE, "cap.verify.generic.v1": {"did:x:judge": 3}}
START_MS = 1_000_000


def away(manifest: dict[str, Any], *dids: str, **options: Any) -> Engine:
    """Return an accepted workflow of which some agents are away."""
    return engine(manifest, agents=options.pop("agents", ONE), first_away=dids, **options)


def waiting_for(run: Engine, node: str = "a") -> dict[str, Any]:
    """Return what the stored row says of a wait."""
    text = run.rows[node].selection_json
    assert text is not None
    told: dict[str, Any] = orjson.loads(text)["waitingFor"]
    return told


def test_a_node_waits_without_an_attempt_and_begins_when_its_agent_is_back() -> None:
    run = away(chain("a"), "did:x:one")
    row = run.rows["a"]
    assert (run.status, row.status, row.attempt, row.retries_used) == ("pending", "ready", 0, 0)
    assert row.retry_at_ms == START_MS + 60_000
    assert waiting_for(run) == {"reason": "no agent takes it", "sinceMs": START_MS}
    run.at_ms += 1_000
    assert run.wake("a").records == [], "nothing has changed, so nothing is stored"
    run.away.clear()
    run.wake("a")
    row = run.rows["a"]
    assert (row.status, row.attempt, row.retry_at_ms) == ("dispatched", 1, None)
    assert row.selection_json is None
    assert run.run_to_end().status == "success"


def test_a_node_that_may_not_wait_fails_at_once() -> None:
    run = away(chain("a", waitForAgentMs=0), "did:x:one")
    assert (run.error_code("a"), run.at_ms) == ("NO_CANDIDATE", START_MS)


def test_the_workflows_own_end_ends_the_wait_with_its_own_reason() -> None:
    run = away({**chain("a"), "settings": {"maxRuntimeMs": 7_000}}, "did:x:one")
    assert run.rows["a"].retry_at_ms == run.deadline_ms
    run.wait_retry("a")
    assert run.status == "pending", "the workflow's own timer ends it"
    run.exceed_runtime()
    assert (run.status, run.error_code("a")) == ("timeout", "WORKFLOW_TIMEOUT")
    assert run.rows["a"].selection_json is None


def test_a_successor_waits_on_until_the_same_time() -> None:
    run = away(chain("a", waitForAgentMs=9_000), "did:x:one")
    for _ in range(3):
        run.at_ms += 2_000
        run.crash()
        assert run.timers["a"] == START_MS + 9_000
        assert waiting_for(run)["sinceMs"] == START_MS
    run.at_ms += 20_000
    run.crash()
    assert run.error_code("a") == "NO_CANDIDATE"


def test_a_retry_whose_agent_is_away_waits_and_uses_no_further_retry() -> None:
    run = away(chain("a", maxRetries=1))
    run.fail("a")
    run.away.add("did:x:one")
    run.wait_retry("a")
    row = run.rows["a"]
    assert (row.status, row.retries_used, row.error and row.error["code"]) == (
        "ready",
        1,
        "AGENT_ERROR",
    )
    assert run.timers["a"] == run.at_ms + 60_000
    run.away.clear()
    run.wake("a")
    run.succeed("a")
    assert (run.status, run.rows["a"].attempt) == ("success", 2)


def test_what_the_last_agent_said_explains_the_end_of_a_wait() -> None:
    run = away(chain("a"))
    run.fail("a", code=NodeErrorCode.AGENT_ERROR)
    run.away.add("did:x:one")
    run.wait_retry("a")
    run.wait_retry("a")
    assert (run.status, run.error_code("a")) == ("failed", "AGENT_ERROR")


def test_a_verifier_that_does_not_come_back_ends_the_attempt() -> None:
    manifest = chain("a", requiresVerification=True, waitForAgentMs=4_000)
    run = away(manifest, "did:x:judge", agents=JUDGE)
    run.succeed("a")
    run.wait_retry("a")
    assert (run.at_ms, run.error_code("a")) == (START_MS + 4_000, "VERIFIER_UNAVAILABLE")
    assert run.rows["a"].selection_json is None


def test_the_reasons_of_a_choice_are_kept_while_a_verifier_is_awaited() -> None:
    run = away(chain("a", requiresVerification=True), "did:x:judge", agents=JUDGE)
    run.machine.node("a").selection_json = "[1]"
    run.succeed("a")
    assert waiting_for(run)
    run.away.clear()
    run.wake("a")
    assert run.rows["a"].selection_json == "[1]"
