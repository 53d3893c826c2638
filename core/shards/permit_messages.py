"""What members and the ledger say to each other about permits, inside renewals and leases.

Values only; `permit_table.py` decides on the ledger's side, `held_permits.py` on a member's.
Decision 0204.
"""

from __future__ import annotations

from typing import Final

from core.message import Message

# Claims in one report; further ones follow in the next, which is soon.
CLAIMS_MAX: Final = 256
# Children of one member (`isolation: dedicated`).
CHILDREN_MAX: Final = 256
# Grants in one answer: one for each claim, and what is called back.
GRANTS_MAX: Final = 2 * CLAIMS_MAX


class PermitClaim(Message, frozen=True):
    """What a member has of one agent, and what it could use.

    `held`: the permits that it may use, or its calls that are open or held there if those are more.
    `need`: its open and held calls and what waits for the agent, `limit` at most. `limit`: the
    agent's concurrency as the member knows it.
    """

    agent: str
    held: int = 0
    need: int = 0
    limit: int = 1


class PermitChild(Message, frozen=True):
    """A process of one workflow under a member; it reports for itself, under this name.

    `term`: of the first report that names it.
    """

    name: str
    term: int = 0


class PermitReport(Message, frozen=True, kw_only=True):
    """The permits of a member: the claims that have changed since the ledger has heard them.

    `serial`: grows with each report of a member, which is sent until it is answered. `term`: as the
    member last heard it. `is_shared`: it uses permits; else it uses each agent's whole concurrency.
    `is_complete`: with this report all that it held when this term began has been heard; what has
    changed since may follow. `children`: those whose processes have not ended for certain.
    """

    serial: int = 0
    term: int = 0
    is_shared: bool = False
    is_complete: bool = False
    claims: tuple[PermitClaim, ...] = ()
    children: tuple[PermitChild, ...] = ()


class PermitGrant(Message, frozen=True):
    """How many calls a member may have at an agent from now on."""

    agent: str
    permits: int = 0


class PermitAnswer(Message, frozen=True, kw_only=True):
    """The answer to a report.

    `term`: grows when the ledger has forgotten what the member has reported, which then reports all
    of it again. `is_shared`: other members exist, so the member uses permits; else each agent's
    whole concurrency is its own. `is_void`: its lease had ended, and so have its permits.
    """

    term: int = 0
    is_shared: bool = False
    is_void: bool = False
    grants: tuple[PermitGrant, ...] = ()
