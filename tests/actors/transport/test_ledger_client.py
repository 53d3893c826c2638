"""Commands to the ledger: repeated while that makes sense, each for itself, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
import pytest

from actors.transport.actor_calls import is_unknown_outcome
from actors.transport.ledger_client import COMMAND_WEIGHT, LedgerClient
from actors.transport.messages import CALL_BYTES_MAX
from actors.transport.wire import answer_commands
from core.errors import ErrorCode, ServiceError
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.features.accounts import Deposit
from ledger.features.shards import JoinCluster
from tests.platform.waiting import until

GONE = ConnectionError("the ledger is away")


class Ledger:
    """Answers unless it is away, or a command in the batch is one that it cannot be asked for."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.applied: list[str] = []
        self.away: Exception | None = None
        self.unbearable: dict[str, Exception] = {}

    async def submit(self, batch: list[Command]) -> Sequence[Outcome]:
        """Carry a batch."""
        await asyncio.sleep(0)
        keys = [command.key for command in batch]
        self.batches.append(keys)
        for key in keys:
            if key in self.unbearable:
                raise self.unbearable[key]
        if self.away is not None:
            raise self.away
        self.applied += keys
        return [Outcome(OutcomeStatus.APPLIED, {"key": key}) for key in keys]


def client_of(ledger: Ledger) -> LedgerClient:
    submit = partial(answer_commands, ledger.submit)
    return LedgerClient(submit, is_unknown_outcome, capacity=1_000, batch_size=100)


def command(key: str) -> Command:
    return JoinCluster(key=key, member="m", machine="h", address="a", version="1")


def deposit(key: str, actor: str) -> Command:
    return Deposit(
        key=key,
        request_hash=b"",
        actor_did=f"did:test:{actor}",
        owner_did="did:test:wallet",
        amount_micro=1,
        description="",
    )


async def submitted(client: LedgerClient, keys: Sequence[str]) -> list[Outcome | BaseException]:
    """Submit commands as an owner does and return their outcomes."""
    heard: list[Outcome | BaseException] = []
    for key in keys:
        client.submit(command(key), heard.append)
    await until(lambda: len(heard) >= len(keys))
    return heard


@pytest.mark.parametrize("guilty", [["k7"], ["k0", "k1", "k19"]])
async def test_command_that_cannot_be_carried_is_refused_alone(guilty: list[str]) -> None:
    ledger = Ledger()
    ledger.unbearable = {key: TypeError("cannot be carried") for key in guilty}
    keys = [f"k{number}" for number in range(20)]
    outcomes = await submitted(client_of(ledger), keys)
    refused = [key for key, one in zip(keys, outcomes, strict=True)
               if isinstance(one, Outcome) and one.error is ErrorCode.INTERNAL_ERROR]  # fmt: skip
    assert refused == guilty
    innocent = [key for key in keys if key not in guilty]
    assert list(dict.fromkeys(ledger.applied)) == innocent, "each applied, in order"


async def test_unknown_outcomes_are_repeated_until_known_in_smaller_parts() -> None:
    ledger = Ledger()
    ledger.away = GONE
    client = client_of(ledger)
    keys = [f"k{number}" for number in range(8)]
    asked = asyncio.ensure_future(submitted(client, keys))
    await until(lambda: len(ledger.batches) >= 3)
    assert client.is_down
    ledger.away = None
    await asked
    assert ledger.applied == keys
    assert [len(batch) for batch in ledger.batches[:3]] == [8, 4, 2]
    assert not client.is_down


async def test_command_whose_caller_has_left_is_not_repeated_and_the_next_is_tried() -> None:
    """It was repeated for ever, and everything behind it was refused without being tried."""
    ledger = Ledger()
    ledger.unbearable = {"poison": GONE}
    client = client_of(ledger)
    with pytest.raises(ServiceError) as refusal:
        await client.commit(command("poison"), timeout_s=0.01)
    assert refusal.value.code is ErrorCode.LEDGER_UNAVAILABLE
    async with asyncio.timeout(60):
        await until(lambda: not client.is_down)
        outcome = await client.commit(command("good"), timeout_s=60)
    assert outcome.result == {"key": "good"}
    assert ledger.applied == ["good"]


