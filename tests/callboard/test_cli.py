"""The command line against a service on loopback: answers, exit codes, addresses and keys."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import typer
from typer.testing import CliRunner, Result

from callboard.cli import app
from callboard.cli.session import credits_text
from core.trust.access import RESOURCES, SINGLE_RIGHTS
from tests.callboard.audit_logs import (
    AGENT,
    KEYS,
    OUTPUT_HASH,
    WORKFLOW,
    bundle_of,
    checkpoint_line,
    log_of,
)
from tests.callboard.scripted_service import Scripted, ScriptedService
from tests.callboard.test_verify import bundle_text

ROOT = Path(__file__).resolve().parents[2]
RECORD = {
    "id": "w1",
    "status": "success",
    "intent": "Test",
    "nodes": {
        "a": {
            "status": "success",
            "agentDid": "did:net:a",
            "metrics": {"latency_ms": 12},
            "costCredits": 0.05,
        },
        "b": {"status": "skipped", "error": {"code": "UPSTREAM_FAILED", "message": "a failed"}},
    },
}


def run(*arguments: str, stdin: str | None = None, **environment: str | None) -> Result:
    nowhere: dict[str, str | None] = dict.fromkeys(
        ("CALLBOARD_URL", "CALLBOARD_API_KEY", "CALLBOARD_HOME")
    )
    return CliRunner().invoke(app, arguments, input=stdin, env={**nowhere, **environment})


def test_json_output_is_the_answer_as_it_came(service: ScriptedService) -> None:
    balance = {"balance": 1.25, "currency": "CREDITS", "pending": 0}
    service.script = [Scripted(200, balance)]
    result = run("ledger", "balance", "--url", service.url, "--output", "json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, balance)


def test_text_output_has_a_line_per_member(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"balance": 1.250000, "currency": "CREDITS"})]
    result = run("ledger", "balance", "--url", service.url)
    assert result.stdout == "balance   1.25\ncurrency  CREDITS\n"


def test_what_others_write_is_no_markup_and_commands_no_terminal(service: ScriptedService) -> None:
    said = "[/x] [red]paid[/red] \x1b[2J\x9b2J\x07"
    service.script = [Scripted(200, {"versions": [{"version": "1.0.0", "changelog": said}]})]
    result = run("capability", "list", "cap.x.v1", "--url", service.url)
    assert result.exit_code == 0, result.exception
    assert "[/x] [red]paid[/red]" in result.stdout
    assert not {"\x1b", "\x9b", "\x07"} & set(result.stdout)


def test_a_refusal_exits_3_with_its_code(service: ScriptedService) -> None:
    service.script = [Scripted(401, {"code": "UNAUTHORIZED", "detail": "no valid key"})]
    result = run("ledger", "balance", "--url", service.url)
    assert result.exit_code == 3
    assert result.stderr == "callboard: UNAUTHORIZED: no valid key\n"
    assert result.stdout == ""


def test_no_deployment_exits_3_and_says_what_to_do(tmp_path: Path) -> None:
    result = run("ledger", "balance", "--home", str(tmp_path))
    assert result.exit_code == 3
    assert "callboard up" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("ledger", "deposit"),
        ("ledger", "balance", "--output", "xml"),
        ("workflow", "publish", "/nowhere/manifest.json"),
        ("nonsense",),
    ],
)
def test_wrong_usage_exits_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_a_demonstration_on_an_unreadable_document_exits_2_and_starts_nothing() -> None:
    result = run("demo", "--doc", "/nowhere/article.html")
    assert result.exit_code == 2
    assert result.stderr == (
        "callboard: cannot read /nowhere/article.html: No such file or directory\n"
    )


@pytest.mark.parametrize("manifest", ["{", "[]"])
def test_a_manifest_that_is_no_object_exits_2(manifest: str) -> None:
    assert run("workflow", "publish", "-", "--url", "http://x", stdin=manifest).exit_code == 2


def test_the_deployment_folder_gives_address_and_key(
    service: ScriptedService, tmp_path: Path
) -> None:
    (tmp_path / "url").write_text(service.url + "\n")
    (tmp_path / "admin.key").write_text("folder-key\n")
    service.script = [Scripted(200, {}), Scripted(200, {})]
    run("ledger", "balance", "--home", str(tmp_path), CALLBOARD_URL="http://elsewhere")
    run("ledger", "balance", "--home", str(tmp_path), "--api-key", "own")
    assert [asked.headers["x-api-key"] for asked in service.asked] == ["folder-key", "own"]


def test_the_environment_gives_address_and_key(service: ScriptedService) -> None:
    service.script = [Scripted(200, {})]
    run("ledger", "balance", CALLBOARD_URL=service.url, CALLBOARD_API_KEY="env-key")
    assert service.asked[0].headers["x-api-key"] == "env-key"


def test_the_environment_gives_a_dids_key(service: ScriptedService, tmp_path: Path) -> None:
    service.script = [Scripted(200, {})]
    file = tmp_path / "key"
    file.write_text(base64.b64encode(b"s" * 32).decode())
    named = {"CALLBOARD_DID_KEY": str(file), "CALLBOARD_DID": "did:net:me"}
    run("ledger", "balance", CALLBOARD_URL=service.url, CALLBOARD_API_KEY="env-key", **named)
    assert 'keyid="did:net:me"' in service.asked[0].headers["signature-input"]
    assert "x-api-key" not in service.asked[0].headers
    service.script = [Scripted(200, {})]
    run("ledger", "balance", "--api-key", "own", CALLBOARD_URL=service.url, **named)
    assert service.asked[1].headers["x-api-key"] == "own"
    named["CALLBOARD_DID_KEY"] = str(tmp_path / "none")
    assert run("ledger", "balance", CALLBOARD_URL=service.url, **named).exit_code == 2


def test_an_empty_key_in_the_environment_is_an_error(service: ScriptedService) -> None:
    result = run("ledger", "balance", CALLBOARD_URL=service.url, CALLBOARD_API_KEY="")
    assert (result.exit_code, service.asked) == (2, [])
    assert result.stderr == (
        "callboard: CALLBOARD_API_KEY is empty: set it to an API key, or unset it\n"
    )


def test_a_deployments_key_is_never_sent_to_another_address(
    service: ScriptedService, tmp_path: Path
) -> None:
    default = tmp_path / ".local" / "share" / "callboard" / "default"
    default.mkdir(parents=True)
    (default / "url").write_text("http://127.0.0.1:1")
    (default / "admin.key").write_text("admin-key")
    service.script = [Scripted(200, {}), Scripted(200, {})]
    run("ledger", "balance", HOME=str(tmp_path), CALLBOARD_URL=service.url)
    run("ledger", "balance", "--url", service.url, HOME=str(tmp_path))
    assert len(service.asked) == 2
    assert all("x-api-key" not in asked.headers for asked in service.asked)


@pytest.mark.parametrize(
    ("status", "code"), [("success", 0), ("failed", 1), ("timeout", 1), ("cancelled", 1)]
)
@pytest.mark.parametrize("how", ["--wait", "--watch"])
def test_publish_exits_1_unless_the_workflow_succeeds(
    service: ScriptedService, how: str, status: str, code: int
) -> None:
    published = {"workflowId": "w1", "taskId": "t", "status": "pending"}
    service.script = [Scripted(200, published), Scripted(200, {**RECORD, "status": status})]
    manifest = json.dumps({"nodes": {"a": {"capabilityId": "c"}}})
    result = run("workflow", "publish", "-", how, "--url", service.url, stdin=manifest)
    assert result.exit_code == code


def test_publish_of_an_estimate_above_its_budget_exits_1(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"workflowId": "w1", "taskId": "t", "status": "failed"})]
    result = run("workflow", "publish", "-", "--url", service.url, stdin='{"nodes": {}}')
    assert result.exit_code == 1


def test_an_agent_is_registered_from_a_card_file(service: ScriptedService, tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text('{"did": "did:net:a"}')
    service.script = [Scripted(200, {"ok": True})]
    run("agent", "register", str(tmp_path / "card.json"), "--url", service.url)
    assert service.asked[0].body == {"acard": {"did": "did:net:a"}}


def test_an_agent_is_registered_from_its_address(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"did": "did:net:a"}), Scripted(200, {"ok": True})]
    run("agent", "register", service.url, "--url", service.url)
    assert service.asked[0].target == "/.well-known/acard.json"
    assert service.asked[1].body == {"acard": {"did": "did:net:a"}}


TEXT = {"Content-Type": "text/plain; charset=utf-8"}
LINES, NOTES = log_of(12)


def test_audit_verify_reads_the_checkpoint_and_the_export(service: ScriptedService) -> None:
    service.script = [Scripted(200, NOTES[9], TEXT), Scripted(200, b"".join(LINES).decode(), TEXT)]
    result = run("audit", "verify", "--url", service.url)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("12 entries, chain intact")
    signer = f"entries 1 to 10 are signed by key {KEYS[1].key_id}"
    assert f"{signer}; the log itself names the first key: check it with --key\n" in result.stdout
    targets = [asked.target for asked in service.asked]
    assert targets == ["/v1/audit/checkpoint", "/v1/audit/export?from=1"]
    # Of an export that ends too early.
    some = b"".join(LINES[:7]).decode()
    service.script = [Scripted(200, NOTES[9], TEXT), Scripted(200, some + "{", TEXT)]
    result = run("audit", "verify", "--url", service.url)
    assert (result.exit_code, "the log ends before it, at entry 7" in result.stderr) == (3, True)


def export_script(size: int, *rest: bytes) -> list[Scripted]:
    """Return what the service answers to an export up to the checkpoint of a size."""
    lines = [Scripted(200, b"".join(rest).decode(), TEXT)] if rest else []
    return [Scripted(200, NOTES[size - 1], TEXT), Scripted(200, json.loads(LINES[0])), *lines]


def test_an_export_is_written_up_to_its_checkpoint_and_continued(
    service: ScriptedService, tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    export = ("audit", "export", str(file), "--url", service.url)
    for begun in (b"", LINES[0][:30], LINES[0]):
        file.write_bytes(begun)
        number = begun.count(b"\n")
        service.script = export_script(5, *LINES[number:])
        assert run(*export).exit_code == 0
        assert file.read_bytes() == b"".join(LINES[:5]) + checkpoint_line(NOTES[4])
        assert service.asked[-1].target == f"/v1/audit/export?from={number + 1}"
    with file.open("ab") as end:
        end.write(LINES[5][:40])  # the run before was ended in the middle of a line
    service.script = export_script(12, *LINES[5:])
    assert f"{file} has 12 entries (7 new) and ends with a signed" in run(*export).stdout
    assert service.asked[-1].target == "/v1/audit/export?from=6"
    whole = file.read_bytes()
    for left in (whole, whole[:-20]):  # also one whose checkpoint was cut
        file.write_bytes(left)
        service.script = export_script(12)
        assert "12 entries (0 new)" in run(*export).stdout
        assert file.read_bytes() == whole
    verified = run("verify", str(file), "--key", KEYS[0].public_key)
    assert (verified.exit_code, verified.stdout.splitlines()[1]) == (
        0,
        f"entries 1 to 12 are signed by key {KEYS[1].key_id}",
    )


@pytest.mark.parametrize(
    "content",
    [
        b"my notes, without a line feed",
        b"my notes\nof two lines",
        b"\n",
        b"{}\n",
        LINES[0].replace(b"CREDITS", b"DOLLARS") + LINES[1],
        LINES[1],
        b"".join(LINES[:9]),
    ],
)
def test_a_file_that_an_export_does_not_continue_is_left_alone(
    service: ScriptedService, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    service.script = export_script(8, *LINES)
    result = run("audit", "export", str(file), "--url", service.url)
    assert result.exit_code == 2
    why = "9 entries, and the newest checkpoint covers 8" if LINES[8] in content else "no export"
    assert why in result.stderr
    assert file.read_bytes() == content


def test_an_export_that_ends_too_early_is_an_error_and_can_be_continued(
    service: ScriptedService, tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    export = ("audit", "export", str(file), "--url", service.url)
    service.script = export_script(12, *LINES[:7], LINES[7][:50])
    result = run(*export)
    assert result.exit_code != 0
    assert "ended after entry 7, its checkpoint covers 12" in result.stderr
    assert file.read_bytes() == b"".join(LINES[:7])
    cut = Scripted(200, b"".join((*LINES[7:10], LINES[10][:9])).decode(), TEXT, is_cut=True)
    service.script = [*export_script(12), cut, Scripted(200, b"".join(LINES[10:]).decode(), TEXT)]
    assert run(*export).exit_code == 0
    assert [asked.target.split("=")[1] for asked in service.asked[-2:]] == ["8", "11"]
    assert file.read_bytes() == b"".join(LINES) + checkpoint_line(NOTES[11])


def test_verify_needs_no_service_and_names_the_defect(tmp_path: Path) -> None:
    path, kept = tmp_path / "audit.jsonl", tmp_path / "note"
    path.write_bytes(b"".join(LINES))
    kept.write_text(NOTES[11], encoding="utf-8")
    result = run("verify", str(path), "--checkpoint", str(kept))
    assert result.exit_code == 0
    assert "the file itself names the first key: check it with --key" in result.stdout
    result = run("verify", str(path), "--checkpoint", str(kept), "--output", "json")
    shown = json.loads(result.stdout)
    assert (shown["intact"], shown["signedEntries"], shown["isKeyPinned"]) == (True, 12, False)
    path.write_bytes(b"".join(LINES[:8]) + checkpoint_line(NOTES[7]) + LINES[8] + LINES[9])
    assert "entries 9 to 10 are linked, but not signed" in run("verify", str(path)).stdout
    for unsigned in (b"".join(LINES), b""):
        path.write_bytes(unsigned)
        result = run("verify", str(path), "--key", KEYS[0].public_key)
        assert (result.exit_code, "no checkpoint signs an entry" in result.stderr) == (3, True)
    kept.write_bytes(b"\xff\xfe")
    result = run("verify", str(path), "--checkpoint", str(kept))
    assert (result.exit_code, "expected a checkpoint" in result.stderr) == (3, True)
    kept.write_text(NOTES[11], encoding="utf-8")
    path.write_bytes(b"".join(LINES[:7]))
    result = run("verify", str(path), "--checkpoint", str(kept))
    assert (result.exit_code, result.stderr) == (
        3,
        "callboard: not proven: checkpoint of size 12: the log ends before it, at entry 7\n",
    )
    path.write_bytes(LINES[0] + LINES[1].replace(b"deposited", b"withdrawn"))
    assert "not proven: audit entry 2: hash is" in run("verify", str(path)).stderr
    path.write_bytes(b'{"\\u001b[2Jproven: success":1}\n')
    assert "\x1b" not in run("verify", str(path)).stderr


def test_verify_says_what_a_bundle_proves_and_who_signed_it(tmp_path: Path) -> None:
    path, kept = tmp_path / "bundle.json", tmp_path / "note"
    path.write_bytes(bundle_text(bundle_of()))
    result = run("verify", str(path), "--key", KEYS[0].public_key)
    assert result.stdout.splitlines() == [
        f"node a of workflow {WORKFLOW} has succeeded: audit entry 12",
        f"agent {AGENT}, result {OUTPUT_HASH}",
        "proven: success, payment, receipt, signature, card",
        "in the bundle, but not proven: node",
        f"the checkpoint is signed by key {KEYS[1].key_id}",
        "a bundle cannot show later rotations: compare this key with those that the deployment"
        " lists",
    ]
    shown = json.loads(run("verify", str(path), "--output", "json").stdout)
    assert (shown["keyId"], shown["isKeyPinned"]) == (KEYS[1].key_id, False)
    kept.write_text(NOTES[11], encoding="utf-8")
    result = run("verify", str(path), "--checkpoint", str(kept))
    assert (result.exit_code, "--checkpoint is for an exported log" in result.stderr) == (2, True)
    for garbage in (b'{"bundle":1}\n', b'{"bundle":', b"\xff\n", b"[]\n"):
        path.write_bytes(garbage)
        result = run("verify", str(path))
        assert (result.exit_code, "not proven" in result.stderr) == (3, True), garbage
    assert run("verify", str(tmp_path / "none")).exit_code == 2


@pytest.mark.parametrize(
    ("amount", "text"),
    [(1.0, "1"), (0.05, "0.05"), (1e-06, "0.000001"), ("100", "100"), (0, "0"), (-2.5, "-2.5")],
)
def test_credits_are_written_exactly_and_without_noise(amount: object, text: str) -> None:
    assert credits_text(amount) == text


@pytest.mark.slow
def test_the_command_line_loads_without_its_verbs_libraries() -> None:
    source = "import sys, callboard.cli; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["httpx", "rich", "pydantic", "aiohttp", "nacl"]
    command = [sys.executable, "-c", source, *heavy]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"


SUGGESTION = {
    "draft": {
        "intent": "Fetch it and count",
        "nodes": {
            "fetch": {"capabilityId": "cap.a.fetch.v1"},
            "count": {"capabilityId": "cap.a.count.v1", "dependsOn": ["fetch"]},
        },
    },
    "choices": [
        {
            "node": "fetch",
            "capabilityId": "cap.a.fetch.v1",
            "phrase": "Fetch it",
            "confidence": 0.75,
            "priceCredits": 0.1,
            "alternative": "cap.b.fetch.v1",
        },
        {
            "node": "count",
            "capabilityId": "cap.a.count.v1",
            "phrase": "count",
            "confidence": 0.5,
            "priceCredits": None,
            "alternative": None,
        },
    ],
    "unmatched": ["brew coffee"],
    "openInputs": {"fetch": ["url"]},
    "unavailable": ["count"],
    "estimatedCredits": 0.3,
    "estimatedMs": None,
    "planner": "model",
    "notes": ["count.text is left open"],
}


def test_a_draft_is_a_tree_with_prices_and_says_what_is_open(service: ScriptedService) -> None:
    service.script = [Scripted(200, SUGGESTION)]
    result = run("workflow", "suggest", "Fetch it and count", "--url", service.url)
    assert result.exit_code == 0, result.output
    for part in (
        "Fetch it and count: 0.3 credits",
        "fetch  cap.a.fetch.v1  0.1 credits  75% sure  else cap.b.fetch.v1",
        "count  cap.a.count.v1  paid by tokens  50% sure  no agent takes it now",
        "missing inputs: fetch.url",
        "no agent for: brew coffee",
        "drafted by a model",
        "note: count.text is left open",
    ):
        assert part in " ".join(result.stdout.split()).replace("· ", "") or part in result.stdout


def test_a_draft_is_published_with_its_inputs_after_asking(service: ScriptedService) -> None:
    say = ("workflow", "suggest", "Fetch it and count", "--publish", "--url", service.url)
    service.script = [Scripted(200, SUGGESTION)]
    assert run(*say, "--yes").exit_code == 2, "an input is open"
    service.script = [Scripted(200, SUGGESTION)]
    given = ("--input", "fetch.url=https://example.org/?a=b")
    assert run(*say, *given, stdin="n\n").exit_code == 1
    assert len(service.asked) == 2, "nothing is published"
    service.script = [
        Scripted(200, SUGGESTION),
        Scripted(200, {"workflowId": "w1", "status": "pending"}),
    ]
    assert run(*say, *given, stdin="y\n").exit_code == 0
    published = service.asked[-1]
    assert published.target == "/v1/workflows/publish"
    assert published.body["nodes"]["fetch"]["payload"] == {"url": "https://example.org/?a=b"}
    service.script = [Scripted(200, SUGGESTION)]
    assert run(*say, "--input", "other.url=x").exit_code == 2


def test_discover_asks_what_is_said_and_shows_why(service: ScriptedService) -> None:
    found = {
        "agentDid": "did:net:a",
        "capabilityId": "cap.text.count.v1",
        "description": "Counts",
        "score": 0.85,
        "reputation": 0.5,
        "agent": {"did": "did:net:a", "name": None, "endpoint": "http://127.0.0.1:9"},
        "why": ["schema fields: total", "reputation 0.5"],
    }
    service.script = [Scripted(200, {"results": [found], "agents": [], "limit": 20})]
    given = ("--capability", "cap.text.count.v1@>=1.2", "--subnet", "lab", "--max-price-cents", "9")
    result = run("discover", "total", *given, "--url", service.url)
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "0.85 cap.text.count.v1 did:net:a" in said
    assert "schema fields: total; reputation 0.5" in said
    (asked,) = service.asked
    query = parse_qs(asked.target.partition("?")[2])
    assert query == {
        "q": ["total"],
        "capabilityId": ["cap.text.count.v1@>=1.2"],
        "limit": ["20"],
        "maxPriceCents": ["9"],
        "subnet": ["lab"],
    }
    assert run("discover", "--url", service.url).exit_code == 2, "nothing is looked for"
    assert len(service.asked) == 1


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Return every command line with what is declared of it."""
    yield " ".join(path), command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


