"""The directory: which agent takes a node, why none does, and when an agent is left alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.directory.agent_directory import Directory
from actors.directory.agent_standings import REFUSING_MAX, Standings
from actors.directory.health.circuits import AGENTS_MAX, CIRCUIT_OPEN_MS_MIN, PAYERS_MAX, Opened
from actors.ports import Contact
from core.errors import NodeErrorCode
from core.market.agent_liveness import HEARTBEAT_TTL_MS, Liveness
from core.market.pricing import FixedPrice
from core.market.ranking import SHOWN_MAX, UNPROVEN, render_reasons
from core.market.reputation import PROMISED_MS, Tally
from core.trust.deployment_keys import NONCE_BYTES, DeploymentKeys, KeyPurpose, seal
from core.workflow.actions import SelectAgent, SelectVerifier
from core.workflow.events import AgentNotSelected, AgentSelected, Failure, VerifierSelected

KEYS = DeploymentKeys([(1, bytes(range(32)))])
CAPABILITY = "cap.text.keywords.v1"


def row(did: str, *, cents: int = 1, owner: str = "did:x:owner", **more: Any) -> dict[str, Any]:
    """Return an agent's row."""
    card = {"capabilities": [{"id": CAPABILITY, "price_cents": cents}], **more.pop("card", {})}
    return {
        "did": did,
        "owner_did": owner,
        "card": json.dumps(card),
        "endpoint": "http://127.0.0.1:9000",
        "status": "active",
        "public_key": None,
        "signing_secret": None,
        "is_trusted": True,
        **more,
    }


def paid(**counts: int) -> Tally:
    """Return these counts, all of work with a price."""
    return Tally(**counts, **{f"paid_{name}": count for name, count in counts.items()})


def directory(*rows: dict[str, Any]) -> Directory:
    """Return a directory that knows these agents."""
    made = Directory(
        service="callboard", deployment_keys=KEYS, default_secret=None, max_concurrency=32
    )
    made.put(rows)
    return made


def select(**fields: Any) -> SelectAgent:
    """Return a selection with a large allowance."""
    values: dict[str, Any] = {
        "node": "n",
        "capability_id": CAPABILITY,
        "target_agent_id": None,
        "allow_fallback": False,
        "exclude": (),
        "price_max_micro": 10**9,
    }
    return SelectAgent(**{**values, **fields})


def chosen(known: Directory, at_ms: int = 0, **fields: Any) -> str:
    """Return the agent that a node gets."""
    answer = known.select(select(**fields), at_ms)
    assert isinstance(answer, AgentSelected)
    return answer.agent_did


def refusal(known: Directory, at_ms: int = 0, **fields: Any) -> Failure:
    """Return why a node gets no agent."""
    answer = known.select(select(**fields), at_ms)
    assert isinstance(answer, AgentNotSelected)
    return answer.failure


def test_the_less_loaded_agent_is_taken_and_ties_go_to_the_earlier() -> None:
    known = directory(row("did:x:a"), row("did:x:b"))
    first = known.select(select(), 0)
    assert isinstance(first, AgentSelected)
    assert (first.agent_did, first.price_micro) == ("did:x:a", 10_000)
    known.begin("did:x:a")
    assert chosen(known) == "did:x:b"


def test_a_choice_says_who_was_weighed_and_why_the_others_were_not() -> None:
    known = directory(row("did:x:a", cents=3), row("did:x:b"), row("did:x:c"), row("did:x:d"))
    good, bad = paid(successful=20, latency_ms_sum=2_000), paid(successful=1, failed=19)
    known.standings.apply_tallies({"did:x:a": good, "did:x:b": bad, "did:x:d": good})
    known.apply_liveness({"did:x:c": Liveness("unhealthy", heartbeat_ms=0)})
    chosen = known.select(select(price_max_micro=20_000, workflow_id="w"), 0)
    assert isinstance(chosen, AgentSelected)
    assert chosen.agent_did == "did:x:d", "the better reputation, at the same price and load"
    assert chosen.selection_json is not None
    reasons = json.loads(render_reasons(chosen.selection_json))
    weighed = {shown["agentDid"]: shown for shown in reasons["candidates"]}
    assert weighed["did:x:d"]["score"] > weighed["did:x:b"]["score"]
    assert weighed["did:x:d"]["parts"]["reputation"] == 0.9995
    assert weighed["did:x:a"]["excluded"] == "too_dear"
    assert weighed["did:x:c"]["excluded"] == "agent_unhealthy"


