"""The fair queue against its promise: no payer waits for more than the others' shares."""

from __future__ import annotations

import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.market.sharing.fair_queue import WEIGHT_MAX, FairQueue, parse_weights

PAYERS = "abcd"
WEIGHTS = {"a": 1, "b": 2, "c": 3, "d": 1}
# (payer, None): one more of it waits. (None, i): the i-th key is dropped. (None, None): take one.
Step = tuple[str | None, int | None]
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(PAYERS), st.none()),
        st.tuples(st.none(), st.integers(0, 40)),
        st.just((None, None)),
    ),
    max_size=80,
)


@given(STEPS)
def test_no_payer_waits_for_more_than_its_share(steps: list[Step]) -> None:
    """Between two turns of a payer that waits all the time, each other is served its weight."""
    queue: FairQueue[int, tuple[str, int]] = FairQueue(WEIGHTS.__getitem__)
    waiting: dict[str, list[int]] = {payer: [] for payer in PAYERS}
    passed: dict[str, dict[str, int]] = {payer: dict.fromkeys(PAYERS, 0) for payer in PAYERS}
    made = 0
    for payer, number in steps:
        if payer is not None:
            queue.put(payer, made, (payer, made))
            if not waiting[payer]:
                passed[payer] = dict.fromkeys(PAYERS, 0)
            waiting[payer].append(made)
            made += 1
        elif number is not None:
            dropped = queue.drop(number)
            owner = next((name for name in PAYERS if number in waiting[name]), None)
            assert dropped == (None if owner is None else (owner, number))
            if owner is not None:
                waiting[owner].remove(number)
        elif any(waiting.values()):
            served, key = queue.take()
            assert waiting[served].pop(0) == key, "a payer's own items keep their order"
            passed[served] = dict.fromkeys(PAYERS, 0)
            for other in PAYERS:
                if other != served and waiting[other]:
                    passed[other][served] += 1
                    assert passed[other][served] <= WEIGHTS[served], (other, served)
        assert len(queue) == sum(len(line) for line in waiting.values())
        assert {name: queue.waiting_of(name) for name in PAYERS} == {
            name: len(line) for name, line in waiting.items()
        }
    left = [queue.take() for _ in range(len(queue))]
    assert sorted(left) == sorted((p, key) for p in PAYERS for key in waiting[p])
    assert queue.take() is None


def test_weights_are_the_shares_of_a_full_queue() -> None:
    queue: FairQueue[int, str] = FairQueue({"a": 3, "b": 1}.__getitem__)
    for number in range(400):
        queue.put("a", 2 * number, "a")
        queue.put("b", 2 * number + 1, "b")
    first = "".join(queue.take() for _ in range(200))
    assert first == "aaab" * 50


class Ticket:
    """A key that says when it is gone."""


@pytest.mark.parametrize("payer", ["did:a", "did:b"])
def test_nothing_is_kept_of_a_dropped_item(payer: str) -> None:
    """20,000 orders that were cancelled beside a waiting one kept 16 MB and counted as waiting."""
    queue: FairQueue[Ticket, str] = FairQueue()
    waiting = Ticket()
    queue.put("did:a", waiting, "waiting")
    kept = []
    for _ in range(100):
        ticket = Ticket()
        queue.put(payer, ticket, "dropped")
        assert queue.drop(ticket) == "dropped"
        kept.append(weakref.ref(ticket))
    del ticket
    assert not any(ref() for ref in kept)
    assert (queue.waiting_of("did:a"), queue.waiting_of("did:b")) == (1, 0)
    assert len(queue) == 1


def test_payer_that_drops_within_its_turn_gains_no_second_one() -> None:
    queue: FairQueue[int, str] = FairQueue({"a": 3, "b": 1}.__getitem__)
    for key, payer in enumerate("baab"):
        queue.put(payer, key, payer)
    assert [queue.take(), queue.take()] == ["b", "a"]
    queue.drop(2)
    for key in (5, 6, 7):
        queue.put("a", key, "a")
    assert queue.take() == "b"


def test_weights_are_read_from_settings() -> None:
    assert parse_weights(["did:web:h%3A1=5", "did:x:a=1"]) == {"did:web:h%3A1": 5, "did:x:a": 1}
    for wrong in ("did:x:a", "did:x:a=", "=3", "did:x:a=0", f"did:x:a={WEIGHT_MAX + 1}"):
        with pytest.raises(ValueError, match="expected"):
            parse_weights([wrong])


def test_payer_that_may_not_be_served_is_passed_over_and_keeps_its_order() -> None:
    queue: FairQueue[int, tuple[str, int]] = FairQueue()
    for key in range(4):
        payer = "held" if key % 2 == 0 else "free"
        queue.put(payer, key, (payer, key))
    assert queue.take(lambda payer, _: payer != "held") == ("free", 1)
    assert queue.take(lambda payer, _: payer != "held") == ("free", 3)
    assert queue.take(lambda payer, _: payer != "held") is None
    assert [queue.take(), queue.take(), queue.take()] == [("held", 0), ("held", 2), None]


def test_a_new_payer_goes_before_the_one_that_was_served_last() -> None:
    queue: FairQueue[int, int] = FairQueue()
    for number in range(3):
        queue.put("did:a", number, number)
    assert queue.take() == 0
    queue.put("did:b", 10, 10)
    assert [queue.take(), queue.take(), queue.take()] == [10, 1, 2]
