"""Writes `docs/states.md` from the tables in `core/workflow/transitions.py`.

Run from the root: `python -m scripts.states`. A test compares the file with `states_document()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from core.workflow.transitions import (
    NODE_TRANSITIONS,
    WORKFLOW_TRANSITIONS,
    NodeStatus,
    WorkflowStatus,
    is_terminal,
)

S = TypeVar("S", NodeStatus, WorkflowStatus)
T = TypeVar("T", bound=StrEnum)

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "states.md"

_HEAD = """\
# States

Generated from `core/workflow/transitions.py` by `python -m scripts.states`; do not edit.
Any other transition is illegal: the machine refuses it and keeps its state.
"""
_NODES = """\
A node whose attempt fails passes through `failed` within one step, so a stored `failed` is final;
a node that waits for its next attempt is stored as `ready`. `running` is not stored for every
attempt: a row may show `dispatched` for a node whose agent is at work.
"""
_WORKFLOWS = """\
After the first node that ends without success, the workflow becomes `failed` as soon as no node is
active.
"""


def states_document() -> str:
    """Return the whole document."""
    parts = [
        _HEAD,
        "## Nodes\n",
        _NODES,
        _table(NODE_TRANSITIONS),
        _diagram(NodeStatus, NODE_TRANSITIONS),
        "## Workflows\n",
        _WORKFLOWS,
        _table(WORKFLOW_TRANSITIONS),
        _diagram(WorkflowStatus, WORKFLOW_TRANSITIONS),
    ]
    return "\n".join(parts)


def _table(transitions: Mapping[tuple[S, T], S]) -> str:
    lines = ["| From | Trigger | To |", "|---|---|---|"]
    lines += [f"| {state} | {trigger} | {to} |" for (state, trigger), to in transitions.items()]
    return "\n".join(lines) + "\n"


def _diagram(states: type[S], transitions: Mapping[tuple[S, T], S]) -> str:
    arrows: list[str] = [
        f"    {state} --> {to}: {trigger}" for (state, trigger), to in transitions.items()
    ]
    ends: list[str] = [f"    {state} --> [*]" for state in states if is_terminal(state)]
    head: list[str] = ["```mermaid", "stateDiagram-v2", "    [*] --> pending"]
    return "\n".join([*head, *arrows, *ends, "```"]) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(states_document(), encoding="utf-8")
