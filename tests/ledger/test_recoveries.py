"""Recovery at the one writer: who may ask, what is enough, what it ends, and that it runs once.

Reference: features.md (Recovery); decision agent-identity.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from core.errors import ErrorCode
from core.trust.identity.agent_keys import KEY_AGE_MS_MIN, KEYS_MAX
from core.trust.identity.succession import HOUR_MS, recovery_id
from ledger.commands import OutcomeStatus
from ledger.features.agents import RegisterAgent
from ledger.features.identity_reads import due_recoveries, guardian_row, guardian_sets
from ledger.features.recovery import (
    CancelRecovery,
    CompleteRecovery,
    RequestRecovery,
    SetGuardians,
)
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AGENT,
    AT,
    PAYER,
    NextWriter,
    api_key,
    card,
    errors,
    new_key,
    revoke,
)
from tests.ledger.test_former_keys import rotate
from tests.ledger.test_inheritances import ready_since

ONE, TWO, CUSTODIAN, STRANGER = (
    f"did:test:{name}" for name in ("one", "two", "custodian", "stranger")
)
FORBIDDEN, CONFLICT = ErrorCode.FORBIDDEN, ErrorCode.CONFLICT
SOCIAL, BY_CUSTODIAN, TIME_LOCK = (
    f"{kind}_recovery" for kind in ("social", "custodian", "time_lock")
)


def guardians(**changes: Any) -> SetGuardians:
    """Name two guardians, of whom both must sign, and a custodian."""
    command = SetGuardians(
        key=new_key(), actor_did=PAYER, is_admin=False, did=AGENT, guardians=(ONE, TWO),
        threshold=2, custodian_did=CUSTODIAN, delay_hours=2,
    )  # fmt: skip
    return replace(command, **changes)


def request(kind: str, *signers: str, new: str = "K2", actor: str = STRANGER) -> RequestRecovery:
    """Ask for the agent's key to be replaced, with verified signatures."""
    return RequestRecovery(
        key=new_key(), actor_did=actor, is_admin=False, recovery_id=recovery_id(AGENT, new),
        did=AGENT, recovery_type=kind, new_key=new, recovery_address=None,
        signers=tuple((did, f"key of {did}") for did in signers),
    )  # fmt: skip


def cancel(new: str = "K2", *, actor: str = PAYER, proven: str | None = None) -> CancelRecovery:
    """Cancel the request for a key."""
    return CancelRecovery(
        key=new_key(), actor_did=actor, is_admin=False, recovery_id=recovery_id(AGENT, new),
        did=AGENT, proven_key=proven,
    )  # fmt: skip


def complete(new: str = "K2") -> CompleteRecovery:
    """Run a request whose delay is over, as the timekeeper does."""
    request_id = recovery_id(AGENT, new)
    return CompleteRecovery(
        key=f"recover:{request_id}", actor_did="timekeeper", recovery_id=request_id, did=AGENT,
        new_key=new,
    )  # fmt: skip


def named_agents() -> list[RegisterAgent | SetGuardians]:
    """Return what makes an agent whose key is K1, its guardians and its custodian."""
    named = [card(did, owner_did=did, public_key=f"key of {did}") for did in (ONE, TWO, CUSTODIAN)]
    return [card(public_key="K1"), *named, guardians()]


@pytest.fixture
async def store(empty_store: LedgerStore) -> LedgerStore:
    """The test's ledger with these agents."""
    await empty_store.commit(named_agents(), AT)
    return empty_store


def current(auditor: Auditor) -> str:
    """Return the agent's key."""
    return str(auditor.one("SELECT public_key FROM agent WHERE did = %s", AGENT))


def state(auditor: Auditor, new: str = "K2") -> str:
    """Return the status of the request for a key."""
    return str(auditor.one("SELECT status FROM recovery WHERE new_key = %s", new))


