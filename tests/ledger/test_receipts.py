"""Receipts in the ledger: made of committed rows, stored once, signed by a key that is in use.

Reference: features.md (Receipts).
"""

from __future__ import annotations

import psycopg
import pytest

from core.errors import ServiceError
from core.trust.deployment_keys import NONCE_BYTES, DeploymentKeys
from core.trust.signing_keys import SigningKey
from ledger.features.receipts import ReceiptStore, receipt_rows
from ledger.features.signing_keys import RotateSigningKey
from ledger.reads.reader import LedgerReader
from ledger.writer.store import Genesis
from tests.conftest import Database
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    Flow,
    deposit,
    join,
    new_key,
    open_store,
    take,
)

KEYS = DeploymentKeys.parse("ab" * 32)
FIRST, SECOND = SigningKey(b"1" * 32), SigningKey(b"2" * 32)


def sealed(key: SigningKey) -> bytes:
    """Return the key as it is stored."""
    return key.seal(KEYS, b"n" * NONCE_BYTES)


async def test_a_receipt_is_signed_once_and_only_by_the_key_in_use(database: Database) -> None:
    """A replica that still holds the previous key stores nothing with it."""
    url = database.service_url
    genesis = Genesis("test", 500, FIRST.public_key, sealed(FIRST))
    store, flow = await open_store(url, genesis=genesis), Flow(1)
    await store.commit([join(), take(), deposit(100 * CREDIT)], AT)
    await store.commit([flow.publish(), flow.pay(CREDIT), flow.pay(CREDIT, node="b")], AT)
    reader = LedgerReader(url)
    receipts = ReceiptStore(url, reader)
    newer, older = await receipt_rows(reader, None, agent_did=AGENT, limit=10)
    assert (older["node_id"], older["amount_micro"], older["fee_micro"]) == ("a", 950_000, 50_000)
    assert older["checkpoint"] is None
    await receipts.sign([older], KEYS, now_ms=AT)
    first = dict(older)
    rotation = RotateSigningKey(
        key=new_key(),
        former_key_id=FIRST.key_id,
        public_key=SECOND.public_key,
        sealed=sealed(SECOND),
        proof="",
    )
    await store.commit([rotation], AT)
    older["body"] = None  # as a replica has it that read the rows before
    await receipts.sign([older, newer], KEYS, now_ms=AT + 1)
    assert older == first, "the first signing stays"
    assert f'"keyId":"{SECOND.key_id}"' in newer["body"]
    with psycopg.connect(database.service_url, autocommit=True) as connection:
        connection.execute("SET ROLE ops_writer")
        late = '[{"entry_id":99,"body":"b","signature":"s","jws":"j"}]'
        call = "SELECT * FROM callboard.store_receipts(%s, %s)"
        assert connection.execute(call, (FIRST.key_id, late)).fetchall() == []
        for statement in (
            "INSERT INTO callboard.receipt VALUES (99, 'b', 's', 'j')",
            "UPDATE callboard.receipt SET body = ''",
            "DELETE FROM callboard.receipt",
            "SELECT sealed FROM callboard.signing_key",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
    older["body"] = None
    unknown = DeploymentKeys.parse("cd" * 32)
    with pytest.raises(ServiceError, match="does not open"):
        await receipts.sign([older], unknown, now_ms=AT)
    await receipts.close()
    await reader.close()
    await store.close()


async def test_a_receipt_names_the_first_checkpoint_that_covers_it(database: Database) -> None:
    url, flow = database.service_url, Flow(1)
    store = await open_store(url)
    await store.commit([join(), take(), deposit(100 * CREDIT)], AT)
    await store.commit([flow.publish(), flow.pay(CREDIT)], AT)
    reader = LedgerReader(url)
    (row,) = await receipt_rows(reader, None, workflow_id=flow.id)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET ROLE ops_writer")
        for size in (row["audit_id"] - 1, row["audit_id"], row["audit_id"] + 1):
            connection.execute(
                "INSERT INTO callboard.checkpoint VALUES (%s, '', %s, 0)", (size, f"of {size}")
            )
    (row,) = await receipt_rows(reader, None, workflow_id=flow.id)
    assert row["checkpoint"] == f"of {row['audit_id']}"
    await reader.close()
    await store.close()
