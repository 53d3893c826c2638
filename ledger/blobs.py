"""Stores large results under their hash, and checks the hash of each result that it reads.

A result is stored before any row refers to it. Its commit waits for the disk, because audited rows
refer to it. The store's Postgres role may only insert, so a stored result cannot change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import sqlalchemy as sql

from core.canonical import hash_bytes
from ledger.connections.pools import OperationalPool
from ledger.reads.reader import LedgerReader

# No conflict target: a named target would need the right to read the table.
_PUT = sql.text(
    "INSERT INTO callboard.blob (hash, bytes) VALUES (:hash, :bytes) ON CONFLICT DO NOTHING"
)
_GET = sql.text("SELECT hash, bytes FROM callboard.blob WHERE hash = ANY(:hashes)")
_PREFIX = "sha256:"


class BlobStore(OperationalPool):
    """Stores and reads the bytes of large results.

    Args:
        url: `postgresql://…` of a login that is a member of `ops_writer`.
        reader: reads as a member of `ledger_reader`.
    """

    name, is_durable, size = "callboard-blobs", True, 2
    # Writing a large result to disk takes longer than other operational writes.
    timeout_s = 10.0

    def __init__(self, url: str, reader: LedgerReader) -> None:
        super().__init__(url)
        self._reader = reader

    async def put(self, body: bytes) -> str:
        """Store bytes on disk and return their hash, `sha256:` + hex.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; the caller may repeat the call.
        """
        name = hash_bytes(body)
        values = {"hash": bytes.fromhex(name.removeprefix(_PREFIX)), "bytes": body}
        await self.rows(_PUT, values)
        return name

    async def get(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the bytes by hash; a hash that was never stored is left out.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
            ValueError: the returned bytes have another hash.
        """
        hashes = [bytes.fromhex(name.removeprefix(_PREFIX)) for name in names]
        found: dict[str, bytes] = {}
        for row in await self._reader.rows(_GET.bindparams(hashes=hashes)):
            name, body = _PREFIX + row["hash"].hex(), bytes(row["bytes"])
            if hash_bytes(body) != name:
                raise ValueError(f"the bytes stored under {name} have another hash")
            found[name] = body
            await asyncio.sleep(0)  # yields, because hashing 1 MiB takes a millisecond
        return found
