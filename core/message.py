"""The base of the values that travel between processes, and how two versions of one are read.

A message is a frozen value with named fields. On the wire it is a map of its fields by name and of
its type's name, so that one of several types can be told from the others. What makes two versions
of the code understand each other: a field that the reader does not know is ignored, and one that
is missing has its default. So a new field has a default, which is what its absence has always
meant; a default never changes; a field is not renamed, nor its type narrowed. Which bytes carry it
is `actors/transport/wire.py`'s. Decision messages-and-large-values.
"""

from __future__ import annotations

from msgspec import Struct


class Message(Struct, frozen=True, tag=True, omit_defaults=True):
    """A frozen value that may be sent to another process, of another version perhaps."""
