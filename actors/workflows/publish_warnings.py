"""The warnings of a publish, with those that need the agents' schemas.

They stand in every reply to the request: stored, repeated, or a dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from actors.directory.peer_directory import PeerDirectory
from actors.transport.messages import PublishReply, PublishRequest
from core.errors import ServiceError
from core.workflow.dag import CompiledNode
from core.workflow.unused_members import list_unused

Done = Callable[[PublishReply | ServiceError], None]


def add_warnings(request: PublishRequest, directory: PeerDirectory, done: Done) -> Done:
    """Return a `done` that adds the warnings of the request to its reply."""

    def schemas_of(node: CompiledNode, is_output: bool) -> Sequence[bytes]:
        bound_to = None if node.allow_broadcast_fallback else node.target_agent_id
        return directory.schemas_of(node.capability_id, bound_to, is_output=is_output)

    warnings = list_unused(request.warnings, request.compiled, schemas_of)
    if not warnings:
        return done

    def warned(reply: PublishReply | ServiceError) -> None:
        done(replace(reply, warnings=warnings) if isinstance(reply, PublishReply) else reply)

    return warned
