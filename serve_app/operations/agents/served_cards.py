"""Compares a registered card with the card that the agent itself serves.

Theory of operation: at a registration the replica fetches the agent's card from its endpoint, in
parallel with the commit. A slow agent delays only its own registration, by at most `TIMEOUT_S`. The
egress policy applies to the fetch. The fetches of an owner per minute and the concurrent fetches of
a replica are limited. Beyond these limits, and in bulk registrations, cards are not compared. The
result is only shown in the reply of the registration.
Reference: features.md (Agent cards). Decision registry-and-discovery.
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
from serve_app.callers.call_windows import CallWindows

CARD_PATH: Final = "/.well-known/acard.json"
TIMEOUT_S: Final = 1.0
# The most fetches per owner and minute, and the most concurrent fetches of one replica.
LOOKS_PER_OWNER: Final = 30
LOOKS_AT_ONCE: Final = 16
OWNERS_MAX: Final = 4_096
LEVELS_MAX: Final = 64

FetchDocument = Callable[[str], Awaitable[bytes]]


def served_card_url(endpoint: str) -> str:
    """Return the URL at which an agent serves its card: a fixed path at its endpoint's origin."""
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.netloc}{CARD_PATH}"


class ServedCards:
    """Fetches and compares the served cards for one replica.

    Args:
        fetch: returns the text of the document at a URL.
        timeout_s: the timeout of one fetch, in seconds.
    """

    def __init__(self, fetch: FetchDocument, *, timeout_s: float = TIMEOUT_S) -> None:
        self._fetch = fetch
        self._timeout_s = timeout_s
        self._looking = 0
        self._looks = CallWindows(LOOKS_PER_OWNER, OWNERS_MAX)  # Counts per owner.

    def __repr__(self) -> str:
        return f"<ServedCards looking={self._looking}>"

    async def compare(
        self, card: Mapping[str, Any], owner_did: str, clock_ms: int
    ) -> dict[str, Any]:
        """Return the `servedCard` member of a registration's reply.

        Args:
            card: the registered card as JSON, without standing bids.
            owner_did: the DID under which the fetch is counted.
            clock_ms: the time of a monotonic clock, in milliseconds.
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
