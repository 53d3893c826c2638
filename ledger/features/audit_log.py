"""The Merkle tree over the audit log, and how far each reader of the log has read.

The tiles of the tree are stored as the log grows, read for proofs, and checked against the entries.
They are computed only from committed entries. `store_tree` writes as the operational role.
Reference: money.md (Checkpoints).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sql

from core.trust.merkle import (
    EMPTY_ROOT,
    HASH_BYTES,
    WIDTH,
    TileId,
    Tiles,
    root_of,
    tiles_of,
)
from ledger.connections.pools import OperationalPool
from ledger.reads.reader import LedgerReader, RowPage
from ledger.schema import audit, typed

# Maximum size of one page of an export. The page ends at the first maximum that it reaches.
PAGE_ROWS_MAX: Final = 1_000
PAGE_BYTES_MAX: Final = 1024 * 1024

_CHECKPOINT: Final = sql.text(
    "SELECT size, root, note FROM callboard.checkpoint WHERE size >= coalesce("
    "CAST(:size AS bigint), (SELECT max(size) FROM callboard.checkpoint)) ORDER BY size LIMIT 1"
)
_HEAD: Final = sql.text("SELECT audit_seq FROM callboard.head")
_WANTED: Final = "unnest(CAST(:levels AS smallint[]), CAST(:numbers AS bigint[])"
_TILES: Final = sql.text(
    f"SELECT t.level, t.number, t.hashes FROM {_WANTED}) AS wanted (level, number)"
    " JOIN callboard.audit_tile AS t USING (level, number)"
)
# An entry is sound if its hash is the hash of its body, and the body contains its id and the
# previous hash. The first row of a scan has no predecessor in the scan, so its `prevHash` is
# checked only for entry 1.
_SCAN: Final = sql.text(
    """
    SELECT min(id) AS first_id, count(*) AS entries, min(id) FILTER (WHERE NOT is_sound) AS bad_id,
        string_agg(leaf, ''::bytea ORDER BY id) AS leaves
    FROM (
        SELECT id, sha256(decode('00', 'hex') || bytes) AS leaf,
            hash = sha256(bytes) AND position('"id":' || id || ',' IN body) > 0
            AND position('"prevHash":"sha256:' || encode(lag(hash, 1, CASE WHEN id = 1
                THEN decode(repeat('00', 32), 'hex') END) OVER (ORDER BY id), 'hex') || '"'
                IN body) > 0 AS is_sound
        FROM (
            SELECT id, body, hash, convert_to(body, 'UTF8') AS bytes
            FROM (
                SELECT id, body, hash,
                    sum(octet_length(body)) OVER (ORDER BY id) - octet_length(body) AS bytes_before
                FROM callboard.audit WHERE id >= :first ORDER BY id LIMIT :most
            ) AS page WHERE bytes_before < :bytes OR id <= :first + 1
        ) AS entry
    ) AS scanned
    """
).bindparams(*typed(bigint="first most bytes"))
_TREE_SIZE: Final = f"""coalesce((
    SELECT number * {WIDTH} + octet_length(hashes) / {HASH_BYTES} FROM callboard.audit_tile
    WHERE level = 0 ORDER BY number DESC LIMIT 1), 0)"""
_SIZE: Final = sql.text(f"SELECT {_TREE_SIZE} AS size")
# If several processes continue the tree from the same size, only the first one stores tiles. If two
# of them store at the same moment, their tiles are equal.
_STORE: Final = sql.text(
    f"""
    WITH grown AS (
        INSERT INTO callboard.audit_tile AS t (level, number, hashes)
        SELECT level, number, hashes
        FROM {_WANTED}, CAST(:hashes AS bytea[])) AS tile (level, number, hashes)
        WHERE :former = {_TREE_SIZE} ORDER BY level, number
        ON CONFLICT (level, number) DO UPDATE SET hashes = excluded.hashes
        WHERE octet_length(excluded.hashes) > octet_length(t.hashes)
    )
    INSERT INTO callboard.checkpoint (size, root, note, created_ms)
    SELECT :size, :root, :note, (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    WHERE CAST(:note AS text) <> '' AND :former = {_TREE_SIZE}
    ON CONFLICT DO NOTHING
    """
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state of the log: entries 1 to `size`; `note` is its signed text, "" if it has none."""

    size: int
    root: bytes
    note: str


# The checkpoint of a log without a checkpoint.
NOTHING_SIGNED: Final = Checkpoint(0, EMPTY_ROOT, "")


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of a scan of entries. `leaves`: their leaf hashes, in order. `bad_id`: the first
    defective entry, None without one."""

    first_id: int
    leaves: list[bytes]
    bad_id: int | None


async def read_checkpoint(reader: LedgerReader, size: int | None = None) -> Checkpoint:
    """Return the newest checkpoint, or the first checkpoint of at least `size` entries. Return
    `NOTHING_SIGNED` if there is none.
    """
    rows = await reader.rows(_CHECKPOINT, {"size": size})
    if not rows:
        return NOTHING_SIGNED
    return Checkpoint(rows[0]["size"], bytes(rows[0]["root"]), rows[0]["note"])


async def newest_entry_id(reader: LedgerReader) -> int:
    """Return the id of the newest audit entry, 0 for none."""
    (head,) = await reader.rows(_HEAD)
    return int(head["audit_seq"])


async def tree_size(reader: LedgerReader) -> int:
    """Return the number of leaves of the stored tree, signed or not."""
    (row,) = await reader.rows(_SIZE)
    return int(row["size"])


async def read_tiles(reader: LedgerReader, wanted: Collection[TileId]) -> Tiles:
    """Return those of the wanted tiles that exist."""
    levels, numbers = [level for level, _ in wanted], [number for _, number in wanted]
    rows = await reader.rows(_TILES, {"levels": levels, "numbers": numbers}) if wanted else []
    return {(row["level"], row["number"]): bytes(row["hashes"]) for row in rows}


async def scan_entries(
    reader: LedgerReader,
    first_id: int,
    most: int,
    *,
    bytes_max: int = 2**62,
    caller: str | None = None,
) -> Scan:
    """Read entries from an id on. The database checks each entry against the previous one.

    Args:
        most: maximum number of entries.
        bytes_max: maximum bytes of bodies: the scan ends with the entry that exceeds it, but reads
            at least two entries.
        caller: DID of the caller; searches of callers take turns. None: a read by the service,
            which does not wait for a turn.
    """
    values = {"first": first_id, "most": most, "bytes": bytes_max}
    if caller is None:
        (row,) = await reader.rows(_SCAN, values)
    else:
        (row,) = await reader.searches.rows(_SCAN, values, caller=caller)
    joined = bytes(row["leaves"] or b"")
    leaves = [joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)]
    return Scan(row["first_id"] or first_id, leaves, row["bad_id"])


async def differing_leaf(reader: LedgerReader, scan: Scan, size: int) -> int | None:
    """Return the first scanned entry whose leaf differs from the tree's, None if there is none.

    Args:
        size: number of entries in the tree; later entries are not compared.
    """
    last = min(scan.first_id + len(scan.leaves) - 1, size)
    numbers = range((scan.first_id - 1) // WIDTH, (last - 1) // WIDTH + 1)
    tiles = await read_tiles(reader, [(0, number) for number in numbers])
    for entry_id, leaf in zip(range(scan.first_id, last + 1), scan.leaves, strict=False):
        at = (entry_id - 1) % WIDTH * HASH_BYTES
        if tiles.get((0, (entry_id - 1) // WIDTH), b"")[at : at + HASH_BYTES] != leaf:
            return entry_id
    return None


async def read_roots(reader: LedgerReader, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the roots of these ranges of leaves (core/trust/merkle.py) in the stored tree."""
    tiles = await read_tiles(reader, tiles_of(ranges))
    return [root_of(start, end, tiles) for start, end in ranges]


async def entry_pages(reader: LedgerReader, first_id: int) -> AsyncIterator[RowPage]:
    """Yield pages of audit rows from an id on, in order; each page is a separate read."""
    while True:
        query = sql.select(audit).where(audit.c.id >= first_id)
        page = await reader.page(
            query,
            "id",
            wide="body",
            limit=PAGE_ROWS_MAX,
            offset=0,
            bytes_max=PAGE_BYTES_MAX,
        )
        if page:
            yield page
            first_id = page[-1]["id"] + 1
        if not page.is_cut and len(page) < PAGE_ROWS_MAX:
            return


def entry_text(row: Mapping[str, Any]) -> str:
    """Return the canonical form of an entry with its hash, as one line."""
    # Only text members precede `id` in a body, and texts escape quotation marks, so the first
    # `,"id":` is the member.
    body: str = row["body"]
    return body.replace(',"id":', f',"hash":"sha256:{bytes(row["hash"]).hex()}","id":', 1)


async def store_tree(pool: OperationalPool, former: int, state: Checkpoint, tiles: Tiles) -> None:
    """Store the tiles of a checkpoint, and the checkpoint if it is signed, unless another process
    has stored them.

    Args:
        former: size of the tree that the tiles continue.
        state: the checkpoint; with an empty `note` it is unsigned.
        tiles: the tiles that are new or longer.

    Raises:
        ServiceError: LEDGER_UNAVAILABLE.
    """
    levels, numbers = [level for level, _ in tiles], [number for _, number in tiles]
    grown = {"levels": levels, "numbers": numbers, "hashes": list(tiles.values())}
    await pool.rows(_STORE, {"former": former, **asdict(state), **grown})


# How far each reader of the audit log has read: the id of an entry, under the reader's name. A
# reader moves its position after it has processed the entries. If the process ends before that, its
# successor reads the entries again.


class LogFollower(StrEnum):
    """The names of all readers that follow the audit log by a stored position."""

    TRACES = "traces"
    EVENTS = "events"


_POSITION: Final = sql.text(
    "SELECT p.audit_id, h.audit_seq FROM callboard.head AS h"
    " LEFT JOIN callboard.log_position AS p ON p.reader = :name"
)
_MOVE: Final = sql.text(
    "INSERT INTO callboard.log_position AS p (reader, audit_id) VALUES (:name, :audit_id)"
    " ON CONFLICT (reader) DO UPDATE SET audit_id = greatest(p.audit_id, excluded.audit_id)"
)


async def log_position(
    pool: OperationalPool, reader: LedgerReader, name: LogFollower
) -> tuple[int, int]:
    """Return the id of the last entry that a follower has read, and the id of the newest entry.

    A new follower begins at the newest entry.
    """
    (row,) = await reader.rows(_POSITION, {"name": name})
    read, newest = row["audit_id"], int(row["audit_seq"])
    if read is None:
        await move_position(pool, name, newest)
        return newest, newest
    return int(read), newest


async def move_position(pool: OperationalPool, name: LogFollower, audit_id: int) -> None:
    """Move a reader's position to this entry; it never goes back."""
    await pool.rows(_MOVE, {"name": name, "audit_id": audit_id})
