"""Guardians of an agent as rows: read in one way by the writer and by all others.

Which replaced guardians count on is measured in time in which the service was ready (0232), as
delays are. Reference: features.md (Recovery). Decision agent-identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from core.trust.identity.recovery import HOUR_MS, Guardians, GuardianSets
from ledger.tables.table import Row

# A row of guardian_set, and of the replaced sets those that count on.
GUARDIAN_SETS: Final = f"""
    SELECT g.agent_did, g.owner_did, g.guardians, g.threshold, g.custodian_did, g.delay_hours,
        g.set_ms, g.number, g.struck_number, coalesce((
            SELECT json_agg(one) FROM json_array_elements(g.replaced) AS one
            WHERE callboard.ready_ms_since((one ->> 'replaced_ms')::bigint)
                < (one ->> 'delay_hours')::bigint * {HOUR_MS}), '[]') AS counting
    FROM callboard.guardian_set g"""


def guardian_sets(row: Mapping[str, Any]) -> GuardianSets:
    """Return the guardians that a row of `GUARDIAN_SETS` names."""
    return GuardianSets(
        row["owner_did"],
        read_guardians(row),
        tuple(map(read_guardians, row["counting"])),
        row["struck_number"],
    )


def read_guardians(stored: Mapping[str, Any]) -> Guardians:
    """Return a set of guardians from its members, or its columns."""
    return Guardians(
        tuple(stored["guardians"]),
        stored["threshold"],
        stored["custodian_did"],
        stored["delay_hours"],
        stored["number"],
        stored.get("replaced_ms"),
    )


def guardians_row(did: str, sets: GuardianSets) -> Row:
    """Return the row that stores an agent's guardians."""
    current = asdict(sets.current)
    del current["replaced_ms"]
    return {
        "agent_did": did,
        "owner_did": sets.owner_did,
        **current,
        "replaced": [asdict(one) for one in sets.replaced] or None,
        "struck_number": sets.struck_number,
    }
