"""A bulk keeps most of its requests to itself until those before are answered."""

from __future__ import annotations

import asyncio

import pytest

from actors.routing.publishes import STEP, request_all


class Owner:
    """Answers in turn, when it is let go; knows the most that was under way."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, asyncio.Future[int]]] = []
        self.most = 0

    async def ask(self, request: int) -> int:
        reply: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, reply))
        self.most = max(self.most, sum(weight for weight, _ in self.waiting))
        if request == 13:
            raise ValueError(request)
        return await reply

    def answer(self) -> None:
        request, reply = self.waiting.pop(0)
        if not reply.done():
            reply.set_result(2 * request)


async def answer_all(owner: Owner, asked: asyncio.Future[list[int | BaseException]]) -> None:
    async with asyncio.timeout(60):
        while not asked.done():
            await asyncio.sleep(0)
            if owner.waiting:
                owner.answer()


@pytest.mark.parametrize("weight_max", [1, 30, 10_000])
async def test_no_more_than_the_bound_is_under_way_and_replies_are_in_order(
    weight_max: int,
) -> None:
    owner = Owner()
    requests = [1, 5, 13, 40, 2, *range(14, 80)]
    asked = asyncio.ensure_future(
        request_all(
            owner.ask,
            requests,
            weight_of=lambda request: request,
            weight_max=weight_max,
        )
    )
    await answer_all(owner, asked)
    replies = asked.result()
    assert isinstance(replies[2], ValueError)
    assert [*replies[:2], *replies[3:]] == [2 * one for one in requests if one != 13]
    assert owner.most <= max(weight_max + 13, max(requests) + 13)


def test_a_large_bulk_is_begun_in_steps() -> None:
    begun: list[int] = []
    seen: list[int] = []

    async def ask(request: int) -> None:
        begun.append(request)

    def weight_of(request: int) -> int:
        seen.append(request - len(begun))
        return 0

    async def bulk() -> None:
        await request_all(ask, range(4 * STEP), weight_of=weight_of, weight_max=1)

    asyncio.run(bulk())
    assert max(seen) <= STEP, "asked for in one turn of the loop"
