"""The queues of a dispatcher: limits are kept, and a dispatch that may leave does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actors.dispatch.agent_queue import AGED_MS, AgentQueues

CONCURRENCY = {"a": 1, "b": 2, "c": 100}
FRESH_MAX, OPEN_MAX = 3, 6
PAYERS = ["payer 0", "payer 1", "payer 2"]


def anyone(payer: str, order: object) -> bool:
    """Let each payer open an order."""
    return True


def queues(
    fresh_max: int = FRESH_MAX,
    open_max: int = OPEN_MAX,
    payer_share: int = 1,
    may_open: Callable[[str, int], bool] = anyone,
) -> AgentQueues[int]:
    """Return queues of agents with these concurrencies; an order is its number."""
    return AgentQueues(
        fresh_max, open_max, CONCURRENCY.__getitem__, lambda _: 1, payer_share, may_open
    )


def below_share(opened: Iterable[str], payer_share: int) -> set[str]:
    """Return the payers that may open an order beside these, each named once for each order."""
    own = Counter(opened)
    free = OPEN_MAX - own.total()
    return {payer for payer in PAYERS if own[payer] < max(1, (free + own[payer]) // payer_share)}


# What happens, to which agent's order or how many ms pass, at which payer's cost.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "put",
                "put",
                "close",
                "park",
                "release",
                "hold",
                "drop",
                "clear",
                "fill",
                "empty",
                "wait",
            ]
        ),
        st.sampled_from("abc"),
        st.integers(0, 60),
    ),
    max_size=100,
)


@dataclass
class Played:
    """Queues of which every order is known. Odd orders count bytes, the others need none."""

    payer_share: int
    fresh_max: int
    made: AgentQueues[int] = field(init=False)
    now_ms: int = 0
    number: int = 0
    under_way: dict[int, tuple[str, int]] = field(default_factory=dict)
    waiting: dict[int, str] = field(default_factory=dict)
    held: dict[int, str] = field(default_factory=dict)
    payers: dict[int, str] = field(default_factory=dict)
    # Of the held ones, those that others than this had sent.
    foreign: Counter[str] = field(default_factory=Counter)
    full: set[str] = field(default_factory=set)  # payers whose bytes are used up

    def __post_init__(self) -> None:
        self.made = queues(self.fresh_max, payer_share=self.payer_share, may_open=self.is_let)

    def is_let(self, payer: str, order: int) -> bool:
        """Whether a payer has bytes for an order."""
        return order % 2 == 0 or payer not in self.full

    def may_open(self) -> set[str]:
        """Return the payers that have a place."""
        return below_share((self.payers[key] for key in self.under_way), self.payer_share)

    def play(self, what: str, did: str, many: int) -> set[str]:
        """Do one step; return the payers whose orders wait for no timer after it."""
        made, payer = self.made, PAYERS[many % 3]
        served = set(PAYERS) if self.payer_share == 1 else set()
        if what == "put":
            self.number += 1
            self.payers[self.number] = payer
            if made.put(did, payer, self.number, self.now_ms):
                self.under_way[self.number] = (did, self.now_ms)
            else:
                self.waiting[self.number] = did
        elif what in ("close", "park") and self.under_way:
            key = sorted(self.under_way)[many % len(self.under_way)]
            if what == "close":
                served |= {self.payers[key]} - self.may_open()
                del self.under_way[key]
                made.close(key, self.now_ms)
            else:
                self.held[key] = self.under_way.pop(key)[0]
                made.park(key, self.now_ms)
        elif what == "hold":
            self.number += 1
            self.held[-self.number] = did
            self.foreign[did] += 1
            made.hold(did, -self.number)
        elif what == "release" and self.held:
            key = sorted(self.held)[many % len(self.held)]
            self.foreign[self.held.pop(key)] -= key < 0
            made.release(key)
        elif what == "drop":
            assert made.drop(did, many) is (self.waiting.get(many) == did)
            if self.waiting.get(many) == did:
                del self.waiting[many]
        elif what == "clear":
            self._clear(did)
        elif what == "fill":
            self.full.add(payer)
        elif what == "empty":
            self.full.discard(payer)
            made.retry_starved(payer)
            served.add(payer)
        else:
            self.now_ms += many
            made.retry_starved()
            return set(PAYERS)
        return served - self.full

    def _clear(self, did: str) -> None:
        cleared = {self.made.take_waiting(did) for _ in range(self.made.waiting_for(did))}
        assert cleared == {key for key, agent in self.waiting.items() if agent == did}
        assert self.made.take_waiting(did) is None
        self.waiting = {key: agent for key, agent in self.waiting.items() if agent != did}

    def take_all(self) -> None:
        """Take what may leave."""
        while (order := self.made.take(self.now_ms)) is not None:
            payer = self.payers[order]
            assert payer in self.may_open() and self.is_let(payer, order)
            self.under_way[order] = (self.waiting.pop(order), self.now_ms)

    def check(self, served: set[str]) -> None:
        """Check the limits, the counters, and that nothing of these payers waits without need."""
        under_way, waiting, made = self.under_way, self.waiting, self.made
        busy = Counter([*self.held.values(), *(agent for agent, _ in under_way.values())])
        fresh = sum(self.now_ms - left_ms < AGED_MS for _, left_ms in under_way.values())
        assert all(busy[agent] <= CONCURRENCY[agent] + self.foreign[agent] for agent in busy)
        counts = (len(under_way), len(waiting), len(self.held))
        assert (made.open_count, made.waiting, made.held_count) == counts
        waiting_of = Counter(self.payers[key] for key in waiting)
        assert all(made.waiting_of(payer) == waiting_of[payer] for payer in PAYERS)
        assert fresh <= made.fresh_max and len(under_way) <= OPEN_MAX
        assert len(made._queues) == len({*busy, *waiting.values()}), "no line is left behind"
        if fresh == made.fresh_max or len(under_way) == OPEN_MAX:
            return
        firsts: dict[tuple[str, str], int] = {}  # of each payer at each agent
        for key, agent in waiting.items():
            firsts.setdefault((agent, self.payers[key]), key)
        idle = {
            payer
            for (agent, payer), key in firsts.items()
            if busy[agent] < CONCURRENCY[agent] and self.is_let(payer, key)
        }
        assert not idle & served & self.may_open()


@example(
    [("put", "c", 0), ("put", "c", 1), ("put", "c", 1), ("put", "b", 1), ("close", "c", 1)],
    2,
    OPEN_MAX,
)
@example([("fill", "c", 0), ("put", "c", 0), ("wait", "c", 0)], 1, OPEN_MAX)
@example([("fill", "c", 0), ("put", "c", 0), ("empty", "c", 0)], 1, OPEN_MAX)
@given(STEPS, st.integers(1, 3), st.sampled_from([FRESH_MAX, OPEN_MAX]))
def test_limits_are_kept_and_nobody_waits_without_a_reason(
    steps: list[tuple[str, str, int]], payer_share: int, fresh_max: int
) -> None:
    """Of a payer's share: whose order ends has its place taken, and a timer does the rest.

    What waits behind an order for which its payer has no bytes may wait for a timer, too.
    """
    played = Played(payer_share, fresh_max)
    for step in steps:
        served = played.play(*step)
        played.take_all()
        played.check(served)


def test_agents_take_turns_and_so_do_payers() -> None:
    made = queues(fresh_max=1, open_max=100)
    assert made.put("c", "greedy", 0, 0)
    for number in range(1, 7):
        made.put("c", "greedy", number, 0)
    made.put("c", "modest", 7, 0)
    made.put("b", "greedy", 8, 0)
    order, key = [], 0
    while True:
        made.close(key, 0)
        taken = made.take(0)
        if taken is None:
            break
        key = taken
        order.append(key)
    assert order == [1, 8, 7, 2, 3, 4, 5, 6]


def test_the_limit_grows_only_while_slow_agents_make_others_wait() -> None:
    made = queues(fresh_max=1, open_max=2)
    assert made.put("c", "p", 1, 0)
    made.close(1, 50)
    assert made.fresh_max == 1
    made.put("c", "p", 2, 50)
    made.put("c", "p", 3, 50)
    made.close(2, 60)
    assert made.fresh_max == 1, "a fast reply"
    assert made.take(60) == 3
    made.put("c", "p", 4, 60)
    made.close(3, 90)
    assert made.fresh_max == 2


def test_a_card_that_allows_less_is_obeyed_from_the_next_order_on() -> None:
    concurrency = {"a": 3}
    made: AgentQueues[int] = AgentQueues(100, 100, concurrency.__getitem__, lambda _: 1, 1, anyone)
    for number in range(5):
        assert made.put("a", "p", number, 0) is (number < 3)
    concurrency["a"] = 1
    for number in range(2):
        made.close(number, 0)
        assert made.take(0) is None
    made.close(2, 0)
    assert made.take(0) == 3


def shared(open_max: int = 64, payer_share: int = 4) -> AgentQueues[int]:
    """Return queues of agents that take anything, whose places payers share."""
    return AgentQueues(open_max, open_max, lambda _: 1_000, lambda _: 1, payer_share, anyone)


def test_agents_that_never_answer_keep_places_from_their_own_payers_only() -> None:
    """However many agents a payer uses, and however long they hold its orders."""
    made = shared()
    for number in range(200):
        made.put(f"agent {number % 50}", "greedy", number, 0)
    assert made.take(AGED_MS) is None
    assert made.open_count == 16, "a quarter of 64"
    gone = [made.put("slow", "second", 1_000 + n, AGED_MS) for n in range(20)]
    assert gone.count(True) == 12, "a quarter of the 48 that the first leaves"
    # Each further payer finds a place, although those before wait for more.
    for number in range(8):
        assert made.put("quick", f"payer {number}", 2_000 + number, AGED_MS)


@pytest.mark.parametrize("open_max", range(6, 14))
@pytest.mark.parametrize("payer_share", [2, 3])
def test_a_place_that_a_payer_frees_is_taken_whatever_the_number_of_places(
    open_max: int, payer_share: int
) -> None:
    """Of some numbers, the order that ended counted as gone already, and no agent was woken."""
    made = shared(open_max, payer_share)
    share = open_max // payer_share
    for number in range(share):
        assert made.put("a", "p", number, 0)
    assert not made.put("b", "p", share, 0)
    assert made.take(0) is None
    made.close(0, 0)
    assert made.take(0) == share


def test_a_place_that_a_payer_frees_goes_to_the_agent_that_has_starved_longest_for_it() -> None:
    """The agent that had starved longest for any payer was woken, for nothing, and the one with
    this payer's orders waited for a timer."""
    made: AgentQueues[int] = AgentQueues(6, 6, lambda _: 100, lambda _: 1, 2, anyone)
    for key, payer in enumerate(["p", "p", "q", "q"]):
        assert made.put("a", payer, key, 0), "a payer has two of six at most"
    for key, (did, payer) in enumerate([("b", "q"), ("c", "p"), ("a", "p"), ("c", "p")], 10):
        assert not made.put(did, payer, key, 0)
    assert made.take(0) is None
    made.close(0, 0)
    assert made.take(0) == 11
    assert made.take(0) is None
    made.close(2, 0)
    assert made.take(0) == 10
    made.close(1, 0)
    assert made.take(0) == 12, "agents take turns: c has had its own"
    assert made.take(0) is None
