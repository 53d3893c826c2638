"""Looks at the card that an agent serves, when its card is registered, and says what differs.

Theory of operation: the look begins beside the commit and has `TIMEOUT_S` in all, so that a slow
agent makes its own registration slower by that at most. It goes through the egress gate. An owner
has a number of looks a minute, and a replica a number at a time; beyond them, and in a bulk, none
is taken. Nothing follows from what is found but a line in the reply. Reference: features.md (Agent
cards). Decision registry-and-discovery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from core.json_bounds import is_deeper_than
from core.json_text import read_foreign_json
from core.records.agent import find_differences
from federation.documents import DocumentUnavailable
from serve_app.callers.windows import AddressWindows

CARD_PATH: Final = "/.well-known/acard.json"
TIMEOUT_S: Final = 1.0
# A minute.
LOOKS_PER_OWNER: Final = 30
LOOKS_AT_ONCE: Final = 16
OWNERS_MAX: Final = 4_096
LEVELS_MAX: Final = 64

FetchDocument = Callable[[str], Awaitable[bytes]]


def served_card_url(endpoint: str) -> str:
    """Return where the card of an agent's endpoint is served: at its origin."""
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.netloc}{CARD_PATH}"


class ServedCards:
    """The looks of one replica.

    Args:
        fetch: a document's text by its URL.
        timeout_s: how long one look may take.
    """

    def __init__(self, fetch: FetchDocument, *, timeout_s: float = TIMEOUT_S) -> None:
        self._fetch = fetch
        self._timeout_s = timeout_s
        self._looking = 0
        self._looks = AddressWindows(LOOKS_PER_OWNER, OWNERS_MAX)  # by owner

    def __repr__(self) -> str:
        return f"<ServedCards looking={self._looking}>"

    async def compare(
        self, card: Mapping[str, Any], owner_did: str, clock_ms: int
    ) -> dict[str, Any]:
        """Return what a registration says of the card that its agent serves.

        Args:
            card: as it was registered, in its JSON form.
            owner_did: on whose account the look is.
            clock_ms: a monotonic clock, milliseconds.
        """
        endpoint = card["endpoint"]
        is_allowed = bool(endpoint) and self._looking < LOOKS_AT_ONCE
        if not is_allowed or not self._looks.take(owner_did, clock_ms).is_allowed:
            return {"status": "not_compared", "differences": []}
        self._looking += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                text = await self._fetch(served_card_url(endpoint))
            served = read_foreign_json(text)
            if is_deeper_than(served, LEVELS_MAX):
                served = None
        except (DocumentUnavailable, TimeoutError):
            return {"status": "unreachable", "differences": []}
        except ValueError:
            served = None
        finally:
            self._looking -= 1
        differences = find_differences(card, served)
        return {"status": "different" if differences else "same", "differences": differences}
