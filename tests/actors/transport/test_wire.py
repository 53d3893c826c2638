"""Messages arrive as what was sent; of another version, as much of them as both versions know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from actors.transport.messages import Moved, NotYet, OwnerReply, OwnerRequest, WatchRequest
from actors.transport.wire import (
    COMMANDS,
    OUTCOMES,
    REQUESTS,
    NewerMessage,
    Undecodable,
    Unencodable,
    Wire,
    answer_commands,
    answer_requests,
    decode_failure,
    decode_reply,
    encode_failure,
    packed,
    with_workflow_id,
)
from actors.workflows.step_commands import is_halting, quarantine_code
from core.errors import ErrorCode, Problem, ServiceError
from core.message import Message
from core.records.manifest import parse_manifest
from core.workflow.dag import compile_workflow
from core.workflow.events import NodePaid
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.features.accounts import Deposit
from ledger.features.shards import JoinCluster
from ledger.features.workflow_commands import AdvanceWorkflow
from tests.actors.transport.message_samples import families, full, members, required

WIRES: dict[str, Wire[Any]] = {name: Wire[Any](union) for name, union in families().items()}
CASES = [
    pytest.param(family, kind, id=f"{family}-{kind.__name__}")
    for family, union in families().items()
    for kind in members(union)
]
REFUSED = ServiceError(ErrorCode.OVERLOADED, "full", (Problem("a", "b", "c"),), 3)
JOIN = JoinCluster(key="k", member="m", machine="h", address="a", version="1")


@pytest.mark.parametrize(("family", "kind"), CASES)
@pytest.mark.parametrize("made", [full, required])
def test_message_arrives_equal(family: str, kind: type[Message], made: Any) -> None:
    sent = made(kind)
    arrived = WIRES[family].decode(WIRES[family].encode(sent))
    assert arrived == sent
    assert type(arrived) is kind


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_old_reader_ignores_what_a_newer_sender_adds(family: str, kind: type[Message]) -> None:
    sent = full(kind)
    newer = msgspec.msgpack.decode(WIRES[family].encode(sent)) | {"added_later": {"n": 1}}
    assert WIRES[family].decode(msgspec.msgpack.encode(newer)) == sent


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_message_without_a_field_that_has_no_default_is_refused(
    family: str, kind: type[Message]
) -> None:
    told = msgspec.msgpack.decode(WIRES[family].encode(required(kind)))
    for name in set(told) - {"type"}:
        rest = {key: value for key, value in told.items() if key != name}
        with pytest.raises(Undecodable, match=name):
            WIRES[family].decode(msgspec.msgpack.encode(rest))


def test_no_field_of_a_message_is_called_as_its_tag() -> None:
    for union in families().values():
        for kind in members(union):
            assert kind.__struct_config__.tag == kind.__name__
            assert kind.__struct_config__.tag_field not in kind.__struct_fields__


def test_compiled_workflow_arrives_equal_and_in_order() -> None:
    manifest = {
        "nodes": {
            "b": {"capabilityId": "c", "payload": {"deep": [{"n": 1.5, "t": "é", "z": None}]}},
            "a": {"capabilityId": "c", "dependsOn": ["b"], "inputMappings": {"t": "$.b.result[0]"}},
        }
    }
    sent = compile_workflow(parse_manifest(manifest))
    wire = Wire[Any](type(sent))
    arrived = wire.decode(wire.encode(sent))
    assert arrived == sent
    assert list(arrived.nodes) == ["b", "a"]
    assert arrived.nodes["a"].mappings[0].steps == (0,)


def test_packed_request_travels_as_the_request() -> None:
    (publish,) = (kind for kind in members(OwnerRequest) if kind.__name__ == "PublishRequest")
    request: Any = full(publish)
    made = packed(request)
    assert (made.workflow_id, made.payer_did, made.is_dry_run) == ("x", "x", True)
    assert REQUESTS.decode(made.body) == request


def test_request_under_another_id_keeps_its_key_packed_or_not() -> None:
    (publish,) = (kind for kind in members(OwnerRequest) if kind.__name__ == "PublishRequest")
    request: Any = full(publish)
    other = with_workflow_id(request, "y")
    assert other == msgspec.structs.replace(request, workflow_id="y")
    again = with_workflow_id(packed(request), "y")
    assert again == packed(other)


@pytest.mark.parametrize(
    "error",
    [REFUSED, NotYet(ErrorCode.CONFLICT, "soon"), Moved(ErrorCode.OVERLOADED, "elsewhere")],
)
async def test_refusal_arrives_with_all_its_fields(error: ServiceError) -> None:
    async def refuse(requests: list[OwnerRequest]) -> Sequence[OwnerReply]:
        return [error, None]

    bodies = [REQUESTS.encode(WatchRequest(workflow_id="w", watcher="x"))] * 2
    refused, nothing = map(decode_reply, await answer_requests(refuse, bodies))
    assert type(refused) is type(error)
    assert isinstance(refused, ServiceError) and refused.args == error.args
    assert nothing is None
    failed = decode_failure(encode_failure(error))
    assert type(failed) is type(error) and failed.args == error.args
    assert str(decode_failure(encode_failure(KeyError("\ud800")))) == "KeyError('\\ud800')"


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xc1",
        b"no message",
        msgspec.msgpack.encode(msgspec.to_builtins(JOIN) | {"key": 5}),
        msgspec.msgpack.encode({"type": "JoinCluster", "key": "k"}),
        COMMANDS.encode(JOIN)[:-1],
        COMMANDS.encode(JOIN) + b"\x00",
        b"\x81\xa4type" * 10_000,
    ],
)
async def test_garbage_is_refused_alone(garbage: bytes) -> None:
    committed: list[Command] = []

    async def commit(commands: list[Command]) -> list[Outcome]:
        committed.extend(commands)
        return [Outcome(OutcomeStatus.APPLIED, {"n": n}) for n in range(len(commands))]

    bodies = [COMMANDS.encode(JOIN), garbage, COMMANDS.encode(JOIN)]
    outcomes = [OUTCOMES.decode(body) for body in await answer_commands(commit, bodies)]
    assert [outcome.error for outcome in outcomes] == [None, ErrorCode.INTERNAL_ERROR, None]
    assert [outcomes[0].result, outcomes[2].result] == [{"n": 0}, {"n": 1}]
    assert committed == [JOIN, JOIN]
    (alone,) = [OUTCOMES.decode(body) for body in await answer_commands(commit, [garbage])]
    assert alone.status is OutcomeStatus.REJECTED


def _newer_step() -> dict[str, Any]:
    """Return a step, as it travels, with a record that this version does not know."""
    step = AdvanceWorkflow(
        key="k",
        member="m",
        shard_epoch=1,
        workflow_id="w",
        actor_did="o",
        records=(NodePaid("a", "did:a:b", 5),),
        slash_bps=0,
        slash_fraud_bps=0,
    )
    sent: dict[str, Any] = msgspec.msgpack.decode(COMMANDS.encode(step))
    sent["records"][0]["type"] = "NodeTipped"
    return sent


async def test_what_only_a_newer_version_knows_is_told_apart_from_damage() -> None:
    """An older ledger called a newer owner's step a defect: its workflow was quarantined."""

    async def commit(commands: list[Command]) -> list[Outcome]:
        raise AssertionError("nothing of it can be carried out")

    for newer in (_newer_step(), {"type": "NoSuchCommand", "key": "k"}):
        (body,) = await answer_commands(commit, [msgspec.msgpack.encode(newer)])
        outcome = OUTCOMES.decode(body)
        assert outcome.status is OutcomeStatus.REJECTED
        assert outcome.error is ErrorCode.OVERLOADED
        assert is_halting(outcome)
        assert quarantine_code(outcome) is None
    request = msgspec.msgpack.encode({"type": "NoSuchRequest"})
    (answer,) = await answer_requests(_no_request, [request])
    refused = decode_reply(answer)
    assert isinstance(refused, ServiceError)
    assert (refused.code, refused.retry_after_s) == (ErrorCode.OVERLOADED, 1)
    with pytest.raises(NewerMessage):
        OUTCOMES.decode(msgspec.msgpack.encode({"type": "Outcome", "status": "tipped"}))


