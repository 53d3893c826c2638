"""The shard of a workflow stands in its id."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.ids import uuid7
from core.shards.shard import SHARDS, id_in_shard, shard_of


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10), st.integers(0, SHARDS - 1))
def test_an_id_can_be_put_in_any_shard_and_stays_a_uuid_of_its_time(
    at_ms: int, entropy: bytes, shard: int
) -> None:
    made = uuid7(at_ms=at_ms, entropy=entropy)
    placed = id_in_shard(made, shard)
    assert shard_of(placed) == shard
    assert len(placed) == 36
    assert placed[:16] == made[:16], "time and version stay"
    assert placed[18:] == made[18:]
    assert id_in_shard(placed, shard_of(made)) == made
