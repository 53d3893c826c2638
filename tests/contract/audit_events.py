"""The events of audit entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def events_of(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the events of an entry, each with `type`, `targetType`, `targetId` and `payload`.

    Args:
        entry: of `GET /v1/audit`; the first one, without `payload.events`, is its own event.
    """
    payload = entry.get("payload")
    events = payload.get("events") if isinstance(payload, Mapping) else None
    if events is not None:
        return list(events)
    own = {"type": entry.get("eventType"), "payload": payload}
    return [{**own, "targetType": entry.get("targetType"), "targetId": entry.get("targetId")}]
