"""The public names of the package: the client, the agent kit, the verifiers and their errors.

A name is imported at its first use, because the command line imports this package and must start
fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callboard.client import AsyncClient, AsyncWorkflowHandle, Client, WorkflowHandle
    from callboard.errors import (
        AuthenticationError,
        CallboardError,
        Conflict,
        InsufficientCredits,
        InvalidRequest,
        NotFound,
        OutcomeUnknown,
        PermissionDenied,
        RateLimited,
        StillRunning,
        Unavailable,
        WorkflowFailed,
    )
    from callboard.kit.agent import Agent
    from callboard.kit.context import Context, Later
    from callboard.kit.dispatch_replies import AgentError
    from callboard.verify import NotProven, verify_bundle, verify_log

__all__ = [
    "Agent",
    "AgentError",
    "AsyncClient",
    "AsyncWorkflowHandle",
    "AuthenticationError",
    "CallboardError",
    "Client",
    "Conflict",
    "Context",
    "InsufficientCredits",
    "InvalidRequest",
    "Later",
    "NotFound",
    "NotProven",
    "OutcomeUnknown",
    "PermissionDenied",
    "RateLimited",
    "StillRunning",
    "Unavailable",
    "WorkflowFailed",
    "WorkflowHandle",
    "verify_bundle",
    "verify_log",
]

_HOMES = {
    "Agent": "callboard.kit.agent",
    "AgentError": "callboard.kit.dispatch_replies",
    "AsyncClient": "callboard.client",
    "AsyncWorkflowHandle": "callboard.client",
    "Client": "callboard.client",
    "Context": "callboard.kit.context",
    "NotProven": "callboard.verify",
    "Later": "callboard.kit.context",
    "WorkflowHandle": "callboard.client",
    "verify_bundle": "callboard.verify",
    "verify_log": "callboard.verify",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'callboard' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "callboard.errors")), name)
