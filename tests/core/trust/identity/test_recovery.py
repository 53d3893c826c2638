"""Whose signatures are enough to replace a key."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.trust.identity.succession import (
    Guardians,
    GuardianSets,
    RecoveryType,
    recovery_id,
    recovery_messages,
)

NAMED = Guardians(("a", "b", "c"), 2, "k", 72)
ALONE = Guardians((), 0, None, 72)
SOCIAL, CUSTODIAN, TIME_LOCK = RecoveryType


@pytest.mark.parametrize(
    ("kind", "signed", "is_agreed"),
    [
        (SOCIAL, (), False),
        (SOCIAL, ("a",), False),
        (SOCIAL, ("a", "a"), False),
        (SOCIAL, ("a", "k"), False),
        (SOCIAL, ("a", "stranger"), False),
        (SOCIAL, ("a", "c"), True),
        (CUSTODIAN, ("a", "b", "c"), False),
        (CUSTODIAN, ("k",), True),
        (TIME_LOCK, (), False),
        (TIME_LOCK, ("stranger",), False),
        (TIME_LOCK, ("a",), True),
        (TIME_LOCK, ("k",), True),
    ],
)
def test_each_kind_asks_for_its_own(
    kind: RecoveryType, signed: tuple[str, ...], is_agreed: bool
) -> None:
    assert NAMED.is_agreed(kind, signed) is is_agreed


@pytest.mark.parametrize("kind", RecoveryType)
def test_without_guardians_no_signatures_are_enough(kind: RecoveryType) -> None:
    assert not ALONE.is_agreed(kind, ("a", "b"))


THIEFS = Guardians(("t",), 1, "k", 1)


def test_replaced_guardians_count_on_until_they_are_struck_out() -> None:
    """A thief's set holds one of the earlier ones as well: the earlier set decides."""
    sets = GuardianSets("o", NAMED).with_next(THIEFS, 5, counts_on=True)
    assert sets.current == replace(THIEFS, number=2)
    assert sets.replaced == (replace(NAMED, replaced_ms=5),)
    assert sets.signers == {"a", "b", "c", "k", "t"}
    assert sets.agreed(SOCIAL, ("a", "b")) == sets.agreed(CUSTODIAN, ("k",)) == sets.replaced[0]
    assert sets.agreed(SOCIAL, ("t",)) == sets.current
    assert sets.agreed(SOCIAL, ("a",)) is None
    assert sets.with_next(THIEFS, 9, counts_on=True) == sets, "named again"
    struck = sets.with_next(ALONE, 9, counts_on=False)
    assert struck == GuardianSets("o", replace(ALONE, number=3), struck_number=2)
    again = sets.with_next(THIEFS, 9, counts_on=False)
    assert again == GuardianSets("o", sets.current, struck_number=1), "named again by the owner"
    assert struck.with_next(NAMED, 9, counts_on=True).replaced == (), "a set of none"


def test_a_recovery_by_replaced_guardians_ends_who_came_after_them() -> None:
    first = GuardianSets("o", ALONE).with_next(NAMED, 1, counts_on=True)
    second = first.with_next(THIEFS, 5, counts_on=True)
    third = second.with_next(replace(THIEFS, delay_hours=9), 6, counts_on=True)
    assert [one.number for one in third.replaced] == [2, 3]
    restored = third.restored(third.replaced[0])
    assert restored == GuardianSets("o", replace(NAMED, number=5))
    kept = third.restored(third.replaced[1])
    assert (kept.current, kept.replaced) == (replace(THIEFS, number=5), third.replaced[:1])
    assert third.restored(third.current) == third


def test_the_id_is_of_the_agent_and_the_key_alone() -> None:
    assert recovery_id("did:net:a", "K") == recovery_id("did:net:a", "K")
    others = {recovery_id(did, key) for did in ("did:net:a", "did:net:b") for key in ("K", "L")}
    assert len(others) == 4
    request_id = recovery_id("did:net:a", "K")
    assert recovery_messages(request_id, "did:net:a", "K") == (
        f"recover:{request_id}:did:net:a:K".encode(),
        b"recover:did:net:a:K",
    )
