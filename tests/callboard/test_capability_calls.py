"""Versions of capabilities through client, command line and kit: what each sends.

Reference: features.md (Capability versions).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callboard import Agent
from callboard.client import AsyncClient
from callboard.kit.version_publishing import VersionDiffers, publish_versions
from tests.callboard.scripted_service import Scripted, ScriptedService
from tests.callboard.test_cli import run

CAPABILITY = "cap.text.shout.v1"
DID = "did:net:a"


def test_publish_reads_schemas_from_files(service: ScriptedService, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    service.script = [Scripted(200, {"id": "x"})]
    files = ("--input-schema", str(schema), "--output-schema", str(schema))
    arguments = ("capability", "publish", CAPABILITY, "1.0.0", *files, "--deprecates", "0.9.0")
    assert run(*arguments, "--url", service.url).exit_code == 0
    (asked,) = service.asked
    assert asked.body == {
        "capabilityId": CAPABILITY, "version": "1.0.0", "inputSchema": {"type": "object"},
        "outputSchema": {"type": "object"}, "changelog": "", "deprecatesVersion": "0.9.0",
    }  # fmt: skip
    schema.write_text("[]")
    assert run(*arguments, "--url", service.url).exit_code == 2


def agent() -> Agent:
    """Return an agent whose one capability says its version."""
    made = Agent(DID)

    @made.capability(CAPABILITY, version="1.2.0", changelog="Louder.")
    def shout(text: str) -> dict[str, str]:
        return {"text": text.upper()}

    @made.capability("cap.text.echo.v1")
    def echo(text: str) -> dict[str, str]:
        return {"text": text}

    return made


async def published(service: ScriptedService) -> list[Any]:
    async with AsyncClient(service.url, "key") as client:
        await publish_versions(agent(), client)
    return service.asked


async def test_the_kit_publishes_what_is_not_published_yet(service: ScriptedService) -> None:
    (offered, changelog), = agent().versions  # fmt: skip
    assert agent().card("http://h").to_json()["capabilities"][0]["version"] == "1.2.0"
    missing = {"code": "NOT_FOUND", "error": "NOT_FOUND", "detail": "none", "status": 404}
    service.script = [Scripted(404, missing), Scripted(200, {"id": "x"})]
    _, asked = await published(service)
    assert (asked.method, asked.target) == ("POST", "/v1/capabilities/versions")
    assert asked.body == {
        "capabilityId": CAPABILITY, "version": "1.2.0", "changelog": changelog,
        "inputSchema": offered.input_schema, "outputSchema": offered.output_schema,
    }  # fmt: skip


@pytest.mark.parametrize("is_same", [True, False])
async def test_the_kit_leaves_a_published_version_as_it_is(
    service: ScriptedService, is_same: bool
) -> None:
    ((offered, _),) = agent().versions
    known = {"inputSchema": offered.input_schema if is_same else {"type": "object"}}
    service.script = [Scripted(200, {**known, "outputSchema": offered.output_schema})]
    if is_same:
        assert len(await published(service)) == 1
    else:
        with pytest.raises(VersionDiffers, match=r"@1\.2\.0 is published with other schemas"):
            await published(service)
