"""Inheritance at the one writer: what is due goes to the heir whole and once, by ready time alone.

Rows are dated in the past, and the database's clock judges them. Reference: features.md
(Inheritance); decision agent-identity.
"""

from __future__ import annotations

import sqlalchemy as sql
from msgspec.structs import replace

from core.errors import ErrorCode
from core.records.statuses import OwnershipProof
from core.trust.identity.succession import DAY_MS
from ledger.commands import Command, OutcomeStatus
from ledger.features.agent_live import Heartbeat, LivenessStore
from ledger.features.directory import AGENTS
from ledger.features.inheritance import (
    _DUE,
    CancelInheritance,
    RunInheritance,
    SetInheritance,
    due_switches,
    switch_row,
)
from ledger.features.names import RegisterName
from ledger.features.readiness import ReadinessStore
from ledger.features.stakes import DepositStake
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor, rows_read
from tests.ledger.making import (
    AGENT,
    AT,
    PAYER,
    NextWriter,
    all_of,
    api_key,
    card,
    deposit,
    errors,
    leave,
    new_key,
)

OPERATOR = OwnershipProof.OPERATOR
HEIR, OTHER = "did:test:heir", "did:test:other"


def set_heir(
    did: str = AGENT, *, actor: str = PAYER, heir: str = HEIR, requires_inactivity: bool = False
) -> SetInheritance:
    """Name an heir, for one day of silence."""
    return SetInheritance(
        key=new_key(), actor_did=actor, is_admin=False, did=did, heir_did=heir, days=1,
        requires_inactivity=requires_inactivity,
    )  # fmt: skip


def cancel(*, actor: str = PAYER) -> CancelInheritance:
    """Strike the heir out."""
    return CancelInheritance(key=new_key(), actor_did=actor, is_admin=False, did=AGENT)


def run(revision: int = 1, *, heir: str = HEIR, owner: str = PAYER) -> RunInheritance:
    """Run a switch, as the timekeeper does."""
    return RunInheritance(
        key=f"inherit:{AGENT}:{revision}", actor_did="timekeeper", did=AGENT, revision=revision,
        owner_did=owner, heir_did=heir,
    )  # fmt: skip


def stake(actor: str, amount: int) -> DepositStake:
    """Put credits into the agent's stake."""
    return DepositStake(
        key=new_key(), request_hash=b"s", actor_did=actor, is_admin=False, agent_did=AGENT,
        amount_micro=amount,
    )  # fmt: skip


async def ready_since(database: Database, auditor: Auditor, ms: int = AT) -> None:
    """Let the service have been ready since a time until now."""
    auditor.connection.execute("DELETE FROM outage")
    auditor.connection.execute("UPDATE readiness SET seen_ms = %s", (ms,))
    store = ReadinessStore(database.service_url)
    await store.note_ready()
    await store.close()
    auditor.connection.execute("DELETE FROM outage")


async def due_dids(reader: LedgerReader, limit: int = 9) -> list[str]:
    """Return the agents whose switches have run, found in turns of so many."""
    found, after = [], ""
    while True:
        rows, after = await due_switches(reader, after=after, limit=limit)
        found += [str(row["agent_did"]) for row in rows]
        if not after:
            return found


async def name_an_heir(
    store: LedgerStore, database: Database, auditor: Auditor, *more: Command
) -> None:
    """Register an agent that has an heir."""
    outcomes = await store.commit([card(proof=OPERATOR), *more, set_heir()], AT)
    assert [one.error for one in outcomes if one.error] == []
    await ready_since(database, auditor)


