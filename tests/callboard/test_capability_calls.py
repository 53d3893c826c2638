"""Versions of capabilities through client, command line and kit: what each sends.

Spec: Capability version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callboard import Agent
from callboard.client import AsyncClient
from callboard.kit.version_publishing import VersionDiffers, publish_versions
from tests.callboard.scripted_service import Scripted, ScriptedService
from tests.callboard.test_cli import run

Json = dict[str, Any]
CAPABILITY = "cap.text.shout.v1"
VERSIONS = f"/v1/capabilities/{CAPABILITY}/versions"
DID = "did:net:a"
VERBS: list[tuple[tuple[str, ...], str, str, Json | None]] = [
    (("agent", "deregister", DID), "DELETE", f"/v1/agents/{DID}", None),
    (("agent", "versions", DID), "GET", f"/v1/agents/{DID}/versions?limit=100", None),
    (("agent", "show", DID, "--include-inactive"), "GET",
     f"/v1/agents/{DID}?includeInactive=true", None),
    (("agent", "list", "--author", "A"), "GET", "/v1/agents?author=A&limit=50&offset=0", None),
    (("capability", "list", CAPABILITY), "GET", f"{VERSIONS}?limit=100", None),
    (("capability", "show", CAPABILITY, "1.0.0"), "GET", f"{VERSIONS}/1.0.0", None),
    (("capability", "deprecate", CAPABILITY, "1.0.0", "--successor", "1.1.0"), "POST",
     f"{VERSIONS}/1.0.0/deprecate", {"successor": "1.1.0"}),
    (("capability", "negotiate", CAPABILITY, "1.x", ">=2", "--preferred", "1.0.0"), "POST",
     "/v1/capabilities/negotiate",
     {"capabilityId": CAPABILITY, "supportedVersions": ["1.x", ">=2"],
      "preferredVersion": "1.0.0"}),
    (("workflow", "cancel", "w", "--reason", "error"), "POST", "/v1/workflows/w/cancel",
     {"reason": "error", "details": ""}),
    (("workflow", "resume", "w"), "POST", "/v1/workflows/w/resume", {}),
    (("workflow", "list", "--quarantined", "--cursor", "c"), "GET",
     "/v1/workflows?quarantined=true&limit=50&cursor=c", None),
    (("audit", "list", "--target-id", "w"), "GET", "/v1/audit?limit=100&targetId=w", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "method", "target", "body"), VERBS, ids=lambda value: str(value)[:40]
)
def test_verb_sends_what_its_operation_takes(
    service: ScriptedService, arguments: tuple[str, ...], method: str, target: str, body: Json
) -> None:
    reply: Json = {name: [] for name in ("versions", "agents", "workflows", "entries")}
    service.script = [Scripted(200, reply)]
    result = run(*arguments, "--url", service.url, "--output", "json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, reply)
    (asked,) = service.asked
    assert (asked.method, asked.target, asked.body) == (method, target, body)


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


@pytest.mark.anyio
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


@pytest.mark.anyio
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
