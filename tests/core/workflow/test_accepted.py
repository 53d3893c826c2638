"""Agents that accept an attempt and hand its result in later."""

from __future__ import annotations

from core.trust.deployment_keys import FIRST_VERSION
from core.workflow.actions import AwaitResult
from core.workflow.events import AttemptAccepted, AttemptSucceeded, BlobRef
from tests.core.workflow.engine import chain, engine


def stored(ref: BlobRef, at_ms: int) -> AttemptSucceeded:
    """Return the event of a large result of the first attempt of `a`."""
    return AttemptSucceeded("a", 1, None, "sha256:in", ref.hash, at_ms, at_ms, result_ref=ref)


def test_accepted_attempt_is_stored_as_running_with_its_deadline() -> None:
    run = engine(chain("a", timeoutMs=7_000))
    run.at_ms += 500  # the order waited in a queue: the clock runs from the request
    decision = run.accept_later("a")
    row = run.rows["a"]
    assert (row.status, row.attempt, row.result_json) == ("running", 1, None)
    assert (row.started_ms, row.deadline_ms) == (run.at_ms, run.at_ms + 7_000)
    assert decision.actions == [AwaitResult("a", 1, 0, run.at_ms, run.at_ms + 7_000)]


def test_accepted_attempt_survives_a_crash_and_is_not_dispatched_again() -> None:
    run = engine(chain("a", "b"))
    run.accept_later("a")
    awaited = run.awaited["a"]
    run.crash()
    assert run.awaited == {"a": awaited}
    assert len(run.dispatched) == 1
    assert not run.history, "the attempt is not lost"
    run.succeed("a")
    run.run_to_end()
    assert run.status == "success"
    assert run.rows["a"].attempt == 1


def test_result_may_overtake_the_acceptance() -> None:
    run = engine(chain("a"))
    run.succeed("a")
    assert run.status == "success"
    assert run.hear(AttemptAccepted("a", 1, run.at_ms, run.at_ms)).records == []


def test_cancel_tells_the_agent_of_an_accepted_attempt_also_after_a_crash() -> None:
    run = engine(chain("a"))
    run.accept_later("a")
    run.crash()
    run.cancel()
    assert [(abort.node, abort.agent_did) for abort in run.aborted] == [("a", "did:x:one")]


def test_the_version_of_an_attempts_keys_is_stored_and_kept_over_a_crash() -> None:
    run = engine(chain("a", "b"))
    assert (run.rows["a"].key_version, "b" in run.rows) == (FIRST_VERSION, False)
    run.accept_later("a")
    run.crash()
    assert run.machine.node("a").key_version == run.rows["a"].key_version == FIRST_VERSION


def test_accepted_verification_is_awaited_and_repeated_after_a_crash() -> None:
    run = engine(chain("a", requiresVerification=True, timeoutMs=9_000))
    run.succeed("a")
    decision = run.accept_later("a")
    assert decision.records == []
    assert decision.actions == [AwaitResult("a", 1, 1, run.at_ms, run.at_ms + 9_000)]
    run.crash()
    assert [dispatch.verify_attempt for dispatch in run.open] == [1]
    run.judge("a", approved=True)
    assert run.status == "success"


def test_large_result_is_stored_by_reference_and_survives_a_crash() -> None:
    manifest = chain("a", "b")
    manifest["nodes"]["b"]["inputMappings"] = {"x": "$.a.result.n"}
    run = engine(manifest)
    ref = BlobRef("sha256:" + "ab" * 32, 70_000)
    run.hear(stored(ref, run.at_ms))
    assert (run.rows["a"].result_json, run.rows["a"].result_ref) == (None, ref)
    assert run.machine.results_for("b") == {"a": ref}
    run.crash()
    assert run.machine.results_for("b") == {"a": ref}
    run.run_to_end()
    assert run.status == "success"


def test_large_unverified_result_is_not_taken_for_a_missing_one() -> None:
    run = engine(chain("a", requiresVerification=True))
    ref = BlobRef("sha256:" + "cd" * 32, 70_000)
    run.hear(stored(ref, run.at_ms))
    run.crash()
    assert run.machine.node("a").result == ref
    assert not [line for line in run.history if line.outcome == "lost"]
    run.judge("a", approved=False)
    assert run.rows["a"].result_ref is None
    run.wait_retry("a")
    run.succeed("a")
    run.judge("a", approved=True)
    assert run.rows["a"].result_ref is None
    assert run.status == "success"


def test_reference_reads_what_it_wrote() -> None:
    ref = BlobRef("sha256:" + "00" * 32, 5)
    assert BlobRef.from_json(ref.to_json()) == ref
