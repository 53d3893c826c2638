"""Small manifests are compiled at once, large ones beside the event loop, with the same outcome."""

from __future__ import annotations

import asyncio
import threading

import pytest

from core.trust.access import BY_ADDRESS, Principal
from serve_app.http.worker_thread import IN_LOOP_BYTES_MAX, in_thread
from tests.serve_app.parts import call_of


async def test_small_work_is_done_here_and_large_work_in_one_other_thread() -> None:
    here = threading.get_ident()
    assert await in_thread("did:x:a", IN_LOOP_BYTES_MAX, threading.get_ident) == here
    others = await asyncio.gather(
        *(in_thread("did:x:a", IN_LOOP_BYTES_MAX + 1, threading.get_ident) for _ in range(4))
    )
    assert len(set(others)) == 1
    assert here not in others


async def test_the_loop_goes_on_while_large_work_is_done() -> None:
    may_end = threading.Event()
    work = asyncio.ensure_future(
        in_thread("did:x:a", IN_LOOP_BYTES_MAX + 1, lambda: may_end.wait(60))
    )
    for _ in range(10):
        await asyncio.sleep(0)
    assert not work.done()
    may_end.set()
    assert await work


@pytest.mark.parametrize(
    ("caller", "account"),
    [
        (Principal("did:x:a", "k", frozenset()), "did:x:a"),
        (Principal("did:x:a", "k", frozenset(), is_stranger=True), "192.0.2.1"),
        (Principal("free", "free", frozenset(), rate_class=BY_ADDRESS), "192.0.2.1"),
        (None, "192.0.2.1"),
    ],
    ids=["owner", "stranger", "free tier", "none"],
)
def test_who_shares_a_credential_with_all_others_waits_for_its_address_alone(
    caller: Principal | None, account: str
) -> None:
    assert call_of(principal=caller, address="192.0.2.1").account == account


async def test_a_caller_has_one_piece_of_work_there_at_a_time() -> None:
    """Forty comparisons that one caller asks for at once kept all others out for seconds."""
    large, done = IN_LOOP_BYTES_MAX + 1, []

    may_end = threading.Event()
    began = asyncio.ensure_future(in_thread("did:x:a", large, lambda: may_end.wait(60)))
    more = [in_thread("did:x:a", large, lambda: done.append("a")) for _ in range(3)]
    waiting = [asyncio.ensure_future(one) for one in more]
    for _ in range(10):
        await asyncio.sleep(0)
    other = asyncio.ensure_future(in_thread("did:x:b", large, lambda: done.append("b")))
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(began, *waiting, other)
    assert done == ["b", "a", "a", "a"]


@pytest.mark.parametrize("size", [0, IN_LOOP_BYTES_MAX + 1])
def test_what_the_work_refuses_is_refused(size: int) -> None:
    def refuse() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(in_thread("did:x:a", size, refuse))
