"""Who is the writer, before and after a hand-over whose answer is late."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from actors.cluster.ledgers.ledger_handover import (
    HandoverFailed,
    find_writer,
    is_writer,
    take_head,
)


def ledger(*, is_writer: bool | None, take_over: Callable[[], None] = lambda: None) -> Any:
    """Return the handle of a ledger's actor; `is_writer` None: it does not answer."""

    async def ping() -> dict[str, Any]:
        if is_writer is None:
            raise ActorUnavailableError("it is starting", None)
        return {"isWriter": is_writer}

    async def taken() -> None:
        take_over()

    return SimpleNamespace(
        ping=SimpleNamespace(remote=ping), take_over=SimpleNamespace(remote=taken)
    )


def late() -> None:
    """Take the head too late for the answer."""
    raise TimeoutError


async def test_writer_is_the_one_that_says_so() -> None:
    ledgers = {"ledger": ledger(is_writer=None), "ledger#1": ledger(is_writer=True)}
    assert await find_writer(ledgers) == "ledger#1"


@pytest.mark.parametrize("says", [(True, True), (False, None)], ids=["both", "none"])
async def test_nothing_is_ended_while_it_is_not_certain_who_is_the_writer(
    says: tuple[bool | None, bool | None],
) -> None:
    """One that was replaced and has not noticed it says so as well. The first that did was taken
    for the writer, and the other one, which was it, ended as its standby."""
    ledgers = {"ledger": ledger(is_writer=says[0]), "ledger#1": ledger(is_writer=says[1])}
    with pytest.raises(HandoverFailed, match="expected 1"):
        await find_writer(ledgers)


async def test_head_that_was_taken_too_late_for_the_answer_is_taken_all_the_same() -> None:
    """The start goes on when the caller waits no more. The new writer was ended then."""
    await take_head(ledger(is_writer=True, take_over=late))
    for answer in (False, None):
        with pytest.raises(HandoverFailed, match="not taken in time"):
            await take_head(ledger(is_writer=answer, take_over=late))


async def test_silence_is_no_answer_to_who_is_the_writer() -> None:
    """A standby is ended only when it says that it is none."""
    assert [await is_writer(ledger(is_writer=says)) for says in (True, False, None)] == [
        True, False, None
    ]  # fmt: skip
