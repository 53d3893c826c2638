"""An agent's availability, from its heartbeats and probes.

API replies and the ranking use this one rule. It does not cover circuits: each owner process has
its own circuits (`actors/directory/health/circuits.py`). Pure.
Reference: features.md (Targeted routing).
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from core.records.statuses import HEARTBEAT_STATUSES
from core.records.statuses import Availability as Availability

HEARTBEAT_TTL_MS: Final = 60_000
# A failed probe counts until the next probe, which follows within five minutes. It must expire,
# because the service may stop probing.
PROBE_TTL_MS: Final = 600_000
PERCENT: Final = 100.0
# At these values and above, `availability_share` deducts the full part for the queue and the
# latency.
QUEUE_DEPTH_FULL: Final = 10
LATENCY_MS_FULL: Final = 1_000.0
SHARE_DECIMALS: Final = 6


class Liveness(Struct, frozen=True, gc=False):
    """The newest heartbeat and the newest probe of an agent.

    `status`, `load`, `heartbeat_ms`: the content and the time of the heartbeat; None without one.
    `load`: the taken share of the agent's capacity, 0 to 1. `probe_ms`, `is_probe_ok`: the time and
    the result of the probe; None without one. Times are Unix milliseconds.
    """

    status: str | None = None
    load: float | None = None
    heartbeat_ms: int | None = None
    probe_ms: int | None = None
    is_probe_ok: bool | None = None


NO_SIGNALS: Final = Liveness()


def drop_older_signals(live: Liveness, registered_ms: int) -> Liveness:
    """Return the liveness without a heartbeat or a probe that is older than the agent's card.

    Args:
        registered_ms: when the card was stored, Unix milliseconds.
    """
    if (live.heartbeat_ms or 0) >= registered_ms and (live.probe_ms or 0) >= registered_ms:
        return live
    is_heard = live.heartbeat_ms is not None and live.heartbeat_ms >= registered_ms
    is_probed = live.probe_ms is not None and live.probe_ms >= registered_ms
    return Liveness(
        live.status if is_heard else None,
        live.load if is_heard else None,
        live.heartbeat_ms if is_heard else None,
        live.probe_ms if is_probed else None,
        live.is_probe_ok if is_probed else None,
    )


def availability(live: Liveness, now_ms: int, *, silent_from_ms: int = 0) -> Availability:
    """Return the availability of an active agent.

    The first rule that applies decides:

    1. The newest signal is a failed probe that has not expired: the agent is offline.
    2. The newest signal is a successful probe that is at most 60 s old: the agent is available. If
    the last heartbeat is also at most 60 s old, its status counts instead.
    3. The agent has never sent a heartbeat: it is available.
    4. The last heartbeat is at most 60 s old: the status in the heartbeat counts.
    5. Otherwise the agent is offline.

    Args:
        now_ms: the current time, Unix milliseconds.
        silent_from_ms: the service may have lost heartbeats before this time, Unix milliseconds.
            In rule 4, the age of an older heartbeat is therefore counted from this time.
    """
    heard_ms = live.heartbeat_ms
    probed_ms = live.probe_ms
    is_probe_newest = probed_ms is not None and (heard_ms is None or probed_ms > heard_ms)
    if is_probe_newest and probed_ms is not None and now_ms - probed_ms < PROBE_TTL_MS:
        if not live.is_probe_ok:
            return Availability.OFFLINE
        if now_ms - probed_ms < HEARTBEAT_TTL_MS:
            # A successful probe does not override the status in a heartbeat that is at most 60 s
            # old.
            return (
                _reported_availability(live)
                if _is_fresh(heard_ms, now_ms)
                else Availability.AVAILABLE
            )
    if heard_ms is None:
        return Availability.AVAILABLE
    is_fresh = _is_fresh(max(heard_ms, silent_from_ms), now_ms)
    return _reported_availability(live) if is_fresh else Availability.OFFLINE


def next_change_ms(live: Liveness, now_ms: int, *, silent_from_ms: int = 0) -> float:
    """Return the next time at which the availability or the load may change without a new signal.

    Args:
        now_ms: the current time, Unix milliseconds.
        silent_from_ms: as in `availability`.

    Returns:
        Unix milliseconds; infinity if nothing will change.
    """
    changes: list[int] = []
    if live.heartbeat_ms is not None:
        heard_ms = max(live.heartbeat_ms, silent_from_ms)
        changes += (live.heartbeat_ms + HEARTBEAT_TTL_MS + 1, heard_ms + HEARTBEAT_TTL_MS + 1)
    if live.probe_ms is not None:
        changes += (live.probe_ms + HEARTBEAT_TTL_MS, live.probe_ms + PROBE_TTL_MS)
    return min((at_ms for at_ms in changes if at_ms > now_ms), default=math.inf)


def reported_load(live: Liveness, now_ms: int) -> float:
    """Return the load in the last heartbeat; 0 if the heartbeat is older than 60 s or missing."""
    return live.load or 0.0 if _is_fresh(live.heartbeat_ms, now_ms) else 0.0


def load_share(load: float) -> float | None:
    """Return a reported load as a share, 0 to 1; None if the load is below 0 or above 100.

    Args:
        load: a share from 0 to 1, or a percentage above 1 and up to 100. Exactly 1 is a share: the
            agent is full.
    """
    if not 0.0 <= load <= PERCENT:
        return None
    return load if load <= 1.0 else load / PERCENT


def availability_share(
    availability: Availability,
    *,
    load: float | None,
    queue_depth: int | None,
    latency_ms: float | None,
) -> float:
    """Return an agent's free capacity according to its heartbeat, 0 to 1; 0 if it takes no work.

    Args:
        load: the taken share of the agent's capacity, 0 to 1; None counts as 0.
        queue_depth: the number of requests that wait at the agent; None counts as 0.
        latency_ms: the latency of the agent's replies, milliseconds; None counts as 0.

    Reference: features.md (Heartbeats and health).
    """
    if availability is not Availability.AVAILABLE:
        return 0.0
    queued = min(1.0, (queue_depth or 0) / QUEUE_DEPTH_FULL)
    slowness = min(1.0, (latency_ms or 0.0) / LATENCY_MS_FULL)
    return round(1.0 - 0.4 * (load or 0.0) - 0.2 * queued - 0.4 * slowness, SHARE_DECIMALS)


def _is_fresh(heard_ms: int | None, now_ms: int) -> bool:
    return heard_ms is not None and now_ms - heard_ms <= HEARTBEAT_TTL_MS


def _reported_availability(live: Liveness) -> Availability:
    return HEARTBEAT_STATUSES.get(live.status or "", Availability.AVAILABLE)
