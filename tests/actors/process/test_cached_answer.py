"""One question, many askers: it is asked once at a time, and only when the answer is old."""

from __future__ import annotations

import asyncio

import pytest

from actors.process.cached_answer import CachedAnswer


class Question:
    """Counts how often it is asked; the first fails if told so."""

    def __init__(self, *, fails_first: bool = False) -> None:
        self.asked = 0
        self.now_s = 0.0
        self._fails_first = fails_first
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ask(self) -> int:
        self.asked += 1
        number = self.asked
        await self.may_answer.wait()
        if self._fails_first and number == 1:
            raise ConnectionError("away")
        return number

    def clock(self) -> float:
        return self.now_s


def test_many_askers_ask_once_until_the_answer_is_old() -> None:
    async def scenario() -> None:
        question = Question()
        latest = CachedAnswer(question.ask, age_max_s=0.5, clock=question.clock)
        assert await asyncio.gather(*(latest.get() for _ in range(500))) == [1] * 500
        question.now_s = 0.49
        assert await latest.get() == 1
        question.now_s = 0.5
        assert await asyncio.gather(*(latest.get() for _ in range(500))) == [2] * 500
        assert question.asked == 2

    asyncio.run(scenario())


def test_an_asker_that_leaves_takes_no_answer_from_the_others() -> None:
    async def scenario() -> None:
        question = Question()
        question.may_answer.clear()
        latest = CachedAnswer(question.ask, age_max_s=0.5, clock=question.clock)
        leaving, staying = (asyncio.ensure_future(latest.get()) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        question.may_answer.set()
        assert await staying == 2, "it asked again"

    asyncio.run(scenario())


def test_a_failure_is_told_and_not_kept() -> None:
    async def scenario() -> None:
        question = Question(fails_first=True)
        latest = CachedAnswer(question.ask, age_max_s=0.5, clock=question.clock)
        with pytest.raises(ConnectionError):
            await latest.get()
        assert await latest.get() == 2

    asyncio.run(scenario())
