"""The Merkle tree over the audit log: RFC 6962 hashes, stored in tiles.

A tile of level L has 256 hashes, each the root of a complete subtree of 256^L leaves. Only the last
tile of a level may have fewer hashes. Entry N of the log is leaf N - 1. A node of the tree is named
by its height and its number in that height. Pure: the caller reads and writes tiles.
Reference: money.md (Checkpoints).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

# The concatenated hashes of tiles, by level and number.
Tiles = Mapping[tuple[int, int], bytes]
TileId = tuple[int, int]

HEIGHT: Final = 8  # the height of the subtree in a tile
WIDTH: Final = 1 << HEIGHT
HASH_BYTES: Final = 32
EMPTY_ROOT: Final = hashlib.sha256().digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node with these children."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def edge_tiles(size: int) -> list[TileId]:
    """Return the tiles of a tree that `extend` needs: all partial tiles and the last leaf's tile.

    Args:
        size: the number of leaves of the tree.
    """
    tiles = [(0, (size - 1) // WIDTH)] if size and size % WIDTH == 0 else []
    level = 0
    while size:
        if size % WIDTH:
            tiles.append((level, size // WIDTH))
        size //= WIDTH
        level += 1
    return tiles


def extend(edges: Tiles, size: int, leaves: Iterable[bytes]) -> dict[TileId, bytes]:
    """Return the tiles that are new or longer after leaves are appended.

    Args:
        edges: the tiles of `edge_tiles(size)`.
        size: the number of leaves before.
        leaves: the hashes of the new leaves.
    """
    grown: dict[TileId, bytearray] = {}

    def push(level: int, number: int, added: bytes) -> None:
        tile = (level, number // WIDTH)
        if tile not in grown:
            grown[tile] = bytearray(edges.get(tile, b""))
        hashes = grown[tile]
        hashes += added
        if len(hashes) == WIDTH * HASH_BYTES:
            push(level + 1, number // WIDTH, _folded(bytes(hashes)))

    for number, leaf in enumerate(leaves, size):
        push(0, number, leaf)
    return {tile: bytes(hashes) for tile, hashes in grown.items()}


def range_nodes(start: int, end: int) -> list[TileId]:
    """Return the complete subtrees, by height and number, that cover the leaves [start, end).

    The root of the range is computed by hashing these subtrees together from the right. `start`
    must be a multiple of the size of the largest subtree.
    """
    nodes = []
    while start < end:
        height = (end - start).bit_length() - 1
        nodes.append((height, start >> height))
        start += 1 << height
    return nodes


def inclusion_ranges(leaf: int, size: int) -> list[tuple[int, int]]:
    """Return the ranges of leaves whose roots are the inclusion proof of a leaf, nearest first.

    RFC 6962 section 2.1.1.
    """
    start, end = 0, size
    ranges = []
    while end - start > 1:
        middle = start + _split(end - start)
        if leaf < middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((start, middle))
            start = middle
    return ranges[::-1]


def consistency_ranges(first: int, size: int) -> list[tuple[int, int]]:
    """Return the ranges of leaves whose roots are the consistency proof of two trees.

    The older tree has the first `first` leaves of the newer tree of `size` leaves. RFC 6962 section
    2.1.2.
    """
    start, end, is_whole = 0, size, True
    ranges = []
    while first != end:
        middle = start + _split(end - start)
        if first <= middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((start, middle))
            start, is_whole = middle, False
    return ([] if is_whole else [(start, end)]) + ranges[::-1]


def tiles_of(ranges: Iterable[tuple[int, int]]) -> set[TileId]:
    """Return the tiles that are needed to compute the roots of these ranges."""
    return {
        (height // HEIGHT, (number << height % HEIGHT) // WIDTH)
        for start, end in ranges
        for height, number in range_nodes(start, end)
    }


def root_of(start: int, end: int, tiles: Tiles) -> bytes:
    """Return the root of a range of leaves.

    Args:
        start, end: a range of a proof, or 0 and the size of the tree for the whole tree.
        tiles: at least `tiles_of([(start, end)])`.

    Raises:
        KeyError: a tile is missing or too short.
    """
    root = b""
    for height, number in reversed(range_nodes(start, end)):
        tile = (height // HEIGHT, (number << height % HEIGHT) // WIDTH)
        first = (number << height % HEIGHT) % WIDTH
        hashes = tiles[tile][first * HASH_BYTES : (first + (1 << height % HEIGHT)) * HASH_BYTES]
        if len(hashes) != HASH_BYTES << height % HEIGHT:
            raise KeyError(tile)
        root = node_hash(_folded(hashes), root) if root else _folded(hashes)
    return root or EMPTY_ROOT


def _split(count: int) -> int:
    """Return the largest power of two that is less than a number above 1."""
    return 1 << ((count - 1).bit_length() - 1)


def _folded(hashes: bytes) -> bytes:
    """Return the root of a complete subtree whose leaves are these hashes."""
    row = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
    while len(row) > 1:
        row = [node_hash(*pair) for pair in zip(row[::2], row[1::2], strict=True)]
    return row[0]
