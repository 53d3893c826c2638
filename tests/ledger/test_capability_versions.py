"""Capability versions at the one writer: a line has an owner; versions are bounded, never change.

Reference: features.md (Capability versions); decision versions-and-schemas.
"""

from __future__ import annotations

from functools import partial

import psycopg
import pytest
from msgspec.structs import replace

from core.errors import ErrorCode
from core.records.statuses import OwnershipProof
from ledger.commands import OutcomeStatus
from ledger.features.capability_versions import (
    ABSENT_MS_MAX,
    DeprecateVersion,
    PublishVersion,
    first_offer,
)
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor, connect
from tests.ledger.making import AGENT, AT, PAYER, NextWriter, card, errors, leave, new_key

CAPABILITY = "cap.test.echo.v1"
OTHER = "did:test:other"
THEIRS = "did:test:theirs"
FORBIDDEN, CONFLICT, NOT_FOUND = ErrorCode.FORBIDDEN, ErrorCode.CONFLICT, ErrorCode.NOT_FOUND
PROVEN = OwnershipProof.OPERATOR


def publish(version: str, expected: int, **changes: object) -> PublishVersion:
    """Publish a version, as the owner of the agent."""
    fields: dict[str, object] = {
        "key": new_key(), "actor_did": PAYER, "is_admin": False, "agent_did": AGENT,
        "agent_revision": 1, "capability_id": CAPABILITY, "version": version,
        "input_schema": "{}", "output_schema": "{}", "schema_hash": "sha256:0", "changelog": "",
        "versions_expected": expected, "owner_versions_max": 9, "line_versions_max": 9,
    }  # fmt: skip
    return PublishVersion(**{**fields, **changes})  # type: ignore[arg-type]


def deprecate(version: str, *, actor: str = PAYER, **changes: object) -> DeprecateVersion:
    """Deprecate a version."""
    fields: dict[str, object] = {
        "key": new_key(), "actor_did": actor, "is_admin": False, "capability_id": CAPABILITY,
        "version": version,
    }  # fmt: skip
    return DeprecateVersion(**{**fields, **changes})  # type: ignore[arg-type]


async def test_a_line_is_its_first_publishers(empty_store: LedgerStore, auditor: Auditor) -> None:
    theirs = card(THEIRS, owner_did=OTHER, proof=PROVEN)
    outcomes = await empty_store.commit(
        [
            card(proof=PROVEN),
            theirs,
            publish("1.0.0", 0, agent_did=None),
            publish("1.0.0", 0, agent_did=THEIRS),
            publish("1.0.0", 0, agent_revision=2),
            publish("1.0.0", 0),
            publish("1.0.0", 1),
            publish("1.1.0", 0),
            publish("1.1.0", 1, actor_did=OTHER, agent_did=THEIRS),
            publish("1.1.0", 1, agent_did=None),
            publish("1.2.0", 2, actor_did=OTHER, is_admin=True, agent_did=None),
        ],
        AT,
    )
    assert [one.error for one in outcomes[2:]] == [
        FORBIDDEN, CONFLICT, CONFLICT, None, CONFLICT, CONFLICT, FORBIDDEN, None, None,
    ]  # fmt: skip
    assert [one.result["ownerDid"] for one in outcomes[-2:]] == [PAYER, PAYER]
    assert auditor.one("SELECT versions FROM capability_line") == 3
    given = publish("1.3.0", 3, is_admin=True, actor_did=AGENT, owner_did=OTHER)
    assert await errors(empty_store, given, publish("1.4.0", 4)) == [None, FORBIDDEN]
    assert auditor.one("SELECT owner_did FROM capability_line") == OTHER


