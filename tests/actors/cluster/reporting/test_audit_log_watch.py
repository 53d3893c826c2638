"""The watch that signs the audit log, against the real Postgres.

Reference: money.md (Checkpoints).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import psycopg
import pytest

from actors.cluster.reporting import audit_log_watch
from actors.cluster.reporting.audit_log_watch import UNSIGNED_MS_MAX, AuditLogWatch
from actors.process.loop_clock import monotonic_ms
from callboard.verify import verify_log
from core.settings import Settings
from core.trust.deployment_keys import NONCE_BYTES
from core.trust.merkle import WIDTH
from core.trust.signing_keys import SigningKey, signing_key_rotation_message
from ledger.features.audit_log import (
    NOTHING_SIGNED,
    read_checkpoint,
    read_roots,
    scan_entries,
)
from ledger.features.signing_keys import RotateSigningKey
from ledger.reads.reader import LedgerReader
from ledger.writer.store import Genesis, LedgerStore
from tests.callboard.audit_logs import KEYS, line_of
from tests.conftest import Database
from tests.ledger.making import AT, deposit, new_key, open_store

SECRET = "ab" * 32


@dataclass
class Scene:
    """A ledger with a signing key, its reader, and two watches of it."""

    database: Database
    store: LedgerStore
    reader: LedgerReader
    watch: AuditLogWatch
    other: AuditLogWatch

    async def add(self, count: int) -> None:
        """Commit deposits, one audit entry each."""
        await self.store.commit([deposit(1) for _ in range(count)], AT)

    async def rotate(self) -> None:
        """Commit the rotation to the second key."""
        settings = Settings(deployment_key=SECRET)
        second: SigningKey = KEYS[1]
        command = RotateSigningKey(
            key=new_key(),
            actor_did="did:test:admin",
            former_key_id=KEYS[0].key_id,
            public_key=second.public_key,
            sealed=second.seal(settings.deployment_keys, b"m" * NONCE_BYTES),
            proof=KEYS[0].sign(signing_key_rotation_message(second.public_key)),
        )
        (outcome,) = await self.store.commit([command], AT)
        assert outcome.error is None

    async def checkpoints(self) -> list[tuple[int, str]]:
        """Return the size and the note of every checkpoint."""
        return [(row[0], row[1]) for row in self.run("SELECT size, note FROM callboard.checkpoint")]

    def run(self, statement: str) -> list[tuple]:
        """Run a statement as a superuser, whom no trigger stops."""
        with psycopg.connect(self.database.superuser_url, autocommit=True) as connection:
            connection.execute("ALTER TABLE callboard.audit DISABLE TRIGGER append_only")
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    async def lines(self) -> list[bytes]:
        """Return the log as an export has it."""
        rows = self.run("SELECT body FROM callboard.audit ORDER BY id")
        return [line_of(row[0].encode()) for row in rows]


@pytest.fixture
async def scene(database: Database) -> AsyncIterator[Scene]:
    settings = Settings(database_url=database.service_url, deployment_key=SECRET)
    sealed = KEYS[0].seal(settings.deployment_keys, b"n" * NONCE_BYTES)
    genesis = Genesis("test", 500, KEYS[0].public_key, sealed)
    store = await open_store(database.service_url, genesis=genesis)
    async with LedgerReader(database.service_url, pool_size=2) as reader:
        watches = [AuditLogWatch(settings, reader) for _ in range(2)]
        yield Scene(database, store, reader, *watches)
        for watch in watches:
            await watch._pool.close()
    await store.close()


async def test_new_entries_are_signed_and_an_unchanged_log_is_not_signed_again(
    scene: Scene,
) -> None:
    assert await read_checkpoint(scene.reader) == NOTHING_SIGNED
    await scene.watch.round()
    await scene.watch.round()
    await scene.add(WIDTH + 3)
    await scene.watch.round()
    sizes = [size for size, _ in await scene.checkpoints()]
    assert sizes == [1, WIDTH + 4]
    notes = [note for _, note in await scene.checkpoints()]
    log = verify_log(await scene.lines(), KEYS[0].public_key, notes)
    assert (log.entries, log.signed) == (WIDTH + 4, WIDTH + 4)
    now_ms = monotonic_ms()
    assert scene.watch.problem(now_ms) is None
    later = scene.watch.problem(now_ms + UNSIGNED_MS_MAX + 1_000)
    assert later == "new entries have no checkpoint after 61 s"


async def test_a_writer_that_is_behind_catches_up_in_bounded_steps(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log_watch, "PAGE", 10)
    monkeypatch.setattr(audit_log_watch, "PAGES_MAX", 3)
    await scene.add(60)
    for _ in range(4):
        await scene.watch.round()
    assert [size for size, _ in await scene.checkpoints()] == [28, 55, 61]
    roots = await read_roots(scene.reader, [(0, 28), (0, 61)])
    assert [(one,) for one in roots] == scene.run(
        "SELECT root FROM callboard.checkpoint WHERE size IN (28, 61) ORDER BY size"
    )
    verify_log(await scene.lines(), "", [note for _, note in await scene.checkpoints()])


async def test_a_tree_that_no_key_may_sign_yet_is_stored_in_bounded_steps(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log_watch, "PAGE", 10)
    monkeypatch.setattr(audit_log_watch, "PAGES_MAX", 3)
    await scene.add(60)
    await scene.rotate()
    stored = "SELECT octet_length(hashes) / 32 FROM callboard.audit_tile WHERE level = 0"
    await scene.watch.round()
    assert (scene.run(stored), await scene.checkpoints()) == ([(28,)], [])
    await scene.other.round()
    assert (scene.run(stored), await scene.checkpoints()) == ([(55,)], [])
    await asyncio.gather(scene.watch.round(), scene.other.round())
    notes = dict(await scene.checkpoints())
    assert list(notes) == [62]
    assert verify_log(await scene.lines(), KEYS[0].public_key, notes.values()).signed == 62


async def test_a_scan_is_bounded_by_bytes_and_goes_on_by_an_entry_at_least(scene: Scene) -> None:
    await scene.add(9)
    ((size,),) = scene.run("SELECT sum(octet_length(body)) FROM callboard.audit WHERE id <= 4")
    for bytes_max, found in ((1, 2), (int(size), 4), (int(size) + 1, 5), (10**6, 10)):
        scan = await scan_entries(scene.reader, 1, 100, bytes_max=bytes_max)
        assert (scan.first_id, len(scan.leaves), scan.bad_id) == (1, found, None)


async def test_two_watches_at_once_sign_one_log(scene: Scene) -> None:
    for count in (1, 5, WIDTH, 2):
        await scene.add(count)
        await asyncio.gather(scene.watch.round(), scene.other.round())
    notes = dict(await scene.checkpoints())
    assert list(notes)[-1] == 1 + 1 + 5 + WIDTH + 2
    verify_log(await scene.lines(), "", list(notes.values()))


async def test_after_a_rotation_the_next_key_signs(scene: Scene) -> None:
    await scene.watch.round()
    await scene.rotate()
    await scene.watch.round()
    notes = [note for _, note in await scene.checkpoints()]
    assert verify_log(await scene.lines(), KEYS[0].public_key, notes).signed == 2


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "UPDATE callboard.checkpoint SET root = sha256('x')",
            "the tree is not the one of the checkpoint of size 4",
        ),
        ("DELETE FROM callboard.audit_tile", "is missing or too short"),
        ("DELETE FROM callboard.audit", "audit entry 4 is missing"),
        (
            "UPDATE callboard.audit SET body = replace(body, '\"id\":4,', '\"id\":4 ,'),"
            " hash = sha256(convert_to(replace(body, '\"id\":4,', '\"id\":4 ,'), 'UTF8'))"
            " WHERE id = 4",
            "audit entry 4 is",
        ),
        ("DELETE FROM callboard.audit WHERE id = 4", "audit entry 4 is missing"),
        ("DELETE FROM callboard.audit WHERE id = 5", "audit entry 6 is not linked"),
    ],
)
async def test_a_log_that_contradicts_what_was_signed_is_signed_no_more(
    scene: Scene, caplog: pytest.LogCaptureFixture, statement: str, said: str
) -> None:
    await scene.add(3)
    await scene.watch.round()
    await scene.add(3)
    scene.run(statement)
    before = await scene.checkpoints()
    caplog.set_level(logging.ERROR, "callboard.audit_log")
    for _ in range(2):
        await scene.watch.round()
    assert await scene.checkpoints() == before
    (logged,) = caplog.messages
    assert said in logged
    assert said in (scene.watch.problem(monotonic_ms()) or "")


async def test_a_log_without_entries_is_not_signed(scene: Scene) -> None:
    scene.run("DELETE FROM callboard.audit")
    await scene.watch.round()
    assert await scene.checkpoints() == []
    assert scene.watch.problem(monotonic_ms()) == "audit entry 1 is missing"
