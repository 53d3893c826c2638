"""Where the card that an agent serves differs from the one that was registered.

What is served is read, never trusted: only names of the registered card are told, and no value.
Reference: features.md (Agent cards). Decision registry-and-discovery.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

DIFFERENCES_MAX: Final = 20
_CAPABILITIES: Final = "capabilities"


def find_differences(card: Mapping[str, Any], served: object) -> list[str]:
    """Return the members of a card that are served otherwise, at most `DIFFERENCES_MAX`.

    Args:
        card: as it was registered, in its JSON form.
        served: what was parsed of the served text.

    Returns: names such as `version` and `capabilities.cap.x.v1.price_cents`; `capabilities` where
        others are served besides; "" where what is served is no card at all.
    """
    if not isinstance(served, dict):
        return [""]
    found = [
        name for name in sorted(card) if name != _CAPABILITIES and card[name] != served.get(name)
    ]
    listed = served.get(_CAPABILITIES)
    others = {
        one["id"]: one
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, dict) and isinstance(one.get("id"), str)
    }
    for capability in card[_CAPABILITIES]:
        path, other = f"{_CAPABILITIES}.{capability['id']}", others.pop(capability["id"], None)
        if other is None:
            found.append(path)
            continue
        found += [
            f"{path}.{name}" for name in sorted(capability) if capability[name] != other.get(name)
        ]
    if others:
        found.append(_CAPABILITIES)
    return found[:DIFFERENCES_MAX]
