"""Requests about versions of capabilities, as data like those of `calls.py`.

Spec: Capability version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from callboard.calls import Steps, _get, _post, _segment


def publish_version(
    capability_id: str,
    version: str,
    *,
    input_schema: Mapping[str, Any],
    output_schema: Mapping[str, Any],
    changelog: str = "",
    deprecates_version: str | None = None,
    owner_did: str | None = None,
) -> Steps:
    """Publish a version of a capability. Spec: Capability version.

    Args:
        version: a semantic version, for example `1.4.0`.
        input_schema: JSON Schema 2020-12, without references to others; so is `output_schema`.
        changelog: what has changed.
        deprecates_version: which version this one succeeds.
        owner_did: whose versions these are; only administrators name another than the caller.
    """
    return _post(
        "/v1/capabilities/versions",
        capabilityId=capability_id,
        version=version,
        inputSchema=dict(input_schema),
        outputSchema=dict(output_schema),
        changelog=changelog,
        deprecatesVersion=deprecates_version,
        ownerDid=owner_did,
    )


def version(capability_id: str, version: str) -> Steps:
    """Read a version of a capability with its schemas."""
    return _get(f"{_path(capability_id)}/{_segment(version)}")


def deprecate_version(capability_id: str, version: str, *, successor: str | None = None) -> Steps:
    """Deprecate a version of a capability, for good.

    Args:
        successor: an active version to be used instead.
    """
    path = f"{_path(capability_id)}/{_segment(version)}/deprecate"
    return _post(path, successor=successor)


def negotiate_version(
    capability_id: str, supported: Sequence[str], *, preferred: str | None = None
) -> Steps:
    """Ask which version of a capability to use, and for the way from it to the latest.

    Args:
        supported: versions, or ranges such as `>=1.2 <2`.
        preferred: chosen if it is among them.
    """
    return _post(
        "/v1/capabilities/negotiate",
        capabilityId=capability_id,
        supportedVersions=list(supported),
        preferredVersion=preferred,
    )


def _path(capability_id: str) -> str:
    return f"/v1/capabilities/{_segment(capability_id)}/versions"
