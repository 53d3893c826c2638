"""Drafts from descriptions: what is found, what is left open, and that publish takes each.

The floors are those of the third of the cases that nothing was tuned on.
"""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.planning.evaluation import read_cases, read_offers, schema_of, scores
from core.planning.offers import Offer, members_of
from core.planning.phrases import PHRASES_MAX, phrases
from core.planning.plan import NODES_MAX, Plan, plan
from core.planning.ranking import DESCRIPTION_LENGTH_MAX
from core.planning.synonyms import _GROUPS, ADDED_CHARS_MAX, widened
from core.planning.words import name_stems
from core.records.manifest import parse_manifest
from core.workflow.dag import WorkflowLimits, compile_workflow
from examples.article_report import extract, fetch, keywords, report, sentiment, summarise

OFFERS = read_offers()
LIMITS = WorkflowLimits(
    nodes_max=1_000,
    timeout_ms_default=60_000,
    max_retries_default=2,
    max_runtime_ms_default=600_000,
    max_runtime_ms_max=600_000,
)


def offer(name: str, says: str, takes: list[str], gives: list[str], **more: Any) -> Offer:
    """Return an offer; its members are written as `name: kind!`."""
    return Offer(
        f"cap.{name}.v1", says, members_of(schema_of(takes)), members_of(schema_of(gives)), **more
    )


def assert_publishable(draft: Plan) -> None:
    """Compile a draft as publish does."""
    compile_workflow(parse_manifest({"intent": draft.intent, "nodes": draft.nodes()}), LIMITS)


def test_cases_that_are_set_aside_are_planned_as_expected() -> None:
    found = scores([case for case in read_cases() if case.is_set_aside], OFFERS)
    nodes, edges, values = found["nodes"], found["edges"], found["values"]
    assert (nodes.precision >= 0.85, nodes.recall >= 0.85) == (True, True), nodes
    assert (edges.precision >= 0.75, edges.recall >= 0.75) == (True, True), edges
    assert (values.precision >= 0.85, values.recall >= 0.75) == (True, True), values


def test_what_comes_later_in_the_words_may_come_first_in_the_work() -> None:
    draft = plan("Plan an itinerary from flights and hotels", OFFERS)
    assert list(draft.nodes()) == ["flights", "hotels", "itinerary"]


def test_what_is_there_goes_to_the_input_that_takes_it() -> None:
    """An input of its own name, which nothing fills, stands before it in the schema."""
    shorten = offer("a.summarise", "Summarises", ["text: text!"], ["summary: text"])
    takes = ["targetLanguage: text!", "text: text!"]
    translate = offer("a.translate", "Translates a text", takes, ["translation: text"])
    draft = plan("Summarise it and translate the summary", [shorten, translate])
    assert draft.nodes()["translate"]["inputMappings"] == {"text": "$.summarise.result.summary"}
    assert draft.open_inputs()["translate"] == ["targetLanguage"]


def test_second_best_and_sureness_tell_rivals_apart() -> None:
    rivals = [
        offer("m.paint", "Paints a picture", [], []),
        offer("n.paint", "Paints a picture", [], []),
        offer("c.sing", "Sings a song", [], []),
    ]
    unsure, sure = plan("paint a picture, sing a song", rivals).chosen
    assert (unsure.second, sure.second) == ("cap.n.paint.v1", "")
    assert unsure.sureness < sure.sureness


def test_cheaper_of_two_alike_is_chosen() -> None:
    rivals = [
        offer("m.paint", "Paints a picture", [], [], price=20),
        offer("n.paint", "Paints a picture", [], [], price=10),
        offer("o.paint", "Paints a picture", [], [], price=None),
    ]
    assert [step.offer.price for step in plan("paint a picture", rivals).steps] == [10]


def test_who_repeats_words_is_no_better_found() -> None:
    honest = offer("m.paint", "Paints a picture of the sea", [], [], price=20)
    stuffed = offer("b.paint", "paint picture sea " * 20, [], [], price=30)
    assert plan("paint a picture of the sea", [stuffed, honest]).steps[0].offer == honest


def test_who_has_done_the_work_is_chosen_before_who_only_says_so() -> None:
    proven = offer("m.paint", "Paints pictures of the sea", [], [], succeeded=20, price=20)
    named = offer("paint.picture.sea", "Paints pictures of the sea", [], [])
    assert plan("paint a picture of the sea", [named, proven]).steps[0].offer == proven


def test_words_that_very_many_offers_have_count_as_well() -> None:
    many = [offer(f"s{n}.paint", "Paints posters", [], []) for n in range(46)]
    collect = offer("whale.collect", "Collects whale marks", [], [])
    paint = offer("whale.paint", "Paints whale marks as posters", [], [])
    assert plan("paint whale posters", [*many, collect, paint]).steps[0].offer == paint


