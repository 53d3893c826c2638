"""A member tells the ledger what it was told by others, so that a ledger that is behind stops."""

from __future__ import annotations

from msgspec.structs import replace

from core.shards.lease_messages import Lease, Renewal
from tests.actors.shards.test_membership import Cluster


class Ledgers(Cluster):
    """Several ledgers, one after the other, each with its epoch and newest audit entry."""

    epoch = audit_id = 0

    def lease(self, renewal: Renewal) -> Lease:
        """Return what is true now."""
        return replace(super().lease(renewal), epoch=self.epoch, audit_id=self.audit_id)


async def test_ledger_is_told_the_highest_that_any_ledger_has_acknowledged() -> None:
    """Another is the head then, or Postgres has lost what was committed."""
    ledgers = Ledgers()
    for ledgers.epoch, ledgers.audit_id in ((3, 70), (2, 60), (4, 65)):
        await ledgers.member.renew_once()
    await ledgers.member.renew_once()
    seen = [(one.seen_epoch, one.seen_audit_id) for one in ledgers.renewals]
    assert seen == [(0, 0), (3, 70), (3, 70), (4, 70)]
    await ledgers.settle()
