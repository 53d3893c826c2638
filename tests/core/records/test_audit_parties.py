"""Who is a party of an audit entry: no event type is without a rule, and no rule without sense."""

from __future__ import annotations

import re

import orjson

from core.records.audit import AuditEventType
from core.records.audit_parties import PARTY_RULES, Named, party_rules_json

# Texts of an event, of its payload, or of a list in it.
PATH = re.compile(r"\$\.(targetId|payload(\.[A-Za-z]+(\[\*\])?){1,2})")


def test_every_event_type_has_a_rule() -> None:
    assert set(PARTY_RULES) == set(AuditEventType)


def test_what_concerns_the_deployment_has_no_parties() -> None:
    unnamed = {event.value for event, rules in PARTY_RULES.items() if not rules}
    assert unnamed == {
        "ledger.created", "reputation.rebuilt", "capability.priced", "command.refused",
        "member.joined", "member.changed", "shards.taken", "shards.given", "right.used",
    }  # fmt: skip


def test_the_database_is_given_each_rule_as_a_name_and_a_path() -> None:
    stored = orjson.loads(party_rules_json())
    assert set(stored) == {event.value for event in AuditEventType}
    for rules in stored.values():
        for named, path in rules:
            assert Named(named)
            assert PATH.fullmatch(path), path
