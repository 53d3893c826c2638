"""Rows as the parameters of the function that commits a batch: JSON, one text per write.

A column that a row does not bring has its default. Postgres alone would be cheaper with arrays of a
row's type in its binary format, and the writer so much dearer that the sum is none the less
(decision ledger-writer).

Postgres refuses NUL in texts, and UTF-8 has no lone surrogates: one such character in an agent's
error message must not stop the batch of a thousand others, so it is stored as U+FFFD.
"""

from __future__ import annotations

from typing import Any, Final

from psycopg.adapt import Dumper
from psycopg.pq import Format

from core.json_text import write_json

_NUL: Final = b"\\u0000"


class Encoded(bytes):
    """A parameter as it goes to the server; the statement says its type."""


class EncodedDumper(Dumper):
    """Tells the driver to send what is encoded already as it is."""

    format = Format.BINARY

    def dump(self, obj: Encoded) -> Encoded:
        """Return the parameter."""
        return obj


def encode_json(value: Any) -> Encoded:
    """Return rows as JSON that Postgres takes."""
    try:
        encoded = write_json(value)
    except UnicodeEncodeError:
        return Encoded(write_json(cleaned(value)))
    if _NUL in encoded:
        return Encoded(write_json(cleaned(value)))
    return Encoded(encoded)


def hex_text(value: bytes) -> str:
    """Return bytes as a row holds them: the text that `bytea` is read from."""
    return "\\x" + value.hex()


def cleaned(value: Any) -> Any:
    """Return the value with NUL and lone surrogates in texts replaced by U+FFFD."""
    if isinstance(value, str):
        text = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text.replace("\x00", "\ufffd")
    if isinstance(value, dict):
        return {cleaned(key): cleaned(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(member) for member in value]
    return value
