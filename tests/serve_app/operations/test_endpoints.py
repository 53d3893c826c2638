"""Endpoints of a bulk of agents at names that no name server answers, judged side by side."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest

from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.trust.access import Principal
from federation.name_resolver import NameResolver
from serve_app.http.bulk import BulkItems
from serve_app.operations.agents.endpoints import LOOKUPS_AT_ONCE, endpoint_refusals
from serve_app.services import Services
from tests.federation.name_servers import name_server
from tests.serve_app.parts import call_of, gateway_with, services_of

OWNER = Principal("did:x:owner", "k", frozenset(("agents:write",)), "unlimited")


def services(names: NameResolver, *, egress_allow: tuple[str, ...] = ("127.0.0.0/8",)) -> Services:
    here = gateway_with(Settings(egress_allow=egress_allow))
    return services_of(here, names=names)


async def test_the_names_of_a_bulk_are_looked_up_side_by_side() -> None:
    """One after the other, 60 names without an answer took more than 120 s."""
    async with name_server() as server:
        made = services(NameResolver([server.address]))
        slow = [f"http://x{number}.slow.test" for number in range(2 * LOOKUPS_AT_ONCE)]
        endpoints = [*slow[:2], "http://10.0.0.1", None, *slow[2:], slow[0], "http://["]
        found = await endpoint_refusals(made, OWNER, endpoints, timeout_s=1.0)
        made.names.close()
    codes = [None if error is None else error.code for error in found]
    slow_names = {url.removeprefix("http://") for url in slow}
    late = [ErrorCode.OVERLOADED] * len(slow[2:])
    assert codes[:4] == [ErrorCode.OVERLOADED] * 2 + [ErrorCode.POLICY_DENIED, None]
    assert codes[4:] == [*late, ErrorCode.OVERLOADED, ErrorCode.INVALID_REQUEST]
    assert 1 < len({name for name in server.asked if name in slow_names}) <= LOOKUPS_AT_ONCE


async def test_a_name_of_a_bulk_that_is_answered_is_judged_by_its_address() -> None:
    async with name_server() as server:
        made = services(NameResolver([server.address]))
        endpoints = ["http://a.good.test", "https://a.good.test/x", "http://absent.test"]
        assert await endpoint_refusals(made, OWNER, endpoints) == [None, None, None]
        made.names.close()


async def test_a_refusal_does_not_tell_what_a_name_resolves_to() -> None:
    """Else anyone could read the addresses of names that our name server alone knows."""
    async with name_server() as server:
        made = services(NameResolver([server.address]), egress_allow=())
        (error,) = await endpoint_refusals(made, OWNER, ["http://a.good.test"])
        made.names.close()
    assert error is not None
    assert (error.code, "a.good.test" in error.detail) == (ErrorCode.POLICY_DENIED, True)
    assert "127.0" not in repr(error)


class Failing(NameResolver):
    """A resolver with a defect in one name; it never answers the others."""

    def __init__(self) -> None:
        super().__init__()
        self.running = 0

    async def resolve(self, host: str, port: int, payer: str = "") -> NoReturn:
        if host == "bad.test":
            raise ValueError("a defect")
        self.running += 1
        try:
            await asyncio.Event().wait()
            raise AssertionError
        finally:
            self.running -= 1


async def test_a_defect_in_one_look_up_of_a_bulk_leaves_none_running() -> None:
    names = Failing()
    endpoints = [*(f"http://x{number}.test" for number in range(9)), "http://bad.test"]
    with pytest.raises(ExceptionGroup):
        await endpoint_refusals(services(names), OWNER, endpoints)
    assert names.running == 0


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_an_accepted_item_that_is_refused_later_leaves_the_others_in_their_places(
    refused: int,
) -> None:
    found = BulkItems[str]([None, "wrong", None, None], ["a", "c", "d"], [0, 2, 3])
    errors: list[Any] = [None, None, None]
    position = found.positions[refused]
    errors[refused] = ServiceError(ErrorCode.OVERLOADED, "late")
    found.refuse(call_of(), errors)
    assert len(found.accepted) == len(found.positions) == 2
    assert dict(zip([0, 2, 3], "acd", strict=True)) == {
        **dict(zip(found.positions, found.accepted, strict=True)),
        position: "acd"[refused],
    }
    assert [index for index, result in enumerate(found.results) if result] == sorted({1, position})
