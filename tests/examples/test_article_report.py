"""The example's agents do what they say, on their own and along their workflow."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from callboard import AgentError
from callboard.demo.document import served
from callboard.demo.processes import EXAMPLE, AgentFailed, AgentProcesses
from callboard.kit.dispatch_replies import AnsweringAgent
from examples.article_report import extract, fetch, keywords, report, sentiment, summarise
from examples.article_report.language import sentences, words

ARTICLE = EXAMPLE / "article.html"
SERVED_BY: dict[str, AnsweringAgent] = {
    capability: module.agent
    for module in (fetch, extract, summarise, sentiment, keywords, report)
    for capability in module.agent.capabilities
}


def at(results: dict[str, Any], expression: str) -> Any:
    """Follow a mapping of the plain form `$.node.result.field`."""
    node, _, *path = expression.removeprefix("$.").split(".")
    value = results[node]
    for member in path:
        value = value[member]
    return value


def run_workflow(document_url: str) -> dict[str, Any]:
    """Run the example's workflow on its agents, in process, in the manifest's order."""
    manifest = json.loads((EXAMPLE / "workflow.json").read_text())
    manifest["nodes"]["fetch"]["payload"]["url"] = document_url
    results: dict[str, Any] = {}
    for name, node in manifest["nodes"].items():
        assert set(node.get("dependsOn", [])) <= set(results)
        mapped = {key: at(results, path) for key, path in node.get("inputMappings", {}).items()}
        inputs = {**node.get("payload", {}), **mapped}
        # An event id of its own: agents answer a repeated one with the reply they gave before.
        event_id = f"{name}@{document_url}"
        dispatch = {"eventId": event_id, "capabilityId": node["capabilityId"], "inputs": inputs}
        agent = SERVED_BY[node["capabilityId"]]
        answer = asyncio.run(agent.answer(json.dumps(dispatch).encode(), None))
        reply = json.loads(answer.body)
        assert reply["status"] == "success", reply
        results[name] = reply["result"]
    return results


def test_the_workflow_reports_on_the_article() -> None:
    with served(str(ARTICLE)) as url:
        results = run_workflow(url)
    assert results["extract"]["title"] == "The tide clock of Marrow Harbour"
    markdown = results["report"]["markdown"]
    assert markdown.startswith("# The tide clock of Marrow Harbour\n")
    assert "tide clock" in markdown.partition("## Keywords")[2]
    for sentence in results["summarise"]["sentences"]:
        assert sentence in results["extract"]["text"]


def test_a_document_of_200_kb_changes_the_report(tmp_path: Path) -> None:
    paragraph = "The lighthouse keeper counted every passing ship in a wonderful notebook. "
    numbered = (f"<p>{paragraph}Ship {n} carried salt and lamps.</p>" for n in range(2000))
    document = tmp_path / "long.html"
    document.write_text(f"<h1>The long watch</h1>{''.join(numbered)}")
    assert document.stat().st_size > 200_000
    with served(str(document)) as url:
        results = run_workflow(url)
    markdown = results["report"]["markdown"]
    assert "# The long watch" in markdown
    assert "lighthouse keeper" in markdown
    assert results["sentiment"]["sentiment"]["label"] == "positive"


def test_the_budget_covers_every_price() -> None:
    manifest = json.loads((EXAMPLE / "workflow.json").read_text())
    cards = [agent.card("http://h:1") for agent in set(SERVED_BY.values())]
    prices = {c.id: c.price_cents for card in cards for c in card.capabilities}
    cents = sum(prices[node["capabilityId"]] or 0 for node in manifest["nodes"].values())
    assert 0 < cents < manifest["settings"]["maxBudgetCredits"] * 100


def test_extract_reads_what_a_person_reads() -> None:
    found = extract.extract(ARTICLE.read_text())
    assert "Home" not in found["text"]
    assert "font-family" not in found["text"]
    assert "The Coastal Reader" not in found["text"]
    assert found["wordCount"] == len(words(found["text"]))
    # Lines wrapped in the source are one line on the page.
    assert "when it was safe to cross the bar." in found["text"]


def test_extract_takes_plain_text_by_paragraphs() -> None:
    found = extract.extract("A title\n\nOne line\nand its end.\n\nMore.\0", "text/plain")
    assert (found["title"], found["text"]) == ("A title", "A title\nOne line and its end.\nMore.")


def test_sentences_end_where_they_end() -> None:
    text = 'Dr. Rehn came. "Who pays?" asked J. Calloway. It cost 3.5 credits.\nNo end'
    assert sentences(text) == [
        "Dr. Rehn came.",
        '"Who pays?" asked J. Calloway.',
        "It cost 3.5 credits.",
        "No end",
    ]


def test_a_summary_never_says_the_same_twice() -> None:
    text = (
        "The old clock told the boats when to sail out. " * 5 + "A diver cleaned the float below."
    )
    found = summarise.summarise(text, 4)
    assert found["of"] == 6
    assert len(found["sentences"]) == len(set(found["sentences"])) == 2


def test_negation_turns_a_word_of_praise_around() -> None:
    assert sentiment.sentiment("It was good.")["sentiment"]["label"] == "positive"
    assert sentiment.sentiment("It was not very good.")["sentiment"]["label"] == "negative"
    assert sentiment.sentiment("It was blue.")["sentiment"]["label"] == "neutral"


def test_keywords_are_phrases_without_stop_words() -> None:
    found = keywords.keywords("the tide clock, and the tide clock; a clock of the tide", 3)
    assert found["keywords"][0]["phrase"] == "tide clock"


@pytest.mark.parametrize("text", ["", "\n", "...", "a"])
def test_a_text_that_says_nothing_still_makes_a_report(text: str) -> None:
    found = extract.extract(text, "text/plain")
    composed = report.compose(
        found["title"],
        found["wordCount"],
        summarise.summarise(found["text"])["sentences"],
        keywords.keywords(found["text"])["keywords"],
        sentiment.sentiment(found["text"])["sentiment"],
    )
    assert "no telling sentence" in composed["markdown"]


def test_fetch_refuses_what_it_cannot_fetch(tmp_path: Path) -> None:
    big = tmp_path / "big.txt"
    big.write_bytes(b"x" * (fetch.DOCUMENT_BYTES_MAX + 1))
    with served(str(big)) as url, pytest.raises(AgentError) as too_large:
        fetch.fetch(url)
    with pytest.raises(AgentError) as no_address:
        fetch.fetch("file:///etc/passwd")
    with pytest.raises(AgentError, match=r"cannot reach .*: Connection refused") as away:
        fetch.fetch("http://127.0.0.1:1/article")
    assert not away.value.final, "it may pass"
    assert (too_large.value.code, no_address.value.code) == ("TOO_LARGE", "URL")
    assert too_large.value.final
    assert no_address.value.final


@pytest.mark.slow
def test_an_agent_that_cannot_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    programs = {"odd": ("-c", "import sys; sys.exit('no press here')")}
    with (
        AgentProcesses(tmp_path, programs) as agents,
        pytest.raises(AgentFailed, match="the odd agent did not start: no press here"),
    ):
        agents.wait_ready()