HOLE = re.compile(r"(?<!\\)\[")


def help_of(command: Any) -> str:
    """Return the sources of the help texts of a command and its parameters."""
    texts = [command.help, *(getattr(parameter, "help", "") for parameter in command.params)]
    return " ".join(text or "" for text in texts)


def test_every_command_has_help_and_one_verb_is_for_one_thing() -> None:
    """What is declared is looked at: to render every help takes 5 s of CPU."""
    found = dict(commands(typer.main.get_command(app)))
    assert {line for line in found if line.split()[-1:] in (["get"], ["read"], ["view"])} == set()
    assert [line for line, command in found.items() if not command.help] == []
    # Usage names arguments in capitals.
    usages = {line: one.get_usage(one.context_class(one)) for line, one in found.items()}
    assert {line for line, text in usages.items() if re.search(r"\{[a-z]", text)} == set()
    # Brackets without a backslash are markup, and would leave a hole in the sentence.
    assert {line for line, command in found.items() if HOLE.search(help_of(command))} == set()
    assert "[cap.x.v1] text" in " ".join(run("task", "publish", "--help").stdout.split())
    # The command line's own wheel has no `core.trust.access`.
    scopes = f"one of {', '.join(RESOURCES)}; or one of {', '.join(SINGLE_RIGHTS)}."
    assert scopes in help_of(found["key create"])
    needs_no_service = {"", "join", "up", "down", "upgrade", "settings", "demo"}
    needs_no_service.add("rotate-deployment-key")
    assert {
        line
        for line, command in found.items()
        if not hasattr(command, "commands")
        and line not in needs_no_service
        and not any("--home" in parameter.opts for parameter in command.params)
    } == set()


