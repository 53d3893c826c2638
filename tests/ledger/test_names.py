"""Names at the one writer: taken until they expire, bounded, and never another's to give.

Reference: features.md (Names); decision agent-identity.
"""

from __future__ import annotations

import psycopg
import pytest

from core.errors import ErrorCode
from core.records.statuses import OwnershipProof
from core.trust.identity.name_terms import add_months
from ledger.commands import Command, OutcomeStatus
from ledger.features.names import RegisterName, ReleaseName, RenewName, TransferName
from ledger.writer.store import LedgerStore
from tests.ledger.checking import Auditor
from tests.ledger.making import AGENT, AT, PAYER, NextWriter, card, errors, new_key

OPERATOR = OwnershipProof.OPERATOR
OTHER = "did:test:other"
SECOND = "did:test:second"
THEIRS = "did:test:theirs"
NOT_FOUND, FORBIDDEN = ErrorCode.NOT_FOUND, ErrorCode.FORBIDDEN
TAKEN, CONFLICT = ErrorCode.NAME_TAKEN, ErrorCode.CONFLICT
ENDS = add_months(AT, 1)
AGENTS: list[Command] = [
    card(proof=OPERATOR),
    card(SECOND, proof=OPERATOR),
    card(THEIRS, owner_did=OTHER, proof=OPERATOR),
]


def register(
    name: str, agent: str = AGENT, *, actor: str = PAYER, months: int = 1, most: int = 10
) -> RegisterName:
    """Register a name."""
    return RegisterName(
        key=new_key(), actor_did=actor, is_admin=False, name=name, agent_did=agent, months=months,
        owner_names_max=most, agent_names_max=2,
    )  # fmt: skip


def renew(name: str, months: int = 1, *, actor: str = PAYER) -> RenewName:
    """Renew a name."""
    return RenewName(key=new_key(), actor_did=actor, is_admin=False, name=name, months=months)


def transfer(name: str, agent: str, *, actor: str = PAYER, most: int = 10) -> TransferName:
    """Transfer a name."""
    return TransferName(
        key=new_key(), actor_did=actor, is_admin=False, name=name, agent_did=agent,
        owner_names_max=most, agent_names_max=2,
    )  # fmt: skip


def release(name: str, *, actor: str = PAYER, expired_ms: int | None = None) -> ReleaseName:
    """Release a name: before its time, or as expired."""
    key = new_key() if expired_ms is None else f"release:{name}:{expired_ms}"
    return ReleaseName(
        key=key, actor_did=actor, is_admin=False, name=name, expired_ms=expired_ms
    )  # fmt: skip


async def test_a_name_is_its_owners_until_it_expires(
    empty_store: LedgerStore, auditor: Auditor
) -> None:
    outcomes = await empty_store.commit(
        [
            *AGENTS,
            register("ghost", "did:test:ghost"),
            register("mine", THEIRS),
            register("mine"),
            register("mine", SECOND),
            register("mine", THEIRS, actor=OTHER),
            renew("mine", actor=OTHER),
            release("mine", actor=OTHER),
            transfer("mine", THEIRS, actor=OTHER),
            renew("ghost"),
            renew("mine"),
            renew("mine", 119),
        ],
        AT,
    )
    assert [one.error for one in outcomes[3:]] == [
        NOT_FOUND, FORBIDDEN, None, TAKEN, TAKEN, FORBIDDEN, FORBIDDEN, FORBIDDEN, NOT_FOUND,
        None, ErrorCode.INVALID_REQUEST,
    ]  # fmt: skip
    assert outcomes[5].result["expiresMs"] == ENDS
    ends = add_months(ENDS, 1)
    assert auditor.one("SELECT expires_ms FROM agent_name") == ends
    (early,) = await empty_store.commit([register("mine", THEIRS, actor=OTHER)], ends - 1)
    late = await empty_store.commit([renew("mine"), register("mine", THEIRS, actor=OTHER)], ends)
    assert (early.error, [one.error for one in late]) == (TAKEN, [NOT_FOUND, None])
    assert auditor.one("SELECT owner_did FROM agent_name") == OTHER


async def test_what_has_expired_is_released_once(next_writer: NextWriter, auditor: Auditor) -> None:
    """However often it is asked for; never what was renewed or is another's by now."""
    store = await next_writer()
    await store.commit([*AGENTS, register("mine"), register("kept")], AT)
    early, renewed = await store.commit([release("mine", expired_ms=ENDS), renew("kept")], AT + 1)
    assert (early.error, renewed.error) == (CONFLICT, None)
    over = [release("mine", expired_ms=ENDS), release("kept", expired_ms=ENDS)]
    first = await store.commit([*over, over[0]], ENDS)
    assert [one.error for one in first] == [None, CONFLICT, None]
    assert first[2].status is OutcomeStatus.REPEATED
    store = await next_writer()
    (again,) = await store.commit([over[0]], ENDS + 1)
    assert again.status is OutcomeStatus.REPEATED
    assert await errors(store, register("mine", THEIRS, actor=OTHER), at=ENDS + 1) == [None]
    query = "SELECT count(*) FROM event WHERE event_type = 'name.released'"
    assert auditor.one(query) == 1
    assert auditor.one("SELECT released_ms FROM agent_name WHERE name = 'mine'") is None


async def test_names_are_bounded_per_agent_and_per_owner(
    next_writer: NextWriter, auditor: Auditor
) -> None:
    """A refusal counts nothing; a release, a transfer and an expiry make room."""
    store = await next_writer()
    outcomes = await store.commit(
        [
            *AGENTS,
            register("one"),
            register("two"),
            register("three"),
            register("three", SECOND, most=3),
            register("four", SECOND, most=3),
            transfer("three", AGENT, most=3),
            transfer("two", SECOND, most=3),
            release("one"),
            register("four", AGENT, most=3),
        ],
        AT,
    )
    assert [one.error for one in outcomes[3:]] == [
        None, None, CONFLICT, None, CONFLICT, CONFLICT, None, None, None,
    ]  # fmt: skip
    store = await next_writer()
    full = await errors(store, register("five", SECOND), register("five", AGENT, most=3), at=AT + 1)
    assert full == [CONFLICT, CONFLICT]
    over = await errors(
        store, release("two", expired_ms=ENDS), register("five", SECOND, most=3), at=ENDS
    )
    assert over == [None, None]
    with pytest.raises(psycopg.errors.CheckViolation):
        auditor.connection.execute("UPDATE agent_name SET name = 'Upper' WHERE name = 'five'")