def test_a_sole_candidate_needs_no_reasons() -> None:
    chosen = directory(row("did:x:a")).select(select(), 0)
    assert isinstance(chosen, AgentSelected)
    assert chosen.selection_json is None


def test_nobody_offers_it_and_nobody_can_be_paid_are_different_failures() -> None:
    known = directory(row("did:x:a", cents=500))
    assert refusal(known, capability_id="cap.other.v1").code is NodeErrorCode.NO_CANDIDATE
    assert refusal(known, price_max_micro=4_999_999).code is NodeErrorCode.BUDGET_EXCEEDED


def test_a_card_that_cannot_be_read_costs_its_own_agent_the_work_and_no_other() -> None:
    """Goal: a row that another version, or a defect, has left keeps no owner from starting."""
    known = directory(row("did:x:old") | {"card": '{"did":"x"}'}, row("did:x:a"))
    assert chosen(known) == "did:x:a"
    unread = refusal(known, target_agent_id="did:x:old")
    assert unread.details == "agent_inactive"
    known.put([row("did:x:old")])
    assert isinstance(known.select(select(target_agent_id="did:x:old"), 0), AgentSelected)


def test_a_target_is_taken_or_named_as_unavailable_or_replaced() -> None:
    known = directory(row("did:x:a"), row("did:x:b"))
    assert chosen(known, target_agent_id="did:x:b") == "did:x:b"
    absent = refusal(known, target_agent_id="did:x:c")
    assert (absent.code, absent.details) == (
        NodeErrorCode.AGENT_UNAVAILABLE,
        "agent_not_found",
    )
    fallback = known.select(select(target_agent_id="did:x:c", allow_fallback=True), 0)
    assert isinstance(fallback, AgentSelected)


def test_three_unreachable_attempts_open_the_circuit_and_one_more_doubles_it() -> None:
    known = directory(row("did:x:a"))
    for _ in range(3):
        known.begin("did:x:a")
        known.note_outcome("did:x:a", Contact.UNREACHABLE, 0)
    assert isinstance(known.select(select(), CIRCUIT_OPEN_MS_MIN - 1), AgentNotSelected)
    assert isinstance(known.select(select(), CIRCUIT_OPEN_MS_MIN), AgentSelected)
    known.begin("did:x:a")
    known.note_outcome("did:x:a", Contact.UNREACHABLE, CIRCUIT_OPEN_MS_MIN)
    assert isinstance(known.select(select(), 3 * CIRCUIT_OPEN_MS_MIN - 1), AgentNotSelected)
    known.begin("did:x:a")
    known.note_outcome("did:x:a", Contact.REACHED, 3 * CIRCUIT_OPEN_MS_MIN)
    assert isinstance(known.select(select(), 3 * CIRCUIT_OPEN_MS_MIN), AgentSelected)


def fail(known: Directory, did: str, at_ms: int, times: int = 1) -> list[Opened]:
    """Let attempts end unreachable; return for whom each of them opened a circuit."""
    opened = []
    for _ in range(times):
        known.begin(did)
        opened.append(known.note_outcome(did, Contact.UNREACHABLE, at_ms))
    return opened


def test_failures_of_what_was_under_way_when_it_opened_open_it_no_longer() -> None:
    known = directory(row("did:x:a"))
    assert fail(known, "did:x:a", 0, 32) == [
        *[Opened.NONE] * 2,
        Opened.FOR_ALL,
        *[Opened.NONE] * 29,
    ]
    assert isinstance(known.select(select(), CIRCUIT_OPEN_MS_MIN), AgentSelected)


def test_a_half_open_circuit_lets_one_try_and_the_others_wait_for_it() -> None:
    known = directory(row("did:x:a"))
    fail(known, "did:x:a", 0, 3)
    assert known.open_circuits() == ["did:x:a"]
    at_ms = CIRCUIT_OPEN_MS_MIN
    assert isinstance(known.select(select(), at_ms), AgentSelected)
    assert isinstance(known.select(select(), at_ms), AgentNotSelected)
    known.begin("did:x:a")
    known.note_outcome("did:x:a", Contact.REACHED, at_ms)
    assert isinstance(known.select(select(), at_ms), AgentSelected)
    assert known.open_circuits() == []


