"""English text as sentences and words, for the agents that read it."""

from __future__ import annotations

import re
from pathlib import Path

_HERE = Path(__file__).parent
STOP_WORDS = frozenset((_HERE / "stop_words.txt").read_text(encoding="utf-8").split())

_WORD = re.compile(r"[A-Za-zÀ-ÖØ-öø-ÿ]+(?:['’-][A-Za-zÀ-ÖØ-öø-ÿ]+)*")
# A sentence ends at its mark when a capital, a digit or a quotation follows, or the paragraph ends.
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)]*\s+(?=[\"'“‘(]?[A-Z0-9À-Þ])")
_ABBREVIATION = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|St|Prof|e\.g|i\.e|vs|[A-Z])\.$")


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return [word.replace("’", "'").lower() for word in _WORD.findall(text)]


def content_words(text: str) -> list[str]:
    """Return the words that carry meaning: no stop words, nothing shorter than three letters."""
    return [word for word in words(text) if len(word) > 2 and word not in STOP_WORDS]


def sentences(text: str) -> list[str]:
    """Split a text into sentences; a paragraph's end is a sentence's end."""
    found: list[str] = []
    for paragraph in text.split("\n"):
        begun = ""
        for piece in _SENTENCE_END.split(paragraph.strip()):
            begun = f"{begun} {piece}".strip()
            if not _ABBREVIATION.search(begun):
                found.append(begun)
                begun = ""
        if begun:
            found.append(begun)
    return [sentence for sentence in found if sentence]
