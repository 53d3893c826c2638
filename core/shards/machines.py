"""Machines of members: which one is meant, and whether its shards could go elsewhere.

Pure. Decision cluster-and-releases.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.shards.lease_messages import MemberState, MemberView


def find_machines(members: Iterable[MemberView], prefix: str) -> list[str]:
    """Return the ids of the machines that begin like this, in their order; a whole id means one.

    Args:
        members: all that are not GONE.
        prefix: of a machine's id, or the whole of it.
    """
    ids = {one.machine for one in members}
    return [prefix] if prefix in ids else sorted(one for one in ids if one.startswith(prefix))


def has_other_holder(members: Iterable[MemberView], machine: str) -> bool:
    """Say whether a member on another machine lives and is READY, so that it could take shards."""
    return any(
        one.machine != machine and one.is_live and one.state is MemberState.READY for one in members
    )
