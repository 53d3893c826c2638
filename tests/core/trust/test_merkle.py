"""The Merkle tree in tiles equals a second implementation's (pymerkle), whatever grows it how."""

from __future__ import annotations

import random
from hashlib import sha256

import pytest
from pymerkle import InmemoryTree

from core.trust.merkle import (
    EMPTY_ROOT,
    HASH_BYTES,
    WIDTH,
    consistency_ranges,
    edge_tiles,
    extend,
    inclusion_ranges,
    node_hash,
    root_of,
    tiles_of,
)

SIZES = 300
LEAVES = [sha256(b"\0%d" % number).digest() for number in range(3 * WIDTH)]
Tiles = dict[tuple[int, int], bytes]


@pytest.fixture(scope="module")
def tiles() -> Tiles:
    return extend({}, 0, LEAVES[:SIZES])


@pytest.fixture(scope="module")
def tree() -> InmemoryTree:
    tree = InmemoryTree()
    for number in range(SIZES):
        tree.append_entry(b"%d" % number)
    return tree


def proof(ranges: list[tuple[int, int]], tiles: Tiles) -> list[bytes]:
    """Return the roots of ranges, of no more tiles than are said to be needed."""
    needed = {tile: tiles[tile] for tile in tiles_of(ranges)}
    return [root_of(start, end, needed) for start, end in ranges]


def is_consistent(first: int, size: int, hashes: list[bytes], old: bytes, new: bytes) -> bool:
    """Verify a consistency proof as RFC 9162 says, section 2.1.4.2."""
    if first == size:
        return not hashes and old == new
    path = [old, *hashes] if first & (first - 1) == 0 else list(hashes)
    at, last = first - 1, size - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    first_root = root = path[0]
    for neighbour in path[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            first_root, root = node_hash(neighbour, first_root), node_hash(neighbour, root)
            while at and not at & 1:
                at, last = at >> 1, last >> 1
        else:
            root = node_hash(root, neighbour)
        at, last = at >> 1, last >> 1
    return (first_root, root, last) == (old, new, 0)


def test_roots_and_inclusion_proofs_of_every_size_equal_pymerkles(
    tiles: Tiles, tree: InmemoryTree
) -> None:
    drawn = random.Random(1)
    for size in range(1, SIZES + 1):
        assert proof([(0, size)], tiles) == [tree.get_root(size)]
        for leaf in {0, size - 1, *(drawn.randrange(size) for _ in range(10))}:
            path = tree.prove_inclusion(leaf + 1, size).path
            assert [LEAVES[leaf], *proof(inclusion_ranges(leaf, size), tiles)] == path


def test_consistency_proofs_are_those_of_rfc_6962_and_equal_pymerkles(
    tiles: Tiles, tree: InmemoryTree
) -> None:
    drawn = random.Random(2)
    for size in range(1, SIZES + 1):
        for first in {1, size, *(drawn.randrange(1, size + 1) for _ in range(10))}:
            ours = proof(consistency_ranges(first, size), tiles)
            roots = (tree.get_root(first), tree.get_root(size))
            assert is_consistent(first, size, ours, *roots)
            assert not is_consistent(first, size, ours, roots[0], EMPTY_ROOT)
            theirs = tree.prove_consistency(first, size)
            # Where the older tree ends at a node's middle, pymerkle goes on to a single leaf.
            if theirs.subset[0] == 1:
                # RFC 6962 leaves the older root out where the proof would begin with it.
                assert ours == theirs.path[theirs.path[0] == roots[0] :]


def test_a_tree_grown_in_any_steps_from_its_edges_is_the_same() -> None:
    drawn, whole = random.Random(3), extend({}, 0, LEAVES)
    for _ in range(20):
        stored: Tiles = {}
        size = 0
        while size < len(LEAVES):
            count = min(len(LEAVES) - size, drawn.choice((1, 7, WIDTH - 1, WIDTH, WIDTH + 1)))
            edges = {tile: stored[tile] for tile in edge_tiles(size)}
            assert root_of(0, size, edges) == (root_of(0, size, whole) if size else EMPTY_ROOT)
            if size:
                assert root_of(size - 1, size, edges) == LEAVES[size - 1]
            stored |= extend(edges, size, LEAVES[size : size + count])
            size += count
        assert stored == whole


def test_a_tile_that_is_too_short_gives_no_root(tiles: Tiles) -> None:
    short = tiles | {(0, 1): tiles[0, 1][:-HASH_BYTES]}
    with pytest.raises(KeyError):
        root_of(0, SIZES, short)