def test_an_attempt_that_was_given_up_says_nothing_about_its_agent() -> None:
    known = directory(row("did:x:a"))
    fail(known, "did:x:a", 0, 2)
    known.begin("did:x:a")
    assert known.note_outcome("did:x:a", Contact.UNKNOWN, 0) is Opened.NONE
    assert fail(known, "did:x:a", 0) == [Opened.FOR_ALL]


def time_out(known: Directory, payer_did: str, at_ms: int = 0, times: int = 1) -> list[Opened]:
    """Let a payer's attempts at `did:x:a` time out; return for whom each opened a circuit."""
    opened = []
    for _ in range(times):
        known.begin("did:x:a")
        opened.append(known.note_outcome("did:x:a", Contact.UNANSWERED, at_ms, payer_did=payer_did))
    return opened


def is_taken(known: Directory, payer_did: str, at_ms: int = 0) -> bool:
    """Whether a payer's node gets `did:x:a`, the only agent."""
    foreseen = known.list_available_agents(select(), at_ms, payer_did=payer_did)[0]
    found = known.select(select(), at_ms, payer_did=payer_did)
    assert (foreseen == ["did:x:a"]) == isinstance(found, AgentSelected)
    return isinstance(found, AgentSelected)


def test_a_payers_time_outs_keep_its_own_work_from_a_slow_agent_and_nobody_elses() -> None:
    """Three nodes with a time-out of 1 s at an agent that needs 1.6 s took it from everybody."""
    known = directory(row("did:x:a"))
    assert time_out(known, "hasty", times=40)[:4] == [
        *[Opened.NONE] * 2,
        Opened.FOR_PAYER,
        Opened.NONE,
    ]
    assert not is_taken(known, "hasty")
    assert is_taken(known, "patient")
    assert is_taken(known, "patient"), "another's circuit makes no trial of it"
    assert known.open_circuits() == ["did:x:a"], "it is probed"
    at_ms = CIRCUIT_OPEN_MS_MIN
    assert is_taken(known, "hasty", at_ms)
    assert time_out(known, "hasty", at_ms, times=2) == [Opened.FOR_PAYER, Opened.NONE]
    assert not is_taken(known, "hasty", 2 * at_ms - 1)
    known.begin("did:x:a")
    known.note_outcome("did:x:a", Contact.REACHED, at_ms, payer_did="patient")
    assert is_taken(known, "hasty", at_ms), "a reply to anybody closes it"
    assert known.open_circuits() == []


def test_time_outs_of_however_many_payers_take_an_agent_from_nobody_else() -> None:
    """Two accounts of one attacker opened the circuit for everybody; accounts are cheap."""
    known = directory(row("did:x:a"))
    for number in range(2 * PAYERS_MAX):
        opened = time_out(known, f"fresh {number}", times=4)
        assert opened == [Opened.NONE, Opened.NONE, Opened.FOR_PAYER, Opened.NONE]
        assert is_taken(known, "patient")
    assert not is_taken(known, f"fresh {number}")


def test_an_agent_that_hangs_is_taken_from_all_by_the_probe_that_an_open_circuit_asks_for() -> None:
    known = directory(row("did:x:a"))
    time_out(known, "one", times=2)
    assert known.open_circuits() == []
    time_out(known, "one")
    assert known.open_circuits() == ["did:x:a"], "it is probed"
    known.apply_liveness({"did:x:a": Liveness(probe_ms=1_000, is_probe_ok=False)})
    assert not is_taken(known, "third", 1_000)


def test_a_time_out_of_the_trial_for_all_lets_another_payer_try() -> None:
    known = directory(row("did:x:a"))
    fail(known, "did:x:a", 0, 3)
    at_ms = CIRCUIT_OPEN_MS_MIN
    assert is_taken(known, "hasty", at_ms)
    assert not is_taken(known, "patient", at_ms)
    assert time_out(known, "hasty", at_ms) == [Opened.NONE]
    assert is_taken(known, "patient", at_ms)


