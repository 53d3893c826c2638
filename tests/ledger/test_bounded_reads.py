"""Reads that end early in bytes, and looks at ends without reading records."""

from __future__ import annotations

import orjson
import pytest

from core.workflow.events import AttemptFinished
from ledger.features.workflow_reads import attempt_agent, have_ended
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import connect
from tests.ledger.making import AGENT, AT, CREDIT, Flow, card, new_id


async def test_a_page_of_agents_ends_with_the_card_that_passes_its_bytes(
    store: LedgerStore, reader: LedgerReader
) -> None:
    dids = [f"did:test:{letter}" for letter in "abcde"]
    wide = orjson.dumps({"text": "x" * 1_000}).decode()
    await store.commit([card(did, card_json=wide) for did in dids], AT)
    page = await reader.agents(bytes_max=2_500)
    assert ([row["did"] for row in page], page.is_cut) == (dids[:3], True)
    assert set(page[0]) == set(await reader.heard_agent(dids[0]) or {}), "and no other columns"
    rest = await reader.agents(after_did=dids[2], bytes_max=2_500)
    assert ([row["did"] for row in rest], rest.is_cut) == (dids[3:], False)
    one = await reader.agents(bytes_max=1)
    assert ([row["did"] for row in one], one.is_cut) == (dids[:1], True)
    limited = await reader.agents(limit=2, offset=1, bytes_max=10_000)
    assert ([row["did"] for row in limited], limited.is_cut) == (dids[1:3], False)


async def test_a_page_of_audit_entries_ends_early_newest_first(
    store: LedgerStore, reader: LedgerReader
) -> None:
    await store.commit([Flow().publish() for _ in range(3)], AT)
    everything = await reader.audit()
    size = len(everything[0]["body"].encode())
    page = await reader.audit(bytes_max=size + 1)
    assert (page, page.is_cut) == (everything[:2], True)
    assert (await reader.audit(limit=2, bytes_max=10**9)).is_cut is False


async def test_a_rare_event_of_a_workflows_life_is_looked_for_page_by_page(
    store: LedgerStore, reader: LedgerReader
) -> None:
    """One that never occurred read the whole chain: 0.75 s at 400,000 entries."""
    await store.commit([Flow().publish()], AT)
    await store.commit([card(f"did:test:{letter}") for letter in "abcdefgh"], AT)
    chain = [row["id"] for row in await reader.audit()]
    (published,) = [row["id"] for row in await reader.audit(event_type="workflow.published")]
    for of_life in ({"event_type": "workflow.published"}, {"target_type": "workflow"}):
        found: list[int] = []
        looked, before_id = [], None
        while True:
            page = await reader.audit(**of_life, looked_at_max=3, before_id=before_id)
            found += [row["id"] for row in page]
            if page.looked_to is None:
                break
            before_id = page.looked_to
            looked.append(before_id)
        assert found == [published]
        assert looked == chain[2::3], "three entries a page, and no entry twice"
    never = await reader.audit(event_type="payment.settled", looked_at_max=len(chain) + 1)
    assert (never, never.looked_to) == ([], None)
    # A page that is full has the key of its last row, whatever was looked at.
    full = await reader.audit(event_type="workflow.published", limit=1)
    assert full.looked_to is None


async def test_ones_own_entries_are_found_page_by_page_and_no_others_are_counted(
    store: LedgerStore, reader: LedgerReader
) -> None:
    """How many of others match shows in nothing: a page looks at the caller's own alone."""
    await store.commit([card("did:test:own", owner_did="did:test:own")], AT)
    own = Flow()
    await store.commit([own.publish()], AT)
    for letter in "abcdefgh":
        # Each an entry of the payer, who owns them.
        await store.commit([card(f"did:test:{letter}")], AT)
    registered = {"target_type": "agent", "event_type": "agent.registered"}
    of_life = {"event_type": "workflow.published"}
    one = ["did:test:own"]
    for filters, party, found, pages in (
        (registered, "did:test:own", one, 1),
        ({"target_id": "did:test:own"}, "did:test:own", one, 1),
        ({"target_id": "did:test:own"}, own.payer, [], 4),
        ({"target_id": "did:test:own", "target_type": "workflow"}, own.payer, [], 4),
        ({"actor_did": own.payer, **of_life}, own.payer, [own.id], 4),
        (of_life, own.payer, [own.id], 4),
        ({"target_type": "workflow"}, own.payer, [own.id], 4),
        ({"event_type": "escrow.held", "target_type": "agent"}, own.payer, [], 4),
        # The workflow's own entries are few: all of them are looked at.
        ({"target_id": own.id, "target_type": "workflow"}, own.payer, [own.id], 1),
        ({"target_id": own.id}, own.payer, [own.id], 4),
        ({"start_ms": AT + 1}, own.payer, [], 4),
        *((filters, "did:test:nobody", [], 1) for filters in (registered, of_life)),
        ({"target_id": own.id, "target_type": "workflow"}, "did:test:nobody", [], 1),
    ):
        shown: list[str] = []
        read, before_id = 0, None
        while True:
            page = await reader.audit(
                **filters, party_did=party, looked_at_max=3, before_id=before_id
            )
            shown += [orjson.loads(row["body"])["targetId"] for row in page]
            read += 1
            if page.looked_to is None:
                break
            assert before_id is None or page.looked_to < before_id
            before_id = page.looked_to
        assert shown == found, (filters, party)
        assert read == pages, (filters, party)
    full = await reader.audit(**registered, party_did="did:test:own", limit=1)
    assert (len(full), full.looked_to) == (1, None)


async def test_ends_are_told_for_many_workflows_at_once(
    store: LedgerStore, reader: LedgerReader
) -> None:
    over, running = Flow(), Flow()
    await store.commit([over.publish(), over.pay(CREDIT), running.publish()], AT)
    await store.commit([over.end()], AT)
    unknown = new_id()
    asked = [running.id, over.id, unknown, running.id]
    assert await have_ended(reader, asked) == [False, True, True, False]


async def test_the_agent_of_a_late_result_is_found_among_the_newest_attempts_only(
    store: LedgerStore, reader: LedgerReader, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each late result read all 30,001 attempts of its workflow."""
    monkeypatch.setattr("ledger.features.workflow_reads.ATTEMPTS_READ_MAX", 3)
    flow = Flow(hold=CREDIT)
    ended = [AttemptFinished("a", 1, AGENT, "timeout", AT, AT)]
    await store.commit([flow.publish(), flow.advance(*ended)], AT)
    for later, expected in ((2, AGENT), (1, None)):
        with connect(database.superuser_url) as connection:
            connection.execute(
                "INSERT INTO callboard.attempt (workflow_id, node, attempt, kind, agent_did,"
                " outcome, started_ms, completed_ms) SELECT %s::uuid, 'n', n, 'primary', 'did:x:x',"
                " 'error', 1, 1 FROM generate_series(1, %s) n",
                (flow.id, later),
            )
        found = await attempt_agent(reader, flow.id, "a", 1, is_verification=False)
        assert found == expected
