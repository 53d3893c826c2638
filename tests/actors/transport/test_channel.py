"""The channel: batches of what waits, one call in flight, bounded, failures to their own batch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.transport.channel import Channel
from core.errors import ErrorCode, ServiceError
from tests.platform.waiting import until


class Destination:
    """Answers a batch when it is let go; remembers the batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Semaphore(0)
        self.in_flight = 0
        self.in_flight_max = 0
        self.failure: Exception | None = None

    async def call(self, batch: list[int]) -> list[int]:
        """Return the doubles of the batch."""
        self.batches.append(batch)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)
        await self.gate.acquire()
        self.in_flight -= 1
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return [2 * value for value in batch]

    def release(self, count: int) -> None:
        """Let so many batches go."""
        for _ in range(count):
            self.gate.release()


def opened(*, capacity: int = 100) -> tuple[Destination, Channel[int, int], list[Any]]:
    """Return a destination, a channel there with batches of at most three, and what is heard."""
    destination = Destination()
    channel = Channel("test", destination.call, capacity=capacity, batch_size=3)
    return destination, channel, []


def raising(_: object) -> None:
    """A callback with a defect."""
    raise RuntimeError("unforeseen")


async def test_what_waits_leaves_as_the_next_batch_in_order() -> None:
    destination, channel, _ = opened()
    first = asyncio.ensure_future(channel.request(1))
    await until(lambda: destination.batches)
    rest = [asyncio.ensure_future(channel.request(value)) for value in (2, 3, 4, 5)]
    destination.release(3)
    assert await asyncio.gather(first, *rest) == [2, 4, 6, 8, 10]
    assert destination.batches == [[1], [2, 3, 4], [5]]
    assert destination.in_flight_max == 1


async def test_a_full_channel_refuses_and_keeps_what_it_has() -> None:
    destination, channel, _ = opened(capacity=2)
    waiting = [asyncio.ensure_future(channel.request(value)) for value in (1, 2)]
    await asyncio.sleep(0)
    waiting += [asyncio.ensure_future(channel.request(value)) for value in (3, 4)]
    await until(lambda: destination.batches)
    with pytest.raises(ServiceError) as refusal:
        await channel.request(5)
    assert refusal.value.code is ErrorCode.OVERLOADED
    destination.release(2)
    assert await asyncio.gather(*waiting) == [2, 4, 6, 8]


async def test_a_failed_call_fails_its_own_batch_only() -> None:
    destination, channel, _ = opened()
    destination.failure = ConnectionError("gone")
    first = asyncio.ensure_future(channel.request(1))
    await until(lambda: destination.batches)
    second = asyncio.ensure_future(channel.request(2))
    await asyncio.sleep(0)
    destination.release(2)
    with pytest.raises(ConnectionError):
        await first
    assert await second == 4


async def test_closing_answers_what_is_under_way_and_what_waits() -> None:
    destination, channel, _ = opened()
    first = asyncio.ensure_future(channel.request(1))
    await until(lambda: destination.batches)
    second = asyncio.ensure_future(channel.request(2))
    await asyncio.sleep(0)
    channel.close()
    for answer in (first, second):
        with pytest.raises(ConnectionError):
            await answer


async def test_closing_in_the_turn_of_a_request_answers_it_and_leaves_a_channel_that_answers() -> (
    None
):
    """The request was never answered, nor any later one: the sending task had not begun."""
    destination, channel, heard = opened()
    channel.submit(1, heard.append)
    channel.close()
    assert [type(one) for one in heard] == [ConnectionError]
    destination.release(1)
    async with asyncio.timeout(60):
        assert await channel.request(2) == 4
    assert destination.batches == [[2]]


async def test_callback_may_close_the_channel_and_ask_again() -> None:
    destination, channel, heard = opened()

    def closing(_: object) -> None:
        channel.close()
        channel.submit(5, heard.append)

    for done in (closing, heard.append, heard.append, heard.append):
        channel.submit(1, done)
    destination.release(2)
    await until(lambda: len(heard) >= 4)
    assert [type(one) for one in heard[:3]] == [ConnectionError] * 3
    assert heard[3] == 10
    assert destination.batches == [[1, 1, 1], [5]]


