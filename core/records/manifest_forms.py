"""The JSON Schemas of the forms in which manifests arrive. `manifest.py` parses these forms.

The schemas are pydantic's schemas of `WorkflowManifest`. This file adds the alternative spellings,
and null as a value of optional members. A test with generated manifests checks that the schema and
the parser accept the same manifests.
Reference: features.md (Workflows, Nodes).
"""

from __future__ import annotations

from typing import Any, Final

from core.records.api.kinds import NODE_NAME_SCHEMA
from core.records.api.shape import REFERENCE, Schema, Schemas, bulk_schema
from core.records.manifest import WorkflowManifest
from core.records.manifest_problems import NODE_ALIASES
from core.records.trigger_config import CONFIGS, TriggerConfig

_NULL: Final[Schema] = {"type": "null"}
_SHOWN: Final = ("description", "default")
_BESIDE_TYPE: Final = ("title", *_SHOWN)
_PLAIN: Final = (str, int)  # only defaults of these types are shown
_BOUNDS: Final = {"ge": "minimum", "le": "maximum"}
_EDGE_ENDS: Final = (("from", "to"), ("source", "target"))


class Manifest:
    """A workflow to be published."""

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of a manifest; add the schemas of its parts to `schemas`."""
        whole = WorkflowManifest.model_json_schema(
            by_alias=True, ref_template=REFERENCE + "{model}"
        )
        for name, part in whole.pop("$defs").items():
            schemas.components[name] = _with_nulls(part)
        node = schemas.components["NodeDefinition"]
        for alias, canonical in NODE_ALIASES.items():
            node["properties"][alias] = {
                **node["properties"][canonical],
                "description": f"The same as `{canonical}`.",
            }
        whole["properties"]["nodes"]["propertyNames"] = NODE_NAME_SCHEMA
        node["required"].remove("capabilityId")
        node["anyOf"] = [
            {"properties": {name: {"type": "string"}}, "required": [name]}
            for name in ("capabilityId", "capability")
        ]
        trigger = schemas.components["WorkflowTrigger"]
        trigger["allOf"] = [_config_form(schemas, name, model) for name, model in CONFIGS.items()]
        return _with_nulls(whole)


class ManifestList:
    """A workflow to be published, given as lists of nodes and edges."""

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of the list form: that of a manifest, with lists of nodes and edges."""
        schemas.of(Manifest)
        manifest = schemas.components["Manifest"]
        node = schemas.components["NodeDefinition"]
        named = {
            "id": {**NODE_NAME_SCHEMA, "description": "Name of the node."},
            "input": {**node["properties"]["payload"], "description": "The same as `payload`."},
        }
        schemas.components["ListedNode"] = {
            **node,
            "properties": {**named, **node["properties"]},
            "required": ["id"],
            "description": "A node of the list form.",
        }
        ends: list[Schema] = [
            {
                "type": "object",
                "properties": {
                    name: {"type": "string", "description": "Id of a node."} for name in names
                },
                "required": list(names),
                "additionalProperties": False,
            }
            for names in _EDGE_ENDS
        ]
        nodes = {
            "type": "array",
            "minItems": 1,
            "items": {"$ref": REFERENCE + "ListedNode"},
            "description": "The nodes.",
        }
        edges = {
            "type": ["array", "null"],
            "items": {"anyOf": ends},
            "description": "Pairs of node ids: the first must succeed before the second.",
        }
        return {
            **manifest,
            "properties": {**manifest["properties"], "nodes": nodes, "edges": edges},
        }


class ManifestBulk:
    """Many workflows to be published; each has its own reply or problem."""

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of the bulk form."""
        return bulk_schema("workflows", schemas.of(Manifest), "The manifests.")


class ScheduleRequest:
    """A new schedule: its configuration and its template."""

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of the configuration of a scheduled trigger, with the template."""
        form = _trigger_form(CONFIGS["scheduled"])
        return {**form, "required": ["name", "cronExpression", "workflowTemplate"]}


class TriggerChange:
    """The members of a trigger to change. Null restores the default."""

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema of the configuration of triggers of any kind, with the template."""
        form = _trigger_form(*CONFIGS.values())
        del form["properties"]["secret"]
        return form


def _trigger_form(*models: type[TriggerConfig]) -> Schema:
    properties: dict[str, Schema] = {}
    for model in models:
        properties |= _with_nulls(model.model_json_schema(by_alias=True))["properties"]
    properties["workflowTemplate"] = {
        "type": "object",
        "description": "A manifest, or `{capability, input}` for a workflow of one node.",
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _config_form(schemas: Schemas, trigger_type: str, model: type[TriggerConfig]) -> Schema:
    """Return the schema rule that the configuration of a trigger type has the form of its model."""
    name = model.__name__
    schemas.components[name] = _with_nulls(model.model_json_schema(by_alias=True))
    needed = ["config"] if schemas.components[name]["required"] else []
    form: Schema = {"$ref": REFERENCE + name}
    config = {**(form if needed else {"anyOf": [form, _NULL]}), "description": "See its form."}
    kind = {"const": trigger_type, "description": "Type of the trigger."}
    return {
        "if": {"properties": {"type": kind}, "required": ["type"]},
        "then": {"properties": {"config": config}, "required": needed},
    }


def _with_bounds(schema: Any) -> Any:
    """Return a schema whose bounds have the names of JSON Schema.

    Pydantic writes its own names (`ge`, `le`) when a validator runs before the check of the bound.
    """
    if isinstance(schema, list):
        return [_with_bounds(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {_BOUNDS.get(name, name): _with_bounds(one) for name, one in schema.items()}


def _with_nulls(schema: Schema) -> Schema:
    """Return an object's schema in which optional members may be null; remove all titles.

    Defaults that are neither a string nor an integer are removed, too.
    """
    required = schema.get("required", ())
    properties: dict[str, Any] = {}
    for name, member in schema.get("properties", {}).items():
        shown = {key: _with_bounds(one) for key, one in member.items() if key not in _BESIDE_TYPE}
        beside = {key: member[key] for key in _SHOWN if isinstance(member.get(key), _PLAIN)}
        is_nullable = name in required or _NULL in shown.get("anyOf", ()) or not shown
        properties[name] = {**(shown if is_nullable else {"anyOf": [shown, _NULL]}), **beside}
    kept = {key: value for key, value in schema.items() if key != "title"}
    return {**kept, "properties": properties, "required": list(required)}
