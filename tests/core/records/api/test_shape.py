"""Declared classes: what they accept, what they tell, and that their schemas say the same."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from core.errors import PROBLEMS_MAX, ErrorCode, Problem, ServiceError
from core.records.api.kinds import Did, NodeName, PositiveCredits, TimeMs, Uuid, whole, words
from core.records.api.record import Record
from core.records.api.shape import (
    ABSENT,
    Absent,
    Also,
    Body,
    Maybe,
    MaybeNull,
    Named,
    Schemas,
    members_of,
    parsed,
    value_of,
)

MODULES = ("agents", "operators", "market", "review", "trust", "workflows")
BODIES = [
    declared
    for module in MODULES
    for declared in vars(importlib.import_module(f"core.records.api.{module}")).values()
    if isinstance(declared, type)
    and issubclass(declared, Body)
    and declared.__module__.endswith(module)
    and not declared.__name__.startswith("_")
    # Queries hold nothing but text; the others have members that other parsers judge further.
    and not declared.__name__.endswith("Query")
    and declared.__name__ not in ("PriceRequest", "TaskRequest", "NodeResult")
]
# Values of every kind, most of them wrong for most members.
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 5, 2**53, 0.5, 3.0, 1.0000001, "", "x", "1", "1.5", "true", "best",
    "user_request", "fraud", "healthy", "BUSY", "standard", "pending", "resolved_split", "open",
    "did:net:a", "did:net", "a" * 600, "a long enough story", "2026-01-31T12:00:00Z", "ZGlk",
    "0199c0de-0000-7000-8000-000000000001", [], ["workflows:read"], [1], {}, {"read": 1},
    {"read": 0}, {"x": 1},
]  # fmt: skip


class Inner(Body, is_closed=True):
    """Within another."""

    count: Annotated[int, whole(1, 9)]


class Outer(Body, is_closed=True):
    """One of everything."""

    did: Did
    amount: PositiveCredits
    inner: Maybe[Inner] = None
    name: MaybeNull[NodeName] = None
    lifted: int | Absent | None = ABSENT
    word: Annotated[str, words(("a", "b"))] = "a"
    depth: Annotated[Maybe[int], Also("queue_depth")] = None
    price_cents: Annotated[Maybe[int], Named("price_cents")] = None


class Twice(Body):
    """Has members with two names."""

    depth: Annotated[Maybe[int], Also("queue_depth")] = None
    nullable: Annotated[MaybeNull[int], Also("also")] = None


class Lenient(Body):
    """Ignores what it does not name."""

    did: Maybe[Did] = None


class Listed(Body):
    """Has a list."""

    names: list[str]


def problems_of(declared: type[Body], raw: Any) -> dict[str, str]:
    with pytest.raises(ServiceError) as refused:
        parsed(declared, raw)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    first, *others = refused.value.problems
    if not others:
        assert f"got {first.got}, expected {first.expected}" in refused.value.detail
    return {problem.path: problem.got for problem in refused.value.problems}


def test_a_body_becomes_typed_values() -> None:
    raw = {"did": "did:net:a", "amount": "1.5", "inner": {"count": 3}, "price_cents": 4}
    body = parsed(Outer, raw)
    assert (body.did, body.amount, body.inner, body.price_cents) == (
        "did:net:a", 1_500_000, Inner(count=3), 4,
    )  # fmt: skip
    assert (body.name, body.lifted, body.word, body.depth) == (None, ABSENT, "a", None)


def test_every_problem_is_told_at_once() -> None:
    raw = {"did": "x", "inner": {"count": 10, "odd": 1}, "word": "c", "misspelt": 1}
    assert problems_of(Outer, raw) == {
        "misspelt": "an unknown member",
        "did": "x",
        "amount": "nothing",
        "inner.odd": "an unknown member",
        "inner.count": "10",
        "word": "c",
    }


def test_a_refusal_names_a_bounded_number_of_problems_and_counts_the_others() -> None:
    raw = {"did": "did:net:a", **{f"m{number}": 1 for number in range(1_000)}}
    with pytest.raises(ServiceError) as refused:
        parsed(Outer, raw)
    assert len(refused.value.problems) == PROBLEMS_MAX
    counted = "the request has 1001 problems"  # the missing amount is the last
    assert refused.value.detail == (
        f"{counted}, the first {PROBLEMS_MAX} are shown: {refused.value.problems[0].sentence}"
    )


def test_an_open_body_ignores_what_it_does_not_name() -> None:
    assert parsed(Lenient, {"did": "did:net:a", "more": 1}).did == "did:net:a"


def test_null_is_refused_where_it_means_nothing() -> None:
    good = {"did": "did:net:a", "amount": 1}
    assert parsed(Outer, {**good, "name": None, "lifted": None}).lifted is None
    nulls = {**good, "inner": None, "word": None, "depth": None}
    assert set(problems_of(Outer, nulls)) == {"inner", "word", "depth"}


def test_a_second_name_counts_where_the_first_is_absent() -> None:
    good = {"did": "did:net:a", "amount": 1}
    assert parsed(Outer, {**good, "queue_depth": 3}).depth == 3
    assert problems_of(Outer, {**good, "queue_depth": "x"}) == {"queue_depth": "x"}


@pytest.mark.parametrize("raw", [None, [], "text", 1, True])
def test_what_is_no_object_is_one_problem(raw: Any) -> None:
    assert set(problems_of(Lenient, raw)) == {"$"}


def test_one_value_is_read_as_its_type() -> None:
    spelled = "0199c0de-0000-7000-8000-000000000001"
    for text in (spelled, spelled.upper(), spelled.replace("-", "")):
        assert value_of(Uuid, "id", text) == spelled
    with pytest.raises(ServiceError) as refused:
        value_of(Uuid, "id", "x")
    assert refused.value.problems == (Problem("id", "x", "an id in UUID form"),)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01T02:00:01.5+02:00", 1_500),
    ],
)
def test_times_are_utc(text: str, at_ms: int) -> None:
    assert value_of(TimeMs, "at", text) == at_ms


@pytest.mark.parametrize("text", ["yesterday", "", 1, None, "0001-01-01T00:00:00+14:00"])
def test_what_is_no_time_is_refused(text: Any) -> None:
    with pytest.raises(ServiceError):
        value_of(TimeMs, "at", text)


class Shown(Record):
    """A reply."""

    id: str
    ended_at: str | None
    taken_by: Maybe[str]
    stake: MaybeNull[int]


def test_a_schema_says_what_is_there_and_what_may_be_null() -> None:
    schemas = Schemas()
    assert schemas.of(Shown) == {"$ref": "#/components/schemas/Shown"}
    schema = schemas.components["Shown"]
    assert schema["required"] == ["id", "endedAt"]
    validator = Draft202012Validator(schema)
    assert validator.is_valid({"id": "a", "endedAt": None, "stake": None})
    assert not validator.is_valid({"id": None, "endedAt": None})
    assert not validator.is_valid({"id": "a", "endedAt": None, "takenBy": None})


@pytest.mark.parametrize("declared", BODIES, ids=lambda declared: declared.__name__)
@given(st.data())
def test_what_a_body_takes_its_schema_describes(declared: type[Body], data: st.DataObject) -> None:
    """Every declared body, with drawn members: nothing is taken that is not described."""
    names = [name for m in members_of(declared) for name in (m.json_name, m.also) if name]
    members = st.dictionaries(st.sampled_from([*names, "odd"]), st.sampled_from(VALUES))
    raw = data.draw(members)
    try:
        parsed(declared, raw)
    except ServiceError:
        return
    schemas = Schemas()
    root = {**schemas.of(declared), "components": {"schemas": schemas.components}}
    assert Draft202012Validator(root).is_valid(raw), raw


@pytest.mark.parametrize(
    ("raw", "depth"),
    [
        ({"depth": 1}, 1),
        ({"queue_depth": 1}, 1),
        ({"depth": 1, "queue_depth": 1}, 1),
        ({"nullable": None, "also": 2}, 2),
        ({"nullable": 2, "also": None}, 2),
        ({"nullable": None, "also": None}, None),
    ],
)
def test_a_member_is_read_by_either_of_its_names(raw: Any, depth: int | None) -> None:
    body = parsed(Twice, raw)
    assert (body.depth if body.depth is not None else body.nullable) == depth


def test_two_names_of_a_member_with_different_values_are_a_problem() -> None:
    assert problems_of(Twice, {"depth": 1, "queue_depth": 2}) == {"queue_depth": "2"}
    assert problems_of(Twice, {"nullable": 1, "also": 2}) == {"also": "2"}


def test_a_list_is_bounded_before_its_items_are_read() -> None:
    assert parsed(Listed, {"names": ["a"] * 1_000}).names == ["a"] * 1_000
    assert problems_of(Listed, {"names": [1] * 100_000}) == {"names": "100000 items"}
    assert problems_of(Listed, {"names": ["a", 1]}) == {"names[1]": "1"}
