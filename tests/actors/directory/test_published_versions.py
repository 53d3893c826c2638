"""Selections that name versions: which published one they mean, and what is said when none fits.

Decision versions-and-schemas.
"""

from __future__ import annotations

from typing import Any

import pytest

from actors.directory.agent_directory import Directory
from actors.directory.published_versions import KNOWN_MAX, TRIED_MAX, PublishedVersions
from core.errors import NodeErrorCode
from core.market.agent_liveness import Liveness
from core.workflow.events import AgentNotSelected, AgentSelected
from tests.actors.directory.test_agent_directory import CAPABILITY, directory, row, select


def offering(did: str, version: object, *, cents: int = 1) -> dict[str, Any]:
    """Return the row of an agent that says which version it offers."""
    capability = {"id": CAPABILITY, "price_cents": cents, "version": version}
    return row(did, card={"capabilities": [capability]})


def versions(*texts: str) -> list[dict[str, str]]:
    """Return rows of versions; `1.0.0!` is deprecated."""
    return [
        {
            "capability_id": CAPABILITY,
            "version": text.removesuffix("!"),
            "status": "deprecated" if text.endswith("!") else "active",
        }
        for text in texts
    ]


def known(*rows: dict[str, Any]) -> Directory:
    """Return a directory that knows four versions, one of them deprecated."""
    made = directory(*rows)
    made.published.apply_rows(versions("1.0.0", "1.2.0", "2.0.0", "2.1.0!"))
    return made


def taken(made: Directory, **fields: Any) -> str | None:
    """Return who is selected, or None."""
    answer = made.select(select(**fields), 0)
    return answer.agent_did if isinstance(answer, AgentSelected) else None


def test_the_newest_version_that_has_an_agent_is_taken() -> None:
    made = known(offering("did:x:1", "1.0.0"), offering("did:x:2", "2.0.0"),
                 offering("did:x:3", "2.1.0"), row("did:x:4"))  # fmt: skip
    assert taken(made, versions=">=1") == "did:x:2"
    assert taken(made, versions="^1") == "did:x:1"
    assert taken(made, versions=">=2", exclude=("did:x:2",)) == "did:x:3"
    assert taken(made, versions=">=1", exclude=("did:x:2",)) == "did:x:1"
    assert made.entry("did:x:2").versions == {CAPABILITY: "2.0.0"}  # type: ignore[union-attr]
    made.put([offering("did:x:2", "1.2.0")])
    assert taken(made, versions=">=2") == "did:x:3"
    assert taken(made, versions="1.2") == "did:x:2"
    made.put([{**offering("did:x:2", "1.2.0"), "status": "inactive"}])
    assert taken(made, versions="1.2") is None


def test_what_is_not_published_is_no_version() -> None:
    made = known(offering("did:x:1", "9.0.0"), offering("did:x:2", 2), offering("did:x:3", "2.x"))
    assert taken(made, versions=">=1") is None
    assert taken(made) == "did:x:1"
    assert taken(directory(offering("did:x:1", "1.0.0")), versions="1") is None


def test_a_target_is_looked_for_in_every_version_of_the_range() -> None:
    made = known(offering("did:x:1", "1.0.0"), offering("did:x:2", "2.0.0"))
    target = {"target_agent_id": "did:x:1", "versions": ">=1"}
    assert taken(made, **target, allow_fallback=True) == "did:x:1"
    assert taken(made, **target) == "did:x:1"
    away = {"target_agent_id": "did:x:9", "versions": ">=1"}
    assert taken(made, **away, allow_fallback=True) == "did:x:2"
    answer = made.select(select(**away), 0)
    assert isinstance(answer, AgentNotSelected)
    assert answer.failure.details == "agent_not_found"
    other = made.select(select(target_agent_id="did:x:1", versions="2"), 0)
    assert isinstance(other, AgentNotSelected)
    assert other.failure.details == "capability_not_offered"


