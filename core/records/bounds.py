"""The bounds and patterns of the texts, ids and numbers that callers choose.

Every text that reaches the database is checked by `text_defect`, every id by its own predicate.
This file knows neither HTTP nor JSON. The HTTP edge refuses a member whose predicate is false.
Decision ledger-writer.
"""

from __future__ import annotations

import base64
import re
from typing import Final

from core.capabilities.semver import RANGE_PATTERN

DID_CHARS_MAX: Final = 256
NAME_CHARS_MAX: Final = 512
TEXT_CHARS_MAX: Final = 10_000
NODE_NAME_CHARS_MAX: Final = 128
# The largest metrics of an attempt, as compact JSON. The metrics are stored with the node.
METRICS_BYTES_MAX: Final = 16 * 1024
REPEAT_KEY_CHARS_MAX: Final = 255
# The number of manifests or cards in one bulk request.
BULK_ITEMS_MAX: Final = 1_000
# The largest result that is stored in a node's row. A larger result is stored by reference.
RESULT_INLINE_BYTES_MAX: Final = 64 * 1024
# The largest reply of an agent.
AGENT_REPLY_BYTES_MAX: Final = 1024 * 1024
# The last time with a text form, in Unix milliseconds: 9999-12-31T23:59:59.999Z.
TIME_MS_MAX: Final = 253_402_300_799_999

# The syntax of DIDs (W3C, section 3.1), except that the method may have upper case letters, too.
DID_PATTERN: Final = r"^did:[A-Za-z0-9]+:[A-Za-z0-9._:%-]+$"
AGENT_NAME_CHARS_MAX: Final = 32
# Values of `acceptedVerifiers` of a card other than a list of DIDs. "trusted" is the default.
TRUSTED_VERIFIERS: Final = "trusted"
ANY_VERIFIERS: Final = "any"
# The most DIDs in `acceptedVerifiers`. money.md (Verifiers).
ACCEPTED_VERIFIERS_MAX: Final = 32
# The pattern of a name as a client sends it. Names are stored in lower case.
AGENT_NAME_PATTERN: Final = r"^[A-Za-z0-9](?:[A-Za-z0-9-]{1,30}[A-Za-z0-9])$"
CAPABILITY_ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
# A capability id, optionally with a range of versions: `cap.x.y.v1@>=1.2`.
CAPABILITY_OF_VERSIONS_PATTERN: Final = rf"{CAPABILITY_ID_PATTERN[:-1]}(@{RANGE_PATTERN})?$"
REGION_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
AGENT_ID_PATTERN: Final = r"^[^\x00-\x1f\x7f]{1,256}$"
# An amount of credits that is sent as a text.
CREDITS_PATTERN: Final = r"^[0-9]{1,12}(\.[0-9]{1,6})?$"
PLAIN_TEXT_PATTERN: Final = r"^[^\x00]*$"
HTTP_URL_PATTERN: Final = r"^https?://[^\s/?#]+[^\s#]*$"
URL_CHARS_MAX: Final = 2_048
# A URL without credentials.
WEBHOOK_URL_PATTERN: Final = r"^https?://[^\s\x00-\x1f\x7f/?#@]+([/?][^\s\x00-\x1f\x7f#]*)?$"
CARD_ENDPOINT_PATTERN: Final = r"^https?://[^\s/?#@]+(/[^\s?#]*)?$"
DISPATCH_PATH_PATTERN: Final = r"^/[^\s]*$"


_DID: Final = re.compile(DID_PATTERN[1:-1])
_AGENT_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{1,30}[a-z0-9])")
_CAPABILITY_ID: Final = re.compile(CAPABILITY_ID_PATTERN[1:-1])
_NODE_NAME: Final = re.compile(
    rf"(?!\s)[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff'\"\\`]{{1,{NODE_NAME_CHARS_MAX}}}(?<!\s)"
)
_SECRET_PREFIX: Final = "whsec_"
WEBHOOK_SECRET: Final = f"{_SECRET_PREFIX} and base64 of 24 to 64 bytes"
_WEBHOOK_URL: Final = re.compile(WEBHOOK_URL_PATTERN[1:-1])
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def is_webhook_secret(value: object) -> bool:
    """Say whether a value is `whsec_` and base64 of 24 to 64 bytes."""
    if type(value) is not str or len(value) > 128 or not value.startswith(_SECRET_PREFIX):
        return False
    try:
        key = base64.b64decode(value.removeprefix(_SECRET_PREFIX), validate=True)
    except ValueError:
        return False
    return 24 <= len(key) <= 64


def is_did(value: object) -> bool:
    """Say whether a value is a DID of at most 256 characters."""
    return type(value) is str and len(value) <= DID_CHARS_MAX and _DID.fullmatch(value) is not None


def is_capability_id(value: object) -> bool:
    """Say whether a value is a capability id."""
    return type(value) is str and _CAPABILITY_ID.fullmatch(value) is not None


def is_agent_name(value: object) -> bool:
    """Say whether a value is the name of an agent, in lower case."""
    return type(value) is str and _AGENT_NAME.fullmatch(value) is not None


def is_node_name(value: object) -> bool:
    """Say whether a value is a node name: 1 to 128 characters that a path can quote."""
    return type(value) is str and _NODE_NAME.fullmatch(value) is not None and "#verify" not in value


def is_webhook_url(value: object) -> bool:
    """Say whether a value is an http or https URL without credentials."""
    is_short = type(value) is str and len(value) <= URL_CHARS_MAX
    return is_short and _WEBHOOK_URL.fullmatch(str(value)) is not None


def text_defect(text: str) -> str | None:
    """Return why a text cannot be stored, in words for a message; None if it can be stored.

    PostgreSQL cannot store U+0000. Half of a surrogate pair has no UTF-8 form.
    """
    if "\0" in text:
        return "U+0000"
    if not text.isascii() and _SURROGATE.search(text) is not None:
        return "a lone surrogate"
    return None
