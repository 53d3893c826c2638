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
What is not an arrow here cannot happen: the machine refuses it and stays as it is.
"""
_NODES = """\
A node that fails an attempt passes through `failed` within one step, so a stored row says `failed`
only when it is final; while a node waits for its next attempt it shows `ready`. `running` is stored
only where somebody could see the difference: a reader may find `dispatched` for a node at work.
"""
_WORKFLOWS = """\
The first node that ends without success decides that the workflow will be `failed`; it becomes so
when no other node is at work any more.
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
