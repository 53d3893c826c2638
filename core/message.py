"""The base class of the values that are sent between processes, and its rules for compatibility.

A message is a frozen value with named fields. A message is encoded as a map with the name of its
type and its fields by name. Processes of two versions of the code understand each other, because a
reader ignores unknown fields and uses the default of a missing field.
Rules: a new field has a default, which means the same as the absence of the field. A default never
changes. A field is never renamed, and its type is never narrowed. `actors/transport/wire.py`
encodes messages. Decision messages-and-large-values.
"""

from __future__ import annotations

from msgspec import Struct


class Message(Struct, frozen=True, tag=True, omit_defaults=True):
    """A frozen value that can be sent to another process, possibly of another version."""
