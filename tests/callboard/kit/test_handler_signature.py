"""What a handler's signature says: schemas for the card, values for the call."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import core_schema

from callboard import Agent, Context, Later
from callboard.kit.handler_signature import Signature, as_json


@dataclass
class Page:
    """An input with structure."""

    url: str
    words: int = 0


class Summary(BaseModel):
    """A result with structure."""

    text: str
    score: float = 0.5


def plain(text: str, inputs: dict[str, Any], context: Context, times: int = 2) -> Summary:
    return Summary(text=text * times)


def structured(page: Page) -> Page:
    return Page(page.url, page.words + 1)


def whole(inputs: Page) -> dict[str, Any]:
    return {}


def silent(text: Any, inputs: Any, parents: Any, later: Later, **others: Any) -> Later:
    return later


def unresolvable(text: Nowhere) -> Nowhere:  # type: ignore[name-defined] # noqa: F821
    return text


def opaque(text: str, lock: asyncio.Lock) -> dict[str, Any]:
    return {}


def test_named_parameters_are_members_of_the_input_schema() -> None:
    assert Signature(plain).input_schema == {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "times": {"type": "integer", "default": 2},
        },
        "required": ["text"],
        "additionalProperties": True,
    }


def test_the_result_type_is_the_output_schema() -> None:
    schema = Signature(plain).output_schema
    assert schema is not None
    assert schema["properties"] == {
        "text": {"type": "string"},
        "score": {"type": "number", "default": 0.5},
    }


def test_the_type_of_inputs_as_a_whole_is_the_input_schema() -> None:
    schema = Signature(whole).input_schema
    assert schema is not None
    assert schema["required"] == ["url"]


@pytest.mark.parametrize("handler", [silent, unresolvable])
def test_hints_that_say_nothing_make_no_schema(handler: Any) -> None:
    signature = Signature(handler)
    assert (signature.input_schema, signature.output_schema) == (None, None)


def test_one_unresolvable_hint_leaves_the_others() -> None:
    def mixed(text: str, context: Context) -> Nowhere:  # type: ignore[name-defined] # noqa: F821
        return {"text": text, "capability": context.capability_id}

    schema = Signature(mixed).input_schema
    assert schema is not None
    assert schema["properties"] == {"text": {"type": "string"}}
    assert served(mixed, text="a")[1]["result"] == {"text": "a", "capability": "cap.x.v1"}


def test_a_type_that_json_cannot_say_is_any_value() -> None:
    schema = Signature(opaque).input_schema
    assert schema is not None
    assert schema["properties"] == {"text": {"type": "string"}, "lock": {}}


def served(handler: Any, **inputs: Any) -> tuple[int, Any]:
    agent = Agent("did:net:a")
    agent.capability("cap.x.v1")(handler)
    body = json.dumps({"eventId": "e", "capabilityId": "cap.x.v1", "inputs": inputs}).encode()
    answer = asyncio.run(agent.answer(body, None))
    return answer.status, json.loads(answer.body)


def test_values_have_the_types_that_the_handler_asks_for() -> None:
    status, reply = served(structured, page={"url": "http://x", "words": 3})
    assert (status, reply["result"]) == (200, {"url": "http://x", "words": 4})


def test_a_model_becomes_an_object() -> None:
    assert served(plain, text="ab")[1]["result"] == {"text": "abab", "score": 0.5}


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ({}, "MISSING_INPUT"),
        ({"page": {"words": 1}}, "INVALID_INPUT"),
        ({"page": 5}, "INVALID_INPUT"),
    ],
)
def test_an_input_of_another_type_is_final(inputs: dict[str, Any], code: str) -> None:
    status, reply = served(structured, **inputs)
    assert (status, reply["code"]) == (400, code)
    assert "'page'" in reply["error"]


class Unhashable(type):
    """Makes types that no dictionary holds."""

    __hash__ = None  # type: ignore[assignment]


class Counted:
    """A result that counts how often it is described."""

    described = 0

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        cls.described += 1
        as_object = core_schema.plain_serializer_function_ser_schema(lambda _: {"n": 1})
        return core_schema.any_schema(serialization=as_object)


def test_results_of_one_type_are_described_once() -> None:
    """It was done for every result, at a millisecond each."""
    assert [as_json(Counted()) for _ in range(3)] == [{"n": 1}] * 3
    assert Counted.described == 1


def test_result_of_a_type_that_cannot_be_remembered_is_described_all_the_same() -> None:
    @dataclass
    class Point(metaclass=Unhashable):
        x: int

    assert [as_json(Point(number)) for number in range(2)] == [{"x": 0}, {"x": 1}]