async def test_full_ledger_is_asked_again_and_is_not_down() -> None:
    ledger = Ledger()
    ledger.away = ServiceError(ErrorCode.OVERLOADED, "many wait")
    client = client_of(ledger)
    asked = asyncio.ensure_future(client.commit(command("k"), timeout_s=60))
    await until(lambda: len(ledger.batches) >= 2)
    assert not client.is_down
    ledger.away = None
    assert (await asked).result == {"key": "k"}


async def test_submitted_command_whose_outcome_stays_unknown_is_told_of() -> None:
    ledger = Ledger()
    ledger.away = ConnectionError("away")
    lost: list[str] = []
    client = LedgerClient(
        partial(answer_commands, ledger.submit),
        is_unknown_outcome,
        on_lost=lost.append,
        capacity=10,
        batch_size=10,
    )
    heard: list[Outcome] = []
    client.submit(command("k"), heard.append)
    await asyncio.sleep(0)
    client._channel.close()
    await until(lambda: lost)
    assert lost[0].startswith("k: ConnectionError")
    assert not heard


async def test_callers_take_turns_by_whose_commands_theirs_are() -> None:
    """One tenant's thousand deposits stood before another's one."""
    ledger = Ledger()
    submit = partial(answer_commands, ledger.submit)
    client = LedgerClient(submit, is_unknown_outcome, capacity=2_000, batch_size=1)
    asked = [
        asyncio.ensure_future(client.commit(deposit(f"a{number}", "a"), timeout_s=60))
        for number in range(100)
    ]
    asked.append(asyncio.ensure_future(client.commit(deposit("b", "b"), timeout_s=60)))
    await asyncio.gather(*asked)
    assert ledger.batches.index(["b"]) <= 2


async def test_a_call_holds_a_few_hundred_commands_however_small() -> None:
    """The 650 empty steps of a restore were one transaction, for which a deposit waited 100 ms."""
    ledger = Ledger()
    submit = partial(answer_commands, ledger.submit)
    client = LedgerClient(submit, is_unknown_outcome, capacity=2_000, batch_size=1_000)
    heard: list[object] = []
    for number in range(1_000):
        client.submit(command(f"k{number}"), heard.append)
    await until(lambda: len(heard) >= 1_000)
    assert max(map(len, ledger.batches)) <= CALL_BYTES_MAX // COMMAND_WEIGHT


async def test_command_without_bytes_is_refused_alone() -> None:
    ledger = Ledger()
    outcomes = await submitted(client_of(ledger), ["good", "half a pair: \ud800", "too"])
    assert [outcome.error for outcome in outcomes if isinstance(outcome, Outcome)] == [
        None, ErrorCode.INTERNAL_ERROR, None,
    ]  # fmt: skip
    refused = await client_of(ledger).commit(command("\ud800"), timeout_s=60)
    assert refused.error is ErrorCode.INTERNAL_ERROR
    assert ledger.applied == ["good", "too"]


async def test_outcome_that_cannot_be_read_is_that_of_its_command_alone() -> None:
    ledger = Ledger()

    async def garbled(bodies: list[bytes]) -> list[bytes]:
        found = await answer_commands(ledger.submit, bodies)
        return [found[0][:-1], *found[1:]]

    client = LedgerClient(garbled, is_unknown_outcome, capacity=1_000, batch_size=100)
    outcomes = await submitted(client, ["k0", "k1"])
    assert [outcome.error for outcome in outcomes if isinstance(outcome, Outcome)] == [
        ErrorCode.INTERNAL_ERROR, None,
    ]  # fmt: skip
    assert ledger.applied == ["k0", "k1"]


async def test_outcome_of_a_newer_ledger_is_no_defect_of_its_command() -> None:
    """A code that this version does not know was a refused step, and its workflow quarantined."""

    async def newer(bodies: list[bytes]) -> list[bytes]:
        outcome = {"type": "Outcome", "status": "rejected", "error": "TIP_TOO_SMALL"}
        return [msgspec.msgpack.encode(outcome) for _ in bodies]

    client = LedgerClient(newer, is_unknown_outcome, capacity=1_000, batch_size=100)
    (outcome,) = await submitted(client, ["k0"])
    assert isinstance(outcome, Outcome)
    assert outcome.error is ErrorCode.OVERLOADED
