"""Repairs a draft that publish refuses: removes mappings that cannot fit, and adds cost limits.

Each removed mapping is named in the draft's notes. Pure. Decision planning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from core.errors import ErrorCode, ServiceError
from core.money import MICRO_PER_CREDIT
from core.planning.chaining import Step
from core.planning.plan import LIMIT_TIMES, Plan

# The lowest cost limit that a draft gives a node.
LIMIT_MICRO: Final = 10 * MICRO_PER_CREDIT


def repair(draft: Plan, refusal: ServiceError) -> bool:
    """Change the parts of a draft that a refusal names; return whether the draft was changed.

    Args:
        draft: the draft.
        refusal: the error of publish for this draft.
    """
    if refusal.code is ErrorCode.BUDGET_REQUIRED:
        # The offer may have the fixed price of one agent although another agent is paid by tokens.
        return limit_costs(draft.steps)
    if refusal.code is not ErrorCode.INVALID_MANIFEST:
        return False
    paths = {problem.path for problem in refusal.problems}
    left_out = [
        _leave_out(draft, step, name)
        for step in draft.steps
        for name in sorted(step.sources)
        # The names of a draft's nodes need no quotes in a path.
        if f"nodes.{step.name}.inputMappings.{name}" in paths
    ]
    # The price of one agent may be higher than the largest amount of an account.
    is_limited = "nodes" in paths and limit_costs(draft.steps)
    return bool(left_out) or is_limited


def leave_out_mappings(draft: Plan) -> bool:
    """Remove all mappings; return whether there was one."""
    left_out = [
        _leave_out(draft, step, name) for step in draft.steps for name in sorted(step.sources)
    ]
    return bool(left_out)


def limit_costs(steps: Iterable[Step]) -> bool:
    """Give a cost limit to each node that has none; return whether there was such a node."""
    unlimited = [step for step in steps if step.limit_micro is None]
    for step in unlimited:
        step.limit_micro = max(LIMIT_MICRO, LIMIT_TIMES * (step.offer.price or 0))
    return bool(unlimited)


def _leave_out(draft: Plan, step: Step, name: str) -> str:
    source, output = step.sources.pop(name)
    note = f"{step.name}.{name} has no source: {source.name}.{output} does not fit its schema"
    draft.notes.append(note)
    return note
