"""The shard of a workflow: eight bits of the workflow's id, so it never changes.

A process finds the owner of a workflow without reading a row: the workflow's id has the shard, and
the map of shards has the member that holds the shard. Pure. Decision workflow-owners-and-shards.
"""

from __future__ import annotations

from typing import Final

SHARDS: Final = 256
# The place of the shard's two digits in a UUID: the last two digits of the third group. They are
# byte 7 and hold the low bits of `rand_a` (RFC 9562).
_BEGIN, _END = 16, 18


def shard_of(workflow_id: str) -> int:
    """Return the shard of a workflow, 0 to 255.

    Args:
        workflow_id: a UUID in its text form.
    """
    return int(workflow_id[_BEGIN:_END], 16)


def id_in_shard(workflow_id: str, shard: int) -> str:
    """Return a workflow id with its shard replaced.

    Args:
        workflow_id: a UUID of version 7 in its text form.
        shard: 0 to 255.
    """
    assert 0 <= shard < SHARDS, shard
    return f"{workflow_id[:_BEGIN]}{shard:02x}{workflow_id[_END:]}"
