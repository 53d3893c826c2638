"""A description cut into phrases, each for one piece of work, in the order of the work. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from core.planning.words import stems, words

PHRASES_MAX: Final = 64
# Of one phrase; what comes after them is no phrase but a text.
WORDS_MAX: Final = 16

_SENTENCES: Final = re.compile(r"[.;!?](?:\s+|$)|[\r\n]+|->|→|:\s")
_PARTS: Final = re.compile(
    r",|&|\b(?:and|then|finally|afterwards|next|plus|before|followed by|after that)\b",
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(r"^\s*(?:\d{1,2}[.)]|[-*•])\s*")
# `Before X, Y` is Y, then X.
_BEFORE: Final = re.compile(r"^\s*before\s+(?P<last>[^,]+),\s*(?P<first>.+)$", re.IGNORECASE)
_AFTER: Final = re.compile(r"^(?P<last>.+?),?\s+after\s+(?P<first>(?!that\b).+)$", re.IGNORECASE)
_QUOTED: Final = re.compile(r"\"([^\"]{1,500})\"|“([^”]{1,500})”")
_ADDRESS: Final = re.compile(r"https?://[^\s;\"'<>]*[^\s,;.!?:)\"'<>]")
_LEADING: Final = frozenset({"first", "second", "third", "last", "finally", "also"})
_GIVEN: Final = frozenset({"this", "these", "my", "our", "the following"})


@dataclass(frozen=True, slots=True)
class Phrase:
    """One piece of work. `stems`: of its words, the verb first as a rule. `given`: stems of what
    the caller has already, as in `from these logs`. `address`: a web address that it names."""

    text: str
    stems: tuple[str, ...]
    given: frozenset[str]
    address: str = ""
    quoted: str = ""


def phrases(description: str) -> list[Phrase]:
    """Cut a description into phrases, 64 at most."""
    found: list[Phrase] = []
    addresses = _ADDRESS.findall(description)
    # An address has dots and may have commas: it is cut out and put back.
    marked = _ADDRESS.sub(" address ", description)
    for sentence in _SENTENCES.split(marked):
        # Runs of blanks would cost the forms below their square.
        text = _NUMBER.sub("", " ".join(sentence.split()))
        for part in _PARTS.split(_in_order(text)):
            phrase = _phrase(part, addresses)
            if phrase is not None:
                found.append(phrase)
    return found[:PHRASES_MAX]


def _in_order(sentence: str) -> str:
    for form in (_BEFORE, _AFTER):
        match = form.match(sentence)
        if match:
            return f"{match['first']}, {match['last']}"
    return sentence


def _phrase(part: str, addresses: list[str]) -> Phrase | None:
    address = ""
    if " address " in f" {part.strip()} " and addresses:
        address = addresses.pop(0)
        part = f" {part.strip()} ".replace(" address ", " page ", 1)
    quoted = _QUOTED.search(part)
    kept = [stem for stem in stems(part) if stem not in _LEADING][:WORDS_MAX]
    if not kept:
        return None
    spoken = words(part)
    given = {
        stem
        for place, word in enumerate(spoken)
        if word in _GIVEN
        for stem in stems(" ".join(spoken[place + 1 : place + 3]))
    }
    text = next((one for one in quoted.groups() if one), "") if quoted else ""
    return Phrase(part.strip(), tuple(kept), frozenset(given), address, text)
