"""Permissions: the rights, and the function `denial` that decides every permission.

A route declares the right that it requires and the parties of its resource. No other module
compares rights or DIDs. This file knows neither HTTP nor authentication.
Reference: http.md (Authentication); decision permissions-and-keys.
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
# Includes every right, also on behalf of other DIDs.
ADMIN: Final = "admin"
# Single rights of operators and machines. Only `ADMIN`, and the rights that `COVERED_BY` names,
# include them.
DEPOSIT: Final = "ledger:deposit"
SET_PRICES: Final = "prices:write"
RESOLVE_DISPUTES: Final = "disputes:resolve"
SET_QUOTAS: Final = "quotas:write"
REVOKE: Final = "trust:revoke"
FEDERATE: Final = "federation:admin"
READ_ALL_AUDIT: Final = "audit:all"
# Reading audit entries. Webhooks need this right, too, because they receive audit entries.
READ_AUDIT: Final = "audit:read"
# Reading the deployment's metrics, for Prometheus. Metrics name no tenant.
READ_METRICS: Final = "metrics:read"
# Sending heartbeats; the only right of a heartbeat token.
HEARTBEAT: Final = "agents:heartbeat"
SINGLE_RIGHTS: Final = (
    DEPOSIT, SET_PRICES, RESOLVE_DISPUTES, SET_QUOTAS, REVOKE, FEDERATE, READ_ALL_AUDIT,
    READ_METRICS, HEARTBEAT, ADMIN,
)  # fmt: skip
# The only right of a free-tier key. API keys cannot have this scope; they have one that covers it.
SUGGEST: Final = "workflows:suggest"
# Reading revocations, for peers only. API keys cannot have this scope, either.
READ_TRUST: Final = "federation:trust"
# Scopes (keys) that another scope (value) includes. The audit chain does not record their use.
COVERED_BY: Final[Mapping[str, str]] = {
    HEARTBEAT: "agents:write",
    SUGGEST: "workflows:read",
    READ_METRICS: ADMIN,
    READ_TRUST: FEDERATE,
}
# A new key reads and writes every resource, but has no single right.
DEFAULT_SCOPES: Final = tuple(
    f"{resource}:{verb}" for resource in RESOURCES for verb in ("read", "write")
)
# The scopes of a peer. A peer may publish workflows here as a payer, and read the data that this
# requires.
PEER_SCOPES: Final = frozenset(
    {
        "workflows:read", "workflows:write", "agents:read", "capabilities:read", "federation:read",
        READ_TRUST, "ledger:read",
    }
)  # fmt: skip
_USUAL: Final = frozenset(DEFAULT_SCOPES)
RIGHTS: Final = frozenset((*DEFAULT_SCOPES, *SINGLE_RIGHTS))
# The key ids of callers without an API key: callers with an access token, and callers whose DID
# signed the request.
JWT_KEY_ID: Final = "jwt"
DID_KEY_ID: Final = "did"
# The holder and the key id of the free-tier key. The holder is no DID. Callers with this key are
# distinguished by their addresses only.
FREE_TIER: Final = "free-tier"
BY_ADDRESS: Final = "address"
# The rate class of peers.
PEER: Final = "peer"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    `did`: the owner for whom the caller acts; with an agent's token, `agent_holder` of the agent.
    `key_id`: the credential: the id of an API key, `jwt` or `did`. `rate_class`: `standard`,
    `unlimited`, `peer`, or `address` if calls count for the caller's address. `rate_limits`: limits
    that replace the limits of single classes, calls per minute. `expires_ms`: when the credential
    expires, Unix milliseconds; None for never. `is_stranger`: calls also count for the address,
    because the service knows nothing about the DID and a DID costs nothing. `signing_key`: the key
    with which the DID signed the request, base64; None without a signature. `key_hash`: SHA-256 of
    the API key; empty for another credential.
    """

    did: str
    key_id: str
    scopes: frozenset[str]
    rate_class: str = "standard"
    rate_limits: tuple[tuple[str, int], ...] = ()
    expires_ms: int | None = None
    is_stranger: bool = False
    signing_key: str | None = None
    key_hash: bytes = b""

    @property
    def is_admin(self) -> bool:
        """Whether the caller has every right, also on behalf of other DIDs."""
        return ADMIN in self.scopes


def denial(
    principal: Principal | None, right: str | None, parties: Collection[str] | None = None
) -> ErrorCode | None:
    """Return why the caller is denied; None if the caller is permitted.

    Args:
        principal: the caller; None without authentication.
        right: the required right, one of `RIGHTS`; None if no right is required.
        parties: the DIDs of the resource, one of which the caller must have; None if the resource
            has no parties.
    """
    if right is None and parties is None:
        return None
    if principal is None:
        return ErrorCode.UNAUTHORIZED
    return None if principal.is_admin else _denial(principal.did, principal.scopes, right, parties)


def authority_used(
    principal: Principal | None, right: str | None, parties: Collection[str] | None = None
) -> str | None:
    """Return the single right that permits a call for which default scopes are not enough.

    Returns: None if a key with the default scopes would be enough.

    Args:
        principal: the caller, which is permitted.
        right: as in `denial`.
        parties: as in `denial`.
    """
    if principal is None or right in COVERED_BY:
        return None
    if right in SINGLE_RIGHTS and right in principal.scopes:
        return right
    if principal.is_admin and _denial(principal.did, _USUAL, right, parties) is not None:
        return ADMIN
    return None


def agent_holder(did: str) -> str:
    """Return the `did` of the principal of an agent that calls with its own token.

    The result is no DID, because an agent may be registered under the DID of its owner. The agent's
    token must not act for this owner, and its calls must not count for the owner.
    """
    return f"agent:{did}"


def is_scope(text: str) -> bool:
    """Say whether this text is a right that a key can have."""
    return text in RIGHTS


def find_ungrantable_scopes(principal: Principal, scopes: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes that the caller cannot grant, because the caller does not have them.

    Args:
        principal: the caller that creates a key.
        scopes: the new key's scopes.
    """
    if principal.is_admin:
        return ()
    return tuple(scope for scope in scopes if not _covers(principal.scopes, scope))


def is_derived(maker: Principal, owner_did: str, scopes: Iterable[str]) -> bool:
    """Say whether a new key is derived, that is, ends with the credential that created it.

    A key is not derived if an administrator creates it for another owner and the key does not have
    the admin right. Such a key belongs to that owner (decision permissions-and-keys).

    Args:
        maker: the caller that creates the key.
        owner_did: the key's owner.
        scopes: the key's scopes.
    """
    return owner_did == maker.did or ADMIN in scopes


def _denial(
    did: str, held: frozenset[str], right: str | None, parties: Collection[str] | None
) -> ErrorCode | None:
    """Return why a caller without the admin right is denied; None if permitted."""
    if right is not None and not _covers(held, right):
        return ErrorCode.INSUFFICIENT_SCOPE
    if parties is not None and did not in parties:
        return ErrorCode.FORBIDDEN
    return None


def _covers(held: frozenset[str], right: str) -> bool:
    return right in held or COVERED_BY.get(right) in held
