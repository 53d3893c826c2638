"""Invoices of one payer are added up one after another, also when clients do not wait for them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn

from core.errors import ErrorCode, ServiceError
from core.trust.access import Principal
from ledger.reads.expensive_reads import ExpensiveReads
from serve_app.http.calls import Call
from serve_app.operations.money import invoices
from serve_app.services import Services
from tests.serve_app.parts import call_of, services_of

PAYER = Principal("did:x:payer", "k", frozenset(("ledger:write",)), "unlimited")


class Ledger:
    """A gateway and its reader without invoices, in which adding up takes until `ends`."""

    def __init__(self) -> None:
        self.reader = self
        self.lookups = SimpleNamespace(rows=self.look_up)
        self.turns = ExpensiveReads()
        self.looked_up = 0
        self.ends = asyncio.Event()

    async def look_up(self, *_: object) -> list[dict[str, Any]]:
        self.looked_up += 1
        return []

    async def rows(self, *_: object) -> list[dict[str, Any]]:
        await self.ends.wait()
        raise ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "the end of the test")

    async def commit(self, _: object) -> NoReturn:
        raise AssertionError("nothing is added up")


def asked(services: Services, hours: int) -> Call:
    """Ask for the invoice of so many hours."""
    operation = invoices.OPERATIONS[0]
    call = call_of(
        services,
        raw_path=b"/v1/invoices",
        right=operation.scope,
        principal=PAYER,
        json={"periodStart": f"2026-01-01T{hours:02}:00:00Z", "periodEnd": "2026-01-02"},
        body=b"{}",
    )
    call.parse(operation)
    return call


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_an_invoice_whose_client_left_is_still_the_only_one_of_its_payer() -> None:
    """A client that left freed the lock while its invoice was added up: 20 of them, 20 at once."""

    async def scenario() -> None:
        ledger = Ledger()
        services = services_of(ledger)
        first = asyncio.create_task(invoices.create(asked(services, 0)))
        await settled()
        of_first = ledger.looked_up
        others = [asyncio.create_task(invoices.create(asked(services, n))) for n in range(1, 20)]
        for left in (first, *others[:-1]):
            await settled()
            left.cancel()  # as Serve does with a client it watches
        await settled()
        assert ledger.looked_up == of_first > 0
        ledger.ends.set()
        await settled()
        assert ledger.looked_up == 2 * of_first, "those that left while they waited began nothing"
        (outcome,) = await asyncio.gather(others[-1], return_exceptions=True)
        assert isinstance(outcome, ServiceError)

    asyncio.run(scenario())
