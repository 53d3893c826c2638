"""Who may do what: rights, and the one function that decides every permission.

A route declares the right it takes and names the parties of what it touches; nothing outside this
file compares rights, and no handler compares DIDs. It knows neither HTTP nor how a caller proved
who they are. Spec: Authentication 1; contract.md section 3; decision 0123.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from core.errors import ErrorCode

RESOURCES: Final = (
    "workflows", "agents", "capabilities", "ledger", "trust", "identity", "schedules", "webhooks",
    "audit", "federation", "keys",
)  # fmt: skip
# To do everything, also in the name of others.
ADMIN: Final = "admin"
# Single rights of operators and machines; no other right covers them but where COVERED_BY says so.
DEPOSIT: Final = "ledger:deposit"
SET_PRICES: Final = "prices:write"
RESOLVE_DISPUTES: Final = "disputes:resolve"
SET_QUOTAS: Final = "quotas:write"
REVOKE: Final = "trust:revoke"
FEDERATE: Final = "federation:admin"
READ_ALL_AUDIT: Final = "audit:all"
# To say that an agent lives. It is all that a heartbeat token carries.
HEARTBEAT: Final = "agents:heartbeat"
SINGLE_RIGHTS: Final = (
    DEPOSIT, SET_PRICES, RESOLVE_DISPUTES, SET_QUOTAS, REVOKE, FEDERATE, READ_ALL_AUDIT, HEARTBEAT,
    ADMIN,
)  # fmt: skip
COVERED_BY: Final[Mapping[str, str]] = {HEARTBEAT: "agents:write"}
# A new key may read and write every resource, except to create money and to administrate.
DEFAULT_SCOPES: Final = tuple(
    f"{resource}:{verb}" for resource in RESOURCES for verb in ("read", "write")
)
RIGHTS: Final = frozenset((*DEFAULT_SCOPES, *SINGLE_RIGHTS))
# The key id of every caller with an access token.
JWT_KEY_ID: Final = "jwt"


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller whose identity is proved.

    `key_id` names the credential (an API key's id, or `jwt`); `rate_class` is `standard` or
    `unlimited`; `rate_limits` overrides single classes, in calls per minute. `expires_ms`: when the
    credential ends, None for never.
    """

    did: str
    key_id: str
    scopes: frozenset[str]
    rate_class: str = "standard"
    rate_limits: tuple[tuple[str, int], ...] = ()
    expires_ms: int | None = None

    @property
    def is_admin(self) -> bool:
        """True when the caller may do everything, also in the name of others."""
        return ADMIN in self.scopes


def may(
    principal: Principal | None, right: str | None, parties: Collection[str] | None = None
) -> ErrorCode | None:
    """Say why the caller may not do this, or None when they may.

    Args:
        principal: the caller, None when nobody proved to be anybody.
        right: one of `RIGHTS`; None: no right is asked for.
        parties: the DIDs whose business it is, one of which the caller has to be; None: it has
            no parties.
    """
    if right is None and parties is None:
        return None
    if principal is None:
        return ErrorCode.UNAUTHORIZED
    if principal.is_admin:
        return None
    if right is not None and not _covers(principal.scopes, right):
        return ErrorCode.INSUFFICIENT_SCOPE
    if parties is not None and principal.did not in parties:
        return ErrorCode.FORBIDDEN
    return None


def is_scope(text: str) -> bool:
    """Tell whether this text is a right that a key can carry."""
    return text in RIGHTS


def find_ungrantable_scopes(principal: Principal, scopes: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes the caller may not hand on: nobody grants more than they have.

    Args:
        principal: the caller who makes a key.
        scopes: what the new key shall carry.
    """
    if principal.is_admin:
        return ()
    return tuple(scope for scope in scopes if not _covers(principal.scopes, scope))


def is_derived(maker: Principal, owner_did: str, scopes: Iterable[str]) -> bool:
    """Tell whether a new key stands on its maker's credential: it can do no more and ends with it.

    A key that an administrator makes for another owner, without the right to administrate, is that
    owner's own (docs/decisions/0107).

    Args:
        maker: the caller who makes the key.
        owner_did: whose key it becomes.
        scopes: what it carries.
    """
    return owner_did == maker.did or ADMIN in scopes


def _covers(held: frozenset[str], right: str) -> bool:
    return right in held or COVERED_BY.get(right) in held
