"""Scopes: what each key may do, and that nobody hands on more than they have."""

from __future__ import annotations

import pytest

from core.errors import ErrorCode
from core.trust.access import (
    ADMIN,
    DEFAULT_SCOPES,
    DEPOSIT,
    HEARTBEAT,
    PUBLIC,
    Need,
    Principal,
    is_derived,
    is_scope,
    refusal,
    ungrantable,
)

OWN = "did:net:alice"


def caller(*scopes: str) -> Principal:
    return Principal(did=OWN, key_id="k", scopes=frozenset(scopes))


@pytest.mark.parametrize(
    ("principal", "need", "expected"),
    [
        (None, PUBLIC, None),
        (caller(), PUBLIC, None),
        (None, Need("workflows:read"), ErrorCode.UNAUTHORIZED),
        (None, Need(None, OWN), ErrorCode.UNAUTHORIZED),
        (caller("workflows:read"), Need("workflows:read"), None),
        (caller("workflows:read"), Need("workflows:write"), ErrorCode.INSUFFICIENT_SCOPE),
        (caller("workflows:write"), Need("workflows:read"), ErrorCode.INSUFFICIENT_SCOPE),
        (caller(*DEFAULT_SCOPES), Need("audit:read"), None),
        (caller(*DEFAULT_SCOPES), Need("schedules:write"), None),
        (caller(*DEFAULT_SCOPES), Need(DEPOSIT), ErrorCode.INSUFFICIENT_SCOPE),
        (caller(*DEFAULT_SCOPES), Need(ADMIN), ErrorCode.INSUFFICIENT_SCOPE),
        (caller("*:read"), Need("agents:write"), ErrorCode.INSUFFICIENT_SCOPE),
        (caller(DEPOSIT), Need(DEPOSIT), None),
        (caller(ADMIN), Need(DEPOSIT, "did:net:bob"), None),
        (caller("ledger:read"), Need("ledger:read", OWN), None),
        (caller(HEARTBEAT), Need("agents:write"), ErrorCode.INSUFFICIENT_SCOPE),
        (caller(HEARTBEAT), Need("agents:write", OWN, HEARTBEAT), None),
        (caller(HEARTBEAT), Need("agents:write", "did:net:b", HEARTBEAT), ErrorCode.FORBIDDEN),
        (caller("agents:write"), Need("agents:write", OWN, HEARTBEAT), None),
        (
            caller("ledger:write"),
            Need("agents:write", OWN, HEARTBEAT),
            ErrorCode.INSUFFICIENT_SCOPE,
        ),
        (caller("ledger:read"), Need("ledger:read", "did:net:bob"), ErrorCode.FORBIDDEN),
    ],
)
def test_every_permission_is_decided(
    principal: Principal | None, need: Need, expected: ErrorCode | None
) -> None:
    assert refusal(principal, need) == expected


@pytest.mark.parametrize("text", ["agents:read", "*:write", DEPOSIT, ADMIN, "key-history:read"])
def test_scopes_are_recognised(text: str) -> None:
    assert is_scope(text)


@pytest.mark.parametrize(
    "text", ["", "agents", "agents:delete", "*", "*:*", "Agents:read", "a:read\n"]
)
def test_other_text_is_no_scope(text: str) -> None:
    assert not is_scope(text)


@pytest.mark.parametrize(
    ("owner_did", "scopes", "derived"),
    [
        ("did:net:alice", ["*:read"], True),
        ("did:net:bob", ["*:read", DEPOSIT], False),
        ("did:net:bob", [ADMIN], True),
    ],
)
def test_a_key_of_ones_own_or_an_administrators_stands_on_its_makers(
    owner_did: str, scopes: list[str], derived: bool
) -> None:
    assert is_derived(caller(ADMIN), owner_did, scopes) is derived


def test_nobody_grants_more_than_they_have() -> None:
    assert ungrantable(caller("*:read"), ["agents:read", "agents:write", ADMIN, DEPOSIT]) == (
        "agents:write",
        ADMIN,
        DEPOSIT,
    )
    assert ungrantable(caller("agents:read"), ["*:read"]) == ("*:read",)
    assert ungrantable(caller(ADMIN), [DEPOSIT, ADMIN, "*:write"]) == ()
