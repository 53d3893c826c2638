"""The shard of a workflow: eight of the random bits of its id, for good.

Nobody reads a row to find the process that drives a workflow: its id tells the shard, and the map
tells which member holds it. Pure. Decision workflow-owners-and-shards.
"""

from __future__ import annotations

from typing import Final

SHARDS: Final = 256
# The last two digits of a UUID's third group: byte 7, the low bits of `rand_a` (RFC 9562).
_BEGIN, _END = 16, 18


def shard_of(workflow_id: str) -> int:
    """Return the shard of a workflow, 0 to 255.

    Args:
        workflow_id: a UUID in its text form.
    """
    return int(workflow_id[_BEGIN:_END], 16)


def id_in_shard(workflow_id: str, shard: int) -> str:
    """Return this UUID with the digits of a shard in it.

    Args:
        workflow_id: a UUID of version 7 in its text form.
        shard: 0 to 255.
    """
    assert 0 <= shard < SHARDS, shard
    return f"{workflow_id[:_BEGIN]}{shard:02x}{workflow_id[_END:]}"
