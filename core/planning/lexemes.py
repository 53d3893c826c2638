"""Lexemes of agents' offers and of searches, for the index of offers. Pure.

A lexeme is a stem without accents. In a script without spaces between words, it is a pair of
neighbouring characters. The index stores the lexemes of the id and of names twice: without a
suffix, and with a suffix for the place. The lexemes of the description have no suffix. Those of
field names have only the form with a suffix. The id of the capability is stored as one lexeme after
`=`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from core.planning.words import is_empty, stem

IN_ID: Final = "/a"
IN_NAME: Final = "/b"
IN_FIELD: Final = "/d"
OF_ID: Final = "="
# The most lexemes that are read from one card. They are divided among its capabilities, but at
# least `OF_CAPABILITY_MIN` are read from each capability. This bounds the time to read a card.
OF_CARD_MAX: Final = 4_000
OF_CAPABILITY_MIN: Final = 100
# The characters of a word that are read.
WORD_LENGTH_MAX: Final = 64
# The levels of nested schemas that are read.
DEPTH_MAX: Final = 32

_TOKEN: Final = re.compile(r"[^\W_]+")
# The place before a capital letter inside a name, where a new word begins.
_INNER: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PLURAL: Final = re.compile(r"[^aeiouy]+[^aeiouys]s")
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Scripts that are written without spaces between words.
_UNSPACED: Final = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]+)"
)


def lexemes(text: str, *, has_names: bool = True) -> Iterator[str]:
    """Yield the lexemes of a text.

    Args:
        text: the text.
        has_names: whether names such as `targetLanguage` are also split into their words.
    """
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(one for one in decomposed if not unicodedata.combining(one))
    for token in _TOKEN.findall(text):
        yield from _stems(token[:WORD_LENGTH_MAX].lower())
        parts = _INNER.split(token[:WORD_LENGTH_MAX]) if has_names else ()
        for part in parts if len(parts) > 1 else ():
            yield from _stems(part.lower())


def _stems(word: str) -> Iterator[str]:
    if word.isascii():
        if not is_empty(word):
            # The stemmer does not change words without a vowel, such as `pdfs`.
            yield stem(word[:-1] if _PLURAL.fullmatch(word) else word)
        return
    for number, run in enumerate(_UNSPACED.split(word)):
        if number % 2 == 0:
            if run:
                yield stem(run)
        elif len(run) == 1:
            yield run
        else:
            yield from (run[at : at + 2] for at in range(len(run) - 1))


def search_lexemes(text: str) -> list[str]:
    """Return the lexemes of a search without duplicates; capability ids in it come first."""
    ids = (OF_ID + found.rstrip(".") for found in _ID.findall(text) if "." in found)
    return list(dict.fromkeys((*ids, *lexemes(text, has_names=False))))


def offered_lexemes(
    card: Mapping[str, Any], capability_id: str, offered: Mapping[str, Any]
) -> list[str]:
    """Return the lexemes of one capability of a card, without duplicates.

    Their order is: id, names, description, field names. If there are too many lexemes, the last
    ones are omitted.

    Args:
        card: the card.
        capability_id: the id of the capability.
        offered: the entry of the capability in the card.
    """
    capabilities = len(card.get("capabilities") or ()) or 1
    most = max(OF_CARD_MAX // capabilities, OF_CAPABILITY_MIN)
    first = islice(_lexemes_of(card, capability_id, offered), most)
    return list(dict.fromkeys((OF_ID + capability_id, *first)))


def _lexemes_of(
    card: Mapping[str, Any], capability_id: str, offered: Mapping[str, Any]
) -> Iterator[str]:
    for one in lexemes(capability_id):
        yield from (one, one + IN_ID)
    metadata = card.get("metadata")
    names = [offered.get("name"), metadata.get("name") if isinstance(metadata, dict) else None]
    for one in _of_all(names):
        yield from (one, one + IN_NAME)
    yield from _of_all([offered.get("description")])
    fields = _field_names([offered.get("inputSchema"), offered.get("outputSchema")])
    yield from (one + IN_FIELD for one in _of_all(fields))


def _of_all(texts: Iterable[Any]) -> Iterator[str]:
    for text in texts:
        if isinstance(text, str | int | float):
            yield from lexemes(str(text))


def _field_names(schemas: Sequence[Any]) -> Iterator[str]:
    """Yield the names of the properties in the schemas and in their nested schemas."""
    for _ in range(DEPTH_MAX):
        inner: list[Any] = []
        for schema in schemas:
            if isinstance(schema, list):
                inner += schema
            elif isinstance(schema, dict):
                properties = schema.get("properties")
                if isinstance(properties, dict):
                    yield from properties
                inner += schema.values()
        schemas = inner
