"""A checked manifest turned into what the engine runs: a frozen graph in topological order.

Knows structure only; no state, no prices. Everything here pickles and is shared, never changed.
Spec: Node definition, Execution order; contract.md sections 5 and 6 (defaults).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Step = str | int


@dataclass(frozen=True, slots=True)
class InputMapping:
    """`input_name` takes the value at `steps` inside the result of node `source`."""

    input_name: str
    source: str
    steps: tuple[Step, ...]
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledNode:
    """One node, every default filled in. `has_templates`: some payload string contains `{{`."""

    name: str
    capability_id: str
    depends_on: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    payload: dict[str, Any] = field(default_factory=dict)
    has_templates: bool = False
    mappings: tuple[InputMapping, ...] = ()
    requires_verification: bool = False
    verifier_capability_id: str = "cap.verify.generic.v1"
    timeout_ms: int = 60_000
    max_retries: int = 3
    target_agent_id: str | None = None
    allow_broadcast_fallback: bool = False
    max_cost_micro: int | None = None
    selection: str = "best"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledWorkflow:
    """A whole workflow; `nodes` is in topological order, `budget_micro` is `maxBudgetCredits`."""

    intent: str | None
    nodes: dict[str, CompiledNode]
    roots: tuple[str, ...]
    max_runtime_ms: int = 300_000
    allow_fallback_agents: bool = True
    budget_micro: int | None = None
    trigger_type: str = "manual"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowLimits:
    """Bounds and defaults of a manifest, from the settings (contract.md sections 2 and 6)."""

    nodes_max: int = 1_000
    timeout_ms_default: int = 60_000
    max_retries_default: int = 3
    max_runtime_ms_default: int = 300_000
    max_runtime_ms_max: int = 30 * 24 * 3_600_000
    verifier_capability_id_default: str = "cap.verify.generic.v1"
