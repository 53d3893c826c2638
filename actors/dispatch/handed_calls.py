"""What a member tells the one that it has given a shard to: the calls that are open at agents.

The giver keeps the sockets and returns what comes of them, as of any order that it sends for
another machine; the recipient waits for these attempts instead of repeating them. The message is a
hint: without it the recipient finds the attempts in the rows and repeats those that no agent has
accepted. shards.md (Hand-over, steps 4 to 7). Decision 0200.
"""

from __future__ import annotations

from core.message import Message


class HandedCall(Message, frozen=True):
    """An open call; `serial`: of its sending, chosen by the giver. `verify_attempt` 0: no
    verification."""

    serial: int
    workflow_id: str
    node: str
    attempt: int
    verify_attempt: int


class HandedShard(Message, frozen=True):
    """A shard that `sender` has given, its open calls, and which gateways wait for which end.

    `epoch`: under which it was given; a sender gives a shard once under each.
    """

    sender: str
    shard: int
    epoch: int
    calls: tuple[HandedCall, ...]
    watchers: tuple[tuple[str, str], ...]
