"""API keys are made, rotated and revoked.

Plain values, as `ledger/commands.py` says. Decision permissions-and-keys.
"""

from __future__ import annotations

from ledger.authority import AuthorizedCommand


class CreateKey(AuthorizedCommand, frozen=True, kw_only=True):
    """Store an API key by its hash (SHA-256, 32 bytes).

    `parent_id`: the key that it is made with and ends with; None for one that stands by itself.
    `owner_keys_max`, `depth_max`: keys of one owner, and keys that one stands on, at most; None: no
    bound. Rejections: UNAUTHORIZED (the parent has ended), FORBIDDEN (it expires earlier), CONFLICT
    (too many keys). Result: {"id"}.
    """

    key_id: str
    key_hash: bytes
    owner_did: str
    name: str
    scopes: tuple[str, ...]
    rate_class: str
    rate_limits_json: str | None
    expires_ms: int | None
    parent_id: str | None = None
    owner_keys_max: int | None = None
    depth_max: int | None = None


class RevokeKey(AuthorizedCommand, frozen=True, kw_only=True):
    """End an API key and all that stand on it. `owner_did` None: an admin may end any.

    Rejection: NOT_FOUND. Result: {"id", "ended": keys}.
    """

    key_id: str
    owner_did: str | None


class RotateKey(AuthorizedCommand, frozen=True, kw_only=True):
    """Give an API key another secret; its id, its rights and what is made with it stay.

    `key_hash`: of the new secret. `overlap_ms`: how long the secret of now still opens. `owner_did`
    None: an admin may rotate any. Rejections: NOT_FOUND, CONFLICT (it has expired). Result: {"id",
    "previous_ends_ms"}.
    """

    key_id: str
    key_hash: bytes
    overlap_ms: int
    owner_did: str | None