def test_second_best_is_another_owners_where_one_fits() -> None:
    mine = [offer(f"{name}.paint", "Paints a picture", [], [], owner="a") for name in "mn"]
    others = offer("z.draw", "Draws and paints a picture", [], [], owner="b")
    assert plan("paint a picture", [*mine, others]).chosen[0].second == "cap.z.draw.v1"
    assert plan("paint a picture", mine).chosen[0].second == "cap.n.paint.v1"


def test_of_long_descriptions_and_names_the_beginning_is_looked_at() -> None:
    long = offer("m.work", "x" * DESCRIPTION_LENGTH_MAX + " paints a picture", [], [])
    assert plan("paint a picture", [long]).steps == []
    assert name_stems("picture" + "A" * 1_000 + "Painted") == name_stems("picture" + "A" * 57)


def test_time_is_that_of_the_longest_chain() -> None:
    offers = [
        offer("a.fetch", "Fetches a page", [], ["text: text"], latency_ms=100.0),
        offer("a.count", "Counts words", ["text: text!"], ["total: number"], latency_ms=30.0),
        offer("a.shorten", "Shortens", ["text: text!"], ["short: text"], latency_ms=50.0),
    ]
    assert plan("fetch the page, count words, shorten it", offers).latency_ms == 150.0
    assert plan("Fetch the page", OFFERS).latency_ms is None


def test_outputs_that_a_mapping_would_have_to_quote_are_not_used() -> None:
    odd = {"type": "object", "properties": {"a b": {}, "c'd": {}, "fine-1": {}}}
    assert [member.name for member in members_of(odd)] == ["fine-1"]


@pytest.mark.parametrize(
    "schema", [None, {}, {"properties": []}, {"properties": {"a": 1}, "required": 5}]
)
def test_schemas_of_any_form_are_read(schema: dict[str, Any] | None) -> None:
    assert len(members_of(schema)) <= 1


# -- chains, values and related words, over what the agents of the demonstration offer -------------

EXAMPLE = [
    Offer(
        one.id, one.description or "", members_of(one.input_schema), members_of(one.output_schema)
    )
    for module in (extract, fetch, keywords, report, sentiment, summarise)
    for one in module.agent.card("http://127.0.0.1").capabilities
]
REPORT = {"fetch", "extract", "summarise", "sentiment", "keywords", "compose"}
PAGE = "https://example.org/article"


@pytest.mark.parametrize(
    ("description", "names", "missing"),
    [
        (
            "Read a web page and tell me how positive it is, plus list its main topics",
            {"fetch", "extract", "sentiment", "keywords"},
            {"fetch": ["url"]},
        ),
        (f"Summarize {PAGE} and write a report", REPORT, {}),
        ("Write a report", REPORT, {"fetch": ["url"]}),
        (f"Report on {PAGE} in 3 sentences", REPORT, {}),
        (f"Give me the gist of {PAGE}.", {"fetch", "extract", "summarise"}, {}),
        (f"What is the mood of {PAGE}?", {"fetch", "extract", "sentiment"}, {}),
        ('Find the tone of "I love it, and you"', {"sentiment"}, {}),
        ("Summarise the text", {"summarise"}, {"summarise": ["text"]}),
    ],
)
def test_needed_inputs_are_filled_backwards(
    description: str, names: set[str], missing: dict[str, list[str]]
) -> None:
    draft = plan(description, EXAMPLE)
    assert (set(draft.nodes()), draft.open_inputs()) == (names, missing)
    assert draft.unmatched == []
    assert {one.node for one in draft.chosen} == names
    assert_publishable(draft)


def test_a_report_has_its_inputs_from_those_who_make_them() -> None:
    nodes = plan(f"Report on {PAGE} in 3 sentences", EXAMPLE).nodes()
    assert nodes["fetch"]["payload"] == {"url": PAGE}
    assert nodes["extract"]["inputMappings"]["body"] == "$.fetch.result.body"
    assert nodes["compose"]["inputMappings"] == {
        "title": "$.extract.result.title",
        "wordCount": "$.extract.result.wordCount",
        "sentences": "$.summarise.result.sentences",
        "keywords": "$.keywords.result.keywords",
        "sentiment": "$.sentiment.result.sentiment",
    }
    assert nodes["summarise"]["payload"] == {"count": 3}, "not for the number of words"


def test_of_several_makers_the_one_is_chosen_that_is_there_for_it() -> None:
    brief = offer("n.brief", "Prepares a briefing", ["summary: text!"], ["briefing: text"])
    makers = [
        offer("a.archive", "Keeps files", ["text: text!"], ["summary: text"]),
        offer("b.shorten", "Writes a summary", ["text: text!"], ["summary: text"], price=9),
        offer("c.shorten", "Writes a summary", ["text: text!"], ["summary: text"], succeeded=3),
    ]
    draft = plan("Prepare a briefing", [brief, *makers])
    assert {step.offer.capability_id for step in draft.steps} == {
        "cap.n.brief.v1",
        "cap.c.shorten.v1",
    }
    assert plan("Prepare a briefing", [brief, *makers[:1]]).open_inputs() == {"archive": ["text"]}


