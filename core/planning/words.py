"""Reduces words to stems, so that `summarise` matches `Summarizes`. Pure."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

import Stemmer

# Words that do not describe work.
_EMPTY: Final = frozenset(
    {
        "a", "all", "also", "an", "and", "any", "are", "as", "at", "be", "been", "both", "by",
        "can", "do", "does", "each", "for", "from", "give", "given", "gives", "had", "has", "have",
        "her", "his", "how", "i", "if", "in", "into", "is", "it", "its", "just", "let", "like",
        "many", "me", "most", "much", "my", "need", "of", "on", "one",
        "or", "other", "our", "out", "please", "she", "so", "some", "tell", "than", "that", "the",
        "their",
        "them", "then", "there", "these", "they", "this", "those", "to", "two", "us", "use", "want",
        "was",
        "we", "what", "when", "where", "which", "whether", "who", "will", "with", "would", "you",
        "your",
    }
)  # fmt: skip
# Words that are replaced by a word with the same meaning.
_SAME: Final = {
    "picture": "image",
    "photo": "image",
    "photograph": "image",
    "repo": "repository",
    "homepage": "page",
    "website": "page",
    "webpage": "page",
    "attraction": "sight",
    "outlier": "anomaly",
    "volatile": "volatility",
    "download": "fetch",
    "mail": "email",
}
# Words without stemming. The stemmer would, for example, map `positive` and `position` to one stem.
_UNSTEMMED: Final = frozenset({"positive", "resume"})
_ACCENT: Final = re.compile(r"[\u0300-\u036f]")
# The characters of a name that are read.
NAME_LENGTH_MAX: Final = 64
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_a-zA-Z]+|\d+")
_STEMMER: Final = Stemmer.Stemmer("english")


def words(text: str) -> list[str]:
    """Return the words of a text, or of a name such as `targetLanguage`, in order.

    The words are in lower case and without accents.
    """
    if not text.isascii():
        text = _ACCENT.sub("", unicodedata.normalize("NFD", text))
    return [word.lower() for word in _WORD.findall(text)]


def stems(text: str) -> list[str]:
    """Return the stems of the words of a text in order, without the words in `_EMPTY`."""
    return [stem(word) for word in words(text) if word not in _EMPTY]


def is_empty(word: str) -> bool:
    """Return whether a word does not describe work."""
    return word in _EMPTY


@lru_cache(maxsize=16_384)
def name_stems(name: str) -> frozenset[str]:
    """Return the stems of a name such as `targetLanguage`; only its first characters are read."""
    return frozenset(stems(name[:NAME_LENGTH_MAX]))


@lru_cache(maxsize=16_384)
def stem(word: str) -> str:
    """Return the stem of a word; British and American spellings have the same stem."""
    if word in _UNSTEMMED:
        return word
    word = _SAME.get(word) or _SAME.get(word.removesuffix("s"), word)
    if word.endswith(("ise", "ised", "ises", "ising")) and len(word) > 6:
        head, _, tail = word.rpartition("is")
        word = f"{head}iz{tail}"
    found: str = _STEMMER.stemWord(word)
    return found
