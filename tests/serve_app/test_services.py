"""What was begun for a client ends also when the client leaves, and where agents may live."""

from __future__ import annotations

import asyncio

import pytest

from core.settings import Settings
from serve_app.services import Services
from tests.serve_app.parts import gateway_with, services_of


def services() -> Services:
    return services_of(gateway_with(Settings(egress_allow=("127.0.0.0/8", "::1/128"))))


async def test_work_ends_although_its_handler_was_cancelled() -> None:
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await may_end.wait()
        ended.set()

    handler = asyncio.ensure_future(services().to_the_end(work()))
    await begun.wait()
    handler.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handler
    may_end.set()
    await asyncio.wait_for(ended.wait(), 60)


def test_work_hands_its_result_and_its_failure_on() -> None:
    async def result() -> int:
        return 7

    async def failure() -> int:
        raise KeyError("x")

    assert asyncio.run(services().to_the_end(result())) == 7
    with pytest.raises(KeyError):
        asyncio.run(services().to_the_end(failure()))


@pytest.mark.parametrize(
    ("host", "is_denied"),
    [("127.0.0.1", False), ("10.1.2.3", True), ("::ffff:10.0.0.1", True), ("1.1.1.1", False)],
)
def test_addresses_are_judged_by_the_egress_policy(host: str, is_denied: bool) -> None:
    reason = asyncio.run(services().denied_endpoint(host, 80, "did:x:payer"))
    assert (reason is not None) is is_denied


def test_a_name_that_does_not_resolve_is_judged_later() -> None:
    assert asyncio.run(services().denied_endpoint("absent.invalid", 80, "did:x:payer")) is None


def test_ids_are_new_and_ordered_in_time() -> None:
    made = services()
    ids = [made.new_id() for _ in range(100)]
    assert len(set(ids)) == 100
    assert [text[:13] for text in ids] == sorted(text[:13] for text in ids)
