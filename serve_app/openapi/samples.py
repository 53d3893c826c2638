"""Derives an example value from a JSON Schema of the OpenAPI document.

An operation has such an example until one is recorded (`scripts/record_examples.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

# For a pattern, the first of these texts that matches is the example.
_TEXTS: Final = (
    "text",
    "1.0.0",
    "did:example:scribe",
    "https://agents.example.org",
    "2026-01",
    "0" * 32,
    "0" * 16,
    "sha256:" + "0" * 64,
    "did:callboard:" + "0" * 16,
    "whsec_" + "A" * 32,
    "A" * 43 + "=",
)
_FORMATS: Final = {
    "uuid": "0199c0de-0000-7000-8000-000000000001",
    "date-time": "2026-01-31T12:00:00.000Z",
}


def sample(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Any:
    """Return a value of a schema: its required members, with the simplest values.

    Args:
        schema: the schema.
        components: the schemas that it refers to, by name.
    """
    if "$ref" in schema:
        return sample(components[schema["$ref"].rsplit("/", 1)[1]], components)
    for name in ("default", "const"):
        if name in schema:
            return schema[name]
    for name in ("enum", "examples"):
        if name in schema:
            return schema[name][0]
    if "anyOf" in schema and "type" not in schema:
        return sample(schema["anyOf"][0], components)
    kind = schema.get("type", "object")
    match kind if isinstance(kind, str) else kind[0]:
        case "object":
            members = schema.get("properties", {})
            return {name: sample(members[name], components) for name in schema.get("required", ())}
        case "array":
            return [sample(schema["items"], components)] * schema.get("minItems", 0)
        case "string":
            return _text(schema)
        case "boolean":
            return True
        case _:
            return schema.get("minimum", 0)


def _text(schema: Mapping[str, Any]) -> str:
    if "format" in schema:
        return _FORMATS[schema["format"]]
    pattern = schema.get("pattern", "")
    found = next((text for text in _TEXTS if re.search(pattern, text)), "")
    return found.ljust(schema.get("minLength", 0), "0")[: schema.get("maxLength")]
