"""Which nodes go to peers, to which of them and why. Reference: features.md (Nodes at peers)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.directory.directory_sync import DirectorySync
from actors.directory.peer_directory import PeerDirectory
from actors.ports import Contact
from actors.transport.messages import PublishRequest
from actors.workflows.publish_estimate import build_dry_run_reply, estimate_cost
from core.errors import NodeErrorCode
from core.market.agent_liveness import Liveness
from core.market.settlement import split_payment
from core.peers.routing import ORDER_TIMEOUT_MS_MIN, KnownPeer, PeerOffer
from core.records.manifest import parse_manifest
from core.workflow.actions import SelectAgent
from core.workflow.dag import CompiledNode, compile_workflow
from core.workflow.events import AgentNotSelected, AgentSelected
from ledger.features.directory import DirectoryTail
from tests.actors.directory.test_agent_directory import CAPABILITY, KEYS, row, select
from tests.actors.directory.test_subnets import subnet

AT_MS, PAYER = 1_000_000, "did:x:payer"
# The least time of an attempt at a peer.
ENOUGH_MS = ORDER_TIMEOUT_MS_MIN
AGENT = "did:x:agent"


def peer(name: str, region: str = "us", price_micro: int = 100, **more: Any) -> KnownPeer:
    """Return a peer that was heard just now, has proven its key, and offers the capability."""
    values: dict[str, Any] = {
        "endpoint": f"https://{name}.example",
        "public_key": "",
        "is_proven": True,
        "heard_ms": 0,
        "offers": {CAPABILITY: PeerOffer(price_micro)},
        **more,
    }
    return KnownPeer(
        id=name,
        did=f"did:callboard:{name}",
        region=region,
        clearing_did=clearing(name),
        **values,
    )


def clearing(name: str) -> str:
    return f"did:callboard:clearing-{name}"


def directory(
    *peers: KnownPeer, agents: list[dict[str, Any]] | None = None, **arguments: Any
) -> PeerDirectory:
    """Return a directory in the region eu whose fee is 5 %."""
    made = PeerDirectory(
        service="callboard",
        deployment_keys=KEYS,
        default_secret=None,
        max_concurrency=32,
        **{"region": "eu", "fee_bps": 500, **arguments},
    )
    made.put(agents or [])
    made.put_peers(peers)
    return made


def choose(known: PeerDirectory, payer_did: str = PAYER, **fields: Any) -> str | None:
    """Return who takes a node, None for nobody."""
    answer = known.select(select(**fields), AT_MS, payer_did=payer_did)
    return answer.agent_did if isinstance(answer, AgentSelected) else None


def failure(known: PeerDirectory, **fields: Any) -> Any:
    answer = known.select(select(**fields), AT_MS, payer_did=PAYER)
    assert isinstance(answer, AgentNotSelected), answer
    return answer.failure


LEAVES: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing says so": ({}, False),
    "the workflow may leave": ({"is_federated": True}, True),
    "another region is named": ({"region": "us"}, True),
    "the own region is named": ({"region": "eu"}, False),
    "a third region is named": ({"region": "ap"}, False),
    "a third region is named, and the workflow may leave": (
        {"region": "ap", "is_federated": True},
        True,
    ),
    "an agent is the target": ({"is_federated": True, "target_agent_id": AGENT}, False),
    "the peer is the target": ({"is_federated": True, "target_agent_id": clearing("a")}, False),
    "the node stays here": ({"is_federated": True, "region": None}, False),
}


@pytest.mark.parametrize(("fields", "leaves"), LEAVES.values(), ids=LEAVES.keys())
def test_inputs_leave_only_if_the_payer_has_said_so(fields: dict[str, Any], leaves: bool) -> None:
    assert choose(directory(peer("a")), **fields) == (clearing("a") if leaves else None)


@pytest.mark.parametrize(
    ("policy", "fields", "leaves"),
    [
        ({"type": "allow_region", "region": "us"}, {}, True),
        ({"type": "allow_region", "region": "ap"}, {}, False),
        ({"type": "allow_region", "region": "ap"}, {"is_federated": True}, False),
        ({"type": "deny_region", "region": "us"}, {"region": "us"}, False),
        ({"type": "deny_region", "region": "ap"}, {"is_federated": True}, True),
        ({"type": "deny_capability", "capability": CAPABILITY}, {"is_federated": True}, False),
        (
            {"type": "deny_capability", "capability": "cap.v.*"},
            {"is_federated": True, "peer_verifier_id": "cap.v.v1"},
            False,
        ),
    ],
)
def test_what_the_payers_policies_refuse_goes_nowhere(
    policy: dict[str, Any], fields: dict[str, Any], leaves: bool
) -> None:
    known = directory(peer("a"))
    known.subnets.apply_rows([subnet("s", PAYER, policies=(policy,))])
    assert choose(known, **fields) == (clearing("a") if leaves else None)
    known.subnets.apply_rows([subnet("s", "did:x:another", policies=(policy,))])
    assert choose(known, is_federated=True) == clearing("a")


def test_what_came_from_a_peer_is_never_sent_on() -> None:
    known = directory(peer("a"), peer("b"))
    assert choose(known, "did:callboard:b", is_federated=True, region="us") is None
    assert choose(known, is_federated=True) == clearing("a")


def test_what_came_from_a_peer_that_was_removed_since_is_not_sent_on_either() -> None:
    known = directory()
    known.put_peers([peer("a")], {"did:callboard:a", "did:callboard:removed"})
    assert choose(known, "did:callboard:removed", is_federated=True, region="us") is None
    assert known.peer_prices(node(region="us"), CAPABILITY, "did:callboard:removed") == []
    assert choose(known, is_federated=True) == clearing("a")


def test_an_agent_here_comes_first_unless_another_region_is_named() -> None:
    known = directory(peer("a"), agents=[row(AGENT)])
    assert choose(known, is_federated=True) == AGENT
    assert choose(known, is_federated=True, region="eu") == AGENT
    assert choose(known, region="us") == clearing("a")
    assert choose(known, region="ap", is_federated=True) == AGENT
    assert choose(known, is_federated=True, exclude=(AGENT,)) == clearing("a")
    assert choose(known, region="us", exclude=(clearing("a"),)) == AGENT


def test_a_peer_takes_what_the_agents_here_are_not_there_for() -> None:
    known = directory(peer("a"), agents=[row(AGENT)])
    known.apply_liveness({AGENT: Liveness(heartbeat_ms=AT_MS - 600_000, status="active")})
    assert choose(known, is_federated=True) == clearing("a")
    assert choose(known) is None


def tried(known: PeerDirectory, **fields: Any) -> list[str | None]:
    """Return who takes a node, then who takes it if that one may not, and so on."""
    found: list[str] = []
    while (chosen := choose(known, **fields, exclude=tuple(found))) is not None:
        found.append(chosen)
    return [one.removeprefix(clearing("")) for one in found]


REGIONS = [peer("us", "us", load=0.9), peer("ap", "ap", load=0.5), peer("sa", "sa", load=0.1)]


def test_the_preferred_region_then_the_fallback_regions_then_here_then_the_least_loaded() -> None:
    known = directory(*REGIONS, agents=[row(AGENT)], fallback_regions=("ap",))
    assert tried(known, region="us", is_federated=True) == ["us", "ap", AGENT, "sa"]
    assert tried(known, is_federated=True) == [AGENT, "ap", "sa", "us"]


def test_the_fallback_regions_permit_nothing_by_themselves() -> None:
    known = directory(*REGIONS, agents=[row(AGENT)], fallback_regions=("ap", "sa"))
    assert tried(known, region="us") == ["us", AGENT], "the payer has named this region alone"
    allowed = [{"type": "allow_region", "region": one} for one in ("us", "ap")]
    known.subnets.apply_rows([subnet("s", PAYER, policies=tuple(allowed))])
    assert tried(known, region="us") == ["us", "ap", AGENT]
    assert tried(known) == [AGENT, "ap", "us"]


def test_the_record_says_where_a_node_ran_and_why() -> None:
    answer = directory(peer("a")).select(select(region="us"), AT_MS, payer_did=PAYER)
    assert isinstance(answer, AgentSelected)
    assert json.loads(answer.selection_json or "") == {
        "agentDid": clearing("a"),
        "peer": {
            "id": "a",
            "region": "us",
            "endpoint": "https://a.example",
            "routingReason": "preferred_region",
        },
    }


def test_the_price_leaves_the_clearing_account_what_the_peer_charges() -> None:
    known = directory(peer("a", price_micro=950_001))
    answer = known.select(select(region="us"), AT_MS, payer_did=PAYER)
    assert isinstance(answer, AgentSelected)
    assert split_payment(answer.price_micro, 500).agent_micro == 950_001
    told = failure(known, region="us", price_max_micro=answer.price_micro - 1)
    assert "1 peer offers it (1 too dear)" in told.message


UNFIT: dict[str, dict[str, Any]] = {
    "its key is not proven": {"is_proven": False},
    "it was never heard": {"heard_ms": None},
    "it was heard too long ago": {"heard_ms": 300_001},
    "it does not offer the capability": {"offers": {"cap.other.v1": PeerOffer(1)}},
}


@pytest.mark.parametrize("unfit", UNFIT.values(), ids=UNFIT.keys())
def test_a_peer_that_is_not_fit_gets_no_work(unfit: dict[str, Any]) -> None:
    assert choose(directory(peer("a", **unfit)), region="us") is None


@pytest.mark.parametrize(
    ("version", "fits"), [("1.2.0", True), ("2.0.0", False), (None, False), ("x", False)]
)
def test_a_node_of_certain_versions_goes_where_one_is_offered(
    version: str | None, fits: bool
) -> None:
    known = directory(peer("a", offers={CAPABILITY: PeerOffer(1, None, version)}))
    assert (choose(known, region="us", versions=">=1.1 <2") is not None) == fits


def test_a_circuit_or_a_decline_keeps_nodes_from_a_peer_for_a_while() -> None:
    known = directory(peer("a"), peer("b", load=0.5))
    for _ in range(3):
        known.begin(clearing("a"))
        known.note_outcome(clearing("a"), Contact.UNREACHABLE, AT_MS, payer_did=PAYER)
    assert choose(known, region="us") == clearing("b")
    known.note_declined(clearing("b"), 5_000, AT_MS)
    told = failure(known, region="us")
    assert told.is_temporary, "the node waits"
    woken: list[tuple[str, list[str]]] = []
    known.on_changed = lambda did, offered: woken.append((did, list(offered)))
    known.note_back(clearing("b"))
    assert (clearing("b"), [CAPABILITY]) in woken
    later = AT_MS + 5_001
    again = known.select(select(region="us"), later, payer_did=PAYER)
    assert isinstance(again, AgentSelected) and again.agent_did == clearing("b")


def test_a_peer_that_is_removed_gets_no_work_and_one_that_returns_does() -> None:
    known = directory(peer("a"))
    known.put_peers([])
    assert choose(known, region="us") is None
    assert known.entry(clearing("a")) is None
    known.put_peers([peer("a")])
    assert choose(known, region="us") == clearing("a")
    entry = known.entry(clearing("a"))
    assert entry is not None and entry.peer is not None
    assert entry.url == "https://a.example/v1/workflows/publish"


def test_a_peer_is_no_target() -> None:
    known = directory(peer("a"), agents=[row(AGENT)])
    target = {"region": "us", "target_agent_id": clearing("a")}
    assert failure(known, **target).code is NodeErrorCode.AGENT_UNAVAILABLE
    assert choose(known, **target, allow_fallback=True) == AGENT
    listed = known.list_available_agents(select(**target), AT_MS, payer_did=PAYER)
    assert listed == ([], failure(known, **target))


def test_a_retry_that_may_take_no_other_agent_takes_the_same_peer() -> None:
    """With `allowFallbackAgents: false` the machine names who had the attempt before."""
    known = directory(peer("a"), peer("b"), agents=[row(AGENT)])
    retry = {"region": "us", "target_agent_id": clearing("b"), "attempt": 2}
    assert choose(known, **retry) == clearing("b")
    assert choose(known, **{**retry, "region": ""}) is None, "the inputs may not leave"
    known.note_declined(clearing("b"), 5_000, AT_MS)
    told = failure(known, **retry)
    assert told.code is NodeErrorCode.AGENT_UNAVAILABLE
    assert told.is_temporary and "1 peer offers it (1 full)" in told.message


TIMES: dict[str, tuple[dict[str, Any], bool]] = {
    "enough": ({"timeout_ms": ENOUGH_MS, "deadline_ms": AT_MS + ENOUGH_MS}, True),
    "too short a timeout": (
        {"timeout_ms": ENOUGH_MS - 1, "deadline_ms": AT_MS + 2 * ENOUGH_MS},
        False,
    ),
    "the workflow ends too early": (
        {"timeout_ms": 2 * ENOUGH_MS, "deadline_ms": AT_MS + ENOUGH_MS - 1},
        False,
    ),
    "not known": ({"timeout_ms": None, "deadline_ms": None}, True),
}


@pytest.mark.parametrize(("fields", "leaves"), TIMES.values(), ids=TIMES.keys())
def test_a_node_with_less_time_than_an_order_needs_goes_to_no_peer(
    fields: dict[str, Any], leaves: bool
) -> None:
    known = directory(peer("a"))
    assert choose(known, region="us", **fields) == (clearing("a") if leaves else None)
    if not leaves:
        least = f"1 with less than {ENOUGH_MS // 1_000} s"
        assert least in failure(known, region="us", **fields).message


def test_the_failure_says_why_each_peer_did_not_get_the_node() -> None:
    known = directory(*REGIONS, peer("full", "us"))
    known.note_declined(clearing("full"), 5_000, AT_MS)
    told = failure(known)
    assert told.code is NodeErrorCode.NO_CANDIDATE and not told.is_temporary
    assert "4 peers offer it (4 not allowed to receive the inputs" in told.message
    assert "settings.federate" in told.message and "allow_region" in told.message
    told = failure(known, region="us", price_max_micro=50)
    assert "2 not allowed to receive the inputs" in told.message
    assert "1 full" in told.message and "1 too dear" in told.message and told.is_temporary
    known.subnets.apply_rows(
        [subnet("s", PAYER, policies=({"type": "deny_region", "region": "us"},))]
    )
    told = failure(known, is_federated=True, exclude=(clearing("ap"), clearing("sa")))
    assert "2 in a region that a policy of the payer's subnets refuses" in told.message


def published(**members: Any) -> PublishRequest:
    """Return the publish of a workflow of one node."""
    manifest = {"nodes": {"n": {"capabilityId": CAPABILITY, **members}}}
    return PublishRequest(
        command_key="key",
        request_hash=b"",
        actor_did=PAYER,
        workflow_id="w",
        task_id="t",
        payer_did=PAYER,
        manifest_json="{}",
        compiled=compile_workflow(parse_manifest(manifest)),
    )


def node(**members: Any) -> CompiledNode:
    return published(**members).compiled.nodes["n"]


KNOWN: dict[str, tuple[dict[str, Any], bool]] = {
    "a peer may take the node": ({"region": "us"}, True),
    "the inputs may not leave": ({}, False),
    "the target is not known": ({"region": "us", "targetAgentId": AGENT}, False),
    "an auction stays here": ({"region": "us", "selection": "auction"}, False),
    "nobody offers the capability": ({"region": "us", "capabilityId": "cap.none.v1"}, False),
    "nobody offers the verifier's": ({"region": "us", "requiresVerification": True}, False),
}


@pytest.mark.parametrize(("members", "is_known"), KNOWN.values(), ids=KNOWN.keys())
def test_the_ledger_is_asked_for_agents_unless_a_peer_may_take_the_node(
    members: dict[str, Any], *, is_known: bool
) -> None:
    """An agent may have been registered here a moment ago."""
    sync = DirectorySync(
        directory(peer("a")),
        tail=DirectoryTail(""),
        owner="owner",
        on_revoked=lambda: None,
        now_ms=lambda: AT_MS,
    )
    assert sync.is_known(published(**members)) == is_known


def test_a_dry_run_of_an_auction_shows_no_peer() -> None:
    known = directory(peer("a"))
    known.subnets.apply_rows(
        [subnet("s", PAYER, policies=({"type": "allow_region", "region": "us"},))]
    )

    def candidates(**members: Any) -> Any:
        request = published(region="us", maxCostCredits=1, **members)
        estimate = estimate_cost(request.compiled, known, at_ms=AT_MS, payer_did=PAYER)
        return build_dry_run_reply(request, estimate, known, AT_MS).candidates

    assert candidates() == {"n": [clearing("a")]}
    assert candidates(selection="auction") == {"n": []}


def test_a_dry_run_and_an_estimate_count_peers_that_may_take_the_node() -> None:
    known = directory(peer("a"), peer("b", "ap", 300), agents=[])
    listed = known.list_available_agents(select(region="us"), AT_MS, payer_did=PAYER)
    assert listed == ([clearing("a")], None)
    assert known.peer_prices(node(region="us"), CAPABILITY, PAYER) == [105]
    assert known.peer_prices(node(), CAPABILITY, PAYER) == []
    assert known.peer_prices(node(region="us", selection="auction"), CAPABILITY, PAYER) == ()
    assert known.peer_prices(node(region="us", targetAgentId=AGENT), CAPABILITY, PAYER) == ()
    assert known.peer_prices(node(region="us", timeoutMs=ENOUGH_MS - 1), CAPABILITY, PAYER) == []


def test_a_directory_without_peers_answers_as_before() -> None:
    known = directory(agents=[row(AGENT)])
    action: SelectAgent = select(region="us", is_federated=True)
    answer = known.select(action, AT_MS, payer_did=PAYER)
    assert isinstance(answer, AgentSelected) and answer.agent_did == AGENT
    assert known.peer_prices(node(), CAPABILITY, PAYER) == ()


def test_nodes_that_wait_hear_of_a_peer_that_is_back_and_of_no_mere_heartbeat() -> None:
    known = directory(peer("a", heard_ms=400_000))
    heard: list[str] = []
    known.on_changed = lambda did, _: heard.append(did)
    known.put_peers([peer("a", heard_ms=401_000)])
    assert not heard
    known.put_peers([peer("a")])
    assert set(heard) == {clearing("a")}
    heard.clear()
    known.put_peers([peer("a", heard_ms=1_000, load=0.5)])
    assert not heard