def test_broken_connections_count_for_all_beside_one_payers_time_outs() -> None:
    known = directory(row("did:x:a"))
    time_out(known, "hasty", times=2)
    assert fail(known, "did:x:a", 0, 3) == [Opened.NONE, Opened.NONE, Opened.FOR_ALL]
    assert not is_taken(known, "patient")


def test_circuits_of_one_payers_own_are_bounded() -> None:
    """Its choices pass these agents over one by one."""
    dids = [f"did:x:{number}" for number in range(AGENTS_MAX + 5)]
    known = directory(*(row(did) for did in dids))
    for did in dids:
        for _ in range(3):
            known.begin(did)
            known.note_outcome(did, Contact.UNANSWERED, 0, payer_did="hasty")
    assert known._circuits.find_shut("hasty", 0) == set(dids[5:])
    assert not known._circuits.find_shut("hasty", CIRCUIT_OPEN_MS_MIN)
    known._circuits.find_shut("hasty", 0)
    known.note_outcome(dids[5], Contact.REACHED, 0, payer_did="patient")
    assert known._circuits.find_shut("hasty", 0) == set(dids[6:])
    assert known.list_available_agents(select(), 0, payer_did="hasty")[0] == dids[:6]
    for did in dids:
        known.note_outcome(did, Contact.REACHED, 0, payer_did="patient")
    assert not any(known._circuits._misses.values())


def unavailable(known: Directory, did: str, at_ms: int = 0, **fields: Any) -> str | None:
    """Return the `details` with which a targeted node is refused, None when it is not."""
    found = known.select(select(target_agent_id=did, **fields), at_ms)
    if isinstance(found, AgentSelected):
        return None
    assert found.failure.code is NodeErrorCode.AGENT_UNAVAILABLE
    assert found.failure.target_agent_id == did
    return found.failure.details


def test_every_reason_for_a_target_to_be_unavailable_in_the_contracts_order() -> None:
    """Each agent has the reasons of those after it too, where it can: the first one is told."""
    known = directory(
        row("did:x:inactive", status="inactive", endpoint=""),
        row("did:x:unhealthy", endpoint=""),
        row("did:x:open", endpoint=""),
        row("did:x:silent"),
        row("did:x:probed"),
        row("did:x:nowhere", endpoint=""),
        row("did:x:other"),
    )
    at_ms = 10 * HEARTBEAT_TTL_MS
    known.apply_liveness(
        {
            "did:x:inactive": Liveness("draining", heartbeat_ms=at_ms),
            "did:x:unhealthy": Liveness("draining", heartbeat_ms=at_ms),
            "did:x:silent": Liveness("healthy", heartbeat_ms=0),
            "did:x:probed": Liveness(probe_ms=at_ms, is_probe_ok=False),
        }
    )
    fail(known, "did:x:open", at_ms, 3)
    elsewhere = {"capability_id": "cap.other.v1"}
    for did, details in {
        "did:x:nobody": "agent_not_found",
        "did:x:inactive": "agent_inactive",
        "did:x:unhealthy": "agent_unhealthy",
        "did:x:open": "agent_unhealthy",
        "did:x:silent": "agent_offline",
        "did:x:probed": "agent_offline",
        "did:x:nowhere": "agent_offline",
        "did:x:other": "capability_not_offered",
    }.items():
        assert unavailable(known, did, at_ms, **elsewhere) == details, did
    assert unavailable(known, "did:x:other", at_ms) is None
    assert unavailable(known, "did:x:other", at_ms, exclude=("did:x:other",)) == "agent_unhealthy"


def test_foreseeing_shows_some_of_many() -> None:
    """A dry run of 1,000 nodes was answered with 1,000 lists of all agents: 22 MB of 1,000."""
    known = directory(*(row(f"did:x:{number}") for number in range(3 * SHOWN_MAX)))
    dids, failure = known.list_available_agents(select(), 0)
    assert (dids, failure) == ([f"did:x:{number}" for number in range(SHOWN_MAX)], None)


