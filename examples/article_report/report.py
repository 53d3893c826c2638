"""Report agent: renders the other agents' results as a page of Markdown."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from callboard import Agent

agent = Agent("did:example:report", "Report")


class Report(TypedDict):
    """The report, as a page."""

    markdown: str


@agent.capability("cap.report.compose.v1", price_cents=4)
def compose(
    title: str,
    wordCount: int,
    sentences: list[str],
    keywords: list[dict[str, Any]],
    sentiment: dict[str, Any],
) -> Report:
    """Write a report in Markdown."""
    minutes = max(1, round(wordCount / 220))
    points = "\n".join(f"- {sentence}" for sentence in sentences) or "- (no telling sentence)"
    phrases = ", ".join(str(keyword["phrase"]) for keyword in keywords) or "none"
    markdown = (
        f"# {title or 'Untitled'}\n\n"
        f"{wordCount:,} words, about {minutes} min to read.\n\n"
        f"## In short\n\n{points}\n\n"
        f"## Keywords\n\n{phrases}\n\n"
        f"## Tone\n\n{sentiment['label']} ({sentiment['score']:+.2f}; "
        f"{sentiment['positive']} words of praise, {sentiment['negative']} of complaint)\n"
    )
    return {"markdown": markdown}


if __name__ == "__main__":
    agent.run(register=False, until_eof=True)