@pytest.mark.parametrize(
    "change",
    [{"amount_micro": "5"}, {"amount_micro": 5.5}, {"owner_did": b"did:a:b"}, {"request_hash": 7}],
)
def test_damage_is_not_taken_for_a_newer_version(change: dict[str, Any]) -> None:
    deposit = Deposit(
        key="k", request_hash=b"h", actor_did="a", owner_did="a", amount_micro=5, description="d"
    )
    sent = msgspec.msgpack.decode(COMMANDS.encode(deposit)) | change
    with pytest.raises(Undecodable) as caught:
        COMMANDS.decode(msgspec.msgpack.encode(sent))
    assert not isinstance(caught.value, NewerMessage)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**128 - 1, -(10**128) + 1])
def test_integers_beyond_64_bits_arrive(value: int) -> None:
    details = {"n": value, "in": [{"n": value}], "least": -(2**63), "most": 2**64 - 1, "t": True}
    sent = Outcome(OutcomeStatus.APPLIED, details)
    assert OUTCOMES.decode(OUTCOMES.encode(sent)) == sent


@pytest.mark.parametrize("code", [0, 1, 2])
def test_an_extension_that_is_no_integer_is_refused(code: int) -> None:
    content = msgspec.msgpack.Ext(code, b"9" * 5_000 if code == 1 else b"1")
    body = msgspec.msgpack.encode(
        {"type": "Outcome", "status": "applied", "result": {"n": content}}
    )
    with pytest.raises(Undecodable):
        OUTCOMES.decode(body)


async def _no_request(requests: list[OwnerRequest]) -> list[OwnerReply]:
    raise AssertionError("nothing of it can be handled")


@pytest.mark.parametrize(
    "value",
    ["\ud800", 10**5_000, object(), {1, 2, 3, object()}],
    ids=lambda value: type(value).__name__,
)
def test_value_without_bytes_is_refused_by_its_sender(value: Any) -> None:
    with pytest.raises(Unencodable):
        OUTCOMES.encode(Outcome(OutcomeStatus.APPLIED, {"value": value}))
