"""What users of Callboard import: the client, the agent kit and the error they share.

Names are loaded on first use, because the command line imports this package and must start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callboard.client import AsyncClient, Client
    from callboard.errors import CallboardError
    from callboard.kit.agent import Agent
    from callboard.kit.answering import AgentError
    from callboard.kit.later import Later

__all__ = ["Agent", "AgentError", "AsyncClient", "CallboardError", "Client", "Later"]

_HOMES = {
    "Agent": "callboard.kit.agent",
    "AgentError": "callboard.kit.answering",
    "AsyncClient": "callboard.client",
    "CallboardError": "callboard.errors",
    "Client": "callboard.client",
    "Later": "callboard.kit.later",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'callboard' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
