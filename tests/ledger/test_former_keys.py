"""The keys of an agent at the one writer: a history without gaps from which no key comes back.

Reference: features.md (Key rotation); decision agent-identity.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from core.errors import ErrorCode
from core.records.statuses import OwnershipProof
from ledger.features.agent_keys import RotateAgentKey
from ledger.writer.store import LedgerStore
from tests.ledger.checking import Auditor
from tests.ledger.making import AGENT, AT, PAYER, NextWriter, card, errors, leave, new_key


def rotate(new: str, by: str, *, overlap_ms: int = 0) -> RotateAgentKey:
    """Replace the agent's key, as the key `by` has signed."""
    return RotateAgentKey(
        key=new_key(),
        actor_did=PAYER,
        did=AGENT,
        new_key=new,
        proven_key=by,
        overlap_ms=overlap_ms,
    )


def history(auditor: Auditor) -> list[tuple[Any, ...]]:
    """Return the former keys, with when they became valid and ended, after `AT`."""
    return auditor.connection.execute(
        "SELECT number, public_key, valid_from_ms - %s, valid_until_ms - %s FROM former_key"
        " ORDER BY number",
        (AT, AT),
    ).fetchall()


def current(auditor: Auditor) -> tuple[Any, ...]:
    """Return the agent's key, its number, since when, and the row's revision."""
    row = auditor.connection.execute(
        "SELECT public_key, key_number, key_from_ms - %s, revision FROM agent", (AT,)
    ).fetchone()
    assert row is not None
    return tuple(row)


@pytest.fixture
async def store(empty_store: LedgerStore) -> LedgerStore:
    """The test's ledger with an agent whose key is K1."""
    await empty_store.commit([card(public_key="K1")], AT)
    return empty_store


async def test_each_key_takes_the_place_of_the_one_before(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    """In one batch, and in others after a restart; by rotation and by a card."""
    outcomes = await store.commit([rotate("K2", "K1"), rotate("K3", "K2", overlap_ms=50)], AT + 10)
    assert [one.error for one in outcomes] == [None, None]
    assert outcomes[1].result == {
        "keyNumber": 3, "validFromMs": AT + 10, "formerValidUntilMs": AT + 60,
    }  # fmt: skip
    assert history(auditor) == [(1, "K1", 0, 10), (2, "K2", 10, 60)]
    assert current(auditor) == ("K3", 3, 10, 3)
    store = await next_writer()
    await store.commit([card(public_key="K4"), rotate("K5", "K4")], AT + 20)
    assert history(auditor) == [
        (1, "K1", 0, 10), (2, "K2", 10, 20), (3, "K3", 10, 20), (4, "K4", 20, 20),
    ]  # fmt: skip
    assert current(auditor) == ("K5", 5, 20, 5)
    await store.commit([rotate("K6", "K5"), card()], AT + 30)
    assert current(auditor) == ("K6", 6, 30, 7), "a card without a key changes none"


async def test_no_key_of_the_history_comes_back(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    """By no way: then no proof can be replayed. Also within one batch, and after a restart."""
    outcomes = await store.commit(
        [
            rotate("K1", "K1"),
            rotate("K2", "K1"),
            rotate("K1", "K2"),
            rotate("K2", "K1"),
            card(public_key="K1"),
            rotate("K3", "K1"),
        ],
        AT + 1,
    )
    conflict = ErrorCode.CONFLICT
    assert [one.error for one in outcomes] == [conflict, None, *[conflict] * 4]
    store = await next_writer()
    outcomes = await errors(store, rotate("K1", "K2"), card(public_key="K1"), at=AT + 2)
    assert outcomes == [conflict, conflict]
    assert current(auditor)[:2] == ("K2", 2)
    with pytest.raises(psycopg.errors.UniqueViolation):
        auditor.connection.execute("INSERT INTO former_key VALUES (%s, 9, 'K1', 0, 0)", (AGENT,))


async def test_a_key_that_stands_in_the_history_already_can_be_replaced(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    await store.commit([rotate("K2", "K1")], AT + 1)
    auditor.connection.execute("UPDATE agent SET public_key = 'K1'")
    store = await next_writer()
    (replaced, back) = await store.commit([rotate("K3", "K1"), rotate("K1", "K3")], AT + 2)
    assert (replaced.error, back.error) == (None, ErrorCode.CONFLICT)
    assert history(auditor) == [(1, "K1", 0, 1)]
    assert await errors(store, rotate("K4", "K3"), at=AT + 3) == [None]
    assert history(auditor) == [(1, "K1", 0, 1), (3, "K3", 2, 3)]


async def test_a_card_that_is_refused_replaces_no_key(store: LedgerStore, auditor: Auditor) -> None:
    """An agent that comes back beyond its owner's bound, with another key."""
    outcomes = await errors(store, leave(), card(public_key="K2", owner_agents_max=0), at=AT + 1)
    assert outcomes == [None, ErrorCode.CONFLICT]
    assert (history(auditor), current(auditor)[0]) == ([], "K1")


async def test_the_newest_revision_stays_whatever_else_is_in_the_batch(
    store: LedgerStore, auditor: Auditor
) -> None:
    """Rows of a batch are not written in the order of its commands."""
    await store.commit([leave(), rotate("K2", "K1")], AT + 1)
    assert current(auditor) == ("K2", 2, 1, 3)
    assert store.cache.agents[AGENT].revision == 3
    await store.commit([rotate("K3", "K2"), card()], AT + 2)
    assert current(auditor) == ("K3", 3, 2, 5)
    assert auditor.one("SELECT status FROM agent") == "active"


async def test_keys_of_a_claim_that_yields_do_not_bar_those_of_the_proof(
    store: LedgerStore, auditor: Auditor
) -> None:
    """Who claims a DID without a proof can put its true key into the history, and fill that."""
    claim = [card(public_key=key) for key in ("true", "thief's")]
    proof = OwnershipProof.OPERATOR
    proven = card(owner_did=AGENT, public_key="true", proof=proof, lines_taken=())
    assert await errors(store, *claim, proven, rotate("next", "true")) == [None] * 4
    assert current(auditor)[0] == "next"


async def test_an_administrator_who_changes_a_card_proves_no_claim(
    store: LedgerStore, auditor: Auditor
) -> None:
    """Whose the DID is, is granted by naming its owner in a registration."""
    admins = "did:test:admin"
    changed = [card(actor_did=admins, is_admin=True), card(owner_did=admins, is_admin=True)]
    assert await errors(store, *changed, at=AT + 1) == [None, None]
    assert auditor.one("SELECT proven_by FROM agent") is None
