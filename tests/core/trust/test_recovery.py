"""Whose signatures are enough to replace a key."""

from __future__ import annotations

import pytest

from core.trust.recovery import Guardians, RecoveryType, recovery_id, recovery_messages

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
    assert NAMED.is_agreed(kind, signed, is_owners=False) is is_agreed


@pytest.mark.parametrize("kind", [SOCIAL, CUSTODIAN])
def test_without_guardians_no_signatures_are_enough(kind: RecoveryType) -> None:
    assert not ALONE.is_agreed(kind, ("a", "b"), is_owners=True)
    assert ALONE.is_agreed(TIME_LOCK, (), is_owners=True)


def test_the_id_is_of_the_agent_and_the_key_alone() -> None:
    assert recovery_id("did:net:a", "K") == recovery_id("did:net:a", "K")
    others = {recovery_id(did, key) for did in ("did:net:a", "did:net:b") for key in ("K", "L")}
    assert len(others) == 4
    request_id = recovery_id("did:net:a", "K")
    assert recovery_messages(request_id, "did:net:a", "K") == (
        f"recover:{request_id}:did:net:a:K".encode(),
        b"recover:did:net:a:K",
    )