def test_foreseeing_takes_nobody() -> None:
    known = directory(row("did:x:a"), row("did:x:b"), row("did:x:nowhere", endpoint=""))
    assert known.list_available_agents(select(), 0) == (["did:x:a", "did:x:b"], None)
    assert known.list_available_agents(select(target_agent_id="did:x:b"), 0) == (["did:x:b"], None)
    fallback = select(target_agent_id="did:x:b", allow_fallback=True)
    assert known.list_available_agents(fallback, 0) == (["did:x:b", "did:x:a"], None)
    dids, failure = known.list_available_agents(select(target_agent_id="did:x:nowhere"), 0)
    assert (dids, failure.details if failure else None) == ([], "agent_offline")
    fail(known, "did:x:a", 0, 3)
    at_ms = CIRCUIT_OPEN_MS_MIN
    for _ in range(2):  # looking is no trial
        assert known.list_available_agents(select(), at_ms)[0] == ["did:x:a", "did:x:b"]


def test_only_who_is_available_is_a_candidate() -> None:
    known = directory(
        row("did:x:nowhere", endpoint="", cents=900), row("did:x:silent"), row("did:x:ill")
    )
    assert known.asking_prices(CAPABILITY, None).dearest_micro == 10_000
    at_ms = HEARTBEAT_TTL_MS + 1
    known.apply_liveness(
        {
            "did:x:silent": Liveness("healthy", heartbeat_ms=0),
            "did:x:ill": Liveness("maintenance", heartbeat_ms=at_ms),
        }
    )
    assert refusal(known, at_ms).code is NodeErrorCode.NO_CANDIDATE
    known.apply_liveness({"did:x:silent": Liveness("healthy", heartbeat_ms=at_ms)})
    assert chosen(known, at_ms) == "did:x:silent"


def test_a_new_registration_forgets_what_was_heard_before_it() -> None:
    known = directory(row("did:x:a", updated_ms=5))
    known.apply_liveness({"did:x:a": Liveness("stopped", heartbeat_ms=9)})
    assert unavailable(known, "did:x:a", 10) == "agent_offline"
    known.put([row("did:x:a", updated_ms=10)])
    assert unavailable(known, "did:x:a", 10) is None


def test_who_says_to_be_busy_gets_less() -> None:
    known = directory(row("did:x:a"), row("did:x:b"))
    known.apply_liveness({"did:x:a": Liveness("busy", 0.9, heartbeat_ms=0)})
    assert chosen(known, 1) == "did:x:b"


def test_a_verifier_has_another_owner_than_the_primary() -> None:
    known = directory(row("did:x:a"), row("did:x:b"), row("did:x:c", owner="did:x:other"))
    chosen = known.select_verifier(SelectVerifier("n", CAPABILITY, "did:x:a", (), 10**9), 0)
    assert isinstance(chosen, VerifierSelected)
    assert chosen.agent_did == "did:x:c"


def test_a_new_card_replaces_the_old_one_everywhere() -> None:
    known = directory(row("did:x:a"))
    renamed = {"capabilities": [{"id": "cap.other.v1"}]}
    known.put([row("did:x:a", card=renamed)])
    assert known.is_missing(CAPABILITY, None, "")
    assert not known.is_missing("cap.other.v1", None, "")
    known.put([row("did:x:a", status="inactive")])
    assert known.entry("did:x:a") is None
    assert unavailable(known, "did:x:a") == "agent_inactive"
    assert unavailable(known, "did:x:b") == "agent_not_found"


def test_dispatch_addresses_and_secrets_follow_the_card() -> None:
    sealed = seal("hush", KEYS, bytes(NONCE_BYTES), KeyPurpose.SIGNING_SECRET)
    known = directory(
        row("did:x:a"),
        row("did:x:b", endpoint="http://h/svc/node", signing_secret=sealed),
        row("did:x:c", card={"dispatchPath": "/work"}),
    )
    urls = {did: known.entry(did) for did in ("did:x:a", "did:x:b", "did:x:c")}
    assert [entry.url for entry in urls.values() if entry] == [
        "http://127.0.0.1:9000/callboard/node",
        "http://h/svc/node",
        "http://127.0.0.1:9000/work",
    ]
    second = urls["did:x:b"]
    assert second is not None
    assert (second.secret, second.cancel_url) == ("hush", "http://h/svc/cancel")


