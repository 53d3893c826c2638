"""Signing secrets are sealed anew after a rotation, each once, wherever the command ends."""

from __future__ import annotations

import os
from collections.abc import Sequence

import psycopg
import pytest

from core.errors import ServiceError
from core.records.statuses import TriggerKind
from core.trust.deployment_keys import NONCE_BYTES, DeploymentKeys, KeyPurpose, seal, unseal
from core.trust.signing_keys import SigningKey
from ledger.features.sealed_secrets import (
    SECRETS_MAX,
    SealedSecrets,
    made_with_key,
    seal_anew,
    sealed_secrets,
)
from ledger.features.signing_keys import read_signing_key
from ledger.features.triggers import trigger_row
from ledger.features.webhooks import WebhookStore, webhook_rows
from ledger.features.workflow_commands import CreateTrigger, TriggerTerms
from ledger.reads.reader import LedgerReader
from ledger.replies import ReplyStore
from ledger.writer.store import Genesis
from tests.conftest import Database
from tests.ledger.making import AT, PAYER, card, new_id, new_key, open_store

BEFORE = DeploymentKeys.parse("ab" * 32)
ROTATED = BEFORE.with_next(b"n" * 32).with_newest_in_use()
AGENTS = 2 * SECRETS_MAX + 7


def sealed(secret: str, keys: DeploymentKeys) -> bytes:
    return seal(secret, keys, os.urandom(NONCE_BYTES), KeyPurpose.SIGNING_SECRET)


def name(number: int) -> str:
    return f"did:test:sealed-{number:04}"


async def register(database: Database, numbers: Sequence[int], keys: DeploymentKeys) -> None:
    """Register agents, each with a secret of its own."""
    store = await open_store(database.service_url)
    commands = [
        card(name(number), secret_encrypted=sealed(f"hush {number}", keys)) for number in numbers
    ]
    assert {outcome.error for outcome in await store.commit(commands, AT)} == {None}
    await store.close()


class Ended(Exception):
    """The command was killed."""


class Ending(SealedSecrets):
    """A command that is killed after its first statement."""

    async def replace(self, changes: Sequence[tuple[str, bytes, bytes]]) -> int:
        await super().replace(changes)
        raise Ended


async def test_every_secret_is_sealed_anew_once_wherever_the_command_ends(
    database: Database, reader: LedgerReader
) -> None:
    await register(database, range(AGENTS), BEFORE)
    await register(database, [AGENTS], ROTATED)
    ending, store = Ending(database.service_url), SealedSecrets(database.service_url)
    with pytest.raises(Ended):
        await seal_anew(reader, ending, ROTATED)
    assert (await made_with_key(reader, store, 1)).secrets == AGENTS - SECRETS_MAX
    assert await seal_anew(reader, store, ROTATED) == AGENTS - SECRETS_MAX
    assert not await made_with_key(reader, store, 1)
    assert await seal_anew(reader, store, ROTATED) == 0
    for each in (ending, store):
        await each.close()
    found = await sealed_secrets(reader, 2, after="", limit=1_000)
    only = ROTATED.with_one()
    opened = {row["id"]: unseal(row["secret"], only, KeyPurpose.SIGNING_SECRET) for row in found}
    assert opened == {name(number): f"hush {number}" for number in range(AGENTS + 1)}


async def test_a_secret_that_was_replaced_meanwhile_stays_and_no_one_waits(
    database: Database, reader: LedgerReader
) -> None:
    """The writer may hold rows: they are left to the next round."""
    await register(database, range(3), BEFORE)
    read = await sealed_secrets(reader, 1, after="", limit=10)
    await register(database, [0], ROTATED)  # another secret, with a new card
    store = SealedSecrets(database.service_url)
    changes = [(row["id"], row["secret"], b"\2" + row["secret"][1:]) for row in read]
    with psycopg.connect(database.superuser_url) as writer:
        writer.execute("SELECT 1 FROM callboard.agent WHERE did = %s FOR UPDATE", [name(1)])
        assert await store.replace(changes) == 1
    assert await store.replace(changes) == 1
    assert await store.replace(changes) == 0
    await store.close()


async def test_one_that_cannot_be_read_holds_up_no_other(
    database: Database, reader: LedgerReader
) -> None:
    await register(database, [0], DeploymentKeys.parse("cd" * 32))
    await register(database, [1], BEFORE)
    store = SealedSecrets(database.service_url)
    assert await seal_anew(reader, store, ROTATED) == 1
    await store.close()
    assert [row["id"] for row in await sealed_secrets(reader, 1, after="", limit=9)] == [name(0)]
    assert [row["id"] for row in await sealed_secrets(reader, 2, after="", limit=9)] == [name(1)]


