"""Agents that are changed, leave and come back."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import ErrorCode
from ledger.commands import Command, OutcomeStatus
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.making import (
    AGENT,
    AT,
    PAYER,
    card,
    errors,
    leave,
)


async def results(store: LedgerStore, *commands: Command) -> list[dict[str, Any]]:
    """Commit a batch whose commands are all applied; return their results."""
    outcomes = await store.commit(list(commands), AT)
    assert [outcome.status for outcome in outcomes] == [OutcomeStatus.APPLIED] * len(commands)
    return [outcome.result for outcome in outcomes]


async def state(database: Database) -> tuple[str, int, int]:
    """Return the agent's status, revision and token revision."""
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        row = await reader.agent(AGENT)
        assert row is not None
        return row["status"], row["revision"], row["token_revision"]


@pytest.mark.parametrize("is_one_batch", [True, False])
async def test_who_comes_back_after_leaving_has_a_new_token_revision(
    store: LedgerStore, database: Database, is_one_batch: bool
) -> None:
    steps = [card(), card(), leave(), card(), card()]
    if is_one_batch:
        told = await results(store, *steps)
    else:
        told = [(await results(store, step))[0] for step in steps]
    assert [result.get("tokenRevision") for result in told] == [1, 1, None, 4, 4]
    assert await state(database) == ("active", 5, 4)


async def test_a_change_that_started_from_an_older_card_is_refused(store: LedgerStore) -> None:
    await results(store, card(), card(revision_expected=1))
    assert await errors(store, card(revision_expected=1)) == [ErrorCode.CONFLICT]
    await results(store, leave())
    assert await errors(store, card(revision_expected=3)) == [ErrorCode.CONFLICT]


async def test_active_agents_of_an_owner_are_bounded(store: LedgerStore) -> None:
    """An owner registered as many as it liked, and each was looked at by every search."""

    async def errors(*commands: Command) -> list[ErrorCode | None]:
        return [outcome.error for outcome in await store.commit(list(commands), AT)]

    def bounded(name: str, **changes: object) -> Command:
        return card(f"did:test:{name}", owner_agents_max=3, **changes)  # type: ignore[arg-type]

    full = ErrorCode.CONFLICT
    assert await errors(*(bounded(name) for name in "abcd")) == [None, None, None, full]
    assert await errors(bounded("a"), bounded("d")) == [None, full], "a change is no further agent"
    assert await errors(bounded("e", owner_did="did:test:other")) == [None]
    assert await errors(leave("did:test:a"), bounded("d"), bounded("a")) == [None, None, full]
    assert await errors(bounded("a", owner_did=PAYER, is_admin=True)) == [full], "coming back"
    assert await errors(leave("did:test:b"), bounded("b")) == [None, None]
    assert await errors(leave("did:test:b"), leave("did:test:c")) == [None, None]
    assert await errors(*(bounded(name) for name in "abc")) == [None, None, full]
    assert await errors(card("did:test:f")) == [None], "of a command of before, which has no bound"
