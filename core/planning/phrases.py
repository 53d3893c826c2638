"""Cuts a description into phrases, each for one piece of work, in the order of the work. Pure.

Before the cut, each value is replaced by a mark, because an address contains dots and a quoted text
may contain commas. The marks are replaced by the values afterwards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from core.planning.words import stems, words

PHRASES_MAX: Final = 64
# The most stems of one phrase. Further stems are ignored, because a longer part is probably plain
# text.
WORDS_MAX: Final = 16
VALUES_MAX: Final = 256

_SENTENCES: Final = re.compile(r"[.;!?](?:\s+|$)|[\r\n]+|->|→|:\s")
_PARTS: Final = re.compile(
    r",|&|\b(?:and|then|finally|afterwards|next|plus|before|followed by|after that)\b",
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(r"^\s*(?:\d{1,2}[.)]|[-*•])\s*")
# `Before X, Y` and `X after Y` mean: first Y, then X.
_BEFORE: Final = re.compile(r"^\s*before\s+(?P<last>[^,]+),\s*(?P<first>.+)$", re.IGNORECASE)
_AFTER: Final = re.compile(r"^(?P<last>.+?),?\s+after\s+(?P<first>(?!that\b).+)$", re.IGNORECASE)
# The number of a list item is not a value.
_LIST_NUMBER: Final = re.compile(
    r"^[^\S\n]*+(?:step[^\S\n]++)?\(?\d{1,2}[.):]\s", re.IGNORECASE | re.MULTILINE
)
_VALUE: Final = re.compile(
    r"(?P<uri>https?://[^\s;\"'<>]*[^\s,;.!?:)\"'<>])"
    r"|(?P<email>(?<![\w.+%-])[\w.+%-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8})"
    r"|\"(?P<quoted>[^\"]{1,500})\"|“(?P<curled>[^”]{1,500})”|«(?P<angled>[^»]{1,500})»"
    r"|(?<!\w)['‘](?P<single>[^'’\n]{1,500})['’](?!\w)"
    r"|(?<![\w.:/-])(?P<date>\d{4}-\d\d-\d\d)(?![\w-])"
    r"|(?<![\w.:/#-])(?P<number>-?(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?:\.\d{1,6})?)"
    r"(?=(?:px|km|kg|cm|mm|ms|mb|gb|min|s|h)?(?![\w:/%-]|[.,]\d))"
)
# The marks that replace values; they are private-use characters, which are in no word.
_MARK: Final = re.compile("[\ue000-\uf8ff]")
_LEADING: Final = frozenset({"first", "second", "third", "last", "finally", "also"})
_GIVEN: Final = frozenset({"this", "these", "my", "our", "the following"})


@dataclass(frozen=True, slots=True)
class Value:
    """A value in a description. `near`: the stems of the words next to the value."""

    kind: Literal["uri", "email", "quoted", "date", "number"]
    value: str | int | float
    near: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Phrase:
    """One piece of work.

    `stems`: the stems of its words; usually the verb is first. `given`: the stems of the words for
    data that the caller already has, as in `from these logs`. `values`: the values in its text.
    """

    text: str
    stems: tuple[str, ...]
    given: frozenset[str]
    values: tuple[Value, ...] = ()


def phrases(description: str) -> list[Phrase]:
    """Cut a description into phrases, at most `PHRASES_MAX`."""
    found: list[Phrase] = []
    values: list[tuple[Value, str]] = []

    def cut_out(match: re.Match[str]) -> str:
        if len(values) == VALUES_MAX:
            return match[0]
        values.append((_value(match), match[0]))
        return f" {chr(0xE000 + len(values) - 1)} "

    plain = _LIST_NUMBER.sub("\n", _MARK.sub(" ", description))
    for sentence in _SENTENCES.split(_VALUE.sub(cut_out, plain)):
        # With long runs of blanks, the patterns below would take quadratic time.
        text = _NUMBER.sub("", " ".join(sentence.split()))
        for part in _PARTS.split(_in_order(text)):
            phrase = _phrase(part.strip(), values)
            if phrase is not None:
                found.append(phrase)
    return found[:PHRASES_MAX]


def _value(match: re.Match[str]) -> Value:
    kind, text = str(match.lastgroup), match[str(match.lastgroup)]
    if kind == "number":
        text = text.replace(",", "")
        return Value("number", float(text) if "." in text else int(text))
    if kind in ("uri", "email", "date"):
        return Value(kind, text)  # type: ignore[arg-type]
    return Value("quoted", text)


def _in_order(sentence: str) -> str:
    for form in (_BEFORE, _AFTER):
        match = form.match(sentence)
        if match:
            return f"{match['first']}, {match['last']}"
    return sentence


def _phrase(part: str, cut: list[tuple[Value, str]]) -> Phrase | None:
    places = [(mark.start(), *cut[ord(mark[0]) - 0xE000]) for mark in _MARK.finditer(part)]
    # A phrase with a web address is about a page.
    shown = part + " page" * any(value.kind == "uri" for _, value, _ in places)
    kept = [stem for stem in stems(shown) if stem not in _LEADING][:WORDS_MAX]
    if not kept and len(places) == 1 and places[0][1].kind == "quoted":
        kept = stems(str(places[0][1].value))[:WORDS_MAX]  # the whole phrase is quoted
    if not kept:
        return None
    spoken = words(part)
    given = {
        stem
        for place, word in enumerate(spoken)
        if word in _GIVEN
        for stem in stems(" ".join(spoken[place + 1 : place + 3]))
    }
    values = tuple(Value(value.kind, value.value, _near(part, place)) for place, value, _ in places)
    text = _MARK.sub(lambda mark: cut[ord(mark[0]) - 0xE000][1], part)
    return Phrase(" ".join(text.split()), tuple(kept), frozenset(given), values)


def _near(part: str, place: int) -> frozenset[str]:
    """Return the stems of the two words before a place and of the two words after it."""
    before, after = words(part[max(0, place - 40) : place]), words(part[place : place + 40])
    return frozenset(stems(" ".join((*before[-2:], *after[:2]))))
