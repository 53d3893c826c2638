"""The way to the ledger's leases: one renewal out, one lease back.

Knows how renewals travel; what a lease means, `membership.py` and the gateway decide. Decision
workflow-owners-and-shards.
"""

from __future__ import annotations

from actors.transport.ledger_route import LedgerRoute
from actors.transport.wire import LEASES, RENEWALS
from core.shards.lease_messages import Lease, Renewal


class LeaseCalls:
    """Sends renewals to the ledger, over a socket where there is one.

    Args:
        route: to the ledger.
    """

    def __init__(self, route: LedgerRoute) -> None:
        self._call = route.call("renew")

    async def renew(self, renewal: Renewal) -> Lease:
        """Return the lease, or the map alone for a renewal without a member; the caller has a
        deadline.

        Raises: whatever keeps the ledger from acknowledging it; the member was renewed or not.
        """
        (body,) = await self._call([RENEWALS.encode(renewal)])
        return LEASES.decode(body)
