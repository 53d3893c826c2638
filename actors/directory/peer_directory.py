"""Adds peers to the directory: other deployments, which may take nodes whose inputs may leave.

A node's inputs leave this deployment only with the payer's consent or by a policy. The directory
stores a peer as an entry under the DID of its clearing account. The entry has no prices, so
rankings, auctions and verifications ignore it. Reference: features.md (Nodes at peers), money.md
(Work of peers).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from actors.directory.auction_candidates import AuctioningDirectory
from actors.directory.health.agent_health import PASSING
from actors.directory.published_versions import NOT_OFFERED
from actors.ports import AgentEntry
from core.capabilities.semver import is_version, parse_range, parse_version
from core.json_text import write_json
from core.market.no_candidates import (
    FAILED_BEFORE,
    FULL,
    INPUTS_STAY,
    REGION_REFUSED,
    TIME_TOO_SHORT,
    counts_text,
)
from core.market.ranking import SHOWN_MAX, TOO_DEAR
from core.market.settlement import FEE_BPS_MAX, gross_of
from core.peers.routing import ORDER_TIMEOUT_MS_MIN, KnownPeer, PeerRoute, peer_routes
from core.records.statuses import RoutingReason
from core.workflow.actions import SelectAgent
from core.workflow.dag import CompiledNode
from core.workflow.events import AgentNotSelected, AgentSelected, Failure

# The most open orders at a peer, over all owner processes. The peer limits the load of its agents
# itself, so this limit only has to be high. Each owner process has a share of it. This share must
# exceed one payer's share of the process's sockets, so that no payer can use it up alone.
ORDERS_MAX: Final = 16_384
PUBLISH_PATH: Final = "/v1/workflows/publish"


class PeerDirectory(AuctioningDirectory):
    """A directory of agents and peers.

    Args:
        region: the region of this deployment.
        fallback_regions: the order in which further regions are tried after the region that a node
            names. This order does not permit inputs to leave.
        fee_bps: the fee of this deployment on what a peer charges, basis points.
        directory: the arguments of `AuctioningDirectory`.
    """

    def __init__(
        self,
        *,
        region: str = "",
        fallback_regions: Sequence[str] = (),
        fee_bps: int = 0,
        **directory: Any,
    ) -> None:
        super().__init__(region=region, **directory)
        self._region = region
        self._fallback_regions = fallback_regions
        self._fee_bps = fee_bps
        self._peers: dict[str, KnownPeer] = {}  # by the DID of the clearing account
        self._peer_dids: set[str] = set()

    def put_peers(self, peers: Iterable[KnownPeer], dids: Iterable[str] = ()) -> None:
        """Replace the known peers.

        Args:
            dids: the DIDs of all peers that were ever added. Work that comes from such a peer, even
                from a removed peer, is not sent on to a peer.
        """
        if self._fee_bps >= FEE_BPS_MAX:
            return  # the fee would leave nothing for the clearing account
        before, self._peers = self._peers, {peer.clearing_did: peer for peer in peers}
        self._peer_dids = {*dids, *(peer.did for peer in self._peers.values())}
        for did in before.keys() - self._peers.keys():
            self._entries.pop(did, None)
        for did, peer in self._peers.items():
            known = before.get(did)
            self._entries[did] = AgentEntry(
                did=did,
                owner_did=peer.did,
                url=f"{peer.endpoint.rstrip('/')}{PUBLISH_PATH}",
                cancel_url="",
                prices={},
                secret=None,
                max_concurrency=ORDERS_MAX,
                order=0,
                peer=peer,
                fee_bps=self._fee_bps,
            )
            if known is None or _state(known) != _state(peer):
                self._note_changed(did)

    def _note_changed(self, did: str) -> None:
        super()._note_changed(did)
        if did in self._peers:
            self.on_changed(did, self._peers[did].offers)

    def peer_prices(self, node: CompiledNode, capability_id: str, payer_did: str) -> Sequence[int]:
        """Return the node's price at each peer that may take the node, micro-credits.

        Args:
            capability_id: the capability of the node or of its verifier.
        """
        if not self._peers or node.is_auction or node.target_agent_id is not None:
            return ()
        judged = self._judge_peers(node, capability_id, payer_did, node.timeout_ms)
        return [self._price(route) for route, reason in judged if reason is None]

    def select(
        self, action: SelectAgent, at_ms: int, *, payer_did: str = ""
    ) -> AgentSelected | AgentNotSelected:
        """Answer a machine's `SelectAgent` with an agent or a peer."""
        if not self._peers:
            return super().select(action, at_ms, payer_did=payer_did)
        failure: Failure | None = None
        reasons: list[str] = []
        for route in self._walk(action, at_ms, payer_did, reasons):
            if route is not None:
                return self._select_peer(route, action, at_ms)
            answer = super().select(action, at_ms, payer_did=payer_did)
            if isinstance(answer, AgentSelected):
                return answer
            failure = answer.failure
        assert failure is not None, "the agents here were not tried"
        return AgentNotSelected(action.node, _add_reasons(failure, reasons), at_ms)

    def list_available_agents(
        self, action: SelectAgent, at_ms: int, *, payer_did: str = ""
    ) -> tuple[list[str], Failure | None]:
        """Return the agents and peers that could take a node now, or why there is none."""
        if not self._peers:
            return super().list_available_agents(action, at_ms, payer_did=payer_did)
        dids: list[str] = []
        reasons: list[str] = []
        for route in self._walk(action, at_ms, payer_did, reasons):
            if route is not None:
                dids.append(route.peer.clearing_did)
                continue
            here, failure = super().list_available_agents(action, at_ms, payer_did=payer_did)
            dids += here
            if here:
                break
        if dids or failure is None:
            return dids[:SHOWN_MAX], None
        return [], _add_reasons(failure, reasons)

    # -- routes -----------------------------------------------------------------------------------

    def _walk(
        self, action: SelectAgent, at_ms: int, payer_did: str, reasons: list[str]
    ) -> Iterator[PeerRoute | None]:
        """Yield the peers that can take a node, in the order in which they are tried.

        None stands for the agents of this deployment, and is yielded once. A node that names
        another region is first tried at the peers of that region and of the fallback regions. Any
        other node is first tried at the agents of this deployment.

        Args:
            reasons: receives the reason of each peer that cannot take the node.
        """
        # A peer is the target only in a retry that must go to the same agent (`ask_agent`); payers
        # cannot name a peer.
        target = action.target_agent_id
        is_bound = target in self._peers and action.attempt > 1 and not action.allow_fallback
        if action.region is None or (target is not None and not is_bound):
            yield None
            return
        is_elsewhere = action.region not in ("", self._region)
        if not is_elsewhere:
            yield None
        timeout_ms, deadline_ms = action.timeout_ms, action.deadline_ms
        left_ms = min(
            math.inf if timeout_ms is None else timeout_ms,
            math.inf if deadline_ms is None else deadline_ms - at_ms,
        )
        is_here_next = is_elsewhere
        for route, reason in self._judge_peers(action, action.capability_id, payer_did, left_ms):
            if is_here_next and route.reason is RoutingReason.LEAST_LOADED:
                is_here_next = False
                yield None
            if is_bound and route.peer.clearing_did != target:
                continue
            reason = reason or self._find_peer_reason(route, action, at_ms, payer_did)
            if reason is None:
                yield route
            else:
                reasons.append(reason)
        if is_here_next:
            yield None

    def _judge_peers(
        self,
        node: SelectAgent | CompiledNode,
        capability_id: str,
        payer_did: str,
        left_ms: float,
    ) -> Iterator[tuple[PeerRoute, str | None]]:
        """Yield the peers that offer a capability, in order of preference, each with a reason.

        The reason says why the node must not go to the peer; None: it may. The reasons, in order:
        1. A policy refuses the node or its verifier. (The peer calls the verifier too.)
        2. The inputs must not leave. They may leave if `settings.federate` or a policy permits it,
           or if the manifest names the peer's region.
        3. The time for an attempt is too short.

        Args:
            left_ms: the time for an attempt, milliseconds.
        """
        if payer_did in self._peer_dids:
            return  # work that came from a peer is never sent on
        capability_ids = filter(None, (capability_id, node.peer_verifier_id))
        refusable = tuple((payer_did, one) for one in capability_ids)
        for route in peer_routes(
            self._peers.values(),
            capability_id,
            region=node.region or None,
            fallback_regions=self._fallback_regions,
        ):
            region, reason = route.peer.region, None
            is_named = route.reason is RoutingReason.PREFERRED_REGION and region != self._region
            asked = (payer_did, capability_id, region)
            if not all(self.subnets.decide(*one, region).is_allowed for one in refusable):
                reason = REGION_REFUSED
            elif not (node.is_federated or is_named or self.subnets.may_leave(*asked).is_allowed):
                reason = INPUTS_STAY
            elif left_ms < ORDER_TIMEOUT_MS_MIN:
                reason = TIME_TOO_SHORT
            yield route, reason

    def _price(self, route: PeerRoute) -> int:
        return gross_of(route.offer.price_micro, self._fee_bps)

    def _select_peer(self, route: PeerRoute, action: SelectAgent, at_ms: int) -> AgentSelected:
        peer = route.peer
        shown = {
            "id": peer.id,
            "region": peer.region,
            "endpoint": peer.endpoint,
            "routingReason": route.reason,
        }
        text = write_json({"agentDid": peer.clearing_did, "peer": shown}).decode()
        self._note_chosen(peer.clearing_did, at_ms)
        return AgentSelected(action.node, peer.clearing_did, self._price(route), at_ms, text)

    def _find_peer_reason(
        self, route: PeerRoute, action: SelectAgent, at_ms: int, payer_did: str
    ) -> str | None:
        """Return why a peer that may take a node cannot take it now; None if it can."""
        did = route.peer.clearing_did
        if did in action.exclude:
            return FAILED_BEFORE
        if action.versions and not _is_within(route.offer.version, action.versions):
            return NOT_OFFERED
        unavailable = self._find_unavailability(did, at_ms, payer_did=payer_did)
        if unavailable is not None:
            return unavailable
        if self._declines.is_full(did, at_ms):
            return FULL
        return TOO_DEAR if self._price(route) > action.price_max_micro else None


def _add_reasons(failure: Failure, reasons: Sequence[str]) -> Failure:
    """Return the failure of a node that no agent here can take, extended by the peers' reasons.

    Args:
        reasons: one reason for each peer that offers the capability.
    """
    if not reasons:
        return failure
    offers = "1 peer offers it" if len(reasons) == 1 else f"{len(reasons)} peers offer it"
    message = f"{failure.message}; {offers} ({counts_text(reasons)})"
    is_temporary = failure.is_temporary or any(reason in PASSING for reason in reasons)
    return replace(failure, message=message, is_temporary=is_temporary)


def _state(peer: KnownPeer) -> tuple[object, ...]:
    """Return the fields of a peer whose change may end the wait of nodes for an agent."""
    return peer.is_proven, peer.status, peer.offers


def _is_within(version: str | None, versions: str) -> bool:
    known = version is not None and is_version(version)
    return known and parse_version(version or "") in parse_range(versions)
