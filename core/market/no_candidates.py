"""Messages that explain why no agent can take a node.

A message has the number of agents that offer the capability, and how many of them are excluded for
each reason. It names no agent and no price, because discovery may hide them from the payer. A
message is built in bounded time after a selection has failed.
Reference: features.md (Targeted routing); decision requests-json-and-client.
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
# The next two reasons are only for peers.
INPUTS_STAY: Final = "inputs_stay"
TIME_TOO_SHORT: Final = "time_too_short"
# Only in the reasons of a choice: an agent with this reason is chosen if there is no other agent.
OWNER_FAILED: Final = "owner_failed_before"
# Excluded agents of one capability that are counted for a message.
LOOKED_AT_MAX: Final = 256
# Offered capability ids that are scanned for one hint.
SCANNED_MAX: Final = 2_000
# A dry run may have a thousand nodes, each with a different capability that no agent offers.
HINTS_PER_S: Final = 10
# The most similar of the scanned ids, which are compared exactly.
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
    INPUTS_STAY: "not allowed to receive the inputs: set settings.federate or the node's region, or"
    " add an allow_region policy",
    TIME_TOO_SHORT: "with less than 3 s of timeoutMs or maxRuntimeMs left for an order",
    "late": "too late",
    "above_reserve": "above the reserve price",
    "payers_own": "of the payer's owner",
}


def explain(capability_id: str, offering: int, reasons: Iterable[str], hint: str = "") -> str:
    """Return the message that no agent can take a node.

    Args:
        capability_id: the capability of the node.
        offering: the number of agents that offer the capability.
        reasons: why each of these agents cannot take the node; for very many agents, the first
            reasons.
        hint: the end of the message if no agent offers the capability (`CapabilityHints.find`).
    """
    if not offering:
        return f"no agent can take {capability_id!r}: no agent offers it{hint}"
    offers = "1 agent offers it" if offering == 1 else f"{offering} agents offer it"
    return f"no agent can take {capability_id!r}: {offers} ({counts_text(reasons)})"


def counts_text(reasons: Iterable[str]) -> str:
    """Return a text with the number of agents for each reason, the most frequent reason first.

    Only the first `LOOKED_AT_MAX` reasons are counted.
    """
    found = Counter(islice(reasons, LOOKED_AT_MAX))
    told = [
        f"{count} {_WORDS.get(reason, reason.replace('_', ' '))}"
        for reason, count in found.most_common()
    ]
    unlooked = ["further agents not examined"] if found.total() == LOOKED_AT_MAX else []
    return ", ".join([*told, *unlooked])


class CapabilityHints:
    """Suggests the offered capability that is most similar to an id that no agent offers.

    It makes at most `HINTS_PER_S` suggestions per second.
    """

    def __init__(self) -> None:
        self._second = 0
        self._left = HINTS_PER_S

    def find(self, capability_id: str, offered: Iterable[str], at_ms: int) -> str:
        """Return the end of a message: "; did you mean …?", or "" without a suggestion.

        Args:
            capability_id: the id that no agent offers.
            offered: the ids of the capabilities and versions that agents offer.
            at_ms: the current time, milliseconds.
        """
        if at_ms // 1_000 != self._second:
            self._second, self._left = at_ms // 1_000, HINTS_PER_S
        if not self._left:
            return ""
        self._left -= 1
        # A misspelled id usually still contains most quarters of the correct id unchanged.
        size = max(1, len(capability_id) // 4)
        parts = [capability_id[start : start + size] for start in range(0, 4 * size, size)]
        ids = (one for one in islice(offered, SCANNED_MAX) if "@" not in one)
        alike = nlargest(COMPARED_MAX, ids, key=lambda one: sum(part in one for part in parts))
        return did_you_mean(capability_id, alike)


def bids_text(made: int, unlisted: int, excluded: Iterable[str], offering: int) -> str:
    """Return the message that no bid of an auction can win.

    Args:
        made: the number of all bids, including `unlisted`.
        unlisted: the number of standing bids that are excluded for reasons that the payer must not
            see.
        excluded: the reason of each other excluded bid.
        offering: the number of agents that offer the capability.
    """
    if not made:
        offer = "1 agent offers" if offering == 1 else f"{offering} agents offer"
        return f"no bid is eligible: {offer} the capability, none has bid"
    told = [counts_text(excluded)] if made > unlisted else []
    told += [f"{unlisted} not eligible"] if unlisted else []
    return f"no bid is eligible: of {counted(made, 'bid')} {', '.join(told)}"
