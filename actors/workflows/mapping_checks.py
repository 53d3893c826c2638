"""Checks a publish against the agents' schemas: refuses mappings that cannot fit, adds warnings.

Several agents may produce the result of a mapping, and several may take the input. A mapping is
refused if, for every pair of these agents, no value fits both schemas. If one of the agents has no
schema, or the limit of the check is reached, the mapping is accepted. A value that violates a
schema then fails at its dispatch. The warnings are part of every reply to the publish, including
the replies to a repeated publish and to a dry run.
Reference: features.md (Inputs). Decision versions-and-schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from actors.directory.peer_directory import PeerDirectory
from actors.transport.messages import PublishReply, PublishRequest
from core.errors import Problem, ProblemList, ServiceError
from core.json_text import read_json
from core.records.graph import InputMapping, node_path
from core.records.manifest_problems import refused_manifest
from core.schemas.mapping_fit import Looks, SchemaTypes, find_misfit
from core.workflow.dag import CompiledNode, CompiledWorkflow
from core.workflow.unused_members import list_unused

Done = Callable[[PublishReply | ServiceError], None]

# Maximum number of schema look-ups of one publish. They take 5 ms in one turn of the event loop.
LOOKS_MAX: Final = 5_000
_BYTES_PER_LOOK: Final = 256


def check_mappings(compiled: CompiledWorkflow, directory: PeerDirectory) -> None:
    """Refuse mappings that cannot fit, within the limit of look-ups of one publish.

    Raises:
        ServiceError: INVALID_MANIFEST, with a problem for each mapping that cannot fit.
    """
    check = _Check(compiled, directory)
    problems = ProblemList()
    for node in compiled.nodes.values():
        if node.mappings:
            problems.extend(check.problems(node))
    if problems:
        raise refused_manifest(problems)


def add_warnings(request: PublishRequest, directory: PeerDirectory, done: Done) -> Done:
    """Return a callback that adds the request's warnings to the reply and then calls `done`."""
    schemas_of = partial(_schemas_of, directory)
    warnings = list_unused(request.warnings, request.compiled, schemas_of)
    if not warnings:
        return done

    def warned(reply: PublishReply | ServiceError) -> None:
        done(replace(reply, warnings=warnings) if isinstance(reply, PublishReply) else reply)

    return warned


def _schemas_of(directory: PeerDirectory, node: CompiledNode, is_output: bool) -> Sequence[bytes]:
    bound_to = None if node.allow_broadcast_fallback else node.target_agent_id
    return directory.schemas_of(node.capability_id, bound_to, is_output=is_output)


class _Check:
    def __init__(self, compiled: CompiledWorkflow, directory: PeerDirectory) -> None:
        self._compiled = compiled
        self._directory = directory
        self._looks = Looks(LOOKS_MAX)
        self._types: dict[bytes, SchemaTypes] = {}

    def problems(self, node: CompiledNode) -> list[Problem]:
        """Return a problem for each mapping of a node that cannot fit."""
        expecting = _schemas_of(self._directory, node, False)
        if not expecting:
            return []
        found = []
        for mapping in node.mappings:
            misfit = self._misfit(mapping, expecting)
            if misfit is not None:
                got, expected = misfit
                path = f"{node_path(node.name)}.inputMappings.{mapping.input_name}"
                found.append(Problem(path, f"{mapping.expression}: {got}", expected))
        return found

    def _misfit(self, mapping: InputMapping, expecting: Sequence[bytes]) -> tuple[str, str] | None:
        """Return (got, expected) of a mapping that fits no pair of schemas; None if it may fit."""
        misfit = None
        source = self._compiled.nodes.get(mapping.source)
        if source is None:  # the trigger's result, which has no schema
            return None
        for output in _schemas_of(self._directory, source, True):
            for expected in expecting:
                misfit = find_misfit(
                    self._types_of(output),
                    mapping.steps,
                    self._types_of(expected),
                    mapping.input_name,
                )
                if misfit is None:
                    return None
        return misfit

    def _types_of(self, text: bytes) -> SchemaTypes:
        types = self._types.get(text)
        if types is None:
            self._looks.left -= len(text) // _BYTES_PER_LOOK
            # When no look-ups are left, `True` stands for the schema: it accepts every value.
            schema = read_json(text) if self._looks.left > 0 else True
            types = self._types[text] = SchemaTypes(schema, self._looks)
        return types
