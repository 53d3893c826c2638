"""What a node pays whose result comes from a peer. Reference: money.md (Work of peers)."""

from __future__ import annotations

import pytest

from core.errors import NodeErrorCode
from core.workflow.actions import SelectVerifier
from core.workflow.events import AttemptFailed, AttemptSucceeded, Failure, Verdict
from core.workflow.terms import NodeTerms
from tests.core.workflow.engine import Engine, chain, engine

PRICE, VERIFIER = 10, 3


def ordered(*, verified: bool = False) -> Engine:
    """Return a run whose node is at a peer, with its verifier's share reserved."""
    manifest = chain("a", requiresVerification=verified)
    verifier_micro = VERIFIER if verified else 0
    terms = {"a": NodeTerms(verifier_micro=verifier_micro)}
    return engine(manifest, hold_micro=100, reserved={"a": PRICE + verifier_micro}, terms=terms)


def succeed(run: Engine, charged_micro: int) -> None:
    run.hear(AttemptSucceeded("a", 1, "{}", "in", "out", 1, 2, charged_micro=charged_micro))


@pytest.mark.parametrize("charged_micro", [0, 4, PRICE])
def test_a_node_pays_what_the_peer_charged(charged_micro: int) -> None:
    run = ordered()
    assert run.machine.peer_charge_max_micro("a") == PRICE
    succeed(run, charged_micro)
    assert run.statuses()["a"] == "success"
    assert run.machine.spent_micro == charged_micro
    assert sum(one.gross_micro for one in run.payments.values()) == charged_micro


def test_a_node_never_pays_more_than_its_price() -> None:
    run = ordered()
    succeed(run, PRICE + 50)
    assert run.machine.spent_micro == PRICE


def test_a_peer_has_the_result_verified_itself_and_its_charge_covers_both() -> None:
    run = ordered(verified=True)
    assert run.machine.peer_charge_max_micro("a") == PRICE + VERIFIER
    succeed(run, PRICE + VERIFIER)
    assert run.statuses()["a"] == "success"
    assert not any(isinstance(one, SelectVerifier) for one in run.selections)
    assert {line: one.gross_micro for line, one in run.payments.items()} == {"a": PRICE + VERIFIER}


@pytest.mark.parametrize(
    ("charged_micro", "paid_micro"), [(2, 2), (VERIFIER, VERIFIER), (50, PRICE + VERIFIER)]
)
def test_a_rejection_at_a_peer_pays_at_most_what_was_agreed(
    charged_micro: int, paid_micro: int
) -> None:
    run = ordered(verified=True)
    rejected = Failure(NodeErrorCode.VERIFICATION_REJECTED, "no", is_spared=True)
    run.hear(AttemptFailed("a", 1, rejected, 1, 2, charged_micro=charged_micro))
    assert run.payments["a#verify"].gross_micro == run.machine.spent_micro == paid_micro
    assert [(one.kind, one.outcome) for one in run.history] == [
        ("primary", "error"),
        ("verify", "rejected"),
    ]
    if paid_micro <= VERIFIER:
        run.wait_retry("a")
        run.hear(AttemptSucceeded("a", 2, "{}", "in", "out", 1, 2, charged_micro=PRICE))
        assert run.machine.spent_micro == paid_micro + PRICE


def test_a_refused_result_of_a_revoked_agent_is_paid() -> None:
    run = ordered()
    revoked = Failure(NodeErrorCode.REVOKED, "revoked", Verdict.FINAL_FOR_AGENT)
    run.hear(AttemptFailed("a", 1, revoked, 1, 2, charged_micro=PRICE + 50))
    assert run.payments["a#verify"].gross_micro == run.machine.spent_micro == PRICE


def test_a_failure_without_a_verification_pays_nothing_whatever_a_peer_says() -> None:
    run = ordered()
    failed = Failure(NodeErrorCode.VERIFICATION_REJECTED, "no")
    run.hear(AttemptFailed("a", 1, failed, 1, 2, charged_micro=PRICE))
    assert not run.payments
