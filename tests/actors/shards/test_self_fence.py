"""Until when a process may send, whatever order acknowledgements come in."""

from __future__ import annotations

from actors.shards.self_fence import SelfFence
from core.shards.leases import SELF_FENCE_MS


class Clock:
    """A clock that is set by the test."""

    now_ms = 10_000

    def __call__(self) -> int:
        return self.now_ms


def test_nothing_is_sent_before_a_renewal_is_acknowledged() -> None:
    fence = SelfFence(Clock())
    assert not fence.may_send()
    assert not fence.has_ended()


def test_an_older_acknowledgement_that_comes_later_takes_nothing_back() -> None:
    """A child's fence went by the last answer, which may be of an earlier question."""
    clock = Clock()
    fence = SelfFence(clock)
    fence.acknowledge(clock.now_ms)
    fence.acknowledge(clock.now_ms - 1_000)
    clock.now_ms += SELF_FENCE_MS
    assert fence.may_send()
    clock.now_ms += 1
    assert not fence.may_send()


def test_what_could_not_be_sent_is_told_of_once_when_it_may() -> None:
    clock = Clock()
    fence = SelfFence(clock)
    fence.acknowledge(clock.now_ms)
    assert not fence.has_ended(), "nothing has been asked for"
    clock.now_ms += SELF_FENCE_MS + 1
    assert not fence.may_send()
    assert not fence.has_ended(), "it is fenced still"
    fence.acknowledge(clock.now_ms)
    assert fence.has_ended()
    assert not fence.has_ended()