async def test_so_many_guardians_replace_a_key_and_end_what_it_gave(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    """One after the other, over a restart; heartbeat tokens and API keys of the agent end."""
    await store.commit([api_key("k", b"k" * 32, owner_did=AGENT)], AT)
    first, same = await store.commit([request(SOCIAL, ONE), request(SOCIAL, ONE)], AT + 1)
    assert [one.result for one in (first, same)] == [{"status": "pending"}] * 2
    assert current(auditor) == "K1"
    store = await next_writer()
    (done,) = await store.commit([request(SOCIAL, TWO)], AT + 2)
    assert done.result == {"status": "completed"}
    assert (current(auditor), state(auditor)) == ("K2", "completed")
    assert auditor.one("SELECT revision = token_revision FROM agent WHERE did = %s", AGENT)
    assert auditor.one("SELECT revoked_ms FROM api_key") == AT + 2
    assert auditor.one("SELECT valid_until_ms FROM former_key") == AT + 2
    again = await errors(store, request(SOCIAL, ONE, TWO), cancel(), rotate("K3", "K1"), at=AT + 3)
    assert again == [CONFLICT, ErrorCode.NOT_CANCELLABLE, CONFLICT]


async def test_strangers_ask_for_nothing_and_signatures_must_still_be_theirs(
    store: LedgerStore, auditor: Auditor
) -> None:
    stale = request(SOCIAL, ONE, TWO)
    stale = replace(stale, signers=((ONE, "an older key"), stale.signers[1]))
    outcomes = await store.commit(
        [
            request(SOCIAL),
            stale,
            revoke(TWO),
            request(SOCIAL, ONE, TWO),
            request(BY_CUSTODIAN, new="K1", actor=PAYER),
            guardians(actor_did=STRANGER),
            guardians(did="did:test:ghost"),
            request(BY_CUSTODIAN, actor=ONE),
            request(SOCIAL, CUSTODIAN),
        ],
        AT + 1,
    )
    assert [one.error for one in outcomes] == [
        FORBIDDEN, CONFLICT, None, FORBIDDEN, CONFLICT, FORBIDDEN, ErrorCode.NOT_FOUND, None,
        CONFLICT,
    ]  # fmt: skip
    assert current(auditor) == "K1"
    auditor.connection.execute("UPDATE guardian_set SET owner_did = %s", (STRANGER,))
    asked = [request(BY_CUSTODIAN, CUSTODIAN, actor=actor) for actor in (PAYER, STRANGER)]
    assert await errors(store, *asked, at=AT + 2) == [CONFLICT, FORBIDDEN], "an owner of before's"


async def test_a_stranger_without_a_signature_adds_to_no_request_and_learns_of_none(
    store: LedgerStore, auditor: Auditor
) -> None:
    """Who knows the new key, which is no secret, would read the request in the reply."""
    asked = [request(SOCIAL, ONE), request(SOCIAL), request(TIME_LOCK), cancel(), request(SOCIAL)]
    assert await errors(store, *asked, at=AT + 1) == [None, FORBIDDEN, FORBIDDEN, None, FORBIDDEN]
    asks = "SELECT count(*) FROM audit_event WHERE event_type = 'recovery.requested'"
    assert auditor.one(asks) == 1
    auditor.connection.execute("UPDATE guardian_set SET owner_did = %s", (STRANGER,))
    assert await errors(store, request(SOCIAL, new="K3"), at=AT + 2) == [FORBIDDEN], (
        "whether guardians are named is not a stranger's business"
    )


async def test_a_recovered_key_ends_what_the_keys_of_the_agent_have_made(
    store: LedgerStore, auditor: Auditor
) -> None:
    """A key with the admin right that stands on one of the agent's keys ends with it."""
    made = [
        api_key("k", b"k" * 32, owner_did=AGENT),
        replace(api_key("child", b"c" * 32, owner_did=STRANGER), parent_id="k"),
        replace(api_key("grandchild", b"g" * 32, owner_did=ONE), parent_id="child"),
        api_key("own", b"o" * 32, owner_did=STRANGER),
    ]
    assert [one.error for one in await store.commit(made, AT)] == [None] * 4
    await store.commit([request(BY_CUSTODIAN, CUSTODIAN)], AT + 1)
    live = "SELECT string_agg(id, ' ') FROM api_key WHERE revoked_ms IS NULL"
    assert auditor.one(live) == "own"


async def test_open_requests_are_bounded_and_one_key_is_asked_for_once(
    store: LedgerStore, auditor: Auditor
) -> None:
    asked = [request(SOCIAL, actor=ONE, new=f"N{number}") for number in range(6)]
    assert await errors(store, *asked, at=AT + 1) == [None] * 5 + [CONFLICT]
    freed = await errors(store, cancel("N0"), request(SOCIAL, actor=ONE, new="N5"), at=AT + 2)
    assert freed == [None, None]
    assert await errors(store, request(SOCIAL, ONE, TWO, new="N0"), at=AT + 3) == [CONFLICT], (
        "its signatures would be worth something again"
    )
    with pytest.raises(psycopg.errors.UniqueViolation):
        auditor.connection.execute(
            "INSERT INTO recovery SELECT gen_random_uuid(), agent_did, recovery_type, new_key,"
            " NULL, requested_by_did, signers, 'pending', 0 FROM recovery WHERE new_key = 'N1'"
        )


async def test_a_time_lock_runs_once_after_its_delay_of_ready_time(
    store: LedgerStore, database: Database, auditor: Auditor
) -> None:
    reader = LedgerReader(database.service_url, pool_size=1)
    (asked,) = await store.commit([request(TIME_LOCK, CUSTODIAN)], AT + 1)
    assert asked.result == {"status": "waiting"}
    await ready_since(database, auditor)
    auditor.connection.execute("UPDATE readiness SET seen_ms = %s", (AT + 2 * HOUR_MS,))
    assert await due_recoveries(reader, limit=9) == []
    assert await errors(store, complete(), at=AT + 2) == [CONFLICT]
    auditor.connection.execute("UPDATE readiness SET seen_ms = seen_ms + 1")
    (due,) = await due_recoveries(reader, limit=9)
    assert (str(due["id"]), due["agent_did"]) == (recovery_id(AGENT, "K2"), AGENT)
    first, again = await store.commit([complete(), complete()], AT + 3)
    assert (first.error, again.status) == (None, OutcomeStatus.REPEATED)
    assert (current(auditor), state(auditor)) == ("K2", "completed")
    assert await due_recoveries(reader, limit=9) == []
    await reader.close()


@pytest.mark.parametrize(
    ("by", "error"),
    [
        (cancel(actor=STRANGER), FORBIDDEN),
        (cancel(actor=TWO), FORBIDDEN),
        (cancel(actor=STRANGER, proven="K0"), CONFLICT),
        (cancel(actor=STRANGER, proven="K1"), None),
        (cancel(actor=AGENT), None),
        (cancel(actor=PAYER), None),
        (cancel(actor=ONE), None),
    ],
    ids=["stranger", "guardian", "older key", "current key", "agent", "owner", "who asked"],
)
async def test_who_cancels_a_time_lock(
    store: LedgerStore,
    database: Database,
    auditor: Auditor,
    by: CancelRecovery,
    error: ErrorCode | None,
) -> None:
    await store.commit([request(TIME_LOCK, ONE, actor=ONE)], AT + 1)
    assert await errors(store, replace(by, key=new_key()), at=AT + 2) == [error]
    await ready_since(database, auditor)
    (late,) = await store.commit([complete()], AT + 3)
    assert late.error is (CONFLICT if error is None else None)
    assert current(auditor) == ("K1" if error is None else "K2")


async def test_a_time_lock_of_an_owner_of_before_is_void(
    store: LedgerStore, next_writer: NextWriter, database: Database, auditor: Auditor
) -> None:
    """An heir has the agent, and not whom its former owner has let wait."""
    await store.commit([request(TIME_LOCK, ONE)], AT + 1)
    auditor.connection.execute("UPDATE agent SET owner_did = %s WHERE did = %s", (STRANGER, AGENT))
    await ready_since(database, auditor)
    store = await next_writer()
    assert await errors(store, complete(), at=AT + 3) == [None]
    assert (current(auditor), state(auditor)) == ("K1", "cancelled")


async def test_a_key_that_has_come_into_the_history_meanwhile_is_not_recovered(
    store: LedgerStore, database: Database, auditor: Auditor
) -> None:
    await store.commit([request(TIME_LOCK, ONE), rotate("K2", "K1"), rotate("K3", "K2")], AT + 1)
    await ready_since(database, auditor)
    assert await errors(store, complete(), at=AT + 3) == [None]
    assert (current(auditor), state(auditor)) == ("K3", "cancelled")


def by_the_key(*named: str, custodian: str | None = None, delay_hours: int = 1) -> SetGuardians:
    """Name guardians with the agent's own key, of whom one is enough."""
    return guardians(
        key=new_key(), actor_did=AGENT, guardians=named, threshold=min(1, len(named)),
        custodian_did=custodian, delay_hours=delay_hours,
    )  # fmt: skip


async def test_guardians_that_a_stolen_key_has_replaced_count_on_and_end_the_thiefs(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    """Over a restart; what the thief's guardians have begun ends with them. Decision
    agent-identity."""
    auditor.connection.execute("UPDATE readiness SET seen_ms = %s", (AT,))
    thief = [
        by_the_key(STRANGER, custodian=STRANGER),
        card(STRANGER, owner_did=STRANGER, public_key=f"key of {STRANGER}"),
        request(TIME_LOCK, STRANGER, new="T1"),
        by_the_key(custodian=STRANGER),
        request(TIME_LOCK, STRANGER, new="T2"),
    ]
    assert [one.error for one in await store.commit(thief, AT + 1)] == [None] * 5
    store = await next_writer()
    (done,) = await store.commit([request(SOCIAL, ONE, TWO)], AT + 2)
    assert done.result == {"status": "completed"}
    assert [state(auditor, new) for new in ("T1", "T2")] == ["cancelled"] * 2
    query = "SELECT guardians || custodian_did FROM guardian_set WHERE replaced IS NULL"
    assert auditor.one(query) == [ONE, TWO, CUSTODIAN]
    later = [request(BY_CUSTODIAN, STRANGER, new="T3"), request(BY_CUSTODIAN, CUSTODIAN, new="K3")]
    assert await errors(store, *later, at=AT + 3) == [FORBIDDEN, None]
    assert current(auditor) == "K3"


async def test_replaced_guardians_count_for_their_own_delay_of_ready_time(
    store: LedgerStore, database: Database, auditor: Auditor
) -> None:
    """Theirs, of two hours: the thief's own is one. A lock that they began runs to its end."""
    reader = LedgerReader(database.service_url, pool_size=1)
    auditor.connection.execute("UPDATE readiness SET seen_ms = %s", (AT,))
    await store.commit([by_the_key(STRANGER)], AT)
    auditor.connection.execute("UPDATE readiness SET seen_ms = %s", (AT + 2 * HOUR_MS - 1,))
    row = await guardian_row(reader, AGENT)
    assert row is not None
    assert guardian_sets(row).signers == {ONE, TWO, CUSTODIAN, STRANGER}
    (begun,) = await store.commit([request(TIME_LOCK, ONE)], AT + 2 * HOUR_MS - 1)
    assert begun.result == {"status": "waiting"}
    auditor.connection.execute("UPDATE readiness SET seen_ms = %s", (AT + 2 * HOUR_MS,))
    (late,) = await store.commit([request(BY_CUSTODIAN, CUSTODIAN, new="K3")], AT + 2 * HOUR_MS)
    assert late.result == {"status": "pending"}, "of one who is none of them"
    auditor.connection.execute("UPDATE readiness SET seen_ms = %s", (AT + 5 * HOUR_MS,))
    (run,) = await store.commit([complete()], AT + 5 * HOUR_MS)
    assert (run.error, current(auditor)) == (None, "K2")
    row = await guardian_row(reader, AGENT)
    assert row is not None
    assert guardian_sets(row).signers == {ONE, TWO, CUSTODIAN}, "they are its guardians again"
    await reader.close()


async def test_an_owner_strikes_guardians_out_at_once(
    store: LedgerStore, database: Database, auditor: Auditor
) -> None:
    """Its credential is another than the agent's key; whom it strikes out waits for nothing."""
    auditor.connection.execute("UPDATE readiness SET seen_ms = %s", (AT,))
    await store.commit([by_the_key(STRANGER), request(TIME_LOCK, ONE)], AT + 1)
    struck = [guardians(key=new_key()), request(BY_CUSTODIAN, CUSTODIAN, new="K3")]
    assert [one.error for one in await store.commit([struck[0]], AT + 2)] == [None]
    await ready_since(database, auditor)
    (ended,) = await store.commit([complete()], AT + 3)
    assert (ended.error, current(auditor), state(auditor)) == (None, "K1", "cancelled")
    assert (await store.commit([struck[1]], AT + 4))[0].result == {"status": "completed"}


async def test_sets_that_count_on_are_bounded(store: LedgerStore, auditor: Auditor) -> None:
    """The first one stays among them; the same set again is none more."""
    auditor.connection.execute("UPDATE readiness SET seen_ms = %s", (AT,))
    named = [by_the_key(f"did:test:{number}") for number in range(6)]
    outcomes = await errors(
        store, *named[:5], replace(named[4], key=new_key()), named[5], at=AT + 1
    )
    assert outcomes == [None] * 6 + [CONFLICT]
    with pytest.raises(psycopg.errors.CheckViolation):
        auditor.connection.execute("UPDATE guardian_set SET replaced = '[1, 2, 3, 4, 5, 6]'")
    (done,) = await store.commit([request(BY_CUSTODIAN, CUSTODIAN)], AT + 2)
    assert done.result == {"status": "completed"}
    assert await errors(store, replace(named[5], key=new_key()), at=AT + 3) == [None]


async def test_a_stolen_key_leaves_room_for_the_guardians_requests(
    store: LedgerStore, auditor: Auditor
) -> None:
    """With the key, and guardians of its own, a thief makes as many as there may be."""
    auditor.connection.execute("UPDATE readiness SET seen_ms = %s", (AT,))
    thiefs = [card(STRANGER, owner_did=STRANGER, public_key=f"key of {STRANGER}")]
    begun = [by_the_key(STRANGER), *(request(SOCIAL, actor=AGENT, new=f"N{n}") for n in range(4))]
    full = request(TIME_LOCK, STRANGER, new="N4")
    refused = request(TIME_LOCK, STRANGER, new="N5")
    outcomes = await errors(store, *thiefs, *begun, full, refused, at=AT + 1)
    assert outcomes == [None] * 7 + [CONFLICT]
    asked = [request(SOCIAL, ONE), *(request(TIME_LOCK, TWO, new=f"G{n}") for n in range(5))]
    outcomes = await errors(store, *asked, at=AT + 2)
    assert outcomes == [None] * 5 + [CONFLICT], "of their own as many"
    states = "SELECT string_agg(new_key, ' ' ORDER BY new_key) FROM recovery WHERE ended_ms IS NULL"
    assert auditor.one(states) == "G0 G1 G2 G3 K2"
    assert auditor.one("SELECT count(*) FROM recovery WHERE status = 'cancelled'") == 5


@pytest.mark.parametrize("kind", [SOCIAL, TIME_LOCK])
@pytest.mark.parametrize("ended", ["replaced", "revoked"])
async def test_a_stored_signature_counts_as_long_as_its_key(
    store: LedgerStore,
    next_writer: NextWriter,
    database: Database,
    auditor: Auditor,
    kind: str,
    ended: str,
) -> None:
    """A guardian's key was stolen, signs, and is replaced or its DID revoked; then the rest."""
    await store.commit([request(kind, ONE)], AT + 1)
    new = replace(rotate("new", f"key of {ONE}"), did=ONE, actor_did=ONE)
    await store.commit([revoke(ONE) if ended == "revoked" else new], AT + 2)
    await ready_since(database, auditor)
    store = await next_writer()
    rest = complete() if kind == TIME_LOCK else request(kind, TWO)
    assert await errors(store, rest, at=AT + 3) == [None]
    expected = "cancelled" if kind == TIME_LOCK else "pending"
    assert (current(auditor), state(auditor)) == ("K1", expected)
    if (kind, ended) == (SOCIAL, "replaced"):
        again = replace(request(kind), signers=((ONE, "new"),))
        (done,) = await store.commit([again], AT + 4)
        assert done.result == {"status": "completed"}


async def test_a_full_history_shuts_no_guardian_out(
    store: LedgerStore, next_writer: NextWriter, database: Database, auditor: Auditor
) -> None:
    """Who has stolen the key can rotate it until the history is full: only that ends."""
    with psycopg.connect(database.superuser_url) as connection:
        connection.execute("UPDATE callboard.agent SET key_number = %s", (KEYS_MAX,))
    store = await next_writer()
    outcomes = await errors(
        store, rotate("K9", "K1"), request(SOCIAL, ONE, TWO), rotate("K9", "K2"), at=AT + 1
    )
    assert outcomes == [CONFLICT, None, CONFLICT]
    assert current(auditor) == "K2"
    day = AT + 1 + KEY_AGE_MS_MIN
    for at, key, before, expected in (
        (day - 1, "K9", "K2", CONFLICT),
        (day, "K9", "K2", None),
        (day + 1, "K10", "K9", CONFLICT),
    ):
        assert await errors(store, rotate(key, before), at=at) == [expected], at
