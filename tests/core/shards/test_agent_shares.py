"""How an agent's concurrency is divided among owners that all know the same members."""

from __future__ import annotations

import pytest

from core.shards.agent_shares import AgentShares

OWNERS = tuple(f"owner-{number}" for number in range(7))


def shares(agent: str, limit: int, owners: tuple[str, ...], *draining: str) -> list[int]:
    """Return what each of these owners computes for itself."""
    found = []
    for owner in owners:
        own = AgentShares(owner, lambda _: limit)
        own.set_owners(owners, draining)
        found.append(own.own(agent))
    return found


@pytest.mark.parametrize("count", range(1, len(OWNERS) + 1))
def test_shares_add_up_to_the_limit_and_differ_by_one(count: int) -> None:
    for limit in range(1, 20):
        for number in range(20):
            found = shares(f"did:x:{number}", limit, OWNERS[:count])
            assert sum(found) == limit
            assert max(found) - min(found) <= 1


def test_agents_with_little_concurrency_are_called_by_different_owners() -> None:
    callers = [shares(f"did:x:{number}", 1, OWNERS).index(1) for number in range(200)]
    assert set(callers) == set(range(len(OWNERS)))


def test_draining_owner_takes_no_dispatches_and_none_that_others_lack() -> None:
    draining = OWNERS[0]
    for number in range(20):
        assert shares(f"did:x:{number}", 2, OWNERS, draining)[0] == 0
        assert shares(f"did:x:{number}", 2, OWNERS, draining).count(1) == 2
    own = AgentShares(OWNERS[1], lambda _: 14)
    own.set_owners(OWNERS, [draining])
    assert own.of("did:x:a", draining) == 2, "its own calls go on"
    assert sorted(own.others("did:x:a")) == sorted(OWNERS[2:])


def test_owner_has_no_share_before_it_knows_the_owners_or_when_it_is_none_of_them() -> None:
    own = AgentShares("child", lambda _: 4)
    assert own.own("did:x:a") == 0
    assert own.set_owners(["parent"])
    assert (own.own("did:x:a"), own.others("did:x:a")) == (0, ["parent"])
    assert not own.set_owners(["parent"])