def test_a_price_that_is_too_high_tells_more_than_a_version_without_agents() -> None:
    made = known(offering("did:x:1", "1.0.0", cents=9))
    answer = made.select(select(versions=">=1", price_max_micro=10_000), 0)
    assert isinstance(answer, AgentNotSelected)
    assert answer.failure.code is NodeErrorCode.BUDGET_EXCEEDED
    none = made.select(select(versions="7"), 0)
    assert isinstance(none, AgentNotSelected)
    assert none.failure.code is NodeErrorCode.NO_CANDIDATE
    assert "no published version" in none.failure.message


def test_a_dry_run_lists_the_agents_of_the_version() -> None:
    made = known(offering("did:x:1", "1.0.0"), offering("did:x:2", "2.0.0"))
    assert made.list_available_agents(select(versions="^1"), 0) == (["did:x:1"], None)
    dids, failure = made.list_available_agents(select(versions="3"), 0)
    assert (dids, failure is not None) == ([], True)


def test_ranges_are_remembered_until_versions_change_and_within_a_bound() -> None:
    published = PublishedVersions()
    published.apply_rows(versions("1.0.0"))
    assert published.find_within(CAPABILITY, ">=1") == (f"{CAPABILITY}@1.0.0",)
    published.apply_rows(versions("1.1.0", "1.0.0!"))
    found = (f"{CAPABILITY}@1.1.0", f"{CAPABILITY}@1.0.0")
    assert published.find_within(CAPABILITY, ">=1") == found
    for number in range(KNOWN_MAX + 1):
        assert published.find_within(CAPABILITY, f">={number + 2}") == ()
    assert len(published._known) < KNOWN_MAX


def test_a_range_over_a_long_line_looks_at_a_few_versions() -> None:
    line = versions(*(f"1.{number}.0" for number in range(100)))
    made = directory(offering("did:x:1", "1.0.0"))
    made.published.apply_rows(line)
    assert taken(made, versions="*") == "did:x:1", "ninety-nine without an agent are passed over"
    offered = {f"{CAPABILITY}@{one['version']}" for one in line}
    away = select(versions="*", target_agent_id="did:x:9", allow_fallback=True)
    for action, looks in ((select(versions="*"), TRIED_MAX), (away, TRIED_MAX + 1)):
        for can_take, more in ((lambda _: False, 0), (lambda _: True, TRIED_MAX)):
            tried = list(made.published.split(action, offered.__contains__, None, can_take))
            assert len(tried) == looks + more
    none = made.select(select(versions="1.5"), 0)
    assert isinstance(none, AgentNotSelected)
    assert "no agent offers" in none.failure.message
    assert taken(made, versions="*", target_agent_id="did:x:1") == "did:x:1"


@pytest.mark.parametrize("versions_taken", [TRIED_MAX, 99])
@pytest.mark.parametrize("are_away", [False, True], ids=["too dear", "offline"])
def test_agents_in_newer_versions_that_cannot_take_a_node_keep_it_from_no_older_one(
    versions_taken: int, *, are_away: bool
) -> None:
    """Four of them, in the newest four versions, were enough: NO_CANDIDATE."""
    newer = [
        offering(f"did:x:{number}", f"1.{number}.0", cents=1 if are_away else 500)
        for number in range(1, versions_taken + 1)
    ]
    made = directory(offering("did:x:0", "1.0.0"), *newer)
    made.published.apply_rows(versions(*(f"1.{number}.0" for number in range(100))))
    if are_away:
        away = Liveness("draining", heartbeat_ms=0)
        made.apply_liveness({one["did"]: away for one in newer})
        assert made.list_available_agents(select(versions="*"), 0) == (["did:x:0"], None)
    fields: dict[str, Any] = {"versions": "*", "price_max_micro": 1_000_000}
    assert taken(made, **fields) == "did:x:0"
    assert taken(made, **fields, target_agent_id="did:x:9", allow_fallback=True) == "did:x:0"
    code = NodeErrorCode.NO_CANDIDATE if are_away else NodeErrorCode.BUDGET_EXCEEDED
    none = made.select(select(**fields, exclude=("did:x:0",)), 0)
    assert isinstance(none, AgentNotSelected)
    assert none.failure.code is code
