"""Calls counted by address: each its own minute, and a bounded number of minutes."""

from __future__ import annotations

from serve_app.callers.call_windows import CallWindows


def test_addresses_beyond_the_bound_share_one_count_until_others_have_ended() -> None:
    windows = CallWindows(2, 3)
    for number in range(3):
        windows.take(f"old {number}", number)
    assert [windows.take(f"new {number}", 10).is_allowed for number in range(3)] == [
        True,
        True,
        False,
    ]
    assert windows.take("old 0", 10).is_allowed, "the counted ones keep their own"
    found = windows.find("new 9", 10)
    assert found is not None
    assert not found.is_allowed
    assert windows.take("new 0", 60_000).is_allowed, "the oldest has ended"


def test_a_flood_of_addresses_takes_bounded_memory() -> None:
    windows = CallWindows(5, 100)
    for number in range(10_000):
        windows.take(f"address {number}", number)
    assert repr(windows) == "<CallWindows 100/100>"
