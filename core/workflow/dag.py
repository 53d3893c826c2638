"""Compiles a checked manifest into an immutable graph in topological order, which the engine runs.

This file knows only the structure of a workflow, not its state or prices. The compiled values are
sent between processes.
Reference: features.md (Nodes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from msgspec import field

from core.errors import Problem, ProblemList
from core.json_text import write_json
from core.message import Message
from core.records.graph import InputMapping, node_path, plan_graph
from core.records.manifest import WorkflowManifest
from core.records.manifest_problems import refused_manifest

WAIT_FOR_AGENT_MS: Final = 60_000

__all__ = ["CompiledNode", "CompiledWorkflow", "InputMapping", "WorkflowLimits", "compile_workflow"]


class CompiledNode(Message, frozen=True, kw_only=True):
    """One node with every default filled in.

    `has_templates`: whether the payload has templates to fill. `versions`: the range of
    capability versions that may execute the node; "" for all. `is_verifier_chosen`: whether the
    payer has chosen the capability of the verifier. `wait_for_agent_ms`: the longest wait for a
    temporarily unavailable agent; 0 for no wait. `region`: the region that should run the node; ""
    for any. `is_federated`: whether any peer may run the node.

    `payload_bytes` is the length of the payload's JSON text. `template_count` is the number of `{{`
    in this text; 0 if templates are not filled. Both numbers are used to estimate the cost of
    building the node's inputs.
    """

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
    is_auction: bool = False
    auction_window_ms: int = 0
    payload_bytes: int = 0
    template_count: int = 0
    versions: str = ""
    wait_for_agent_ms: int = 0
    is_verifier_chosen: bool = False
    region: str = ""
    is_federated: bool = False

    @property
    def chosen_verifier_capability_id(self) -> str:
        """The verifiers' capability that the payer has chosen; "" if the payer chose none."""
        return self.verifier_capability_id if self.is_verifier_chosen else ""

    @property
    def peer_verifier_id(self) -> str:
        """The verifiers' capability for work at a peer; "" if the node is not verified."""
        return self.verifier_capability_id if self.requires_verification else ""


class CompiledWorkflow(Message, frozen=True, kw_only=True):
    """A compiled workflow; `nodes` is in topological order, `budget_micro` is `maxBudgetCredits`.

    `trigger_result`: the JSON text of the trigger's result, which nodes can map as
    `$.trigger.result`; None if the manifest has no such result.
    """

    intent: str
    nodes: dict[str, CompiledNode]
    roots: tuple[str, ...]
    max_runtime_ms: int = 300_000
    allow_fallback_agents: bool = True
    budget_micro: int | None = None
    trigger_result: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowLimits:
    """The bounds and defaults of a manifest, which come from the settings."""

    nodes_max: int = 1_000
    timeout_ms_default: int = 60_000
    max_retries_default: int = 3
    max_runtime_ms_default: int = 300_000
    max_runtime_ms_max: int = 30 * 24 * 3_600_000
    verifier_capability_id_default: str = "cap.verify.generic.v1"


_DEFAULT_LIMITS = WorkflowLimits()


def compile_workflow(
    manifest: WorkflowManifest, limits: WorkflowLimits = _DEFAULT_LIMITS
) -> CompiledWorkflow:
    """Check the structure of a manifest and return the compiled workflow.

    Raises `ServiceError` (INVALID_MANIFEST) with the structural problems of the manifest.
    Reference: features.md (Workflows, Nodes).
    """
    plan = plan_graph(
        {name: node.depends_on for name, node in manifest.nodes.items()},
        {name: node.input_mappings for name, node in manifest.nodes.items() if node.input_mappings},
        has_trigger=manifest.trigger.type != "manual",
    )
    _check_limits(manifest, limits, plan.problems)
    if plan.problems:
        raise refused_manifest(plan.problems)
    settings = manifest.settings
    nodes: dict[str, CompiledNode] = {}
    for name in plan.order:
        node = manifest.nodes[name]
        payload = write_json(node.payload)
        capability_id, _, versions = node.capability_id.partition("@")
        nodes[name] = CompiledNode(
            name=name,
            capability_id=capability_id,
            depends_on=plan.parents[name],
            children=tuple(plan.children[name]),
            payload=node.payload,
            has_templates=node.fill_templates and _has_template(node.payload),
            mappings=plan.mappings.get(name, ()),
            requires_verification=node.requires_verification,
            verifier_capability_id=(
                node.verifier_capability_id or limits.verifier_capability_id_default
            ),
            timeout_ms=node.timeout_ms or limits.timeout_ms_default,
            max_retries=(
                limits.max_retries_default if node.max_retries is None else node.max_retries
            ),
            target_agent_id=node.target_agent_id,
            allow_broadcast_fallback=node.allow_broadcast_fallback,
            max_cost_micro=node.max_cost_micro,
            is_auction=node.selection == "auction",
            auction_window_ms=node.auction_window_ms or 0,
            payload_bytes=len(payload),
            template_count=payload.count(b"{{") if node.fill_templates else 0,
            versions=versions,
            wait_for_agent_ms=(
                WAIT_FOR_AGENT_MS if node.wait_for_agent_ms is None else node.wait_for_agent_ms
            ),
            is_verifier_chosen=(
                node.requires_verification and node.verifier_capability_id is not None
            ),
            region=node.region or settings.region or "",
            is_federated=settings.federate,
        )
    return CompiledWorkflow(
        intent=manifest.intent,
        nodes=nodes,
        roots=tuple(name for name in plan.order if not plan.parents[name]),
        max_runtime_ms=settings.max_runtime_ms or limits.max_runtime_ms_default,
        allow_fallback_agents=settings.allow_fallback_agents,
        budget_micro=manifest.budget_micro,
        trigger_result=_trigger_result(manifest),
    )


def _trigger_result(manifest: WorkflowManifest) -> str | None:
    config = manifest.trigger.config or {}
    if manifest.trigger.type == "manual" or "result" not in config:
        return None
    return write_json(config["result"]).decode()


def _check_limits(
    manifest: WorkflowManifest, limits: WorkflowLimits, problems: ProblemList
) -> None:
    if len(manifest.nodes) > limits.nodes_max:
        got = f"{len(manifest.nodes)} nodes"
        problems.append(Problem("nodes", got, f"at most {limits.nodes_max} nodes"))
    expected = f"at most {limits.max_runtime_ms_max} ms"
    runtime_ms = manifest.settings.max_runtime_ms or 0
    if runtime_ms > limits.max_runtime_ms_max:
        problems.append(Problem("settings.maxRuntimeMs", str(runtime_ms), expected))
    for name, node in manifest.nodes.items():
        spans = {"timeoutMs": node.timeout_ms, "waitForAgentMs": node.wait_for_agent_ms}
        for member, span_ms in spans.items():
            if span_ms is not None and span_ms > limits.max_runtime_ms_max:
                problems.append(Problem(f"{node_path(name)}.{member}", str(span_ms), expected))


def _has_template(value: Any) -> bool:
    if isinstance(value, str):
        return "{{" in value
    if isinstance(value, dict):
        return any(map(_has_template, value.values()))
    return isinstance(value, list) and any(map(_has_template, value))
