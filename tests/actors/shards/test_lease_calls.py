"""Renewals reach the ledger's place and leases come back, over a real socket."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from actors.shards.lease_calls import LeaseCalls
from actors.transport.ledger_client import ledger_unavailable_error
from actors.transport.ledger_route import LedgerRoute
from actors.transport.names import LEDGER
from actors.transport.wire import answer_renewals
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.shards.lease_messages import HeldShard, Lease, MemberState, MemberView, Renewal
from tests.actors.transport.listening import listening

VIEW = MemberView(
    member="m-1",
    machine="machine",
    address="workflow@machine#0",
    version="1",
    state=MemberState.DRAINING,
    load=3,
    is_live=False,
)
LEASE = Lease(
    is_known=True,
    map_version=7,
    members=(VIEW,),
    shards=(HeldShard("m-1", 2), HeldShard("", 1)),
)


class Ledger:
    """Notes each renewal; grants its lease, or raises when it has none."""

    def __init__(self, lease: Lease | None) -> None:
        self.lease = lease
        self.renewals: list[Renewal] = []

    def grant(self, renewals: list[Renewal]) -> Sequence[Lease]:
        """Answer as the one writer does."""
        self.renewals += renewals
        if self.lease is None:
            raise ledger_unavailable_error()
        return [self.lease] * len(renewals)

    async def renew(self, bodies: list[bytes]) -> list[bytes]:
        """Answer as the ledger's actor does."""
        return answer_renewals(self.grant, bodies)


async def test_lease_comes_back_whole(tmp_path: Path) -> None:
    ledger = Ledger(LEASE)
    server = await listening(tmp_path, LEDGER, {"renew": ledger.renew})
    assert server is not None
    route = LedgerRoute(Settings(run_folder=str(tmp_path), database_url="postgresql://"))
    calls = LeaseCalls(route)
    renewal = Renewal(member="m-1", load=3, map_version=6)
    assert await calls.renew(renewal) == LEASE
    assert ledger.renewals == [renewal]
    await route.close()
    await server.close()


async def test_ledger_that_does_not_acknowledge_is_heard(tmp_path: Path) -> None:
    """A member that took silence of Postgres for a lease would send for shards of others."""
    server = await listening(tmp_path, LEDGER, {"renew": Ledger(None).renew})
    assert server is not None
    route = LedgerRoute(Settings(run_folder=str(tmp_path), database_url="postgresql://"))
    calls = LeaseCalls(route)
    with pytest.raises(ServiceError) as refused:
        await calls.renew(Renewal(member="m-1"))
    assert refused.value.code is ErrorCode.LEDGER_UNAVAILABLE
    await route.close()
    await server.close()


async def test_what_is_no_renewal_renews_nothing(tmp_path: Path) -> None:
    ledger = Ledger(LEASE)
    with pytest.raises(Exception, match="bytes"):
        await ledger.renew([b"\xc1"])
    assert not ledger.renewals
