"""Warnings of a manifest: what is accepted and has no effect.

What a manifest says by itself is found where it is compiled; whether an input is used, where the
agents' schemas are known. contract.md section 2 (Strictness); decision 0306.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

from core.json_text import read_json
from core.records.graph import node_path
from core.records.manifest import NodeDefinition, WorkflowManifest
from core.wording import counted, names_text, quoted
from core.workflow.dag import CompiledNode, CompiledWorkflow
from core.workflow.inputs import template_names

# Of one publish; the others are counted.
WARNINGS_MAX: Final = 20
WEBHOOK_WARNING: Final = "webhookUrl: webhooks are not supported yet; this address is not called"
_SCHEMAS_REMEMBERED: Final = 256
_NAME_CHARS_MAX: Final = 80
# With one of these, which inputs a schema names is not read from its `properties` alone.
_COMPOUND: Final = frozenset(
    ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "not", "patternProperties",
     "dependentSchemas", "dependencies", "unevaluatedProperties", "propertyNames")
)  # fmt: skip


def list_ignored(manifest: WorkflowManifest, compiled: CompiledWorkflow) -> tuple[str, ...]:
    """Return a warning for each member that has no effect, whatever the agents are."""
    return _bounded(_find_ignored(manifest, compiled))


def list_unused(
    known: tuple[str, ...], nodes: Iterable[tuple[CompiledNode, Sequence[bytes]]]
) -> tuple[str, ...]:
    """Return the warnings with one for each input that no agent of its node names.

    Args:
        known: the warnings so far.
        nodes: each with the inputSchemas of all agents that may take it; none where one has none.
    """
    found = [warning for node, schemas in nodes if schemas for warning in _unused(node, schemas)]
    return _bounded([*known, *found]) if found else known


def _bounded(found: Iterable[str]) -> tuple[str, ...]:
    warnings = iter(found)
    listed = tuple(islice(warnings, WARNINGS_MAX))
    more = sum(1 for _ in warnings)
    return (*listed, f"and {counted(more, 'more warning')}") if more else listed


def _find_ignored(manifest: WorkflowManifest, compiled: CompiledWorkflow) -> Iterator[str]:
    if manifest.webhook_url is not None:
        yield WEBHOOK_WARNING
    if manifest.trigger.config:
        yield "trigger.config: a manual trigger has no configuration"
    for name, definition in manifest.nodes.items():
        node = compiled.nodes[name]
        if node.has_templates or any(one.input_name in node.payload for one in node.mappings):
            yield from _texts(node)
        if (
            definition.timeout_ms is not None
            or definition.allow_broadcast_fallback
            or definition.verifier_capability_id is not None
        ):
            yield from _options(node_path(name), definition, compiled.max_runtime_ms)


def _texts(node: CompiledNode) -> Iterator[str]:
    mapped = {mapping.input_name for mapping in node.mappings}
    for name in node.payload.keys() & mapped:
        path = f"{node_path(node.name)}.payload.{name[:_NAME_CHARS_MAX]}"
        yield f"{path}: is replaced by the input mapping of the same name"
    unknown = template_names(node.payload) - node.payload.keys() - mapped
    for name in sorted(unknown):
        yield (
            f"{node_path(node.name)}.payload: nothing fills the placeholder"
            f" {{{{{name[:_NAME_CHARS_MAX]}}}}}, it is sent as it is"
        )


def _options(path: str, node: NodeDefinition, max_runtime_ms: int) -> Iterator[str]:
    if node.allow_broadcast_fallback and node.target_agent_id is None:
        yield f"{path}.allowBroadcastFallback: has no effect without targetAgentId"
    if node.verifier_capability_id is not None and not node.requires_verification:
        yield f"{path}.verifierCapabilityId: has no effect without requiresVerification"
    if node.timeout_ms is not None and node.timeout_ms > max_runtime_ms:
        yield (
            f"{path}.timeoutMs: the workflow ends before, after settings.maxRuntimeMs"
            f" = {max_runtime_ms}"
        )


def _unused(node: CompiledNode, schemas: Sequence[bytes]) -> Iterator[str]:
    known = _named_by_any(tuple(schemas))
    mapped = [mapping.input_name for mapping in node.mappings]
    if known is None or (node.payload.keys() <= known and known.issuperset(mapped)):
        return
    unused = [f"payload.{name[:_NAME_CHARS_MAX]}" for name in node.payload if name not in known]
    unused += [f"inputMappings.{name[:_NAME_CHARS_MAX]}" for name in mapped if name not in known]
    used = template_names(node.payload) if node.has_templates else ()
    takes = names_text(sorted(known), len(known)) or "none"
    for member in unused:
        if member.partition(".")[2] not in used:
            yield (
                f"{node_path(node.name)}.{member}: no agent that offers"
                f" {quoted(node.capability_id, 128)} has this input; known inputs: {takes}"
            )


@lru_cache(_SCHEMAS_REMEMBERED)
def _named_by_any(schemas: tuple[bytes, ...]) -> frozenset[str] | None:
    """Return the inputs that the schemas name; None where one may take others, too."""
    found: frozenset[str] = frozenset()
    for text in schemas:
        names = _inputs_named(text)
        if names is None:
            return None
        found |= names
    return found


def _inputs_named(schema_text: bytes) -> frozenset[str] | None:
    schema = read_json(schema_text)
    if not isinstance(schema, dict) or not _COMPOUND.isdisjoint(schema):
        return None
    properties = schema.get("properties")
    if not isinstance(properties, dict) or schema.get("additionalProperties", False) is not False:
        return None
    return frozenset(properties)
