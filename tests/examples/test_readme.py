"""The README keeps its word: its programs run, its demonstration prints what is shown.

Ids, times, ports and durations differ from run to run; both texts are brought to one form first.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.conftest import Demonstration
from tests.platform.deployments import RunningDeployment

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

_VARYING = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "<id>"),
    (r"sha256:[0-9a-f]{64}", "<hash>"),
    (r"by key [0-9a-f]{16}", "by key <id>"),
    (r"http://127\.0\.0\.1:\d+", "http://127.0.0.1:<port>"),
    (r"callboard in \S+ is down", "callboard in <folder> is down"),
    (r"\d+ ms\b", "<n> ms"),
    (r"\d+ entries", "<n> entries"),
    (r"─+$", "─"),
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def comparable(output: str) -> list[str]:
    """Return the lines that every demonstration prints alike.

    Between the first two headings the supervisor tells its progress; the lines of nodes come in the
    order in which the nodes changed, and short states may be passed over.
    """
    lines = []
    for line in output.splitlines():
        for pattern, replacement in _VARYING:
            line = re.sub(pattern, replacement, line)
        lines.append(line.rstrip())
    starts = [place for place, line in enumerate(lines) if line.startswith("── ")]
    changes = [line for line in lines[starts[1] :] if line.startswith("   ")]
    ends = sorted(line for line in changes if " success" in line)
    rest = [line for line in lines[starts[1] :] if not line.startswith("   ")]
    return [*ends, *rest]


def test_the_first_screen_shows_an_agent_of_ten_lines() -> None:
    agent = blocks("python")[0]
    assert "Agent(" in agent
    assert len([line for line in agent.splitlines() if line.strip()]) <= 10


@pytest.mark.slow
def test_the_agent_and_the_workflow_of_the_readme_run(deployment: RunningDeployment) -> None:
    agent, workflow = blocks("python")[:2]
    environment = {
        **os.environ,
        "CALLBOARD_URL": deployment.url,
        "CALLBOARD_API_KEY": deployment.admin_key,
    }
    with subprocess.Popen(
        [sys.executable, "-c", agent], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as serving:
        try:
            assert serving.stdout is not None
            assert "ready at" in serving.stdout.readline()
            client = subprocess.run(
                [sys.executable, "-c", workflow],
                env=environment,
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        finally:
            serving.terminate()
    assert client.stdout == "{'text': 'ALL HANDS'}\n", client.stderr


@pytest.mark.slow
def test_the_demonstration_prints_what_the_readme_shows(
    deployment: RunningDeployment, demonstration: Demonstration
) -> None:
    """Its own deployment answers beside one that runs, which answers as before.

    It is kept for other tests; the README's ends, and says so in its last line.
    """
    shown = next(block for block in blocks("console") if block.startswith("$ make demo\n"))
    *expected, ended = comparable(shown)
    *printed, kept = comparable(demonstration.printed)
    assert printed == [*expected, ""]
    assert ended == "callboard in <folder> is down"
    assert kept.startswith("The service runs on; end it with: callboard down --home ")
    with httpx.Client(base_url=deployment.url) as http:
        listed = http.get("/v1/keys", headers={"x-api-key": deployment.admin_key})
    assert listed.status_code == 200
