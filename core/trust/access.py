"""Permissions: the rights, and the one function that decides every permission.

A route declares the right it requires and the parties of its resource; no other module compares
rights or DIDs. Knows neither HTTP nor authentication. Reference: http.md (Authentication); decision
permissions-and-keys.
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
# Every right, also on behalf of other DIDs.
ADMIN: Final = "admin"
# Single rights of operators and machines; only rights in COVERED_BY include one of them.
DEPOSIT: Final = "ledger:deposit"
SET_PRICES: Final = "prices:write"
RESOLVE_DISPUTES: Final = "disputes:resolve"
SET_QUOTAS: Final = "quotas:write"
REVOKE: Final = "trust:revoke"
FEDERATE: Final = "federation:admin"
READ_ALL_AUDIT: Final = "audit:all"
# Reading audit entries, also by having them sent.
READ_AUDIT: Final = "audit:read"
# Reading the deployment's metrics, which name no tenant: for Prometheus.
READ_METRICS: Final = "metrics:read"
# Sending heartbeats; the only right of a heartbeat token.
HEARTBEAT: Final = "agents:heartbeat"
SINGLE_RIGHTS: Final = (
    DEPOSIT, SET_PRICES, RESOLVE_DISPUTES, SET_QUOTAS, REVOKE, FEDERATE, READ_ALL_AUDIT,
    READ_METRICS, HEARTBEAT, ADMIN,
)  # fmt: skip
# What a free-tier key may do, and nothing else. No scope of an API key: those have what covers it.
SUGGEST: Final = "workflows:suggest"
# Reading revocations as peers do. No scope of an API key, either: peers have it.
READ_TRUST: Final = "federation:trust"
# Scopes that another scope includes. Their use is not recorded in the audit chain.
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
# What a peer may do: give work to this deployment as a payer, and read what it needs for that.
PEER_SCOPES: Final = frozenset(
    {
        "workflows:read", "workflows:write", "agents:read", "capabilities:read", "federation:read",
        READ_TRUST, "ledger:read",
    }
)  # fmt: skip
_USUAL: Final = frozenset(DEFAULT_SCOPES)
RIGHTS: Final = frozenset((*DEFAULT_SCOPES, *SINGLE_RIGHTS))
# The key id of every caller with an access token, and of every one whose DID signed the request.
JWT_KEY_ID: Final = "jwt"
DID_KEY_ID: Final = "did"
# The holder and the key id of the free-tier key; it is no DID, and its callers are told apart by
# their addresses alone.
FREE_TIER: Final = "free-tier"
BY_ADDRESS: Final = "address"
# The rate class of peers.
PEER: Final = "peer"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    `did`: the owner whom the caller speaks for; with an agent's token, the agent's holder.
    `key_id`: the credential (an API key's id, `jwt` or `did`). `rate_class`: `standard`,
    `unlimited`, `peer`, or `address` for calls that count for their address. `rate_limits`:
    overrides of single classes, calls per minute. `expires_ms`: the end of the credential, None for
    never.
    `is_stranger`: its calls count for its address as well, because nothing is stored of a DID that
    costs nothing to make. `signing_key`: base64 of the key by which its DID has signed the request,
    None without a signature. `key_hash`: SHA-256 of the API key, none of another credential.
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
    """Return why the caller is denied, None when the caller is permitted.

    Args:
        principal: the caller, None without authentication.
        right: one of `RIGHTS`; None: no right is required.
        parties: the DIDs of the resource, one of which the caller must be; None: it has no
            parties.
    """
    if right is None and parties is None:
        return None
    if principal is None:
        return ErrorCode.UNAUTHORIZED
    return None if principal.is_admin else _denial(principal.did, principal.scopes, right, parties)


def authority_used(
    principal: Principal | None, right: str | None, parties: Collection[str] | None = None
) -> str | None:
    """Return the single right that permits what a usual key of this caller would not.

    None where the rights of a usual key are enough.

    Args:
        principal: the caller, who is permitted.
        right: as of `denial`.
        parties: as of `denial`.
    """
    if principal is None or right in COVERED_BY:
        return None
    if right in SINGLE_RIGHTS and right in principal.scopes:
        return right
    if principal.is_admin and _denial(principal.did, _USUAL, right, parties) is not None:
        return ADMIN
    return None


def agent_holder(did: str) -> str:
    """Return in whose name an agent calls with a token of its own.

    It is no DID: an agent may be registered under the DID of an owner, whom its token must never
    speak for, nor count as.
    """
    return f"agent:{did}"


def is_scope(text: str) -> bool:
    """Say whether this text is a right that a key can have."""
    return text in RIGHTS


def find_ungrantable_scopes(principal: Principal, scopes: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes that the caller cannot grant, because the caller does not have them.

    Args:
        principal: the caller who creates a key.
        scopes: the new key's scopes.
    """
    if principal.is_admin:
        return ()
    return tuple(scope for scope in scopes if not _covers(principal.scopes, scope))


def is_derived(maker: Principal, owner_did: str, scopes: Iterable[str]) -> bool:
    """Say whether a new key is derived from its maker's credential and ends with it.

    A key without the admin right that an administrator creates for another owner belongs to that
    owner and is not derived (decision permissions-and-keys).

    Args:
        maker: the caller who creates the key.
        owner_did: the key's owner.
        scopes: the key's scopes.
    """
    return owner_did == maker.did or ADMIN in scopes


def _denial(
    did: str, held: frozenset[str], right: str | None, parties: Collection[str] | None
) -> ErrorCode | None:
    """Return why one without the admin right is denied."""
    if right is not None and not _covers(held, right):
        return ErrorCode.INSUFFICIENT_SCOPE
    if parties is not None and did not in parties:
        return ErrorCode.FORBIDDEN
    return None


def _covers(held: frozenset[str], right: str) -> bool:
    return right in held or COVERED_BY.get(right) in held
