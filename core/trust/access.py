"""Who may do what: scopes, and the one function that decides every permission.

A route declares what it needs; nothing outside this file compares scopes. It knows neither HTTP nor
how a caller proved who they are. Spec: Authentication 1; contract.md section 3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from core.errors import ErrorCode

ADMIN = "admin"
DEPOSIT = "ledger:deposit"
# A part of agents:write: to say that an agent lives. It is all that a heartbeat token carries.
HEARTBEAT = "agents:heartbeat"
# A new key may read and write everything except to create money and to administrate. The wildcard
# stands for "every resource, also those of later versions"; it never covers the two above.
DEFAULT_SCOPES = ("*:read", "*:write")
# The key id of every caller with an access token.
JWT_KEY_ID = "jwt"

_SCOPE = re.compile(r"(?:\*|[a-z][a-z-]{0,31}):(?:read|write)")


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


@dataclass(frozen=True, slots=True)
class Need:
    """What an operation asks of its caller.

    `scope` None: nothing, the operation is public. `owner_did`: in whose name it happens; only that
    owner, or an admin, may. `narrow_scope`: a smaller scope that suffices too.
    """

    scope: str | None
    owner_did: str | None = None
    narrow_scope: str | None = None


PUBLIC = Need(None)


def refusal(principal: Principal | None, need: Need) -> ErrorCode | None:
    """Say why the caller may not do this, or None when they may.

    Args:
        principal: the caller, None when nobody proved to be anybody.
        need: what the operation asks for.
    """
    if need.scope is None and need.owner_did is None:
        return None
    if principal is None:
        return ErrorCode.UNAUTHORIZED
    if principal.is_admin:
        return None
    is_narrow = need.narrow_scope is not None and need.narrow_scope in principal.scopes
    if need.scope is not None and not is_narrow and not _covers(principal.scopes, need.scope):
        return ErrorCode.INSUFFICIENT_SCOPE
    if need.owner_did is not None and need.owner_did != principal.did:
        return ErrorCode.FORBIDDEN
    return None


def is_scope(text: str) -> bool:
    """Tell whether this text is a scope that a key can carry."""
    return text in (ADMIN, DEPOSIT, HEARTBEAT) or _SCOPE.fullmatch(text) is not None


def ungrantable(principal: Principal, scopes: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes the caller may not hand on: nobody grants more than they have.

    Args:
        principal: the caller who makes a key.
        scopes: what the new key shall carry.
    """
    if principal.is_admin:
        return ()
    return tuple(
        scope
        for scope in scopes
        if not _covers(principal.scopes, scope)
        and not (scope == HEARTBEAT and _covers(principal.scopes, "agents:write"))
    )


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


def _covers(held: frozenset[str], scope: str) -> bool:
    if scope in held:
        return True
    resource, _, verb = scope.partition(":")
    return resource != "*" and verb in ("read", "write") and f"*:{verb}" in held
