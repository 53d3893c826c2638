"""Calls to actors from a process that is in no cluster."""

from __future__ import annotations

import pytest
import ray

from actors.transport.actor_calls import actor_call, is_unknown_outcome


async def test_call_outside_a_cluster_fails_and_starts_none() -> None:
    """Ray's look-up started a cluster of a dozen processes, for 20 s."""
    with pytest.raises(ConnectionError) as failed:
        await actor_call("nobody", "ping")()
    assert is_unknown_outcome(failed.value)
    assert not ray.is_initialized()