async def test_replies_of_the_key_of_before_are_known(
    database: Database, reader: LedgerReader
) -> None:
    replies = ReplyStore(database.service_url, kept_s=86_400)
    store = SealedSecrets(database.service_url)
    for keys in (ROTATED, BEFORE):
        assert not (await made_with_key(reader, store, 1)).has_replies
        text = seal("{}", keys, bytes(NONCE_BYTES), KeyPurpose.STORED_REPLY)
        await replies.open("p", f"key {keys.version}", b"h" * 32)
        await replies.keep("p", f"key {keys.version}", b"h" * 32, text)
    assert (await made_with_key(reader, store, 1)).has_replies
    await replies.close()
    await store.close()


async def test_secrets_are_found_by_an_index_and_changed_by_the_function_alone(
    database: Database,
) -> None:
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        connection.execute("SET enable_seqscan = off")
        plan = connection.execute(
            "EXPLAIN SELECT did FROM callboard.agent WHERE signing_secret IS NOT NULL"
            " AND substring(signing_secret, 1, 1) = '\\x01' AND did > 'a' ORDER BY did LIMIT 9"
        ).fetchall()
        assert "agent_sealed_by" in str(plan)
        connection.execute("SET ROLE ops_writer")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("UPDATE callboard.agent SET signing_secret = NULL")


async def test_the_secrets_of_webhooks_are_sealed_anew(
    database: Database, reader: LedgerReader
) -> None:
    webhooks, store = WebhookStore(database.service_url), SealedSecrets(database.service_url)
    for number, keys in enumerate((BEFORE, ROTATED, DeploymentKeys.parse("cd" * 32))):
        text = seal(f"new{number} old", keys, bytes(NONCE_BYTES), KeyPurpose.SIGNING_SECRET)
        columns = {"id": new_id(), "url": "http://x", "events": ["*"], "secrets": text}
        await webhooks.add(name(1), {**columns, "after_id": 0, "created_ms": AT})
    assert (await made_with_key(reader, store, 1)).secrets == 2
    assert await seal_anew(reader, store, ROTATED) == 1
    assert (await made_with_key(reader, store, 1)).secrets == 1  # which no key opens
    rows = await webhook_rows(reader, after=None)
    only = ROTATED.with_one()
    opened = {unseal(bytes(row["secrets"]), only, KeyPurpose.SIGNING_SECRET) for row in rows}
    assert opened == {"new0 old", "new1 old", None}
    await webhooks.close()
    await store.close()


async def test_the_signing_key_is_sealed_anew(database: Database) -> None:
    key = SigningKey(b"s" * 32)
    genesis = Genesis("test", 500, key.public_key, key.seal(BEFORE, b"n" * NONCE_BYTES))
    store = await open_store(database.service_url, genesis=genesis)
    await store.close()
    reader, secrets = LedgerReader(database.service_url), SealedSecrets(database.service_url)
    assert await read_signing_key(reader, BEFORE) == key
    assert (await made_with_key(reader, secrets, BEFORE.version)).secrets == 1
    assert await seal_anew(reader, secrets, ROTATED) == 1
    assert (await made_with_key(reader, secrets, BEFORE.version)).secrets == 0
    assert await read_signing_key(reader, ROTATED.with_one()) == key
    with pytest.raises(ServiceError, match="does not open"):
        await read_signing_key(reader, BEFORE)
    await secrets.close()
    await reader.close()


async def test_secrets_of_hooks_are_sealed_anew_beside_those_of_agents(
    database: Database, reader: LedgerReader
) -> None:
    await register(database, range(2), BEFORE)
    ids = sorted(new_id() for _ in range(SECRETS_MAX + 1))
    ledger = await open_store(database.service_url)
    hooks = [
        CreateTrigger(
            key=new_key(), actor_did=PAYER, trigger_id=one, kind=TriggerKind.WEBHOOK,
            terms=TriggerTerms(name="n", manifest_json="{}", config={}),
            secret=sealed(f"hush {one}", BEFORE),
        )
        for one in ids
    ]  # fmt: skip
    assert {outcome.error for outcome in await ledger.commit(hooks, AT)} == {None}
    await ledger.close()
    store = SealedSecrets(database.service_url)
    assert (await made_with_key(reader, store, 1)).secrets == len(ids) + 2
    assert await seal_anew(reader, store, ROTATED) == len(ids) + 2
    assert not await made_with_key(reader, store, 1)
    await store.close()
    only, purpose = ROTATED.with_one(), KeyPurpose.SIGNING_SECRET
    for one in ids:
        row = await trigger_row(reader, one)
        assert row is not None
        assert unseal(bytes(row["secret"]), only, purpose) == f"hush {one}"
