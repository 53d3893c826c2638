"""What the limiter and the authenticator ask the database for, in their own words.

The seam between `ledger/`'s rows and this package's values.
"""

from __future__ import annotations

from core.trust.access import Principal
from ledger.operational import OperationalStore
from ledger.reads.reader import LedgerReader, RowDict
from serve_app.callers.auth import FindKeys, StoredKey
from serve_app.callers.limits import Granted, TakeBlock
from serve_app.callers.windows import WINDOW_MS


def find_keys_in(reader: LedgerReader) -> FindKeys:
    """Return the look-up of API keys; a revoked key is as unknown as one that never was."""

    async def find(digests: list[bytes]) -> list[StoredKey | None]:
        found = await reader.api_keys_by_hashes(digests)
        return [_stored(found.get(digest)) for digest in digests]

    return find


def _stored(row: RowDict | None) -> StoredKey | None:
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


def take_block_from(store: OperationalStore) -> TakeBlock:
    """Return the lease of calls from the count that all replicas share."""

    async def take(did: str, rate: str, wanted: int, limit: int) -> Granted:
        block = await store.take_rate_block(
            did, rate, wanted=wanted, limit=limit, window_ms=WINDOW_MS
        )
        return Granted(block.calls, block.used, block.ends_in_ms)

    return take
