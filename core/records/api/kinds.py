"""The types of the members of requests and replies, with their bounds and their JSON Schemas.

A type of a request also parses the value: `PositiveCredits` returns micro-credits, `TimeMs` Unix
milliseconds. A type of a reply only has a schema. Specification: Units, Times, Texts, Capability
ids.
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from core.json_bounds import as_whole
from core.money import MICRO_MAX, MICRO_PER_CENT, micro_from_credits
from core.records.api.shape import Kind, Mismatch, Schema, checked
from core.records.api.shape import words as words
from core.records.bounds import (
    AGENT_NAME_CHARS_MAX,
    AGENT_NAME_PATTERN,
    CAPABILITY_ID_PATTERN,
    DID_CHARS_MAX,
    DID_PATTERN,
    NAME_CHARS_MAX,
    NODE_NAME_CHARS_MAX,
    REGION_PATTERN,
    TEXT_CHARS_MAX,
    is_agent_name,
    is_capability_id,
    is_did,
    is_node_name,
    text_defect,
)
from core.timestamps import unix_ms
from core.wording import got_of, kind_of

OFFSET_MAX: Final = 10_000
CENTS_MAX: Final = MICRO_MAX // MICRO_PER_CENT
DURATION_MS_MAX: Final = 30 * 24 * 3_600_000
# A cursor is a key in base64. The longest keys are DIDs, which are ASCII, and names of nodes.
_CURSOR_CHARS_MAX: Final = -(-max(DID_CHARS_MAX, 4 * NODE_NAME_CHARS_MAX) * 4 // 3) + 4
# The largest integer that the database can store.
ENTRY_ID_MAX: Final = 2**63 - 1
_EXAMPLE_TIME: Final = "2026-01-31T12:00:00.000Z"


def text(least: int, most: int) -> Kind:
    """Return the kind of texts of `least` to `most` characters."""

    def take(value: Any) -> Any:
        if not isinstance(value, str) or not least <= len(value) <= most:
            got = f"{len(value)} characters" if isinstance(value, str) else kind_of(value)
            raise Mismatch(got, f"a string of {least} to {most} characters")
        return value

    schema: Schema = {"type": "string", "maxLength": most}
    return Kind({**schema, "minLength": least} if least else schema, take)


def whole(least: int, most: int, *, unit: str = "a whole number") -> Kind:
    """Return the kind of whole numbers in a range.

    Args:
        unit: the name of the numbers in messages.
    """

    def take(value: Any) -> Any:
        value = as_whole(value)
        if type(value) is not int or not least <= value <= most:
            raise Mismatch(got_of(value), f"{unit} from {least} to {most}")
        return value

    return Kind({"type": "integer", "minimum": least, "maximum": most}, take)


def _micro(value: Any) -> int:
    try:
        return micro_from_credits(value)
    except ValueError as error:
        raise Mismatch(got_of(value), str(error).partition("expected ")[2]) from None


def _positive_micro(value: Any) -> int:
    micro = _micro(value)
    if not 0 < micro <= MICRO_MAX:
        raise Mismatch(got_of(value), "more than 0 credits")
    return micro


def _micro_from_0(value: Any) -> int:
    micro = _micro(value)
    if micro < 0:
        raise Mismatch(got_of(value), "0 or more credits")
    return micro


def _uuid(value: Any) -> str:
    try:
        return str(uuid.UUID(value if isinstance(value, str) else ""))
    except ValueError:
        raise Mismatch(got_of(value), "an id in UUID form") from None


def _time_ms(value: Any) -> int:
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
        if at is not None:
            return unix_ms(at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC))
    except (ValueError, OverflowError):  # no time, or in UTC before the year 1 or after 9999
        pass
    raise Mismatch(got_of(value), "a time such as 2026-01-31T12:00:00Z")


def matching(pattern: str, expected: str) -> Kind:
    """Return the kind of texts that match a pattern completely."""
    form = re.compile(pattern)
    schema: Schema = {"type": "string", "pattern": f"^{pattern}$"}
    return checked(
        schema, lambda value: isinstance(value, str) and form.fullmatch(value) is not None, expected
    )


def _digits(least: int, most: int, *, is_as_sent: bool = False) -> Kind:
    """Return the kind of whole numbers in a path or a query, where everything is text.

    Args:
        least, most: the bounds.
        is_as_sent: whether the client returns a number that the service has sent. Such a number
            has no leading zero.
    """

    def take(value: Any) -> int:
        is_number = isinstance(value, str) and value.isascii() and value.isdigit()
        if is_number and is_as_sent:
            is_number = value == "0" or value[0] != "0"
        if not is_number or len(value) > len(str(most)) or not least <= int(value) <= most:
            raise Mismatch(got_of(value), f"a whole number from {least} to {most}")
        return int(value)

    return Kind({"type": "integer", "minimum": least, "maximum": most}, take)


def _flag(value: Any) -> bool:
    if value not in ("true", "false"):
        raise Mismatch(got_of(value), "true, false")
    return bool(value == "true")


def _cursor(value: Any) -> str:
    try:
        if len(value) > _CURSOR_CHARS_MAX:
            raise ValueError(value)
        padded = value + "=" * (-len(value) % 4)
        key = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
        if text_defect(key) is not None:
            raise ValueError(value)
    except (ValueError, binascii.Error):
        raise Mismatch(value, "the nextCursor of the previous page") from None
    return key


def _agent_name(value: Any) -> str:
    lower = value.lower() if isinstance(value, str) and value.isascii() else value
    if not is_agent_name(lower):
        got = value[:100] if isinstance(value, str) else kind_of(value)
        expected = "3 to 32 letters, digits and dashes, no dash at either end"
        raise Mismatch(got, expected)
    return str(lower)


_CREDITS_SENT: Final[Schema] = {
    "type": ["number", "string"],
    "description": "In credits, at most 6 decimals; a text keeps decimals exact.",
}
_TIME: Final[Schema] = {"type": "string", "format": "date-time", "examples": [_EXAMPLE_TIME]}
# The same rule as `is_node_name`. Surrogates are not excluded, because parsed JSON has none.
NODE_NAME_SCHEMA: Final[Schema] = {
    "type": "string",
    "pattern": r"^(?!\s)[^\x00-\x1f\x7f-\x9f\u2028\u2029'\"\\`]+(?<!\s)$",
    "minLength": 1,
    "maxLength": NODE_NAME_CHARS_MAX,
    "not": {"pattern": "#verify"},
}
_UUID_SCHEMA: Final[Schema] = {"type": "string", "format": "uuid"}

# -- of requests and replies -----------------------------------------------------------------------

Did = Annotated[
    str,
    checked(
        {"type": "string", "pattern": DID_PATTERN, "maxLength": DID_CHARS_MAX},
        is_did,
        f"a DID of at most {DID_CHARS_MAX} characters",
    ),
]
Uuid = Annotated[str, Kind(_UUID_SCHEMA, _uuid)]
CapabilityId = Annotated[
    str,
    checked(
        {"type": "string", "pattern": CAPABILITY_ID_PATTERN},
        is_capability_id,
        "letters, digits, dots, dashes, underscores, at most 128 characters",
    ),
]
NodeName = Annotated[
    str,
    checked(
        NODE_NAME_SCHEMA, is_node_name, f"the name of a node, 1 to {NODE_NAME_CHARS_MAX} characters"
    ),
]
# Converted to lower case, because names are not case-sensitive.
AgentName = Annotated[
    str,
    Kind(
        {"type": "string", "pattern": AGENT_NAME_PATTERN, "maxLength": AGENT_NAME_CHARS_MAX},
        _agent_name,
    ),
]
Region = Annotated[
    str,
    matching(REGION_PATTERN[1:-1], "1 to 64 letters, digits, dots, dashes, underscores"),
]
TraceId = Annotated[str, matching("[0-9a-f]{32}", "32 lowercase hexadecimal digits")]
Hash = Annotated[
    str,
    matching("sha256:[0-9a-f]{64}", "sha256: and 64 lower-case hexadecimal digits"),
]
ShortText = Annotated[str, text(0, NAME_CHARS_MAX)]
LongText = Annotated[str, text(0, TEXT_CHARS_MAX)]
Cents = Annotated[int, whole(0, CENTS_MAX, unit="whole cents")]
DurationMs = Annotated[int, whole(0, DURATION_MS_MAX, unit="whole milliseconds")]

# -- of requests, with the parsed value ------------------------------------------------------------

# The parsed values are micro-credits: above 0 for the first type, 0 or more for the second.
PositiveCredits = Annotated[int, Kind(_CREDITS_SENT, _positive_micro)]
CreditsIn = Annotated[int, Kind(_CREDITS_SENT, _micro_from_0)]
# Unix milliseconds.
TimeMs = Annotated[int, Kind(_TIME, _time_ms)]

# -- of paths and queries --------------------------------------------------------------------------

Limit = Annotated[int, _digits(1, 10**9 - 1)]
Offset = Annotated[int, _digits(0, OFFSET_MAX)]
# The id of an audit entry, or a number of entries.
EntryId = Annotated[int, _digits(1, ENTRY_ID_MAX)]
# Number of due times in a reply.
DueCount = Annotated[int, _digits(1, 100)]
# The id of the last event that a reader of a stream has received; 0 for none.
LastEventId = Annotated[int, _digits(0, ENTRY_ID_MAX, is_as_sent=True)]
# The key of the last row of the previous page.
Cursor = Annotated[str, Kind({"type": "string"}, _cursor)]
Flag = Annotated[bool, Kind({"enum": ["true", "false"]}, _flag)]

# -- of replies ------------------------------------------------------------------------------------

# Credits: a number, or a text if a double would round the amount.
Credits = Annotated[
    float | str,
    Kind(
        {
            "type": ["number", "string"],
            "description": "In credits, at most 6 decimals; a text above 10^9.",
        }
    ),
]
Timestamp = Annotated[str, Kind(_TIME)]
Count = Annotated[int, Kind({"type": "integer", "minimum": 0})]
Ratio = Annotated[float, Kind({"type": "number", "minimum": 0, "maximum": 1})]
# A member that is true in every reply.
Yes = Annotated[bool, Kind({"const": True})]
