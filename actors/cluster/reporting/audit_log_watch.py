"""Extends the Merkle tree over the audit log and signs checkpoints; commits do not wait for this.

Each round starts from stored rows. So any process can run a round, and two processes may run rounds
at the same time. A round that finds a contradiction signs nothing and changes nothing. It logs an
error, and the health endpoint shows the contradiction. Reference: money.md (Checkpoints).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from actors.process.loop_clock import every, monotonic_ms
from core.settings import Settings
from core.trust.merkle import WIDTH, TileId, edge_tiles, extend, root_of, tiles_of
from core.trust.signing_keys import checkpoint_note
from ledger.connections.pools import OperationalPool
from ledger.features.audit_log import (
    Checkpoint,
    newest_entry_id,
    read_checkpoint,
    read_tiles,
    scan_entries,
    store_tree,
    tree_size,
)
from ledger.features.signing_keys import read_origin, read_signing_key, signing_key_rows
from ledger.reads.reader import LedgerReader

log = logging.getLogger("callboard.audit_log")

# The interval of rounds. A round signs at most one checkpoint.
ROUND_S: Final = 1.0
# The most entries of one read, and the most reads of one round.
PAGE: Final = 2_000
PAGES_MAX: Final = 32
# Entries without a checkpoint are a problem after this time. Replacing the timekeeper is quicker.
UNSIGNED_MS_MAX: Final = 60_000


class Contradiction(Exception):
    """The stored audit entries or tree contradict the signed tree; the message says where."""


class _Trees(OperationalPool):
    name, is_durable = "callboard-audit-log", True


class AuditLogWatch:
    """Signs a checkpoint of the audit log once a second, while there are new entries.

    Args:
        settings: the deployment's settings.
        reader: reads committed rows.
    """

    def __init__(self, settings: Settings, reader: LedgerReader) -> None:
        self._keys = settings.deployment_keys
        self._reader = reader
        self._pool = _Trees(settings.database_url)
        self._origin = ""
        self._contradiction = ""
        self._done_ms = monotonic_ms()

    async def run(self) -> None:
        """Extend and sign the tree until cancelled."""
        await every(ROUND_S, self.round, "round of the audit log")

    def problem(self, now_ms: int) -> str | None:
        """Return why new entries are not signed; None while they are signed.

        Args:
            now_ms: the time of a monotonic clock, milliseconds.
        """
        waited_ms = now_ms - self._done_ms
        if self._contradiction or waited_ms <= UNSIGNED_MS_MAX:
            return self._contradiction or None
        return f"new entries have no checkpoint after {waited_ms // 1_000} s"

    async def round(self) -> None:
        """Extend the tree by at most `PAGES_MAX` pages of new entries, and sign it."""
        try:
            await self._continue()
        except Contradiction as error:
            if str(error) != self._contradiction:
                log.error("no checkpoint is signed: %s", error)
            self._contradiction = str(error)
        else:
            self._contradiction, self._done_ms = "", monotonic_ms()

    async def _continue(self) -> None:
        """Extend and sign the tree.

        Steps: 1. read the stored tree; 2. read and check new entries; 3. sign; 4. store.

        A checkpoint is signed only with the newest key that its entries name. So a verifier knows
        which key to expect, and refuses a replaced key. Until the entries of the tree name the
        current key, the tree is stored without a checkpoint.
        """
        reader = self._reader
        signed = await read_checkpoint(reader)  # 1
        if await newest_entry_id(reader) == signed.size:
            return
        former = size = await tree_size(reader)
        wanted = {*edge_tiles(size), *tiles_of([(0, signed.size)])}
        tiles = dict(await read_tiles(reader, wanted))
        _check_root(signed, size, tiles)
        newest_key = (await signing_key_rows(reader))[0]
        grown = dict[TileId, bytes]()
        for _ in range(PAGES_MAX):  # 2
            leaves = await self._leaves_after(size, tiles)
            added = await asyncio.to_thread(extend, tiles, size, leaves)
            tiles |= added
            grown |= added
            size += len(leaves)
            if len(leaves) < PAGE - 1:
                break
        root, note = root_of(0, size, tiles), ""
        key = await read_signing_key(reader, self._keys)  # 3
        # If the key was just rotated, the next round reads the entry that names the new key.
        if size >= newest_key["audit_id"] and key.public_key == newest_key["public_key"]:
            self._origin = self._origin or await read_origin(reader)
            note = checkpoint_note(self._origin, size, root, key)
        await store_tree(self._pool, former, Checkpoint(size, root, note), grown)  # 4

    async def _leaves_after(self, size: int, tiles: dict[TileId, bytes]) -> list[bytes]:
        """Return the leaves of the entries after `size`.

        Entry `size` is read too, because its leaf must equal the last leaf of the tree.
        """
        first = max(size, 1)
        scan = await scan_entries(self._reader, first, PAGE)
        if scan.bad_id is not None:
            raise Contradiction(f"audit entry {scan.bad_id} is not linked to the one before it")
        if not scan.leaves or scan.first_id != first:
            raise Contradiction(f"audit entry {first} is missing")
        if size and scan.leaves[0] != root_of(size - 1, size, tiles):
            raise Contradiction(f"audit entry {size} is not the one in the tree")
        return scan.leaves[min(size, 1) :]


def _check_root(signed: Checkpoint, size: int, tiles: dict[TileId, bytes]) -> None:
    try:
        if size < signed.size:
            raise KeyError(0, size // WIDTH)
        if root_of(0, signed.size, tiles) == signed.root:
            return
    except KeyError as error:
        raise Contradiction(f"tile {error} of the tree is missing or too short") from error
    raise Contradiction(f"the tree is not the one of the checkpoint of size {signed.size}")
