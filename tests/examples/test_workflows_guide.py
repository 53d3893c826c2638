"""The guide for workflow authors keeps its word: its examples run and say what is shown.

A block `json` is published, `json dry` as a dry run; each line of a `text` block behind it is part
of what came of it: the results, the error, or the warnings.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callboard import CallboardError, Client, WorkflowFailed
from core.errors import ErrorCode, NodeErrorCode
from core.records.manifest import NodeDefinition, WorkflowManifest, WorkflowSettings
from serve_app.http.errors import STATUS
from tests.examples.test_readme import ROOT
from tests.platform.deployments import RunningDeployment

GUIDE = (ROOT / "docs/workflows.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+(?: dry)?)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
FIRST = next(text for kind, text in BLOCKS if kind == "json")


def manifests() -> Iterator[Any]:
    for place, (kind, text) in enumerate(BLOCKS):
        if kind.startswith("json"):
            shown = [*BLOCKS, ("", "")][place + 1]
            said = shown[1].splitlines() if shown[0] == "text" else []
            yield pytest.param(json.loads(text), kind, said, id=f"{kind}-{place}")


@pytest.fixture(scope="module")
def environment(deployment: RunningDeployment) -> Iterator[dict[str, str]]:
    """The environment of a client, while the guide's agent serves."""
    variables = {
        "CALLBOARD_URL": deployment.url,
        "CALLBOARD_API_KEY": deployment.admin_key,
        "PATH": str(Path(sys.executable).parent),
    }
    agent = next(text for kind, text in BLOCKS if kind == "python")
    with subprocess.Popen(
        [sys.executable, "-c", agent], env=variables, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as serving:
        try:
            assert serving.stdout is not None
            assert "ready at" in serving.stdout.readline()
            with Client(deployment.url, deployment.admin_key) as client:
                client.deposit(10)
            yield variables
        finally:
            serving.terminate()


def warnings_of(manifest: dict[str, Any], client: Client) -> list[str]:
    return list(client.publish({**manifest, "dryRun": True})["warnings"])


def outcome_of(manifest: dict[str, Any], environment: dict[str, str]) -> str:
    """Return what came of a manifest, as text."""
    with Client(environment["CALLBOARD_URL"], environment["CALLBOARD_API_KEY"]) as client:
        try:
            warnings = "\n".join(warnings_of(manifest, client))
            record = client.publish(manifest).result(timeout_s=90)
        except WorkflowFailed as failed:
            return f"{warnings}\n{failed}"
        except CallboardError as refused:
            return str(refused)
        results = json.dumps({name: node.result for name, node in record.nodes.items()})
        return f"{warnings}\n{results}"


@pytest.mark.slow
@pytest.mark.parametrize(("manifest", "kind", "said"), list(manifests()))
def test_an_example_says_what_the_guide_shows(
    environment: dict[str, str], manifest: dict[str, Any], kind: str, said: list[str]
) -> None:
    if kind == "json dry":
        with Client(environment["CALLBOARD_URL"], environment["CALLBOARD_API_KEY"]) as client:
            assert warnings_of(manifest, client) == []
        return
    assert said, "an example that is published shows what comes of it"
    outcome = outcome_of(manifest, environment)
    assert [line for line in said if line not in outcome] == [], outcome


@pytest.mark.slow
def test_the_command_publishes_the_first_manifest(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text(FIRST)
    (command,) = [text for kind, text in BLOCKS if kind == "console"]
    words = command.removeprefix("$ callboard ").split()
    run = subprocess.run(
        [sys.executable, "-m", "callboard.cli", *words],
        env={**environment, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_member_and_every_code_is_explained() -> None:
    models = (WorkflowManifest, WorkflowSettings, NodeDefinition)
    members = [one.alias for model in models for one in model.model_fields.values()]
    for name in (*members, *ErrorCode, *NodeErrorCode):
        assert f"`{name}`" in GUIDE, name
    rows = re.findall(r"^\| (`[A-Z_`, ]+) \| ([\d, ]+) \|", GUIDE, re.MULTILINE)
    for codes, statuses in rows:
        named = {STATUS[ErrorCode(code)] for code in re.findall(r"[A-Z_]+", codes)}
        assert named == set(map(int, statuses.split(", "))), codes
    assert len(GUIDE.splitlines()) <= 350