def test_the_version_is_printed() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"callboard {version('callboard')}\n")


def test_a_folder_in_the_environment_is_the_default_one(
    service: ScriptedService, tmp_path: Path
) -> None:
    (tmp_path / "url").write_text(service.url)
    (tmp_path / "admin.key").write_text("folder-key")
    service.script = [Scripted(200, {}), Scripted(200, {})]
    assert run("ledger", "balance", CALLBOARD_HOME=str(tmp_path)).exit_code == 0
    # An address is more particular than a folder, whose key is not sent to it.
    run("ledger", "balance", CALLBOARD_HOME=str(tmp_path), CALLBOARD_URL=service.url)
    assert [asked.headers.get("x-api-key") for asked in service.asked] == ["folder-key", None]


@pytest.mark.parametrize("how", ["--wait", "--watch"])
def test_publish_prints_the_id_before_it_waits(service: ScriptedService, how: str) -> None:
    published = {"status": "pending", "taskId": "t", "workflowId": "w1"}
    service.script = [Scripted(200, published), Scripted(401, {"code": "UNAUTHORIZED"})]
    result = run("workflow", "publish", "-", how, "--url", service.url, stdin='{"nodes": {}}')
    assert (result.exit_code, result.stdout) == (3, "workflowId    w1\n")
    service.script = [Scripted(200, published)]
    result = run("workflow", "publish", "-", "--url", service.url, stdin='{"nodes": {}}')
    assert result.stdout.splitlines()[0] == "workflowId    w1"


