"""Translates pydantic's errors into problems in terms of JSON.

The problems contain no Python types and no regular expressions. The service uses them for manifests
and agent cards, and the agent kit uses them, too. Decision requests-json-and-client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from core.errors import Problem
from core.records.bounds import (
    AGENT_ID_PATTERN,
    CAPABILITY_ID_PATTERN,
    CAPABILITY_OF_VERSIONS_PATTERN,
    CARD_ENDPOINT_PATTERN,
    CREDITS_PATTERN,
    DID_PATTERN,
    DISPATCH_PATH_PATTERN,
    HTTP_URL_PATTERN,
    PLAIN_TEXT_PATTERN,
    REGION_PATTERN,
)
from core.wording import counted, value_text

_CAPABILITY: Final = "1 to 128 letters, digits, dots, dashes and underscores"
# The description of each pattern, for texts that do not match it. A test compares the patterns with
# those of the models.
PATTERN_WORDS: Final[Mapping[str, str]] = {
    CAPABILITY_ID_PATTERN: f"a capability id: {_CAPABILITY}",
    CAPABILITY_OF_VERSIONS_PATTERN: f"a capability id: {_CAPABILITY}; versions follow @, as @>=1.2",
    DID_PATTERN: "a DID such as did:example:me",
    REGION_PATTERN: "1 to 64 letters, digits, dots, dashes and underscores",
    AGENT_ID_PATTERN: "1 to 256 characters without control characters",
    CREDITS_PATTERN: "0 or more credits with at most 6 decimals",
    PLAIN_TEXT_PATTERN: "text without U+0000",
    HTTP_URL_PATTERN: "an http or https URL without spaces and #",
    CARD_ENDPOINT_PATTERN: "an http or https URL without user, query and #",
    DISPATCH_PATH_PATTERN: "a path that begins with / and has no spaces",
}
_TYPES: Final[Mapping[str, str]] = {
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dataclass_type": "an object",
    "list_type": "an array",
    "tuple_type": "an array",
    "set_type": "an array",
    "string_type": "a string",
    "string_sub_type": "a string",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer of fewer digits",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "none_required": "null",
    "missing": "a value",
    "missing_argument": "a value",
    "string_pattern_mismatch": "text of another form",
}
_GOT_CHARS_MAX: Final = 80
_SHOULD: Final = re.compile(
    r"^(?:Input|String|List|Dictionary|Data|Tuple|Set) should (?:be |have )?"
)


def problem_of(path: str, found: Mapping[str, Any]) -> Problem:
    """Return a pydantic error as a problem at a path.

    Args:
        found: one of `ValidationError.errors()`.
    """
    got = value_text(found.get("input"), _GOT_CHARS_MAX)
    if found["type"] in ("missing", "missing_argument"):
        got = "nothing"
    elif found["type"] in ("too_long", "too_short"):
        got = counted(len(found["input"]), "member")
    return Problem(path, got, _expected(found))


def _expected(found: Mapping[str, Any]) -> str:
    kind, context = found["type"], found.get("ctx") or {}
    if kind == "string_pattern_mismatch":
        return PATTERN_WORDS.get(context.get("pattern", ""), _TYPES[kind])
    if kind in _TYPES:
        return _TYPES[kind]
    message = str(found["msg"])
    if kind == "value_error":
        message = message.removeprefix("Value error, ")
        return message.partition("expected ")[2] or message
    message = _SHOULD.sub("", message).partition(" after validation")[0]
    return message[:1].lower() + message[1:]
