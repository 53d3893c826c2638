"""Whom a node may wait for: agents that are away and could take it if they came back."""

from __future__ import annotations

from typing import Any

import pytest

from actors.directory.agent_directory import Directory
from actors.directory.health.agent_health import DEPARTED_MS
from actors.ports import Contact
from core.market.agent_liveness import Liveness
from core.market.pricing import FixedPrice
from core.workflow.actions import SelectVerifier
from core.workflow.events import AgentNotSelected, AgentSelected
from tests.actors.directory.test_agent_directory import CAPABILITY, directory, row, select

AT_MS = 1_000_000_000_000
A, B = "did:x:a", "did:x:b"


def gone(did: str, left_ms: int = AT_MS) -> dict[str, Any]:
    """Return the row of an agent that was deregistered."""
    return row(did, status="inactive", updated_ms=left_ms)


def is_temporary(known: Directory, at_ms: int = AT_MS, **fields: Any) -> bool:
    """Say whether a selection fails for a passing reason."""
    answer = known.select(select(**fields), at_ms)
    assert isinstance(answer, AgentNotSelected), answer
    return answer.failure.is_temporary


def say(known: Directory, did: str, word: str) -> None:
    """Let an agent say how it is."""
    known.apply_liveness({did: Liveness(word, heartbeat_ms=AT_MS)})


def fail(known: Directory, did: str, contact: Contact, payer_did: str = "") -> None:
    """Let an agent's circuit open."""
    for _ in range(3):
        known.begin(did)
        known.note_outcome(did, contact, AT_MS, payer_did=payer_did)


@pytest.mark.parametrize("target", [None, A], ids=["open", "targeted"])
def test_offline_unhealthy_shut_and_deregistered_agents_may_come_back(target: str | None) -> None:
    for word in ("offline", "maintenance"):
        known = directory(row(A))
        say(known, A, word)
        assert is_temporary(known, target_agent_id=target), word
    known = directory(row(A))
    fail(known, A, Contact.UNREACHABLE)
    assert is_temporary(known, target_agent_id=target), "a circuit of all"
    known = directory(row(A))
    fail(known, A, Contact.UNANSWERED)
    assert is_temporary(known, target_agent_id=target), "a circuit of the payer alone"
    known = directory(row(A))
    known.put([gone(A)], at_ms=AT_MS)
    assert is_temporary(known, target_agent_id=target), "deregistered"
    assert not is_temporary(known, target_agent_id="did:x:nobody")


@pytest.mark.parametrize("target", [None, A], ids=["open", "targeted"])
def test_who_could_not_take_the_node_anyway_is_not_waited_for(target: str | None) -> None:
    known = directory(row(A, cents=5))
    say(known, A, "offline")
    assert is_temporary(known, target_agent_id=target)
    assert not is_temporary(known, target_agent_id=target, price_max_micro=10_000), "too dear"
    assert not is_temporary(known, target_agent_id=target, exclude=(A,)), "has failed"
    other = {"capability_id": "cap.other.v1"}
    assert not is_temporary(known, target_agent_id=target, **other), "does not offer it"
    revoked = {"did": A, "expires_ms": None, "ended_ms": None}
    known.revocations.apply_rows([revoked])
    assert not is_temporary(known, target_agent_id=target), "revoked"


def test_an_agent_without_an_address_is_not_waited_for() -> None:
    known = directory(row(A, endpoint=""))
    assert not is_temporary(known)
    assert not is_temporary(known, target_agent_id=A)


def test_one_that_is_away_is_waited_for_beside_one_that_is_too_dear() -> None:
    known = directory(row(A, cents=1), row(B, cents=9))
    say(known, A, "offline")
    assert is_temporary(known, price_max_micro=10_000)


def test_a_last_card_is_known_for_a_minute() -> None:
    known = directory(row(A, cents=7))
    known.put([row(A, cents=7, status="inactive", updated_ms=AT_MS)], at_ms=AT_MS)
    late_ms = AT_MS + DEPARTED_MS
    assert known.asking_prices(CAPABILITY, None).dearest_micro == 70_000
    assert known.asking_prices(CAPABILITY, A).dearest_micro == 70_000
    assert known.entry(A) is None, "nothing is sent to it"
    known.forget_departed(late_ms - 1)
    assert is_temporary(known)
    known.forget_departed(late_ms)
    assert not is_temporary(known)
    assert not is_temporary(known, target_agent_id=A)
    assert known.asking_prices(CAPABILITY, None).dearest_micro is None
    known.put([row(A)], at_ms=late_ms)
    assert isinstance(known.select(select(), late_ms), AgentSelected)


def test_an_owner_that_starts_knows_who_has_just_left() -> None:
    fresh = row(A, status="inactive", updated_ms=AT_MS - DEPARTED_MS + 1)
    old = row(B, status="inactive", updated_ms=AT_MS - DEPARTED_MS)
    known = directory()
    known.put([fresh, old], at_ms=AT_MS)
    assert is_temporary(known, target_agent_id=A)
    assert not is_temporary(known, target_agent_id=B)


def test_a_verifier_may_come_back_unless_it_is_the_agents_own() -> None:
    known = directory(row(A, owner="did:x:one"), row(B, owner="did:x:two"))
    say(known, B, "offline")

    def waits(primary: str) -> bool:
        action = SelectVerifier("n", CAPABILITY, primary, (primary,), 10**9)
        answer = known.select_verifier(action, AT_MS)
        assert isinstance(answer, AgentNotSelected)
        return answer.failure.is_temporary

    assert waits(A)
    known.put([row(B, owner="did:x:one")])
    assert not waits(A)


def test_a_registration_lets_one_attempt_try_a_shut_agent() -> None:
    known = directory(row(A))
    fail(known, A, Contact.UNREACHABLE)
    known.put([row(A)], at_ms=AT_MS)
    assert isinstance(known.select(select(), AT_MS), AgentSelected)
    assert is_temporary(known), "until the first one has ended"


def test_it_tells_of_agents_that_may_be_back_and_of_no_others() -> None:
    known = directory(row(A), row(B))
    say(known, A, "healthy")
    say(known, B, "healthy")
    known.select(select(price=FixedPrice(10)), AT_MS)
    heard: list[str] = []
    known.on_changed = lambda did, offered: heard.append(did)
    known.apply_liveness({A: Liveness("healthy", heartbeat_ms=AT_MS + 1)})
    assert not heard, "it could take work before"
    say(known, A, "offline")
    known.select(select(price=FixedPrice(10)), AT_MS)
    heard.clear()
    say(known, A, "healthy")
    assert heard == [A]
    assert known.may_end_wait(A, CAPABILITY, AT_MS)
    say(known, A, "offline")
    assert not known.may_end_wait(A, CAPABILITY, AT_MS)
    known.put([gone(A), gone(B)], at_ms=AT_MS)
    heard.clear()
    known.forget_departed(AT_MS + DEPARTED_MS)
    assert set(heard) == {A, B}
    assert known.may_end_wait(A, CAPABILITY, AT_MS), "nobody is left to wait for"
