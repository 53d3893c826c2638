"""What the limiter and the authenticator ask the database for, in their own words.

The seam between `ledger/`'s rows and this package's values.
"""

from __future__ import annotations

from core.trust.access import Principal
from ledger.operational import OperationalStore
from ledger.queries.reader import LedgerReader
from serve_app.auth import FindKey, StoredKey
from serve_app.limits import WINDOW_MS, Granted, TakeBlock


def find_key_in(reader: LedgerReader) -> FindKey:
    """Return the look-up of API keys; a revoked key is as unknown as one that never was."""

    async def find(digest: bytes) -> StoredKey | None:
        row = await reader.api_key_by_hash(digest)
        if row is None or row["revoked_ms"] is not None:
            return None
        principal = Principal(
            did=row["owner_did"],
            key_id=str(row["id"]),
            scopes=frozenset(row["scopes"]),
            rate_class=row["rate_class"],
            rate_limits=tuple((row["rate_limits"] or {}).items()),
            expires_ms=row["expires_ms"],
        )
        return StoredKey(principal, row["expires_ms"])

    return find


def take_block_from(store: OperationalStore) -> TakeBlock:
    """Return the lease of calls from the count that all replicas share."""

    async def take(name: str, rate: str, wanted: int, limit: int, now_ms: int) -> Granted:
        block = await store.take_rate_block(
            name, rate, wanted=wanted, limit=limit, now_ms=now_ms, window_ms=WINDOW_MS
        )
        return Granted(block.calls, block.used, block.resets_ms)

    return take