async def test_callback_that_asks_again_when_the_channel_closes_does_not_hold_it_up() -> None:
    destination, channel, heard = opened()

    def again(reply: object) -> None:
        heard.append(reply)
        if isinstance(reply, ConnectionError):
            channel.submit(2, again)

    channel.submit(1, again)
    channel.close()
    destination.release(1)
    await until(lambda: len(heard) >= 2)
    assert heard[1] == 4


async def test_callback_that_raises_loses_no_other_reply_and_no_later_batch() -> None:
    """It ended the pump, with up to 999 other outcomes of its batch."""
    destination, channel, heard = opened()
    for value in range(9):
        channel.submit(value, raising if value % 3 == 0 else heard.append)
    destination.release(3)
    last = asyncio.ensure_future(channel.request(9))
    destination.release(1)
    async with asyncio.timeout(60):
        assert await last == 18
    assert heard == [2, 4, 8, 10, 14, 16]


async def test_callback_that_raises_as_the_channel_closes_loses_no_other() -> None:
    destination, channel, heard = opened()
    for done in (raising, heard.append, raising, heard.append):
        channel.submit(1, done)
    await until(lambda: destination.batches)
    channel.close()
    await until(lambda: len(heard) >= 2)
    assert all(isinstance(one, ConnectionError) for one in heard)


async def test_batch_is_bounded_by_weight_and_a_large_request_goes_alone() -> None:
    destination = Destination()
    channel: Channel[int, int] = Channel(
        "test",
        destination.call,
        capacity=100,
        batch_size=10,
        weight_of=lambda value: value,
        batch_weight=40,
    )
    sizes = (10, 10, 10, 10, 1, 50, 2, 11, 3, 4)
    asked = [asyncio.ensure_future(channel.request(value)) for value in sizes]
    destination.release(len(sizes))
    async with asyncio.timeout(60):
        await asyncio.gather(*asked)
    assert destination.batches == [[10, 10, 10, 10], [1], [50], [2], [11], [3, 4]]


async def test_what_follows_from_accepted_work_is_never_refused() -> None:
    destination, channel, heard = opened(capacity=2)
    for value in range(2):
        channel.submit(value, heard.append)
    assert channel.is_full
    with pytest.raises(ServiceError):
        channel.submit(2, heard.append)
    channel.submit_always(2, heard.append)
    destination.release(3)
    await until(lambda: len(heard) >= 3)
    assert heard == [0, 2, 4]


async def test_one_request_of_a_payer_does_not_wait_behind_a_hundred_of_another() -> None:
    destination, channel, heard = opened(capacity=1_000)
    for value in range(100):
        channel.submit(value, heard.append, "did:a")
    channel.submit(1_000, heard.append, "did:b")
    await until(lambda: destination.batches)
    assert destination.batches == [[0, 1_000, 1]]
    destination.release(100)
    await until(lambda: len(heard) >= 101)
    of_a = [value for batch in destination.batches for value in batch if value < 1_000]
    assert of_a == list(range(100)), "one payer's requests keep their order"


async def test_a_request_that_no_batch_had_room_for_is_the_first_of_the_next() -> None:
    destination = Destination()
    channel: Channel[int, int] = Channel(
        "test", destination.call, capacity=9, batch_size=9, weight_of=lambda n: n, batch_weight=40
    )
    waiting = [
        asyncio.ensure_future(channel.request(value, "did:a")) for value in (10, 10, 10, 8, 7)
    ]
    await until(lambda: destination.batches)
    assert destination.batches == [[10, 10, 10, 8]]
    assert channel.queued == 1
    waiting.append(asyncio.ensure_future(channel.request(1, "did:b")))
    await asyncio.sleep(0)
    assert channel.queued == 2
    destination.release(9)
    async with asyncio.timeout(60):
        assert await asyncio.gather(*waiting) == [20, 20, 20, 16, 14, 2]
    assert destination.batches[1:] == [[7, 1]]
