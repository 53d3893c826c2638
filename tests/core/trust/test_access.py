"""Scopes: what each key may do, and that no caller hands on more than it has."""

from __future__ import annotations

import pytest

from core.errors import ErrorCode
from core.trust.access import (
    ADMIN,
    DEFAULT_SCOPES,
    DEPOSIT,
    HEARTBEAT,
    RIGHTS,
    SET_QUOTAS,
    SINGLE_RIGHTS,
    SUGGEST,
    Principal,
    authority_used,
    denial,
    find_ungrantable_scopes,
    is_derived,
    is_scope,
)

OWN = "did:net:alice"


def caller(*scopes: str) -> Principal:
    return Principal(did=OWN, key_id="k", scopes=frozenset(scopes))


LACKS, OTHERS = ErrorCode.INSUFFICIENT_SCOPE, ErrorCode.FORBIDDEN
BOB = "did:net:bob"


@pytest.mark.parametrize(
    ("principal", "right", "parties", "expected"),
    [
        (None, None, None, None),
        (caller(), None, None, None),
        (None, "workflows:read", None, ErrorCode.UNAUTHORIZED),
        (None, None, (OWN,), ErrorCode.UNAUTHORIZED),
        (caller("workflows:read"), "workflows:read", None, None),
        (caller("workflows:read"), "workflows:write", None, LACKS),
        (caller("workflows:write"), "workflows:read", None, LACKS),
        (caller("quotas:write"), "ledger:write", None, LACKS),
        (caller("ledger:write"), SET_QUOTAS, None, LACKS),
        (caller(DEPOSIT), DEPOSIT, None, None),
        (caller(ADMIN), DEPOSIT, (BOB,), None),
        (caller(ADMIN), "ledger:read", (), None),
        (caller("ledger:read"), "ledger:read", (OWN,), None),
        (caller("ledger:read"), "ledger:read", (BOB, OWN), None),
        (caller("ledger:read"), "ledger:read", (BOB,), OTHERS),
        (caller("ledger:read"), "ledger:read", (), OTHERS),
        (caller(), "ledger:read", (BOB,), LACKS),
        (caller(HEARTBEAT), "agents:write", None, LACKS),
        (caller(HEARTBEAT), HEARTBEAT, (OWN,), None),
        (caller(HEARTBEAT), HEARTBEAT, (BOB,), OTHERS),
        (caller("agents:write"), HEARTBEAT, (OWN,), None),
        (caller("agents:read"), HEARTBEAT, (OWN,), LACKS),
        # A wildcard of before is no right any more.
        (caller("*:read"), "ledger:read", None, LACKS),
    ],
)
def test_every_permission_is_decided(
    principal: Principal | None,
    right: str | None,
    parties: tuple[str, ...] | None,
    expected: ErrorCode | None,
) -> None:
    assert denial(principal, right, parties) == expected


@pytest.mark.parametrize("right", sorted(RIGHTS))
def test_a_right_covers_itself_and_no_other_but_an_agents_heartbeat(right: str) -> None:
    held = {other for other in RIGHTS if denial(caller(right), other) is None}
    if right == ADMIN:
        assert held == RIGHTS
    else:
        assert held == {right} | ({HEARTBEAT} if right == "agents:write" else set())


def test_a_new_key_has_none_of_the_single_rights() -> None:
    new = caller(*DEFAULT_SCOPES)
    assert [right for right in SINGLE_RIGHTS if denial(new, right) is None] == [HEARTBEAT]


def test_rights_are_a_closed_list() -> None:
    assert all(is_scope(right) for right in RIGHTS)
    others = (
        "",
        "agents",
        "agents:delete",
        "*",
        "*:read",
        "Agents:read",
        "a:read",
        "agents:read\n",
    )
    assert not any(is_scope(text) for text in others)


@pytest.mark.parametrize(
    ("owner_did", "scopes", "derived"),
    [
        ("did:net:alice", ["agents:read"], True),
        ("did:net:bob", ["agents:read", DEPOSIT], False),
        ("did:net:bob", [ADMIN], True),
    ],
)
def test_a_key_of_ones_own_or_an_administrators_stands_on_its_makers(
    owner_did: str, scopes: list[str], derived: bool
) -> None:
    assert is_derived(caller(ADMIN), owner_did, scopes) is derived


def test_nobody_grants_more_than_they_have() -> None:
    wanted = ["agents:read", "agents:write", ADMIN, DEPOSIT]
    assert find_ungrantable_scopes(caller("agents:read"), wanted) == (
        "agents:write",
        ADMIN,
        DEPOSIT,
    )
    assert find_ungrantable_scopes(caller("agents:write"), [HEARTBEAT]) == ()
    assert find_ungrantable_scopes(caller(ADMIN), [DEPOSIT, ADMIN, "agents:write"]) == ()


@pytest.mark.parametrize(
    ("principal", "right", "parties", "used"),
    [
        (None, None, None, None),
        (caller("ledger:read"), "ledger:read", (OWN,), None),
        (caller(DEPOSIT), DEPOSIT, None, DEPOSIT),
        (caller(ADMIN), DEPOSIT, None, ADMIN),
        (caller(ADMIN, DEPOSIT), DEPOSIT, None, DEPOSIT),
        (caller(ADMIN), "ledger:read", (OWN,), None),
        (caller(ADMIN), "ledger:read", None, None),
        (caller(ADMIN), "ledger:read", (BOB,), ADMIN),
        (caller(ADMIN), None, (BOB,), ADMIN),
        (caller(HEARTBEAT), HEARTBEAT, (OWN,), None),
    ],
)
def test_the_right_that_a_usual_key_would_not_have(
    principal: Principal | None, right: str | None, parties: tuple[str, ...] | None, used: str
) -> None:
    assert denial(principal, right, parties) is None
    assert authority_used(principal, right, parties) == used


def test_who_reads_workflows_may_ask_for_suggestions() -> None:
    assert denial(caller("workflows:read"), SUGGEST) is None
    assert denial(caller(SUGGEST), "workflows:read") is LACKS
    assert not is_scope(SUGGEST), "no API key has it by itself"