async def test_an_inheritance_runs_once_and_ends_the_agents_credentials(
    next_writer: NextWriter, auditor: Auditor, database: Database
) -> None:
    """Its API keys and heartbeat tokens end, not its former owner's; also after a restart."""
    keys = [api_key("theirs", b"k" * 32, owner_did=AGENT), api_key("owners", b"o" * 32)]
    store = await next_writer()
    await name_an_heir(store, database, auditor, *keys)
    first, again = await store.commit([run(), run()], AT + 1)
    assert (first.error, again.status) == (None, OutcomeStatus.REPEATED)
    assert auditor.one("SELECT revision = token_revision FROM agent"), "old tokens are worthless"
    live = "SELECT string_agg(id, '') FROM api_key WHERE revoked_ms IS NULL"
    assert auditor.one(live) == "owners"
    store = await next_writer()
    (repeat,) = await store.commit([run()], AT + 2)
    assert repeat.status is OutcomeStatus.REPEATED
    (next_heir,) = await store.commit([set_heir(actor=HEIR, heir=PAYER)], AT + 3)
    assert next_heir.result == {"revision": 2}


async def test_what_comes_to_an_heir_fills_none_of_its_bounds(
    next_writer: NextWriter, auditor: Auditor, database: Database
) -> None:
    """It need not agree: the agent and its names count for the owner of before, over a restart."""
    name = RegisterName(
        key=new_key(), actor_did=PAYER, is_admin=False, name="mine", agent_did=AGENT, months=120,
        owner_names_max=1, agent_names_max=9,
    )  # fmt: skip
    store = await next_writer()
    await name_an_heir(store, database, auditor, name)
    await store.commit([run()], AT + 1)
    store = await next_writer()
    second, third = "did:test:second", "did:test:third"
    outcomes = await store.commit(
        [
            card(second, owner_did=HEIR, owner_agents_max=1, proof=OPERATOR),
            replace(name, key=new_key(), name="his", agent_did=second, actor_did=HEIR),
            card(third, owner_did=PAYER, owner_agents_max=1, proof=OPERATOR),
            card(third, owner_did=PAYER, owner_agents_max=2, proof=OPERATOR),
            replace(name, key=new_key(), name="more", agent_did=third),
        ],
        AT + 2,
    )
    conflict = ErrorCode.CONFLICT
    assert [one.error for one in outcomes] == [None, None, conflict, None, conflict]


async def test_what_an_heir_takes_up_counts_for_the_heir(
    next_writer: NextWriter, auditor: Auditor, database: Database
) -> None:
    """By its first card; without room an active agent stays its former owner's to count."""
    store = await next_writer()
    await name_an_heir(store, database, auditor)
    second, third = "did:test:second", "did:test:third"
    await store.commit([run(), card(second, owner_did=HEIR, proof=OPERATOR)], AT + 1)
    more = card(third, owner_agents_max=1)
    full = card(owner_did=HEIR, owner_agents_max=1)
    commands = [full, more, leave(owner_did=HEIR), replace(full, key=new_key())]
    outcomes = await store.commit(commands, AT + 2)
    conflict = ErrorCode.CONFLICT
    assert [one.error for one in outcomes] == [None, conflict, None, conflict], "brought back"
    store = await next_writer()
    taken = [card(owner_did=HEIR, owner_agents_max=2), replace(more, key=new_key())]
    assert [one.error for one in await store.commit(taken, AT + 3)] == [None, None]
    assert auditor.one("SELECT inherited_from_did FROM agent WHERE did = %s", AGENT) == HEIR
    assert await errors(store, card("did:test:4", owner_did=HEIR, owner_agents_max=2)) == [conflict]


async def test_the_switch_of_an_unproven_claim_never_runs(
    empty_store: LedgerStore, database: Database, auditor: Auditor, reader: LedgerReader
) -> None:
    """Who registered another's DID first would name an heir for the wallet of who comes later."""
    strict = replace(set_heir(), needs_proof=True)
    (_, refused, named, early) = await empty_store.commit([card(), strict, set_heir(), run()], AT)
    assert (refused.error, named.error) == (ErrorCode.FORBIDDEN, None)
    assert early.error is ErrorCode.CONFLICT
    (_, _, due) = await empty_store.commit([card(proof=OPERATOR), set_heir(), run()], AT + 1)
    assert due.error is ErrorCode.CONFLICT
    auditor.connection.execute("UPDATE agent SET proven_by = NULL")
    auditor.connection.execute("UPDATE inheritance SET set_ms = set_ms - %s", (900 * DAY_MS,))
    assert await due_dids(reader) == [], "of code of before"


