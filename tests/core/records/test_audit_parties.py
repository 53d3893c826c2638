"""Who is a party of an audit entry: no event type is without a rule, and no rule without sense."""

from __future__ import annotations

from core.records.audit import PARTY_RULES, AuditEventType, Named, named_in


def test_every_event_type_has_a_rule() -> None:
    assert set(PARTY_RULES) == set(AuditEventType)


def test_what_concerns_the_deployment_has_no_parties() -> None:
    unnamed = {event.value for event, rules in PARTY_RULES.items() if not rules}
    by_their_plans = {"invoice.paid", "invoice.voided", "dispute.opened", "dispute.resolved"}
    assert unnamed - by_their_plans == {
        "ledger.created", "reputation.rebuilt", "capability.priced", "command.refused",
        "member.joined", "member.changed", "shards.taken", "shards.given", "right.used",
        "signing_key.rotated", "peer.added", "peer.removed", "peer.key_rotated",
    }  # fmt: skip


def test_texts_alone_name_parties_also_in_lists_and_objects() -> None:
    payload = {
        "winnerDid": None,
        "bids": [
            {"agentDid": "did:x:a", "bidCredits": "1"},
            {"agentDid": 7},
            {"reason": "did:x:b"},
        ],
    }
    found = [*named_in(AuditEventType.AUCTION_CLOSED, "workflow", payload)]
    assert found == [(Named.WORKFLOW, "workflow"), (Named.AGENT, "did:x:a")]
