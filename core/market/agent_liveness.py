"""An agent's availability, by its heartbeats and probes: one rule for replies and for the ranking.

Pure: heartbeat, probe and time in, an `Availability` out. Circuits are not part of it; each owner
keeps its own (`actors/directory/health/circuits.py`).
Reference: features.md (Targeted routing).
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from core.records.statuses import HEARTBEAT_STATUSES
from core.records.statuses import Availability as Availability

HEARTBEAT_TTL_MS: Final = 60_000
# A failed probe counts until the next one, which follows within five minutes. If the probing stops,
# the failed probe must expire.
PROBE_TTL_MS: Final = 600_000
PERCENT: Final = 100.0
# From which on a queue, and the latency of replies, take their whole part of an agent's share.
QUEUE_DEPTH_FULL: Final = 10
LATENCY_MS_FULL: Final = 1_000.0
SHARE_DECIMALS: Final = 6


class Liveness(Struct, frozen=True, gc=False):
    """The newest heartbeat and the newest probe of an agent; None where it had none.

    `load`: the share of its capacity that is taken, 0 to 1.
    """

    status: str | None = None
    load: float | None = None
    heartbeat_ms: int | None = None
    probe_ms: int | None = None
    is_probe_ok: bool | None = None


UNHEARD: Final = Liveness()


def drop_older_signals(live: Liveness, registered_ms: int) -> Liveness:
    """Return the liveness without heartbeats and probes from before the card was stored."""
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

    The newest signal counts: a heartbeat within its time to live, else a probe. An agent without
    heartbeat and probe is available.

    Args:
        silent_from_ms: a time before which the service may have missed heartbeats, so that the
            silence of an agent counts from then on at the earliest.
    """
    heard_ms = live.heartbeat_ms
    probed_ms = live.probe_ms
    is_probe_newest = probed_ms is not None and (heard_ms is None or probed_ms > heard_ms)
    if is_probe_newest and probed_ms is not None and now_ms - probed_ms < PROBE_TTL_MS:
        if not live.is_probe_ok:
            return Availability.OFFLINE
        if now_ms - probed_ms < HEARTBEAT_TTL_MS:
            # A successful probe does not override the status of a fresh heartbeat.
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
    """Return when time alone may change the availability or the reported load, infinity if never.

    Args:
        silent_from_ms: as in `availability`.
    """
    changes: list[int] = []
    if live.heartbeat_ms is not None:
        heard_ms = max(live.heartbeat_ms, silent_from_ms)
        changes += (live.heartbeat_ms + HEARTBEAT_TTL_MS + 1, heard_ms + HEARTBEAT_TTL_MS + 1)
    if live.probe_ms is not None:
        changes += (live.probe_ms + HEARTBEAT_TTL_MS, live.probe_ms + PROBE_TTL_MS)
    return min((at_ms for at_ms in changes if at_ms > now_ms), default=math.inf)


def reported_load(live: Liveness, now_ms: int) -> float:
    """Return the load of a fresh heartbeat, 0 without one."""
    return live.load or 0.0 if _is_fresh(live.heartbeat_ms, now_ms) else 0.0


def load_share(load: float) -> float | None:
    """Return a reported load as a share of 0 to 1; None when it is out of range.

    Args:
        load: 0 to 1 as a share, above 1 up to 100 as a percentage; 1 is a full agent.
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
    """Return how much of an agent is free by its own heartbeat, 0 to 1; 0 where it takes no work.

    Args:
        load: the share of its capacity that is taken, 0 to 1; None: not said, as 0.
        queue_depth: requests that wait at the agent.
        latency_ms: of its replies.

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
