"""Publishes the versions that a registered agent's capabilities declare.

The schemas of a published version never change. Code whose schemas differ from the published
schemas must declare another version. Reference: features.md (Capability versions).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callboard.errors import CallboardError

if TYPE_CHECKING:
    from callboard.client import AsyncClient
    from callboard.kit.dispatch_replies import AnsweringAgent


class VersionDiffers(Exception):
    """A declared version is already published with other schemas.

    Args:
        version_id: `capability@version`.
    """

    def __init__(self, version_id: str) -> None:
        super().__init__(version_id)
        self.version_id = version_id

    def __str__(self) -> str:
        return f"{self.version_id} is published with other schemas: declare another version"


async def publish_versions(agent: AnsweringAgent, client: AsyncClient) -> None:
    """Publish each declared version that is not published yet.

    Raises:
        VersionDiffers: a declared version is already published with other schemas.
        CallboardError: the coordinator refused a version, or could not be reached.
    """
    for offered, changelog in agent.versions:
        version = str((offered.model_extra or {})["version"])
        schemas = offered.input_schema or {}, offered.output_schema or {}
        try:
            known = await client.version(offered.id, version)
        except CallboardError as error:
            if error.code != "NOT_FOUND":
                raise
        else:
            if (known.input_schema, known.output_schema) != schemas:
                raise VersionDiffers(f"{offered.id}@{version}")
            continue
        await client.publish_version(
            offered.id,
            version,
            input_schema=schemas[0],
            output_schema=schemas[1],
            changelog=changelog,
        )