@pytest.mark.parametrize(
    ("endpoint", "card", "url", "cancel_url"),
    [
        ("http://h/", {}, "http://h/callboard/node", "http://h/callboard/cancel"),
        ("http://h/a/", {}, "http://h/a/callboard/node", "http://h/a/callboard/cancel"),
        ("http://h/svc/node/", {}, "http://h/svc/node/", "http://h/svc/cancel"),
        ("http://h/node//", {}, "http://h/node//", "http://h/cancel"),
        ("http://h/a/", {"dispatchPath": "/w/"}, "http://h/a/w/", "http://h/a/callboard/cancel"),
        ("http://h/a/node", {"dispatchPath": "/w"}, "http://h/a/node/w", "http://h/a/cancel"),
    ],
)
def test_an_endpoint_is_used_as_it_is_registered(
    endpoint: str, card: dict[str, Any], url: str, cancel_url: str
) -> None:
    """The slash was cut off, and the redirect of the agent's server counted as its fault."""
    entry = directory(row("did:x:a", endpoint=endpoint, card=card)).entry("did:x:a")
    assert entry is not None
    assert (entry.url, entry.cancel_url) == (url, cancel_url)


def test_refused_inputs_lower_the_rank_of_an_agent_by_their_share() -> None:
    known = directory(row("did:x:a"), row("did:x:b"))
    tallies = {did: paid(successful=30, latency_ms_sum=30_000) for did in ("did:x:a", "did:x:b")}
    known.standings.apply_tallies(tallies)
    assert chosen(known) == "did:x:a"
    known.note_refusal("did:x:a")
    assert chosen(known) == "did:x:b"
    was, now = known.standings.of("did:x:a"), known.standings.ranked("did:x:a")
    assert (now.score, now.success_rate) == pytest.approx(
        (was.score * 30 / 31, was.success_rate * 30 / 31)
    )
    for _ in range(3):
        known.note_refusal("did:x:b")
    assert chosen(known) == "did:x:a"


def test_an_agent_that_refused_often_is_not_new_any_more() -> None:
    standings = Standings(60_000, lambda _: None)
    for number in range(REFUSING_MAX + 1):
        standings.note_refusal(f"did:x:{number}")
    assert standings.ranked("did:x:0") == UNPROVEN, "the first one is forgotten"
    for _ in range(9):
        standings.note_refusal("did:x:1")
    assert standings.ranked("did:x:1") == UNPROVEN._replace(score=0, success_rate=0, total=10)


def test_the_settings_trust_verifiers_of_proven_dids() -> None:
    """Any caller may claim a DID that its owner has not proven."""
    named = Directory(
        service="callboard",
        deployment_keys=KEYS,
        default_secret=None,
        max_concurrency=32,
        trusted_verifiers=("did:x:judge",),
    )
    action = SelectVerifier("n", CAPABILITY, "did:x:primary", (), 10**9)
    for is_proven in (False, True):
        named.put([row("did:x:judge", is_trusted=False, is_proven=is_proven)])
        named.put([row("did:x:other", is_trusted=False, is_proven=True)])
        chosen = named.select_verifier(action, 0)
        assert isinstance(chosen, VerifierSelected) is is_proven
    assert isinstance(chosen, VerifierSelected)
    assert (chosen.agent_did, chosen.is_trusted) == ("did:x:judge", True)


# -- promises and owners ---------------------------------------------------------------------------


def test_a_selection_says_what_the_card_promises_and_else_ten_seconds() -> None:
    offered = {"id": CAPABILITY, "price_cents": 1}
    known = directory(
        row("did:x:a", card={"capabilities": [{**offered, "etaMs": 0}]}),
        row("did:x:b", card={"capabilities": [{**offered, "etaMs": None}]}),
        row("did:x:c"),
    )
    promised = {}
    for did in ("did:x:a", "did:x:b", "did:x:c"):
        found = known.select(select(target_agent_id=did), 0)
        assert isinstance(found, AgentSelected)
        promised[did] = found.promised_ms
    assert promised == {"did:x:a": 0, "did:x:b": PROMISED_MS, "did:x:c": PROMISED_MS}