async def test_the_owner_of_the_oldest_agent_takes_over_a_line_that_nobody_was_given(
    empty_store: LedgerStore, auditor: Auditor
) -> None:
    """The versions of a line count for its owner, whose bounds hold."""
    take = partial(publish, actor_did=OTHER, agent_did=THEIRS, takes_over=True)
    outcomes = await empty_store.commit(
        [
            card(proof=PROVEN),
            card(THEIRS, owner_did=OTHER),
            publish("1.0.0", 0),
            take("1.1.0", 1),
            card(THEIRS, owner_did=OTHER, proof=PROVEN),
            take("1.1.0", 1, agent_revision=2, owner_versions_max=1),
            take("1.1.0", 1, agent_revision=2, owner_versions_max=2),
            publish("1.2.0", 2),
            publish("1.0.0", 0, capability_id="cap.test.two.v1", owner_versions_max=1),
            take("1.2.0", 2, agent_revision=2, owner_versions_max=2),
        ],
        AT,
    )
    assert [one.error for one in outcomes[2:]] == [
        None, CONFLICT, None, CONFLICT, None, FORBIDDEN, None, CONFLICT,
    ]  # fmt: skip
    query = "SELECT owner_did FROM capability_line WHERE capability_id = %s"
    assert auditor.one(query, CAPABILITY) == OTHER
    given = publish("1.2.0", 2, is_admin=True, actor_did=AGENT, owner_did=PAYER)
    late = await errors(empty_store, given, take("1.3.0", 3, agent_revision=2))
    assert late == [None, FORBIDDEN]


async def test_who_offers_a_capability_since_before_its_line_began_may_take_it_over(
    empty_store: LedgerStore, reader: LedgerReader
) -> None:
    """A newcomer with a fresh DID, which is proven, may not; nor one that left and came back."""
    theirs = card(THEIRS, owner_did=OTHER, proof=PROVEN)
    other = replace(theirs, key=new_key(), capability_ids=("cap.test.else.v1",))

    async def may_lead() -> bool:
        found = await first_offer(reader, OTHER, CAPABILITY, needs_proof=False, at_ms=AT)
        return found is not None and not found.is_preceded

    steps = ((theirs, True), (card(), True), (publish("1.0.0", 0), True), (other, False),
             (replace(theirs, key=new_key()), False))  # fmt: skip
    for number, (step, is_theirs) in enumerate(steps):
        assert (await empty_store.commit([step], AT + number))[0].error is None
        assert await may_lead() is is_theirs, number


async def test_the_oldest_agent_is_the_one_that_began_to_offer_first(
    empty_store: LedgerStore, reader: LedgerReader
) -> None:
    """An older agent that adds the capability to its card is not the oldest of those that have it.
    One that is down keeps its place for a while, an unproven one does not."""
    offers = ("cap.test.else.v1", CAPABILITY)
    steps = (
        card(THEIRS, owner_did=OTHER, proof=PROVEN, capability_ids=offers[:1]),
        card(proof=PROVEN),
        card(THEIRS, owner_did=OTHER, proof=PROVEN, capability_ids=offers),
        card(THEIRS, owner_did=OTHER, proof=PROVEN, capability_ids=offers[::-1]),
    )
    for number, step in enumerate(steps):
        await empty_store.commit([step], AT + number)

    async def comes_first(owner_did: str, capability: str = CAPABILITY, at_ms: int = AT) -> bool:
        found = await first_offer(reader, owner_did, capability, needs_proof=True, at_ms=at_ms)
        return found is not None and not found.is_preceded

    assert (await comes_first(PAYER), await comes_first(OTHER)) == (True, False)
    assert await comes_first(OTHER, offers[0])
    await empty_store.commit([leave()], AT + 9)
    ends_ms = AT + 9 + ABSENT_MS_MAX
    assert not await comes_first(OTHER, at_ms=ends_ms - 1)
    assert await comes_first(OTHER, at_ms=ends_ms)
    await empty_store.commit([card(proof=PROVEN)], AT + 10)
    assert (await comes_first(PAYER), await comes_first(OTHER)) == (True, False)
    without = card(proof=PROVEN, capability_ids=("cap.test.more.v1",))
    await empty_store.commit([without], AT + 11)
    await empty_store.commit([card(proof=PROVEN)], AT + 11)
    assert (await comes_first(PAYER), await comes_first(OTHER)) == (False, True)


