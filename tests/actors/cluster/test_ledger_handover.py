"""Who is the writer, and when a hand-over goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from actors.cluster.ledgers.ledger_handover import (
    HandoverFailed,
    find_writer,
    is_writer,
    wait_until,
)


def ledger(*, is_writer: bool | None) -> Any:
    """Return the handle of a ledger's actor; `is_writer` None: it does not answer."""

    async def ping() -> dict[str, Any]:
        if is_writer is None:
            raise ActorUnavailableError("it is starting", None)
        return {"isWriter": is_writer}

    return SimpleNamespace(ping=SimpleNamespace(remote=ping))


async def test_writer_is_the_one_that_says_so() -> None:
    ledgers = {"ledger": ledger(is_writer=None), "ledger#1": ledger(is_writer=True)}
    assert await find_writer(ledgers) == "ledger#1"


@pytest.mark.parametrize("says", [(True, True), (False, None)], ids=["both", "none"])
async def test_nothing_is_ended_while_it_is_not_certain_who_is_the_writer(
    says: tuple[bool | None, bool | None],
) -> None:
    """The first that said so was taken for the writer, and the other ended as its standby."""
    ledgers = {"ledger": ledger(is_writer=says[0]), "ledger#1": ledger(is_writer=says[1])}
    with pytest.raises(HandoverFailed, match="expected 1"):
        await find_writer(ledgers)


async def test_state_that_is_not_reached_in_time_fails_with_the_last_answer() -> None:
    await wait_until(ledger(is_writer=True), "isWriter", 0)
    for says, last in ((False, "'isWriter': False"), (None, "{}")):
        with pytest.raises(HandoverFailed, match=last):
            await wait_until(ledger(is_writer=says), "isWriter", 0)


async def test_silence_is_no_answer_to_who_is_the_writer() -> None:
    """A standby is ended only when it says that it is none."""
    assert [await is_writer(ledger(is_writer=says)) for says in (True, False, None)] == [
        True, False, None
    ]  # fmt: skip
