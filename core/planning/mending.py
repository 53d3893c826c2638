"""What is changed in a draft that publish refuses: mappings that cannot fit, limits of cost. Pure.

What is left out is said in the draft's notes. Decision planning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from core.errors import ErrorCode, ServiceError
from core.money import MICRO_PER_CREDIT
from core.planning.chaining import Step
from core.planning.plan import LIMIT_TIMES, Plan

# What a node may cost whose price nothing else bounds, unless the caller says otherwise.
LIMIT_MICRO: Final = 10 * MICRO_PER_CREDIT


def mend(draft: Plan, refusal: ServiceError) -> bool:
    """Change in a draft what a refusal names; say whether anything has changed.

    Args:
        refusal: of publish, for this draft.
    """
    if refusal.code is ErrorCode.BUDGET_REQUIRED:
        # An agent that is paid by tokens may offer what another has a fixed price for.
        return limit_costs(draft.steps)
    if refusal.code is not ErrorCode.INVALID_MANIFEST:
        return False
    paths = {problem.path for problem in refusal.problems}
    left_out = [
        _leave_out(draft, step, name)
        for step in draft.steps
        for name in sorted(step.sources)
        # The name of a node of a draft is one that a path need not quote.
        if f"nodes.{step.name}.inputMappings.{name}" in paths
    ]
    # One agent's price may be more than all accounts hold.
    is_limited = "nodes" in paths and limit_costs(draft.steps)
    return bool(left_out) or is_limited


def leave_out_mappings(draft: Plan) -> bool:
    """Leave all mappings out; say whether there was one."""
    left_out = [
        _leave_out(draft, step, name) for step in draft.steps for name in sorted(step.sources)
    ]
    return bool(left_out)


def limit_costs(steps: Iterable[Step]) -> bool:
    """Limit what these nodes may cost; say whether any was without a limit."""
    unlimited = [step for step in steps if step.limit_micro is None]
    for step in unlimited:
        step.limit_micro = max(LIMIT_MICRO, LIMIT_TIMES * (step.offer.price or 0))
    return bool(unlimited)


def _leave_out(draft: Plan, step: Step, name: str) -> str:
    source, output = step.sources.pop(name)
    note = f"{step.name}.{name} is left open: what {source.name}.{output} is cannot fit it"
    draft.notes.append(note)
    return note