@pytest.mark.parametrize(
    ("said", "takes", "payload"),
    [
        ("Paint it for 250 euros", ["amount: number!"], {"amount": 250}),
        ("Paint it for 1,250.5 euros", ["amount: number!"], {"amount": 1250.5}),
        ("Paint 12 copies, 300px wide", ["width: number", "copies: number!"], {"copies": 12}),
        ("Paint it 64 pixels wide", ["width: number", "height: number"], {"width": 64}),
        ("Paint it by 2026-05-01", ["date: text", "amount: number"], {"date": "2026-05-01"}),
        ("Paint it for ann@example.org", ["to: text!", "body: text"], {"to": "ann@example.org"}),
        ("Paint 'blue, and red' lines", ["city: text!", "text: text!"], {"text": "blue, and red"}),
        ("1. Paint it\n2) Frame it", ["amount: number!"], {}),
        ("Paint a picture like 3.11.2 at 10:30", ["amount: number!"], {}),
        (f"Paint {PAGE}", ["text: text", "pageUrl: text!"], {"pageUrl": PAGE}),
    ],
)  # fmt: skip
def test_values_of_the_description_are_given(
    said: str, takes: list[str], payload: dict[str, object]
) -> None:
    draft = plan(said, [offer("m.paint", "Paints a picture", takes, [])])
    assert draft.nodes()["paint"].get("payload", {}) == payload
    assert_publishable(draft)


def test_formats_tell_what_an_input_takes() -> None:
    marked = {
        "where": {"type": "string", "format": "uri"},
        "who": {"type": "string", "format": "email"},
    }
    paint = Offer(
        "cap.paint", "Paints", members_of({"properties": marked, "required": list(marked)})
    )
    draft = plan(f"Use {PAGE}. Paint for ann@example.org", [paint])
    assert draft.nodes()["paint"]["payload"] == {"where": PAGE, "who": "ann@example.org"}


def test_related_words_count_less_than_the_word_itself() -> None:
    rivals = [
        offer("a.shorten", "Condenses a text", [], []),
        offer("b.gist", "Tells the gist", [], []),
        offer("c.sing", "Sings", [], []),
    ]
    assert plan("the gist", rivals).steps[0].offer == rivals[1]
    assert plan("an overview", rivals[::2]).steps[0].offer == rivals[0]
    assert plan("brew coffee", rivals).steps == []


def test_a_search_has_related_words_and_no_more_than_fit() -> None:
    assert {"tone", "keyword"} <= set(widened("how positive, and its topics").split())
    assert widened("brew xyzzy") == "brew xyzzy"
    every = " ".join(line for line in _GROUPS.split())
    assert len(widened(every[:2_000])) <= 2_001 + ADDED_CHARS_MAX


WORDS = st.sampled_from(
    (
        "fetch", "page", "text", "translate", "the", "summary,", "and", "then", "before", "after",
        "write", "a", "report", "in", "parallel", "it", "1.", "http://a.b/c", '"quoted', 'words"',
        ":", "->", ";", "!", "é", "文", "find", "keywords", "of", "image", "each",
    )
)  # fmt: skip
KINDS = st.sampled_from(["text", "number", "list", "object", "any", "image!", "text!", "list!"])
NAMES = st.text(string.ascii_letters + "_- '\"é", min_size=1, max_size=8)
MEMBERS = st.lists(st.builds("{}: {}".format, NAMES, KINDS), max_size=4)


@given(
    st.lists(WORDS, min_size=1, max_size=40).map(" ".join),
    st.lists(
        st.tuples(
            st.text(string.ascii_lowercase + ".", min_size=1, max_size=6),
            st.lists(WORDS, max_size=6).map(" ".join),
            MEMBERS,
            MEMBERS,
        ),
        max_size=12,
    ),
)
def test_every_draft_is_what_publish_takes(
    description: str, registered: list[tuple[str, str, list[str], list[str]]]
) -> None:
    offers = list({one[0]: offer(*one) for one in registered}.values())
    draft = plan(description, offers)
    assert draft.nodes() == plan(description, list(reversed(offers))).nodes()
    assert len(draft.steps) <= NODES_MAX
    if draft.steps:
        assert_publishable(draft)


@pytest.mark.parametrize(
    "hostile",
    [
        "a" * 10_000,
        " " * 5_000 + "x" * 5_000,
        '"' * 10_000,
        "before " * 1_400,
        "x after " * 1_200,
        "fetch," * 1_600,
        "http://a " * 1_100,
        "this " * 2_000,
        "1. " * 3_000,
        "translate the summary and " * 380,
        "a@b." * 2_500,
        "1,000 " * 1_600,
        "'a " * 3_300,
        "\ue000" * 5_000,
        '"translate" ' * 800,
    ],
    ids=range(15),
)
def test_hostile_descriptions_are_bounded(hostile: str) -> None:
    """What costs the square of its length would be seen as a test that takes seconds."""
    assert len(phrases(hostile)) <= PHRASES_MAX
    assert len(plan(hostile, OFFERS).steps) <= NODES_MAX
