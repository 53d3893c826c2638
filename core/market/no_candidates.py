"""Why no agent can take a node, in words: how many offer the capability, and why none of them can.

Counts only: no agent and no price is named that discovery would not show. Made when a selection has
failed, in bounded time. Reference: features.md (Targeted routing); decision
requests-json-and-client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import nlargest
from itertools import islice
from typing import Final

from core.wording import counted, did_you_mean

UNHEALTHY: Final = "agent_unhealthy"
FULL: Final = "agent_full"
FAILED_BEFORE: Final = "failed_before"
SAME_OWNER: Final = "same_owner"
NOT_TRUSTED: Final = "not_trusted"
NOT_ACCEPTED: Final = "not_accepted"
VERIFIER_NOT_ACCEPTED: Final = "verifier_not_accepted"
TOO_SLOW: Final = "too_slow"
REGION_REFUSED: Final = "region_refused"
# Only of peers.
INPUTS_STAY: Final = "inputs_stay"
TIME_TOO_SHORT: Final = "time_too_short"
# Only of a choice: such an agent is taken where there is no other.
OWNER_FAILED: Final = "owner_failed_before"
# Agents of one capability that are looked at for their reasons.
LOOKED_AT_MAX: Final = 256
# Capability ids that are looked at for the one that was meant, and how often in a second: of a
# dry run each of a thousand nodes may ask for another capability that nobody offers.
SCANNED_MAX: Final = 2_000
HINTS_PER_S: Final = 10
# Of these, the most alike, which are compared.
COMPARED_MAX: Final = 16
_WORDS: Final = {
    "agent_offline": "offline",
    UNHEALTHY: "unhealthy",
    FULL: "full",
    "agent_revoked": "revoked",
    "agent_inactive": "deregistered a moment ago",
    "paid_by_tokens": "paid by tokens, for a node with a fixed price",
    "under_staked": "with too little stake",
    "stake_locked": "with its stake locked by other work",
    FAILED_BEFORE: "already failed for this node",
    SAME_OWNER: "of the same owner as the agent to be verified",
    NOT_TRUSTED: "not trusted by the administrator as a verifier",
    NOT_ACCEPTED: "of the payer's owner, or not accepted by the agent to be verified",
    VERIFIER_NOT_ACCEPTED: "accepting none of the verifiers that the node asks for",
    TOO_SLOW: "promising its result later than the node's timeoutMs",
    REGION_REFUSED: "in a region that a policy of the payer's subnets refuses",
    INPUTS_STAY: "to which the inputs may not leave: set settings.federate or the node's region, or"
    " add an allow_region policy",
    TIME_TOO_SHORT: "with less than 3 s of timeoutMs or maxRuntimeMs left for an order",
    "late": "too late",
    "above_reserve": "above the reserve price",
    "payers_own": "of the payer's owner",
}


def explain(capability_id: str, offering: int, reasons: Iterable[str], hint: str = "") -> str:
    """Return why no agent can take a node.

    Args:
        offering: how many agents offer the capability.
        reasons: why each of them cannot; of very many, of the first.
        hint: which capability was meant, where none offers this one.
    """
    if not offering:
        return f"no agent can take {capability_id!r}: no agent offers it{hint}"
    offers = "1 agent offers it" if offering == 1 else f"{offering} agents offer it"
    return f"no agent can take {capability_id!r}: {offers} ({counts_text(reasons)})"


def counts_text(reasons: Iterable[str]) -> str:
    """Return how often there is each reason, the most frequent first."""
    found = Counter(islice(reasons, LOOKED_AT_MAX))
    told = [
        f"{count} {_WORDS.get(reason, reason.replace('_', ' '))}"
        for reason, count in found.most_common()
    ]
    unlooked = ["the rest not examined"] if found.total() == LOOKED_AT_MAX else []
    return ", ".join([*told, *unlooked])


class CapabilityHints:
    """Says which capability was meant by an id that no agent offers, so often in a second."""

    def __init__(self) -> None:
        self._second = 0
        self._left = HINTS_PER_S

    def find(self, capability_id: str, offered: Iterable[str], at_ms: int) -> str:
        """Return the end of a message: "; did you mean …?", or "".

        Args:
            offered: the capabilities and versions that have agents.
        """
        if at_ms // 1_000 != self._second:
            self._second, self._left = at_ms // 1_000, HINTS_PER_S
        if not self._left:
            return ""
        self._left -= 1
        # A misspelling leaves most quarters of an id as they are.
        size = max(1, len(capability_id) // 4)
        parts = [capability_id[start : start + size] for start in range(0, 4 * size, size)]
        ids = (one for one in islice(offered, SCANNED_MAX) if "@" not in one)
        alike = nlargest(COMPARED_MAX, ids, key=lambda one: sum(part in one for part in parts))
        return did_you_mean(capability_id, alike)


def bids_text(made: int, unlisted: int, excluded: Iterable[str], offering: int) -> str:
    """Return why no bid of an auction wins.

    Args:
        made: how many bids there are, those of `unlisted` included.
        unlisted: standing bids that cannot win, for reasons that the payer must not read.
        excluded: why the others do not count.
        offering: how many agents offer the capability.
    """
    if not made:
        offer = "1 agent offers" if offering == 1 else f"{offering} agents offer"
        return f"no bid is eligible: {offer} the capability, none has bid"
    told = [counts_text(excluded)] if made > unlisted else []
    told += [f"{unlisted} not eligible"] if unlisted else []
    return f"no bid is eligible: of {counted(made, 'bid')} {', '.join(told)}"
