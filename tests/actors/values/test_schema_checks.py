"""Inputs and results are judged by the schemas of their agent: in the loop, or beside it."""

from __future__ import annotations

import orjson
import pytest

from actors.ports import UNREAD_SCHEMA
from actors.values.agent_schemas import TEXTS_BYTES_MAX, AgentSchemas, schema_name
from actors.values.value_child import find_breach, judge_reply
from actors.values.value_process import JUDGED_IN_LOOP_BYTES_MAX
from core.errors import NodeErrorCode
from core.workflow.events import AttemptFailed, AttemptSucceeded, Verdict
from tests.actors.dispatch.test_dispatcher import replying, scene
from tests.actors.orders import sources_of
from tests.actors.values.test_value_process import an_order, received, reply_of

NUMBER_N = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
# 512 alternatives at each place: 100 bytes are too much for the loop.
COSTLY = {"additionalProperties": {"enum": [{"n": n} for n in range(512)]}}
NUMBER = orjson.dumps(NUMBER_N)


@pytest.mark.parametrize(
    ("payload", "is_refused"),
    [
        ({"n": 1}, False),
        ({"n": "1"}, True),
        ({"n": 1, "text": "x" * JUDGED_IN_LOOP_BYTES_MAX}, False),
        ({"n": "1", "text": "x" * JUDGED_IN_LOOP_BYTES_MAX}, True),
    ],
)
async def test_inputs_that_break_the_schema_are_not_sent(
    payload: dict[str, object], *, is_refused: bool
) -> None:
    """The first order finds the schema not compiled, the second at hand."""
    schemas = AgentSchemas()
    name = schemas.keep(NUMBER_N)
    async with scene(replying(status="success", result={}), schemas=schemas) as here:
        for _ in range(2):
            event = await here.outcome(sources=sources_of(payload), input_schema=name)
            if not is_refused:
                assert isinstance(event, AttemptSucceeded), event
                continue
            assert isinstance(event, AttemptFailed), event
            assert event.failure.code is NodeErrorCode.INPUT_SCHEMA
            assert event.failure.verdict is Verdict.FINAL_FOR_AGENT
            assert "$.n" in event.failure.message
        assert len(here.contacts) == 2


@pytest.mark.parametrize(
    ("result", "is_refused"),
    [
        ({"n": 1}, False),
        ({"n": None}, True),
        ({}, True),
        ({"n": 1, "text": "x" * JUDGED_IN_LOOP_BYTES_MAX}, False),
        ({"m": 1, "text": "x" * JUDGED_IN_LOOP_BYTES_MAX}, True),
    ],
)
async def test_result_that_breaks_the_schema_fails_its_attempt(
    result: dict[str, object], *, is_refused: bool
) -> None:
    schemas = AgentSchemas()
    name = schemas.keep(NUMBER_N)
    async with scene(replying(status="success", result=result), schemas=schemas) as here:
        for _ in range(2):
            event = await here.outcome(output_schema=name)
            if not is_refused:
                assert isinstance(event, AttemptSucceeded), event
                continue
            assert isinstance(event, AttemptFailed), event
            assert event.failure.code is NodeErrorCode.OUTPUT_SCHEMA
            assert event.failure.verdict is Verdict.RETRYABLE
            assert not event.failure.is_spared


async def test_costly_schema_is_judged_by_beside_the_loop() -> None:
    schemas = AgentSchemas()
    name = schemas.keep(COSTLY)
    result = {f"m{n}": {"n": n} for n in range(20)}
    async with scene(replying(status="success", result=result), schemas=schemas) as here:
        event = await here.outcome(output_schema=name)
        assert isinstance(event, AttemptSucceeded), event
        assert here.dispatcher.statistics().judged_in_child == 1
        assert not schemas.is_at_hand(name, 1_000)


@pytest.mark.parametrize("name", [schema_name(NUMBER), UNREAD_SCHEMA])
async def test_schema_that_is_not_kept_is_read_from_the_card(name: str) -> None:
    asked = []

    async def read_card(did: str) -> str:
        asked.append(did)
        one = {"id": "cap.x.v1", "outputSchema": NUMBER_N}
        return orjson.dumps({"capabilities": [{"id": "cap.y.v1"}, one]}).decode()

    schemas = AgentSchemas(read_card)
    async with scene(replying(status="success", result={"n": "x"}), schemas=schemas) as here:
        for _ in range(2):
            event = await here.outcome(output_schema=name)
            assert isinstance(event, AttemptFailed), event
        order = here.order(output_schema=name)
        failure = await here.dispatcher.checks.judge_result(order, '{"n":"x"}')
        assert failure is not None
        assert failure.code is NodeErrorCode.OUTPUT_SCHEMA
    assert asked == ["did:x:a"] * (3 if name == UNREAD_SCHEMA else 1)


@pytest.mark.parametrize("card", [None, '{"capabilities": [{"id": "cap.x.v1"}]}'])
async def test_agent_without_the_schema_goes_by_none(card: str | None) -> None:
    """Its card has changed between; another agent's schema of that name stays what it is."""

    async def read_card(_: str) -> str | None:
        return card

    schemas = AgentSchemas(read_card)
    name, text = await schemas.load(schema_name(NUMBER), "did:x:a", "cap.x.v1", "outputSchema")
    assert (name, text) == (schema_name(b"true"), b"true")
    assert not schemas.is_at_hand(schema_name(NUMBER), 1)


def test_texts_are_kept_as_far_as_there_is_room() -> None:
    schemas = AgentSchemas()
    small = schemas.keep({"title": "small"})
    first, second = (
        schemas.keep({"title": title, "description": "x" * (TEXTS_BYTES_MAX // 2)})
        for title in ("first", "second")
    )
    assert [schemas.kept_text(name) is not None for name in (small, first, second)] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(("result", "is_good"), [({"n": 1}, True), ({"n": "1"}, False)])
def test_value_process_judges_by_the_schema(result: object, *, is_good: bool) -> None:
    event = judge_reply(an_order(), received(reply_of(result)), NUMBER)
    assert isinstance(event, AttemptSucceeded) is is_good
    assert (find_breach(NUMBER, orjson.dumps(result)) is None) is is_good


def test_value_process_takes_a_schema_that_is_not_judged_by() -> None:
    """Cards that were registered before schemas were judged may have any."""
    assert find_breach(b'{"$ref": "http://x.invalid"}', b"1") is None