async def test_only_the_owner_names_and_strikes_out_an_heir(
    empty_store: LedgerStore, auditor: Auditor, database: Database
) -> None:
    await name_an_heir(empty_store, database, auditor)
    outcomes = await empty_store.commit(
        [
            set_heir(actor=OTHER),
            set_heir(actor=AGENT),
            set_heir("did:test:ghost"),
            set_heir(heir=AGENT),
            set_heir(heir=PAYER),
            cancel(actor=HEIR),
            cancel(),
            cancel(),
            set_heir(),
        ],
        AT + 1,
    )
    forbidden, invalid = ErrorCode.FORBIDDEN, ErrorCode.INVALID_REQUEST
    assert [one.error for one in outcomes] == [
        forbidden, forbidden, ErrorCode.NOT_FOUND, invalid, invalid, forbidden, None,
        ErrorCode.NOT_FOUND, None,
    ]  # fmt: skip
    late = await errors(empty_store, run(1), at=AT + 2)
    assert late == [ErrorCode.CONFLICT], "it is another one by now"
    assert await errors(empty_store, run(2), at=AT + 2) == [None]


async def test_a_heartbeat_starts_the_time_again(
    empty_store: LedgerStore, database: Database, auditor: Auditor, reader: LedgerReader
) -> None:
    """Also one that came after it was found due; the refusal is not kept."""
    await name_an_heir(empty_store, database, auditor)
    assert await due_dids(reader) == [AGENT]
    assert await due_dids(reader, limit=1) == [AGENT], "in turn"
    live = LivenessStore(database.service_url)
    await live.store_heartbeats([Heartbeat(AGENT, "healthy")])
    assert await due_dids(reader) == []
    assert await errors(empty_store, run(), at=AT + 1) == [ErrorCode.CONFLICT]
    auditor.connection.execute("UPDATE agent_live SET heartbeat_ms = heartbeat_ms - %s", (DAY_MS,))
    auditor.connection.execute("UPDATE readiness SET seen_ms = seen_ms + 60000")
    assert await errors(empty_store, run(), at=AT + 2) == [None]
    await live.close()


async def test_a_look_at_the_switches_reads_a_few_of_them(
    empty_store: LedgerStore, database: Database, auditor: Auditor, reader: LedgerReader
) -> None:
    """However many there are, and whether or not they could have run."""
    await name_an_heir(empty_store, database, auditor)
    auditor.connection.execute(
        "INSERT INTO inheritance SELECT 'did:x:' || n, 'o', 'h', 1, false, 1,"
        " CASE WHEN n %% 2 = 0 THEN 'armed' ELSE 'cancelled' END, %(at)s,"
        " CASE WHEN n %% 2 = 1 THEN 1 END FROM generate_series(1, 3000) AS n",
        {"at": AT},
    )
    auditor.connection.execute(
        "INSERT INTO agent SELECT"
        " (jsonb_populate_record(a, jsonb_build_object('did', i.agent_did))).*"
        " FROM inheritance i, agent a WHERE a.did = %s AND i.agent_did <> a.did",
        (AGENT,),
    )
    auditor.connection.execute("ANALYZE inheritance; ANALYZE agent")
    async with reader.engine.connect() as connection:
        explained = sql.text(f"EXPLAIN (ANALYZE, FORMAT JSON) {_DUE.text}")
        found = await connection.execute(explained, {"after": "did:x:2", "limit": 10})
        plan = found.scalar_one()[0]["Plan"]
    assert rows_read(plan)["inheritance"] <= 20, plan
    assert await due_dids(reader, limit=500) == [AGENT]


