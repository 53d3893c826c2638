"""Sentiment agent: counts words of praise and complaint from a list, minding negation."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import TypedDict

from callboard import Agent
from examples.article_report.language import words

_NEGATIONS = {"no", "not", "never", "without", "hardly", "cannot", "nor", "neither", "nothing"}
_NEGATION_REACH = 3
_NEUTRAL_BELOW = 0.2

agent = Agent("did:example:sentiment", "Sentiment")


def _read_weights() -> dict[str, int]:
    listed = (Path(__file__).parent / "sentiment_words.txt").read_text(encoding="utf-8")
    weights: dict[str, int] = {}
    for line in listed.splitlines():
        sign, _, entries = line.partition(" ")
        if sign in ("+", "-"):
            weights.update(dict.fromkeys(entries.split(), 1 if sign == "+" else -1))
    return weights


_WEIGHTS = _read_weights()


class Sentiment(TypedDict):
    """The tone of a text. `score`: -1 to 1."""

    label: str
    score: float
    positive: int
    negative: int


class Judged(TypedDict):
    """The judgement of one text."""

    sentiment: Sentiment


@agent.capability("cap.text.sentiment.v1", price_cents=2)
def sentiment(text: str) -> Judged:
    """Score the tone of a text by its words of praise and of complaint."""
    positive = negative = 0
    found = words(text)
    for place, word in enumerate(found):
        weight = _WEIGHTS.get(word, 0)
        before = found[max(0, place - _NEGATION_REACH) : place]
        if weight and any(near in _NEGATIONS or near.endswith("n't") for near in before):
            weight = -weight
        positive += weight > 0
        negative += weight < 0
    judged = positive + negative
    score = round((positive - negative) / judged, 2) if judged else 0.0
    label = "mixed" if judged else "neutral"
    if abs(score) >= _NEUTRAL_BELOW:
        label = "positive" if score > 0 else "negative"
    return {
        "sentiment": {"label": label, "score": score, "positive": positive, "negative": negative}
    }


if __name__ == "__main__":
    agent.run(register=False, until_eof=True)
