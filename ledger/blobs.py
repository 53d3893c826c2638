"""Large results, stored once by hash: written before anything refers to them, checked when read.

The one operational write that waits for the disk, because audited rows point to it. Its role may
insert and nothing else, so what was written cannot change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import sqlalchemy as sql

from core.canonical import hash_bytes
from ledger.connections.pools import OperationalPool
from ledger.reads.reader import LedgerReader

# No conflict target: naming one would need the right to read the table.
_PUT = sql.text(
    "INSERT INTO callboard.blob (hash, bytes) VALUES (:hash, :bytes) ON CONFLICT DO NOTHING"
)
_GET = sql.text("SELECT hash, bytes FROM callboard.blob WHERE hash = ANY(:hashes)")
_PREFIX = "sha256:"


class BlobStore(OperationalPool):
    """The bytes of large results.

    Args:
        url: `postgresql://…` of a login that is a member of `ops_writer`.
        reader: reads as a member of `ledger_reader`.
    """

    name, is_durable, size = "callboard-blobs", True, 2
    # A large result waits for the disk, as a commit does.
    timeout_s = 10.0

    def __init__(self, url: str, reader: LedgerReader) -> None:
        super().__init__(url)
        self._reader = reader

    async def put(self, body: bytes) -> str:
        """Store bytes and return their hash, `sha256:` + hex; on disk when this returns.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; repeat it.
        """
        name = hash_bytes(body)
        values = {"hash": bytes.fromhex(name.removeprefix(_PREFIX)), "bytes": body}
        await self.rows(_PUT, values)
        return name

    async def get(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the bytes behind these hashes; what was never stored is left out.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
            ValueError: the database returned other bytes than were stored.
        """
        hashes = [bytes.fromhex(name.removeprefix(_PREFIX)) for name in names]
        found: dict[str, bytes] = {}
        for row in await self._reader.rows(_GET.bindparams(hashes=hashes)):
            name, body = _PREFIX + row["hash"].hex(), bytes(row["bytes"])
            if hash_bytes(body) != name:
                raise ValueError(f"the bytes stored under {name} have another hash")
            found[name] = body
            await asyncio.sleep(0)  # the next may be as large: 1 MiB takes a millisecond to hash
        return found
