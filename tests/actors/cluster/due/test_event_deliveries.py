"""Rules of deliveries: pauses, what is a success, and who gets a place for an attempt.

Reference: features.md (Webhooks).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from actors.cluster.due.event_deliveries import (
    BACKOFF_MS,
    LIGHT_S,
    PLACES,
    PLACES_OF_HEAVY,
    PLACES_OF_OWNER,
    PLACES_OF_QUICK,
    PLACES_OF_TARGET,
    Place,
    Places,
    backoff_ms,
)
from actors.cluster.due.webhook_deliveries import ATTEMPT_S, failure_of
from federation.http_connection import HttpFailure, HttpFailureKind, HttpReply
from ledger.features.webhooks import Target


def test_pauses_grow() -> None:
    pauses = [backoff_ms(n, jitter=0) for n in range(1, 10)]
    assert pauses == [*BACKOFF_MS, BACKOFF_MS[-1], BACKOFF_MS[-1]]
    assert BACKOFF_MS[0] < backoff_ms(1, jitter=1) <= 1.1 * BACKOFF_MS[0]


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (HttpReply(200, {}, b""), None),
        (HttpReply(299, {}, b""), None),
        (HttpFailure(HttpFailureKind.TOO_LARGE, "", 200), None),
        (HttpReply(302, {}, b""), "got status 302, expected 2xx"),
        (HttpReply(199, {}, b""), "got status 199, expected 2xx"),
        (HttpFailure(HttpFailureKind.TOO_LARGE, "", 500), "got status 500, expected 2xx"),
        (HttpFailure(HttpFailureKind.TIMEOUT, "late", 200), "TIMEOUT: late"),
        (HttpFailure(HttpFailureKind.DENIED, "not public"), "DENIED: not public"),
    ],
)
def test_any_2xx_is_a_success_and_nothing_else(outcome: Any, error: str | None) -> None:
    assert failure_of(outcome) == error


def target(owner: int, number: int) -> Target:
    return Target(f"t{number}", "webhook", f"o{owner}")


def taken(places: Places, targets: Sequence[Target]) -> list[Place]:
    """Take a place for each of some targets, as far as there are places."""
    found = [places.take(one) for one in targets]
    return [one for one in found if one is not None]


def test_places_are_bounded_in_all_by_owner_and_by_webhook() -> None:
    many = {
        PLACES: [target(n, n) for n in range(99)],
        PLACES_OF_OWNER: [target(1, n) for n in range(99)],
        PLACES_OF_TARGET: [target(1, 1) for _ in range(99)],
    }
    for most, targets in many.items():
        places = Places(quick={one.owner_did for one in targets})
        mine = taken(places, targets)
        assert len(mine) == most
        for one in mine:
            places.give_back(one, 0)
        assert (places.taken, places.of_owner, sum(places.spent_s.values())) == (0, {}, 0)


@pytest.mark.parametrize("is_ended", [False, True])
def test_owners_of_slow_receivers_leave_places_to_all_others(is_ended: bool) -> None:
    """Goal: nine owners whose receivers take all of an attempt's time share half of the places.

    Each has new URLs, and whether an attempt succeeds does not matter.
    """
    places = Places(quick={f"o{n}" for n in range(100, 120)})
    for turn in range(4):
        held = taken(places, [target(n, 100 * turn + n) for n in range(9) for _ in range(4)])
        assert places.of_heavy <= PLACES_OF_HEAVY
        if is_ended or turn < 3:
            for one in held:
                places.give_back(one, ATTEMPT_S)
    others = taken(places, [target(n, n) for n in range(100, 120)])
    assert len(others) == 20
    assert not any(one.is_heavy for one in others)
    slow, quick = target(1, 1), target(100, 100)
    assert places.in_turn([slow, quick]) == [quick, slow]
    for _ in range(6):
        places.forget()
    assert places.spent_s["o1"] < LIGHT_S


def test_new_owners_leave_places_to_owners_of_quick_receivers() -> None:
    places, quick = Places(), target(0, 0)
    (first,) = taken(places, [quick])
    places.give_back(first, 0.1)
    held = taken(places, [target(n, n) for n in range(1, 99)])
    assert len(held) == PLACES - PLACES_OF_QUICK
    (late,) = taken(places, [quick])
    places.give_back(late, ATTEMPT_S)
    assert places.take(quick) is None


def test_quick_attempts_of_an_owner_do_not_make_it_a_heavy_one() -> None:
    places = Places()
    for _ in range(100):
        (place,) = taken(places, [target(1, 1)])
        places.give_back(place, 0.05)
    assert not place.is_heavy
