"""The leases of the cluster's members beside the writer: made once, outliving its stores.

Follows what is committed: a member that has joined is granted a lease, one that is GONE is
forgotten, and one at whose address another has joined has ended. `core/shards/leases.py` decides
who lives, `core/shards/permit_table.py` who may have how many calls at which agent. shards.md
(Lease). Decisions 0201, 0204.
"""

from __future__ import annotations

from collections.abc import Callable

from core.shards.lease_messages import Lease, MemberView, Renewal
from core.shards.leases import LeaseTable
from core.shards.permit_messages import PermitAnswer
from core.shards.permit_table import PermitTable
from ledger.shards.committed_cluster import CommittedCluster


class MemberLeases:
    """Who lives, and what each member has last said of its load.

    Args:
        boot_ms: a monotonic clock that runs while the machine is suspended.
    """

    def __init__(self, boot_ms: Callable[[], int]) -> None:
        self._boot_ms = boot_ms
        self._table = LeaseTable(boot_ms())
        self._permits = PermitTable(0)
        # Of every member that is followed.
        self._loads: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<MemberLeases {self._table!r}>"

    def is_live(self, member: str) -> bool:
        """Say whether the shards of a member may not be taken."""
        self._table.tick(self._boot_ms())
        return self._table.is_live(member)

    def begin(self, cluster: CommittedCluster, epoch: int) -> None:
        """Grant every member a first lease: another writer may have renewed theirs until now.

        Args:
            epoch: of this writer; another one may have granted permits until now as well.
        """
        self._table.tick(self._boot_ms())
        self._permits = PermitTable(epoch, cluster.members)
        for member in cluster.members:
            self._table.grant_first(member)
            self._loads.setdefault(member, 0)
        self.follow(cluster)

    def follow(self, cluster: CommittedCluster) -> None:
        """Grant, forget and end leases as the committed members say."""
        self._table.tick(self._boot_ms())
        for member in self._loads.keys() - cluster.members.keys():
            self._table.forget(member)
            del self._loads[member]
        for member in cluster.members.keys() - self._loads.keys():
            self._table.grant(member)
            self._loads[member] = 0
        for member in cluster.replaced():
            self._table.end(member)

    def renew(self, renewal: Renewal) -> bool:
        """Note a member's sign of life and its load; return whether it is a member still.

        A question without a member is answered as one of a member.
        """
        self._table.tick(self._boot_ms())
        if not renewal.member:
            return True
        if not self._table.renew(renewal.member):
            return False
        self._loads[renewal.member] = renewal.load
        return True

    def answers(
        self, asked: list[tuple[Renewal, bool]], cluster: CommittedCluster, ledger_ms: int
    ) -> list[Lease]:
        """Return the answer to each renewal, and grant permits with it.

        Args:
            asked: each with what `renew` has returned.
            cluster: what is committed.
            ledger_ms: the ledger's clock, Unix milliseconds.
        """
        views = tuple(
            MemberView(
                member=member,
                machine=known.machine,
                address=known.address,
                version=known.version,
                state=known.state,
                load=self._loads.get(member, 0),
                is_live=self._table.is_live(member),
            )
            for member, known in cluster.members.items()
        )
        holders = {held.member for held in cluster.shards}
        counted = {view.member for view in views if view.is_live or view.member in holders}
        self._permits.follow(cluster.members, counted)
        return [
            Lease(
                is_known=is_known,
                ledger_ms=ledger_ms,
                map_version=cluster.version,
                members=views,
                shards=() if 0 < cluster.version == renewal.map_version else cluster.shards,
                permits=self._exchange(renewal) if is_known else PermitAnswer(),
            )
            for renewal, is_known in asked
        ]

    def _exchange(self, renewal: Renewal) -> PermitAnswer:
        if not renewal.member:
            return PermitAnswer()
        return self._permits.exchange(renewal.member, renewal.permits, self._boot_ms())
