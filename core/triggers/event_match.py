"""Which events a trigger's filter matches.

A filter names members of an event by dotted paths, and what each of them must equal: a JSON scalar,
or one of a list of them. Reference: features.md (Triggers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from core.json_text import write_json

FILTER_MEMBERS_MAX: Final = 10
FILTER_BYTES_MAX: Final = 4 * 1024
_NOTHING: Final = object()


def checked_filter(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return a filter whose form is right.

    Raises:
        ValueError: what is wrong, and what was expected.
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
    """Return the first event of an audit entry that a filter matches; None: none does.

    Args:
        events: `payload.events` of the entry. A path begins at the `payload` of an event; beside
            its members there are the event's `targetType` and `targetId`.
        event_type: the type of the event.
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
    # In Python True equals 1, in JSON it does not.
    return any(
        value == choice and isinstance(value, bool) == isinstance(choice, bool)
        for choice in choices
    )