async def test_a_key_publishes_once(next_writer: NextWriter, auditor: Auditor) -> None:
    store = await next_writer()
    first = publish("1.0.0", 0)
    made, again = (await store.commit([card(proof=PROVEN), first, first], AT))[1:]
    assert again.result == made.result
    store = await next_writer()
    (later,) = await store.commit([first], AT + 5)
    assert (later.status, later.result) == (OutcomeStatus.REPEATED, made.result)
    query = "SELECT count(*) FROM event WHERE event_type = 'capability_version.published'"
    assert auditor.one(query) == 1
    # What passes by itself is not kept under its key.
    stale = publish("1.1.0", 0)
    refused, taken = await store.commit([stale, replace(stale, versions_expected=1)], AT + 6)
    assert (refused.error, taken.error) == (CONFLICT, None)


async def test_lines_and_owners_have_bounds(empty_store: LedgerStore) -> None:
    second = card("did:test:second", proof=PROVEN, capability_ids=("cap.test.two.v1",))
    elsewhere = {"capability_id": "cap.test.two.v1", "agent_did": "did:test:second"}
    outcomes = await errors(
        empty_store,
        card(proof=PROVEN),
        second,
        publish("1.0.0", 0, line_versions_max=2),
        publish("1.1.0", 1, line_versions_max=2),
        publish("1.2.0", 2, line_versions_max=2),
        publish("1.0.0", 0, owner_versions_max=2, **elsewhere),
        publish("1.0.0", 0, owner_versions_max=3, **elsewhere),
    )
    assert outcomes[2:] == [None, None, CONFLICT, CONFLICT, None]
    assert await errors(empty_store, publish("1.2.0", 2, owner_versions_max=3)) == [CONFLICT]


async def test_a_version_is_deprecated_once_by_its_lines_owner(
    empty_store: LedgerStore, auditor: Auditor
) -> None:
    outcomes = await empty_store.commit(
        [
            card(proof=PROVEN),
            publish("1.0.0", 0),
            publish("1.1.0", 1, deprecates="0.9.0"),
            publish("1.1.0", 1, deprecates="1.0.0"),
            deprecate("1.0.0"),
            deprecate("2.0.0"),
            deprecate("1.1.0", actor=OTHER),
            deprecate("1.1.0", successor="1.1.0"),
            deprecate("1.1.0", successor="1.0.0"),
            deprecate("1.1.0", successor="3.0.0"),
            publish("1.2.0", 2, deprecates="1.0.0"),
            publish("1.2.0", 2),
            deprecate("1.1.0", successor="1.2.0"),
        ],
        AT,
    )
    assert [one.error for one in outcomes[2:]] == [
        NOT_FOUND, None, CONFLICT, NOT_FOUND, FORBIDDEN, CONFLICT, CONFLICT, CONFLICT, CONFLICT,
        None, None,
    ]  # fmt: skip
    query = "SELECT string_agg(version || coalesce('>' || successor, ''), ' ' ORDER BY version)"
    assert auditor.one(f"{query} FROM capability_version") == "1.0.0>1.1.0 1.1.0>1.2.0 1.2.0"


async def test_a_version_never_changes_and_never_goes(
    next_writer: NextWriter, database: Database
) -> None:
    store = await next_writer()
    await store.commit([card(proof=PROVEN), publish("1.0.0", 0)], AT)
    for statement in (
        "UPDATE callboard.capability_version SET input_schema = '[]'",
        "DELETE FROM callboard.capability_version",
        "DELETE FROM callboard.capability_line",
    ):
        with connect(database.service_url) as connection:
            connection.execute("SET ROLE ledger_writer")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
