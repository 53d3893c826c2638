"""Registered prices of capabilities: the newest binds, each change is on the audit chain."""

from __future__ import annotations

from decimal import Decimal

from core.market.pricing import FixedPrice, Price, TokenPrice
from core.money import MICRO_PER_CENT
from ledger.commands import OutcomeStatus
from ledger.features.prices import SetPrice, price_row
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import AT, new_key

CAPABILITY = "cap.test.echo.v1"


def priced(price: Price, *, key: str = "") -> SetPrice:
    """Register a price."""
    return SetPrice(
        key=key or new_key(), actor_did="did:test:admin", capability_id=CAPABILITY, price=price
    )


async def test_the_newest_price_binds_and_every_change_is_audited(
    empty_store: LedgerStore, database: Database, auditor: Auditor
) -> None:
    async with LedgerReader(database.service_url) as reader:
        assert await price_row(reader, CAPABILITY) is None
        first = priced(FixedPrice(25 * MICRO_PER_CENT), key="first")
        (outcome,) = await empty_store.commit([first], AT)
        assert outcome.result == {"updatedMs": AT}
        row = await price_row(reader, CAPABILITY)
        assert row is not None
        assert (row["price_cents"], row["input_rate"], row["set_by_did"]) == (
            25,
            None,
            "did:test:admin",
        )
        rates = TokenPrice(Decimal("0.000000000001"), Decimal("12"))
        # Twice in a batch: the second is what is stored.
        await empty_store.commit([priced(FixedPrice(0)), priced(rates)], AT + 5)
        row = await price_row(reader, CAPABILITY)
        assert row is not None
        assert (row["price_cents"], row["input_rate"], row["output_rate"], row["updated_ms"]) == (
            None,
            "0.000000000001",
            "12",
            AT + 5,
        )
        (again,) = await empty_store.commit([first], AT + 9)
        assert again.status is OutcomeStatus.REPEATED
        assert await price_row(reader, CAPABILITY) == row, "a repeat changes nothing"
    payloads = auditor.connection.execute(
        "SELECT payload FROM event WHERE event_type = 'capability.priced' ORDER BY id"
    ).fetchall()
    assert [payload for (payload,) in payloads] == [
        {"priceCents": 25},
        {"priceCents": 0},
        {"inputRate": "0.000000000001", "outputRate": "12"},
    ]