async def test_time_without_the_service_does_not_count(
    empty_store: LedgerStore, database: Database, auditor: Auditor, reader: LedgerReader
) -> None:
    """A gap between two notes is none of the agent's; nor is the time since the last note."""
    await name_an_heir(empty_store, database, auditor)
    auditor.connection.execute("UPDATE readiness SET seen_ms = %s", (AT + DAY_MS - 1,))
    assert await due_dids(reader) == []
    notes = ReadinessStore(database.service_url)
    await notes.note_ready()
    await notes.note_ready()
    assert auditor.one("SELECT count(*) FROM outage") == 1
    row = await switch_row(reader, AGENT)
    assert row is not None
    assert DAY_MS - 1 <= row["silent_ms"] < DAY_MS + 60_000, "the years since are a gap"
    auditor.connection.execute("UPDATE readiness SET seen_ms = seen_ms + 60000")
    assert len(await due_dids(reader)) == 1
    await notes.close()


async def test_the_owners_acts_count_only_where_its_inactivity_is_required(
    empty_store: LedgerStore, database: Database, auditor: Auditor, reader: LedgerReader
) -> None:
    await name_an_heir(empty_store, database, auditor)
    await empty_store.commit([set_heir(requires_inactivity=True)], AT)
    assert len(await due_dids(reader)) == 1
    now_ms = int(auditor.one("SELECT extract(epoch FROM now()) * 1000"))
    await empty_store.commit([deposit(1)], now_ms)
    assert await due_dids(reader) == []
    auditor.connection.execute("UPDATE inheritance SET requires_inactivity = false")
    assert len(await due_dids(reader)) == 1


async def test_a_switch_of_an_owner_of_before_is_void(
    next_writer: NextWriter, database: Database, auditor: Auditor, reader: LedgerReader
) -> None:
    store = await next_writer()
    await name_an_heir(store, database, auditor)
    auditor.connection.execute("UPDATE agent SET owner_did = %s", (OTHER,))
    assert await due_dids(reader) == []
    store = await next_writer()
    for command in (run(), run(owner=OTHER)):
        assert await errors(store, command, at=AT + 1) == [ErrorCode.CONFLICT]


async def test_an_heir_is_not_trusted_with_the_agent_that_an_administrator_has_registered(
    next_writer: NextWriter, database: Database, auditor: Auditor, reader: LedgerReader
) -> None:
    """The owner's own card keeps the trust. money.md (Verifiers)."""
    by_admin = card(proof=OPERATOR, is_admin=True)
    store = await next_writer()
    await name_an_heir(store, database, auditor, by_admin, card(), card("did:test:mine"))

    async def trusted() -> list[str]:
        async with LedgerReader(database.service_url, pool_size=1) as reader:
            return [r["did"] for r in await all_of(AGENTS.pages(reader.lookups)) if r["is_trusted"]]

    assert await trusted() == [AGENT]
    assert (await store.commit([run()], AT + 1))[0].error is None
    assert await trusted() == []
    await store.commit([card(owner_did=HEIR)], AT + 2)
    assert await trusted() == []
    await store.commit([card(owner_did=HEIR, is_admin=True), card(owner_did=HEIR)], AT + 3)
    assert await trusted() == [AGENT]


async def test_trust_ends_with_a_capability_that_no_administrator_has_registered(
    next_writer: NextWriter, auditor: Auditor
) -> None:
    """What the card offers less and again is another capability, too, also after a restart."""
    one, two = "cap.test.echo.v1", "cap.verify.generic.v1"

    both = card(capability_ids=(one, two), is_admin=True)
    steps = (
        (both, True),
        (card(capability_ids=(two, one)), True),
        (card(capability_ids=(one,)), True),
        (card(capability_ids=(one, two)), False),
        (card(capability_ids=(one,)), False),
        (both, True),
    )
    for number, (step, is_trusted) in enumerate(steps):
        store = await next_writer()
        assert (await store.commit([replace(step, key=new_key())], AT + number))[0].error is None
        assert auditor.one("SELECT is_trusted FROM agent") is is_trusted, number
