"""The steps "To add an endpoint" of ARCHITECTURE.md lead to a whole endpoint.

Goal: the example in the text stays true: five files and a test with what the text says, and
everything else made of them. Method: the text's steps are read, then the document, the client and
the command line.
"""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from callboard.cli import app
from callboard.client import Client
from callboard.replies import Budget
from core.trust.access import RIGHTS
from serve_app.api import all_operations
from serve_app.openapi.document import openapi_document

ROOT = Path(__file__).resolve().parents[2]
PATH = "/v1/workflows/{workflow_id}/budget"
_STEP = re.compile(r"^\d\. .*?— `([^`]+)`\s+\(`([^`]+)`\)\.$", re.MULTILINE | re.DOTALL)


def steps() -> list[tuple[str, str]]:
    """The files of the example, and what the text says stands in each."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## To add an endpoint")[2].partition("\n## ")[0]
    return _STEP.findall(section)


def test_there_are_five_steps_with_a_file_each_and_then_a_test() -> None:
    paths = [path for path, _ in steps()]
    assert len(paths) == len(set(paths)) == 6
    assert [path.startswith("tests/") for path in paths] == [False] * 5 + [True]


@pytest.mark.parametrize(("path", "said"), steps())
def test_a_step_of_the_example_is_where_the_text_says(path: str, said: str) -> None:
    assert said in (ROOT / path).read_text(encoding="utf-8")


def test_the_example_is_described_and_needs_a_right() -> None:
    described = openapi_document(all_operations(), "0")["paths"][PATH]["get"]
    schema = described["responses"]["200"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/Budget"}
    assert {"400", "401", "403", "404", "429", "503"} <= set(described["responses"])
    (operation,) = (one for one in all_operations() if one.path == PATH)
    assert operation.scope in RIGHTS


def answered(request: httpx.Request) -> httpx.Response:
    assert request.url.raw_path == b"/v1/workflows/w1/budget"
    return httpx.Response(200, json={"workflowId": "w1", "spentCents": 5})


def test_the_client_reads_the_example_as_its_record() -> None:
    transport = httpx.MockTransport(answered)
    with httpx.Client(transport=transport) as http, Client("http://x.example", "k", http=http) as c:
        budget = c.budget("w1")
    assert isinstance(budget, Budget)
    assert budget.spent_cents == 5


def test_the_command_line_has_a_verb_for_the_example() -> None:
    shown = CliRunner().invoke(app, ["workflow", "budget", "--help"])
    assert shown.exit_code == 0
    assert "Show a workflow's budget." in shown.stdout