def test_a_dry_run_is_asked_for_and_waits_for_nothing(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"dryRun": True, "status": "valid", "workflowId": "w1"})]
    dry = ("workflow", "publish", "-", "--dry-run", "--url", service.url)
    assert run(*dry, stdin='{"nodes": {}}').exit_code == 0
    assert service.asked[0].body == {"nodes": {}, "dryRun": True}
    service.script = [Scripted(200, {"dryRun": True, "status": "valid"})]
    assert run(*dry, "--wait", "--watch", stdin='{"nodes": {}}').exit_code == 0


def test_a_dry_run_that_would_fail_exits_1_with_a_line_per_node(service: ScriptedService) -> None:
    missing = {"code": "NO_CANDIDATE", "message": "no agent offers it"}
    away = {"code": "NO_CANDIDATE", "message": "1 offers it: 1 offline"}
    reply = {
        "dryRun": True,
        "status": "pending",
        "order": ["a", "b", "c"],
        "candidates": {"a": ["did:a:1", "did:a:2", "did:a:3", "did:a:4"], "b": [], "c": []},
        "unavailable": {"b": missing, "c": away},
        "waiting": {"c": {"reason": "x", "waitForAgentMs": 60_000}},
        "warnings": ["nodes.a.payload.x: no agent takes it"],
    }
    service.script = [Scripted(200, reply)]
    dry = ("workflow", "publish", "-", "--dry-run", "--url", service.url)
    result = run(*dry, stdin='{"nodes": {}}')
    assert result.exit_code == 1
    assert [" ".join(line.split()) for line in result.stdout.splitlines()[-3:]] == [
        "a did:a:1, did:a:2, did:a:3, 1 more -",
        "b NO_CANDIDATE: no agent offers it",
        "c waits up to 60 s: NO_CANDIDATE: 1 offers it: 1 offline",
    ]
    assert result.stderr == "warning: nodes.a.payload.x: no agent takes it\n"
    # Nodes that would wait for an agent do not fail the dry run; a budget that is too small does.
    error = {"code": "BUDGET_EXCEEDED", "message": "the estimate exceeds the budget"}
    del reply["unavailable"]["b"]
    service.script = [Scripted(200, reply), Scripted(200, {**reply, "error": error})]
    service.script[1].body["status"] = "failed"
    assert run(*dry, stdin='{"nodes": {}}').exit_code == 0
    failed = run(*dry, stdin='{"nodes": {}}')
    assert (failed.exit_code, "BUDGET_EXCEEDED: the estimate" in failed.stdout) == (1, True)


