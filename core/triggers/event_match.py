"""Matches audit events against the filter of a trigger.

A filter maps dotted paths of members of an event to the values that these members must have. Each
value is a JSON scalar or a list of scalars. With a list, the member must equal one of its scalars.
Reference: features.md (Triggers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from core.json_text import write_json

FILTER_MEMBERS_MAX: Final = 10
FILTER_BYTES_MAX: Final = 4 * 1024
_NOTHING: Final = object()


def checked_filter(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return a filter unchanged if its form is valid.

    Raises:
        ValueError: the form is not valid; the text says what was expected.
    """
    if len(wanted) > FILTER_MEMBERS_MAX:
        raise ValueError(f"got {len(wanted)}, expected at most {FILTER_MEMBERS_MAX} members")
    if len(write_json(wanted)) > FILTER_BYTES_MAX:
        raise ValueError(f"expected at most {FILTER_BYTES_MAX} bytes of JSON")
    for path, value in wanted.items():
        if not all(path.split(".")):
            raise ValueError("expected names of members, with dots between names")
        values = value if isinstance(value, list) else [value]
        if not values or any(isinstance(one, dict | list) for one in values):
            raise ValueError("expected for each member a string, number, boolean, null or list")
    return wanted


def first_match(
    events: Iterable[Mapping[str, Any]], event_type: str, wanted: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the first event of an audit entry that matches a filter; None if no event matches.

    A path begins at the `payload` of an event. The members of the event itself, such as
    `targetType` and `targetId`, can be named, too; members of the payload come first.

    Args:
        events: `payload.events` of the audit entry.
        event_type: the type that the event must have.
        wanted: the filter.
    """
    for event in events:
        if event["type"] == event_type:
            members = {**event, **event["payload"]}
            if all(_is_match(_at(members, path), value) for path, value in wanted.items()):
                return event
    return None


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return _NOTHING
        value = value[name]
    return value


def _is_match(value: Any, wanted: Any) -> bool:
    choices = wanted if isinstance(wanted, list) else [wanted]
    # True equals 1 in Python, but not in JSON.
    return any(
        value == choice and isinstance(value, bool) == isinstance(choice, bool)
        for choice in choices
    )
