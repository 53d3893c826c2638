"""The schemas of a version that is to be published: bounded, valid, and leading nowhere else.

They are such as values are judged by: what no card may have, no version has. Spec: Capability
version; contract.md section 6 (Capability versions).
"""

from __future__ import annotations

from typing import Any, Final

from core.canonical import canonical
from core.errors import Problem, ProblemList
from core.json_bounds import is_deeper_than
from core.records.api.registry.capability_versions import (
    SCHEMA_BYTES_MAX,
    SCHEMA_LEVELS_MAX,
    VersionPublication,
)
from core.records.api.shape import refused
from core.schemas.value_schema import schema_defect

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


def check_schemas(body: VersionPublication) -> None:
    """Refuse schemas that are none, too large, or refer to others.

    Raises:
        ServiceError: INVALID_REQUEST with every problem.
    """
    problems = ProblemList()
    for name, schema in (("inputSchema", body.input_schema), ("outputSchema", body.output_schema)):
        problems.extend(_problems(name, schema))
    if problems:
        raise refused(problems)


def _problems(name: str, schema: dict[str, Any]) -> list[Problem]:
    if is_deeper_than(schema, SCHEMA_LEVELS_MAX):
        got = f"more than {SCHEMA_LEVELS_MAX} levels"
        return [Problem(name, got, f"at most {SCHEMA_LEVELS_MAX} levels")]
    try:
        text = canonical(schema)
    except ValueError as error:
        return [Problem(name, str(error)[:200], "canonical JSON")]
    if len(text) > SCHEMA_BYTES_MAX:
        return [Problem(name, f"{len(text)} bytes", f"at most {SCHEMA_BYTES_MAX} bytes")]
    dialect = schema.get("$schema", DIALECT)
    if not isinstance(dialect, str) or dialect.removesuffix("#") != DIALECT:
        return [Problem(f"{name}.$schema", str(dialect)[:100], DIALECT)]
    found = list(_references(name, schema, is_root=True))
    defect = schema_defect(text)
    if defect is not None and not found:
        found.append(Problem(name + defect.path.removeprefix("$"), defect.got, defect.expected))
    return found


def _references(path: str, value: Any, *, is_root: bool = False) -> list[Problem]:
    """Return a problem for each reference out of a schema, and for schemas with ids within it."""
    found: list[Problem] = []
    if isinstance(value, list):
        for position, item in enumerate(value):
            found += _references(f"{path}[{position}]", item)
    elif isinstance(value, dict):
        for member, item in value.items():
            if isinstance(item, dict | list):
                found += _references(f"{path}.{member[:100]}", item)
            elif not isinstance(item, str):
                continue
            elif member in _REFERENCES and not item.startswith("#"):
                found.append(Problem(f"{path}.{member}", item[:100], "# and a place within it"))
            elif member == "$id" and not is_root:
                found.append(Problem(f"{path}.$id", item[:100], "nothing: it is one document"))
    return found