def test_agents_are_listed_with_status_and_last_heartbeat(service: ScriptedService) -> None:
    live = {"status": "busy", "heartbeatAt": "2026-11-28T05:00:00Z"}
    agents = [
        {"did": "did:a:b", "status": "active", "live": live, "capabilities": []},
        {"did": "did:a:c", "status": "active", "live": None, "capabilities": []},
        {"did": "did:a:d", "status": "inactive", "live": live, "capabilities": []},
    ]
    service.script = [Scripted(200, {"agents": agents})]
    lines = run("agent", "list", "--url", service.url).stdout.splitlines()
    assert lines[0].split()[:3] == ["did", "status", "lastHeartbeat"]
    assert [line.split()[1:3] for line in lines[1:]] == [
        ["busy", "2026-11-28T05:00:00Z"],
        ["active", "-"],
        ["inactive", "2026-11-28T05:00:00Z"],
    ]


def test_ledger_verbs_for_other_accounts_and_the_callers_history(service: ScriptedService) -> None:
    service.script = [
        Scripted(200, {"balance": 5}),
        Scripted(200, {"ownerDid": "did:a:me"}),
        Scripted(200, {"events": []}),
    ]
    run("ledger", "deposit", "5", "--for", "did:a:b", "--url", service.url)
    run("ledger", "history", "--url", service.url)
    assert service.asked[0].body == {"amount": "5", "ownerDid": "did:a:b"}
    assert service.asked[2].target == "/v1/ledger/did:a:me/history?limit=50"


def test_records_are_readable(service: ScriptedService) -> None:
    entry = {"id": 7, "amount": 5.0, "description": "deposit"}
    agent = {"id": "did:a:b", "did": "did:a:b", "capabilities": [{"id": "c", "inputSchema": {}}]}
    keys = {"keys": [{"id": "k", "scopes": ["a", "b", "c", "d", "e"]}]}
    service.script = [Scripted(200, {"id": 7, "entry": entry}), Scripted(200, agent)]
    service.script += [Scripted(200, keys)]
    deposited = run("ledger", "deposit", "5", "--url", service.url).stdout
    assert deposited == "id     7\nentry  5 credits, deposit\n"
    shown = run("agent", "show", "did:a:b", "--url", service.url).stdout
    assert shown == "did           did:a:b\ncapabilities  c\n"
    assert "a, b, c, 2 more" in run("key", "list", "--url", service.url).stdout


def test_a_key_has_its_rate_class(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"id": "k"})]
    run("key", "create", "did:a:b", "--rate-class", "unlimited", "--url", service.url)
    assert service.asked[0].body["rateClass"] == "unlimited"
