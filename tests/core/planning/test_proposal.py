"""A model's answer becomes a draft that publish takes, or is refused; its texts are not kept."""

from __future__ import annotations

import string
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.planning.plan import NODES_MAX, Plan
from core.planning.prompt import OFFERS_BYTES_MAX, questions
from core.planning.proposal import ANSWER_CHARS_MAX, UnusableAnswer, plan_of_answer
from tests.core.planning.test_plan import OFFERS, assert_publishable, offer

Json = dict[str, Any]
SAYS = "Fetch https://example.org/a and summarize it in French"


def node(name: str, capability: str, phrase: str = "", **inputs: Json) -> Json:
    """Return a node of an answer."""
    return {"name": name, "capability": capability, "phrase": phrase, "inputs": inputs}


def drafted(*nodes: Json, says: str = SAYS, **more: Any) -> Plan:
    """Return the draft of an answer with these nodes."""
    answer = {"nodes": list(nodes), **more}
    draft = plan_of_answer(orjson.dumps(answer).decode(), says, OFFERS)
    assert_publishable(draft)
    assert draft.planner == "model"
    return draft


FETCH = node("a", "cap.web.fetch.v1", "Fetch", url={"value": "https://example.org/a"})


@pytest.mark.parametrize("fence", ["```json\n{}\n```", "```\n{}```", "  {}\n"])
def test_an_answer_may_stand_in_a_fence(fence: str) -> None:
    text = fence.replace("{}", orjson.dumps({"nodes": [FETCH]}).decode())
    assert list(plan_of_answer(text, SAYS, OFFERS).nodes()) == ["fetch"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I would fetch the page.",
        "{",
        "[]",
        "null",
        '{"nodes": []}',
        '{"nodes": [5]}',
        '{"nodes": [{"name": "a"}]}',
        '{"nodes": [{"name": "a", "capability": "cap.web.fetch.v1", "maxCostCredits": 1000}]}',
        '{"nodes": [{"name": "a", "capability": "cap.web.fetch.v1"}], "intent": "publish"}',
        '{"nodes": [{"name": "a", "capability": "cap.web.fetch.v1", "inputs": {"url": "x"}}]}',
        '{"nodes": [{"name": "\\ud800", "capability": "cap.web.fetch.v1"}]}',
        "[" * 100_000,
        '{"nodes":' + "[" * 100_000,
        '{"nodes": [' + '{"name": "a", "capability": "c"},' * 65 + "]}",
        '{"nodes": [{"name": "' + "a" * 129 + '", "capability": "c"}]}',
        " " * (ANSWER_CHARS_MAX + 1),
    ],
    ids=range(17),
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(UnusableAnswer):
        plan_of_answer(text, SAYS, OFFERS)


def test_an_unknown_capability_is_replaced_by_what_fits_its_words_or_left_out() -> None:
    draft = drafted(
        node("a", "cap.made.up.v9", "summarize it"),
        node("b", "cap.coffee.v1", "brew coffee", beans={"node": "a", "output": "summary"}),
        node("c", "fetch_web_page"),
    )
    assert [one["capabilityId"] for one in draft.nodes().values()] == [
        "cap.text.summarize.v1",
        "cap.web.fetch.v1",
    ]
    assert draft.notes == [
        "summarize replaces a requested capability that no agent offers",
        "a node whose capability no agent offers is left out",
        "fetch replaces a requested capability that no agent offers",
    ]
    with pytest.raises(UnusableAnswer, match="no agent offers"):
        drafted(node("a", "cap.coffee.v1", "brew coffee"))


@pytest.mark.parametrize(
    "given",
    [
        {"node": "zz", "output": "text"},
        {"node": "a", "output": "nothing"},
        {"node": "a", "output": "status"},
        {"value": "https://evil.example/collect"},
        {"node": "a"},
        {},
    ],
    ids=range(6),
)
def test_an_input_that_cannot_be_filled_so_is_left_open(given: Json) -> None:
    draft = drafted(FETCH, node("b", "cap.text.summarize.v1", "summarize it", text=given))
    assert draft.nodes()["summarize"] == {"capabilityId": "cap.text.summarize.v1"}
    assert draft.open_inputs() == {"summarize": ["text"]}
    assert draft.notes == ["summarize: what cannot fill its inputs is left out"]
    other = drafted(node("a", "cap.web.fetch.v1", "", none={"value": "French"}))
    assert other.notes == ["fetch: what cannot fill its inputs is left out"]


@pytest.mark.parametrize(
    "nodes",
    [
        (node("a", "cap.text.summarize.v1", "", text={"node": "a", "output": "summary"}),),
        (
            node("a", "cap.text.summarize.v1", "", text={"node": "b", "output": "summary"}),
            node("b", "cap.text.summarize.v1", "", text={"node": "a", "output": "summary"}),
        ),
    ],
    ids=["itself", "two"],
)
def test_a_cycle_is_refused(nodes: tuple[Json, ...]) -> None:
    with pytest.raises(UnusableAnswer, match="cycle"):
        drafted(*nodes)


def test_two_nodes_of_one_name_and_too_many_nodes_are_refused() -> None:
    with pytest.raises(UnusableAnswer, match="one name"):
        drafted(FETCH, FETCH)
    many = [node(str(number), "cap.web.fetch.v1") for number in range(NODES_MAX + 1)]
    assert len(drafted(*many[:-1]).steps) == NODES_MAX
    with pytest.raises(UnusableAnswer, match=f"more than {NODES_MAX} nodes"):
        drafted(*many)
    text = orjson.dumps({"nodes": many[:3]}).decode()
    with pytest.raises(UnusableAnswer, match="more than 2 nodes"):
        plan_of_answer(text, SAYS, OFFERS, nodes_max=2)


_TEXT = st.sampled_from(
    ("", "a", "b", "text", "url", SAYS, "summarize it", "https://example.org/a")
)
_IDS = st.sampled_from([*(one.capability_id for one in OFFERS[:8]), "cap.unknown.v1", "fetch"])
_SOURCE = st.fixed_dictionaries(
    {}, optional={"node": _TEXT, "output": _TEXT | st.just("summary"), "value": _TEXT}
)


@given(
    st.fixed_dictionaries(
        {
            "nodes": st.lists(
                st.fixed_dictionaries(
                    {"name": st.text(string.ascii_letters, max_size=2), "capability": _IDS},
                    optional={
                        "phrase": _TEXT,
                        "inputs": st.dictionaries(_TEXT, _SOURCE, max_size=3),
                    },
                ),
                max_size=6,
            )
        },
        optional={"unmatched": st.lists(_TEXT, max_size=3)},
    )
)
def test_every_answer_is_refused_or_what_publish_takes(answer: Json) -> None:
    try:
        draft = plan_of_answer(orjson.dumps(answer).decode(), SAYS, OFFERS)
    except UnusableAnswer:
        return
    assert {one.node for one in draft.chosen} == set(draft.nodes())
    assert_publishable(draft)


# -- what it is asked ------------------------------------------------------------------------------


def test_a_question_is_bounded_and_keeps_the_best_offers() -> None:
    members = [f"{'m' * 60}{number}: text!" for number in range(16)]
    offers = [offer(f"a{number}", "x" * 10_000, members, members) for number in range(96)]
    _, user = questions(SAYS, offers)
    shown = orjson.loads(user["content"])["offers"]
    assert len(user["content"]) <= OFFERS_BYTES_MAX + 1_000
    assert 10 < len(shown) < 96
    assert [one["id"] for one in shown] == [one.capability_id for one in offers[: len(shown)]]
    assert all(len(one["says"]) == 240 for one in shown)
