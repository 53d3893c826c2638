"""What a refusal names is changed in the draft, and nothing else."""

from __future__ import annotations

import pytest

from core.errors import ErrorCode, Problem, ServiceError
from core.money import MICRO_MAX
from core.planning.draft_repairs import LIMIT_MICRO, limit_costs, repair
from core.planning.offers import Offer, members_of
from core.planning.plan import NODES_MAX, PRICE_MICRO_MAX, Plan, plan

TEXTS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
OFFERS = [
    Offer("cap.a.fetch.v1", "Fetches a page", (), members_of(TEXTS), PRICE_MICRO_MAX),
    Offer("cap.a.count.v1", "Counts words", members_of(TEXTS), (), 5),
]


@pytest.fixture
def draft() -> Plan:
    """A draft with one mapping."""
    found = plan("fetch a page, count words", OFFERS)
    assert found.nodes()["count"]["inputMappings"] == {"text": "$.fetch.result.text"}
    return found


def refusal(code: ErrorCode, path: str) -> ServiceError:
    """Return a refusal that names one path."""
    return ServiceError(code, "refused", (Problem(path, "got", "expected"),))


@pytest.mark.parametrize(
    ("code", "path"), [(ErrorCode.BUDGET_REQUIRED, "any"), (ErrorCode.INVALID_MANIFEST, "nodes")]
)
def test_costs_without_a_bound_are_limited_once(draft: Plan, code: ErrorCode, path: str) -> None:
    assert repair(draft, refusal(code, path))
    limits = [step.limit_micro for step in draft.steps]
    assert limits == [10 * PRICE_MICRO_MAX, LIMIT_MICRO]
    assert not repair(draft, refusal(code, path))
    assert draft.nodes()["count"]["maxCostCredits"] == 10
    assert draft.notes == []


@pytest.mark.parametrize(
    ("code", "path"),
    [
        (ErrorCode.INVALID_MANIFEST, "nodes.count.inputMappings.other"),
        (ErrorCode.OVERLOADED, "nodes.count.inputMappings.text"),
    ],
)
def test_what_a_draft_cannot_help_changes_nothing(draft: Plan, code: ErrorCode, path: str) -> None:
    before = draft.nodes()
    assert not repair(draft, refusal(code, path))
    assert draft.nodes() == before


def test_all_limits_together_are_an_amount_that_there_can_be() -> None:
    dear = [
        Offer(f"cap.a.{word}.v1", word, price=PRICE_MICRO_MAX)
        for word in (f"{first}{second}zz" for first in "abcdef" for second in "abcde")
    ]
    found = plan(", ".join(one.description for one in dear), dear)
    assert len(found.steps) == NODES_MAX
    limit_costs(found.steps)
    assert sum(step.limit_micro or 0 for step in found.steps) <= MICRO_MAX
    over = [Offer("cap.a.paint.v1", "Paints", price=PRICE_MICRO_MAX + 1)]
    assert plan("paint", over).unmatched == ["paint"]
