"""Capability versions at the one writer: a line has an owner; versions are bounded, never change.

Spec: Capability version; contract.md section 6 (Capability versions); decision 0280.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest
from msgspec.structs import replace

from core.errors import ErrorCode
from core.records.statuses import OwnershipProof
from ledger.capabilities.version_commands import DeprecateVersion, PublishVersion
from ledger.commands import OutcomeStatus
from ledger.reads.directory_tail import CHAINED, DATED, Asked, DirectoryTail
from ledger.reads.stored import RowDict
from tests.conftest import Database
from tests.ledger.checking import Auditor, connect
from tests.ledger.making import AGENT, AT, PAYER, card, new_key, open_store

pytestmark = pytest.mark.anyio

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


async def test_a_line_is_its_first_publishers(database: Database, auditor: Auditor) -> None:
    store = await open_store(database.service_url)
    theirs = card(THEIRS, owner_did=OTHER, proof=PROVEN)
    outcomes = await store.commit(
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
    late = await store.commit([given, publish("1.4.0", 4)], AT)
    assert [one.error for one in late] == [None, FORBIDDEN]
    assert auditor.one("SELECT owner_did FROM capability_line") == OTHER
    await store.close()


async def test_an_unproven_agent_begins_a_line_unless_the_setting_asks_for_a_proof(
    database: Database,
) -> None:
    store = await open_store(database.service_url)
    strict = publish("1.0.0", 0, needs_proof=True)
    outcomes = await store.commit([card(), strict, publish("1.0.0", 0)], AT)
    assert [one.error for one in outcomes] == [None, CONFLICT, None]
    await store.close()


async def test_a_key_publishes_once(database: Database, auditor: Auditor) -> None:
    store = await open_store(database.service_url)
    first = publish("1.0.0", 0)
    made, again = (await store.commit([card(proof=PROVEN), first, first], AT))[1:]
    assert again.result == made.result
    await store.close()
    store = await open_store(database.service_url)
    (later,) = await store.commit([first], AT + 5)
    assert (later.status, later.result) == (OutcomeStatus.REPEATED, made.result)
    query = "SELECT count(*) FROM event WHERE event_type = 'capability_version.published'"
    assert auditor.one(query) == 1
    # What passes by itself is not kept under its key.
    stale = publish("1.1.0", 0)
    refused, taken = await store.commit([stale, replace(stale, versions_expected=1)], AT + 6)
    assert (refused.error, taken.error) == (CONFLICT, None)
    await store.close()


async def test_lines_and_owners_have_bounds(database: Database) -> None:
    store = await open_store(database.service_url)
    second = card("did:test:second", proof=PROVEN, capability_ids=("cap.test.two.v1",))
    elsewhere = {"capability_id": "cap.test.two.v1", "agent_did": "did:test:second"}
    outcomes = await store.commit(
        [
            card(proof=PROVEN),
            second,
            publish("1.0.0", 0, line_versions_max=2),
            publish("1.1.0", 1, line_versions_max=2),
            publish("1.2.0", 2, line_versions_max=2),
            publish("1.0.0", 0, owner_versions_max=2, **elsewhere),
            publish("1.0.0", 0, owner_versions_max=3, **elsewhere),
        ],
        AT,
    )
    assert [one.error for one in outcomes[2:]] == [None, None, CONFLICT, CONFLICT, None]
    (full,) = await store.commit([publish("1.2.0", 2, owner_versions_max=3)], AT)
    assert full.error is CONFLICT
    await store.close()


async def test_a_version_is_deprecated_once_by_its_lines_owner(
    database: Database, auditor: Auditor
) -> None:
    store = await open_store(database.service_url)
    outcomes = await store.commit(
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
    await store.close()


async def test_versions_published_or_deprecated_later_are_told_once(database: Database) -> None:
    async def told(after: int) -> Sequence[RowDict]:
        ids = [after] * len(CHAINED)
        look = await tail.look(Asked(ids, [0] * len(DATED), [None] * len(DATED)))
        return look.chained[CHAINED.index("versions")]

    store = await open_store(database.service_url)
    tail = DirectoryTail(database.service_url)
    assert not await told(0)
    await store.commit([card(proof=PROVEN), publish("1.0.0", 0), publish("1.1.0", 1)], AT)
    first = await told(0)
    assert [(row["version"], row["status"]) for row in first] == [
        ("1.0.0", "active"),
        ("1.1.0", "active"),
    ]
    await store.commit([deprecate("1.0.0")], AT)
    (row,) = await told(first[-1]["changed_id"])
    assert (row["version"], row["status"]) == ("1.0.0", "deprecated")
    await tail.close()
    await store.close()


async def test_a_version_never_changes_and_never_goes(database: Database) -> None:
    store = await open_store(database.service_url)
    await store.commit([card(proof=PROVEN), publish("1.0.0", 0)], AT)
    await store.close()
    for statement in (
        "UPDATE callboard.capability_version SET input_schema = '[]'",
        "DELETE FROM callboard.capability_version",
        "DELETE FROM callboard.capability_line",
    ):
        with connect(database.service_url) as connection:
            connection.execute("SET ROLE ledger_writer")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