@pytest.mark.parametrize(
    ("payer", "is_own"),
    [
        ("did:x:owner", True),  # it owns the agent
        ("did:x:a", True),  # it is the agent
        ("did:x:sister", True),  # an agent of the same owner
        ("did:x:stranger", False),
        ("did:x:nobody", False),
    ],
)
def test_an_agent_of_the_payers_owner_is_its_own(payer: str, is_own: bool) -> None:
    known = directory(
        row("did:x:a"),
        row("did:x:sister", endpoint=""),
        row("did:x:stranger", owner="did:x:other", endpoint=""),
    )
    for target in (None, "did:x:a"):
        found = known.select(select(target_agent_id=target), 0, payer_did=payer)
        assert isinstance(found, AgentSelected)
        assert (found.agent_did, found.is_own) == ("did:x:a", is_own)


def test_an_agent_that_asks_a_price_is_weighed_by_paid_work_alone() -> None:
    """Whether it asks one follows its card, and the registered prices where that has none."""
    unpriced = {"card": {"capabilities": [{"id": CAPABILITY}]}}
    known = directory(row("did:x:dear"), row("did:x:free", cents=0), row("did:x:bare", **unpriced))
    farmed = Tally(successful=300)
    dids = ("did:x:dear", "did:x:free", "did:x:bare")
    known.standings.apply_tallies(dict.fromkeys(dids, farmed))
    assert [known.standings.of(did).total for did in dids] == [0, 300, 300]
    known.apply_prices({CAPABILITY: FixedPrice(1)})
    assert [known.standings.of(did).total for did in dids] == [0, 300, 0]
    known.put([row("did:x:dear", cents=0), row("did:x:free", cents=2)])
    assert [known.standings.of(did).total for did in dids] == [300, 0, 0]


def test_an_agent_with_a_standing_bid_is_weighed_by_paid_work_alone() -> None:
    """It is paid by bids, and its price may be 0."""
    offered = {"id": CAPABILITY, "price_cents": 0}
    known = directory(row("did:x:a", card={"capabilities": [offered]}))
    known.standings.apply_tallies({"did:x:a": Tally(successful=300)})
    assert known.standings.of("did:x:a").total == 300
    bidding = {**offered, "standingBid": {"bidAmount": 0}}
    known.put([row("did:x:a", card={"capabilities": [bidding]})])
    assert known.standings.of("did:x:a").total == 0


SLOW = {"card": {"capabilities": [{"id": CAPABILITY, "version": "1.2.0", "etaMs": 60_000}]}}


@pytest.mark.parametrize("versions", ["", "^1.0.0"])
def test_who_promises_its_result_after_the_timeout_is_no_candidate(versions: str) -> None:
    """The default promise excludes nobody, and a target is taken as it is."""
    known = directory(row("did:x:slow", **SLOW))
    known.published.apply_rows(
        [{"capability_id": CAPABILITY, "version": "1.2.0", "status": "active"}]
    )
    chosen = {"versions": versions}
    refused = refusal(known, timeout_ms=59_999, **chosen)
    assert "1 promising its result later than the node's timeoutMs" in refused.message
    for terms in ({"timeout_ms": 60_000}, {"timeout_ms": 1, "target_agent_id": "did:x:slow"}):
        found = known.select(select(**terms, **chosen), 0)
        assert isinstance(found, AgentSelected)
        assert found.promised_ms == 60_000
    known.put([row("did:x:silent")])
    plain = known.select(select(timeout_ms=1), 0)
    assert isinstance(plain, AgentSelected)
    assert plain.agent_did == "did:x:silent"
    assert '"too_slow"' in (plain.selection_json or "")


def test_after_an_agent_that_failed_the_agents_of_other_owners_come_first() -> None:
    """One owner may have any number of free agents that refuse."""
    many = [row(f"did:x:{number}", owner="did:x:many", cents=0) for number in range(4)]
    known = directory(*many, row("did:x:other", owner="did:x:one"))
    tried = select(exclude=("did:x:0",))
    found = known.select(tried, 0)
    assert isinstance(found, AgentSelected)
    assert found.agent_did == "did:x:other"
    assert '"owner_failed_before"' in (found.selection_json or "")
    known.put([row("did:x:other", owner="did:x:one", status="inactive")])
    found = known.select(tried, 0)
    assert isinstance(found, AgentSelected)
    assert found.agent_did == "did:x:1"
