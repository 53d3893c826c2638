"""Warnings about a manifest: members without effect, and inputs that no agent's schema admits.

`list_ignored` needs only the manifest, so the replica calls it. `list_unused` warns about inputs
that are unused, missing or of a wrong type. It needs the schemas of the agents, so the owner calls
it. Decision requests-json-and-client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

from core.json_text import read_json
from core.records.graph import InputMapping, node_path
from core.records.manifest import NodeDefinition, WorkflowManifest
from core.schemas.mapping_fit import Looks, SchemaTypes, json_type
from core.wording import counted, kind_of, names_text, quoted
from core.workflow.dag import CompiledNode, CompiledWorkflow
from core.workflow.inputs import template_names

# The number of warnings that one publish lists; the last line counts the others.
WARNINGS_MAX: Final = 20
# The size of the cache of parsed schemas, and the most sets of schemas that one publish checks.
_SCHEMAS_REMEMBERED: Final = 256
_LOOKS_MAX: Final = 64  # steps through the schemas of one capability, 1 us each
_NAME_CHARS_MAX: Final = 80
# With one of these keywords, `properties` alone does not tell which inputs a schema admits.
_COMPOUND: Final = frozenset(
    ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "not", "patternProperties",
     "dependentSchemas", "dependencies", "unevaluatedProperties", "propertyNames")
)  # fmt: skip


def list_ignored(manifest: WorkflowManifest, compiled: CompiledWorkflow) -> tuple[str, ...]:
    """Return a warning for each member that has no effect with any agent."""
    return _bounded(_find_ignored(manifest, compiled))


def list_unused(
    known: tuple[str, ...],
    compiled: CompiledWorkflow,
    schemas_of: Callable[[CompiledNode, bool], Sequence[bytes]],
) -> tuple[str, ...]:
    """Return the known warnings and those about inputs that no agent of the node can use.

    Args:
        known: the warnings so far.
        compiled: the workflow.
        schemas_of: returns the schemas of all agents that may take a node: the inputSchemas, or
            with True the outputSchemas. It returns none if one of these agents has no schema.
    """
    found: list[str] = []
    asked: dict[tuple[str, str | None, bool, bool], _Members] = {}

    def members(node: CompiledNode, is_output: bool) -> _Members:
        target, may_fall_back = node.target_agent_id, node.allow_broadcast_fallback
        key = (node.capability_id, target, may_fall_back, is_output)
        known = asked.get(key, None if len(asked) < _SCHEMAS_REMEMBERED else _NOTHING_SAID)
        if known is None:
            schemas = schemas_of(node, is_output)
            known = asked[key] = _members_of(tuple(schemas)) if schemas else _NOTHING_SAID
        return known

    for node in compiled.nodes.values():
        inputs = members(node, False)
        if inputs is not _NOTHING_SAID:
            found += _unused(node, inputs.named)
            found += _refused(node, inputs)
        for mapping in node.mappings:
            source = compiled.nodes.get(mapping.source)
            if source is None:  # the trigger's result, which no agent declares
                continue
            named = members(source, True).named
            if named is not None and mapping.steps and mapping.steps[0] not in named:
                found.append(_undeclared(node, mapping, source.capability_id, named))
    return _bounded([*known, *found]) if found else known


def _bounded(found: Iterable[str]) -> tuple[str, ...]:
    warnings = iter(found)
    listed = tuple(islice(warnings, WARNINGS_MAX))
    more = sum(1 for _ in warnings)
    return (*listed, f"and {counted(more, 'more warning')}") if more else listed


def _find_ignored(manifest: WorkflowManifest, compiled: CompiledWorkflow) -> Iterator[str]:
    if manifest.trigger.type == "manual" and manifest.trigger.config:
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


def _refused(node: CompiledNode, inputs: _Members) -> Iterator[str]:
    """Return the warnings about inputs that every agent's inputSchema refuses."""
    payload = node.payload
    mapped = [mapping.input_name for mapping in node.mappings]
    for name in sorted(inputs.required.difference(payload, mapped)):
        yield (
            f"{node_path(node.name)}.payload: every agent for {quoted(node.capability_id, 128)}"
            f" requires the input {quoted(name)}, and neither payload nor inputMappings gives it"
        )
    for name, value in payload.items():
        types = inputs.types.get(name)
        if types is not None and json_type(value) not in types and name not in mapped:
            yield (
                f"{node_path(node.name)}.payload.{name[:_NAME_CHARS_MAX]}: is {kind_of(value)},"
                f" every agent for {quoted(node.capability_id, 128)} expects:"
                f" {', '.join(sorted(types))}"
            )


def _undeclared(
    node: CompiledNode, mapping: InputMapping, capability_id: str, named: frozenset[str]
) -> str:
    listed = names_text(sorted(named), len(named)) or "none"
    return (
        f"{node_path(node.name)}.inputMappings.{mapping.input_name[:_NAME_CHARS_MAX]}: no agent for"
        f" {quoted(capability_id, 128)} declares {quoted(str(mapping.steps[0]))}; the members of"
        f" their outputSchema: {listed}"
    )


def _unused(node: CompiledNode, known: frozenset[str] | None) -> Iterator[str]:
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


class _Members(NamedTuple):
    """The members of an object according to several schemas.

    `named`: the members that at least one schema names; None if a schema admits other members, too.
    `required`: the members that every schema requires. `types`: for each member that every schema
    names, the JSON types that at least one schema admits. Members of any type are not listed.
    """

    named: frozenset[str] | None
    required: frozenset[str]
    types: dict[str, frozenset[str]]


_NOTHING_SAID: Final = _Members(None, frozenset(), {})


@lru_cache(_SCHEMAS_REMEMBERED)
def _members_of(texts: tuple[bytes, ...]) -> _Members:
    schemas = [read_json(text) for text in texts]
    named = [_names(schema) for schema in schemas]
    common = set.intersection(*({*_plain(one, "properties", dict)} for one in schemas))
    looks = Looks(_LOOKS_MAX)
    readers = [SchemaTypes(schema, looks) for schema in schemas]
    types = {name: frozenset().union(*(one.at((name,)) for one in readers)) for name in common}
    return _Members(
        None if None in named else frozenset().union(*filter(None, named)),
        frozenset.intersection(*(frozenset(_plain(one, "required", list)) for one in schemas)),
        {name: found for name, found in types.items() if found and len(found) < 6},
    )


def _plain(schema: object, name: str, kind: type) -> Any:
    """Return a keyword's value, or an empty one if the keyword is unusable or beside a `$ref`."""
    value = schema.get(name) if isinstance(schema, dict) and "$ref" not in schema else None
    return value if isinstance(value, kind) else kind()


def _names(schema: object) -> frozenset[str] | None:
    if not isinstance(schema, dict) or not _COMPOUND.isdisjoint(schema):
        return None
    properties = schema.get("properties")
    if not isinstance(properties, dict) or schema.get("additionalProperties", False) is not False:
        return None
    return frozenset(properties)
