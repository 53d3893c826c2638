"""Renewals reach the ledger's place and leases come back, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from actors.transport.ledger_route import LedgerRoute, Renew
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.shards.lease_messages import HeldShard, Lease, MemberState, MemberView, Renewal
from tests.actors.gateway.served import Leases

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


@asynccontextmanager
async def asked(folder: Path, lease: Lease | None) -> AsyncIterator[tuple[Renew, Leases]]:
    """Open the calls of a member to a ledger that grants this lease, or none."""
    async with Leases(lease).listening(folder) as ledger:
        route = LedgerRoute(Settings(run_folder=str(folder), database_url="postgresql://"))
        yield route.renewals(), ledger
        await route.close()


async def test_lease_comes_back_whole(tmp_path: Path) -> None:
    renewal = Renewal(member="m-1", load=3, map_version=6)
    async with asked(tmp_path, LEASE) as (renew, ledger):
        assert await renew(renewal) == LEASE
    assert ledger.renewals == [renewal]


async def test_ledger_that_does_not_acknowledge_is_heard(tmp_path: Path) -> None:
    """A member that took silence of Postgres for a lease would send for shards of others."""
    async with asked(tmp_path, None) as (renew, _):
        with pytest.raises(ServiceError) as refused:
            await renew(Renewal(member="m-1"))
    assert refused.value.code is ErrorCode.LEDGER_UNAVAILABLE


async def test_what_is_no_renewal_renews_nothing() -> None:
    ledger = Leases(LEASE)
    with pytest.raises(Exception, match="bytes"):
        await ledger.renew([b"\xc1"])
    assert not ledger.renewals
