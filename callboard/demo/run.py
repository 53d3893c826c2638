"""Runs the demonstration: one workflow, from starting the service to checking the books.

1. Start six agents, and the service unless it already runs in the folder.
2. Create a payer: an API key, with credits.
3. Register the agents with the cards that they serve.
4. Publish the example's workflow, or a workflow drafted from words, and print its nodes.
5. Print the results of the last nodes or the errors of failed nodes, the books, the verification of
   the audit chain, and the verification of one node's bundle.
6. End the agents and, unless it is kept, the service.

The exit code is 0 only if the workflow succeeds, the books balance and the chain is intact. A
workflow that is drafted from words may use any of the six agents. Missing inputs for a web address
are set to the document's address. If other inputs are missing, the demonstration ends with an
error.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from callboard.cli.agents import read_card
from callboard.cli.audit import proof_lines
from callboard.cli.session import (
    EXIT_REFUSED,
    EXIT_UNSUCCESSFUL,
    EXIT_USAGE,
    credits_text,
    printable,
    table,
)
from callboard.cli.tree import follow
from callboard.cli.workflows import open_inputs, print_draft
from callboard.client import Client
from callboard.demo.books import Books, books_of
from callboard.demo.document import served
from callboard.demo.processes import EXAMPLE, AgentFailed, AgentProcesses, supervisor
from callboard.errors import CallboardError
from callboard.proofs import audit_lines, prove_node
from callboard.verify import NotProven, verify_bundle, verify_log

DEPOSIT_CREDITS = 1
PAYER_DID = "did:example:payer"
# The most characters of a result that are printed.
RESULT_CHARS_MAX = 4_000
PAYER_SCOPES = ("workflows:read", "workflows:write", "ledger:read", "ledger:write")


class InputsMissing(Exception):
    """A draft has inputs that the demonstration cannot fill.

    Args:
        names: the inputs, as `node.input`.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(names)
        self.names = names

    def __str__(self) -> str:
        return (
            f"missing inputs {', '.join(self.names)}: "
            "name a web page in the words, or put the text in quotes"
        )


class UpFailed(Exception):
    """The supervisor could not start the service, and has printed the reason.

    Args:
        code: the supervisor's exit code.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def demonstrate(
    *, home: Path | None, keep: bool, document: str | None, words: str | None = None
) -> int:
    """Run the demonstration and return its exit code.

    Args:
        home: the deployment's folder, None for a temporary folder.
        keep: leave the service running, and keep the temporary folder.
        document: the file or address to report on, None for the article of the example.
        words: the description from which the workflow is drafted, None for the workflow of the
            example.
    """
    if not EXAMPLE.is_dir():
        print(
            f"callboard: the example is not here ({EXAMPLE}); run from a checkout", file=sys.stderr
        )
        return EXIT_USAGE
    try:
        with contextlib.ExitStack() as stack:
            try:
                url = stack.enter_context(served(document or str(EXAMPLE / "article.html")))
            except OSError as error:
                print(f"callboard: cannot read {document}: {error.strerror}", file=sys.stderr)
                return EXIT_USAGE
            # SIGTERM raises SystemExit, so that the `with` blocks end the service and the agents.
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
            folder = stack.enter_context(_folder(home, keep))
            return _in_folder(folder, url, keep=keep, words=words)
    except UpFailed as failed:
        return failed.code
    except InputsMissing as error:
        print(f"callboard: {error}", file=sys.stderr)
        return EXIT_UNSUCCESSFUL
    except (AgentFailed, CallboardError, NotProven) as error:
        print(f"callboard: {error}", file=sys.stderr)
        return EXIT_REFUSED


@contextlib.contextmanager
def _folder(home: Path | None, keep: bool) -> Iterator[Path]:
    if home is not None:
        yield home.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="callboard-demo-"))
    is_kept = keep
    try:
        yield folder
    except UpFailed:
        # The supervisor has just named the logs in this folder, which say why it failed.
        is_kept = True
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _in_folder(home: Path, document_url: str, *, keep: bool, words: str | None) -> int:
    is_ours = not _is_running(home)
    try:
        with AgentProcesses(home / "logs") as agents:
            if is_ours:
                _up(home)
            addresses = agents.wait_ready()
            is_good = run_workflow(home, addresses, document_url, words)
    finally:
        if is_ours and not keep:
            subprocess.run(supervisor("down", home=home), check=False)
    if keep:
        print(f"\nThe service runs on; end it with: callboard down --home {home}")
    return 0 if is_good else EXIT_UNSUCCESSFUL


def _is_running(home: Path) -> bool:
    try:
        with Client((home / "url").read_text().strip()) as client:
            return client.health().get("status") == "healthy"
    except (OSError, CallboardError):
        return False


def _up(home: Path) -> None:
    _heading("Starting the service and six agents")
    command = supervisor("up", home=home, port=_free_port(), detach=True)
    code = subprocess.run(command, check=False).returncode
    if code:
        raise UpFailed(code)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def run_workflow(
    home: Path, addresses: dict[str, str], document_url: str, said: str | None
) -> bool:
    """Run one workflow; return whether it succeeded and its books balance.

    Args:
        home: the folder of the running deployment.
        addresses: the agents' addresses, by name.
        document_url: the address of the document to report on.
        said: the description from which the workflow is drafted, None for the workflow of the
            example.

    Raises:
        InputsMissing: the draft has inputs that the demonstration cannot fill.
        CallboardError: the service refused a request.
    """
    url = (home / "url").read_text().strip()
    with (
        Client(url, (home / "admin.key").read_text().strip()) as admin,
        Client(url, _payer_key(admin)) as payer,
    ):
        payer.deposit(DEPOSIT_CREDITS)
        for address in addresses.values():
            admin.register_agent(read_card(address))
        manifest = _drafted(payer, said, document_url) if said else _example(document_url)
        read = _addresses(manifest)
        _heading(f"Publishing the workflow{' on ' if read else ''}{', '.join(read)}")
        published = payer.publish(manifest)
        record = follow(payer, published["workflowId"])
        _print_results(record)
        entries = payer.transactions(workflow_id=record["id"], limit=100)["transactions"]
        books = books_of(entries)
        _heading("Who was paid what, in credits")
        _print_books(record, books)
        note = admin.audit_checkpoint().note
        log = verify_log(audit_lines(admin), notes=[note])
        _heading("The audit chain")
        print(f"{log.entries} entries, chain intact, head {log.head_hash}")
        _print_proof(admin, record)
    return record["status"] == "success" and books.is_balanced


def _print_proof(admin: Client, record: dict[str, Any]) -> None:
    """Make the bundle of the last node that succeeded, verify it offline and print the result."""
    done = [name for name, node in record["nodes"].items() if node["status"] == "success"]
    if not done:
        return
    bundle = json.dumps(prove_node(admin, record["id"], done[-1]), separators=(",", ":"))
    first_key = admin.service_description().signing_keys[-1].public_key
    _heading(f"The proof of {done[-1]}, verified offline")
    print("\n".join(proof_lines(verify_bundle(f"{bundle}\n".encode(), first_key), first_key)))


def _example(document_url: str) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((EXAMPLE / "workflow.json").read_text(encoding="utf-8"))
    manifest["nodes"]["fetch"]["payload"]["url"] = document_url
    return manifest


def _drafted(payer: Client, said: str, document_url: str) -> dict[str, Any]:
    """Return the draft; its missing inputs for a web address get the document's address.

    Raises:
        InputsMissing: other inputs are missing.
    """
    _heading("Drafting a workflow from words")
    suggestion = payer.suggest(said)
    print_draft(suggestion)
    draft: dict[str, Any] = suggestion["draft"]
    missing = []
    for place in open_inputs(suggestion):
        node, _, name = place.rpartition(".")
        if name.lower().endswith(("url", "uri")):
            draft["nodes"][node].setdefault("payload", {})[name] = document_url
            print(f"{place} is set to the demonstration's document")
        else:
            missing.append(place)
    if missing:
        raise InputsMissing(missing)
    return draft


def _addresses(manifest: dict[str, Any]) -> list[str]:
    values = [v for node in manifest["nodes"].values() for v in node.get("payload", {}).values()]
    return [one for one in dict.fromkeys(map(str, values)) if one.startswith("http")]


def _print_results(record: dict[str, Any]) -> None:
    """Print the results of the nodes that no other node depends on, and the errors of nodes."""
    nodes = record["nodes"].values()
    needed = {parent for node in nodes for parent in node.get("dependsOn", ())}
    for name, node in record["nodes"].items():
        if node["status"] == "success" and name not in needed:
            result = node.get("result")
            page = result.get("markdown") if isinstance(result, dict) else None
            _heading("The report" if page else f"What {name} returned")
            text = page or (result if isinstance(result, str) else _json(result))
            print(printable(str(text)[:RESULT_CHARS_MAX]).rstrip())
            if len(text) > RESULT_CHARS_MAX:
                print(f"… ({len(text):,} characters)")
    for name, node in record["nodes"].items():
        error = node.get("error")
        if error and node["status"] != "skipped":
            said = error.get("message", error) if isinstance(error, dict) else error
            print(printable(f"callboard: node {name} failed: {said}"), file=sys.stderr)


def _json(result: object) -> str:
    return json.dumps(result, indent=2, ensure_ascii=False)


def _payer_key(admin: Client) -> str:
    scopes = (*PAYER_SCOPES, "ledger:deposit")
    return str(admin.create_key(PAYER_DID, name="demonstration", scopes=scopes)["key"])


def _print_books(record: dict[str, Any], books: Books) -> None:
    table(
        ("node", "agent", "paid", "fee"),
        [
            (name, node["agentDid"], books.paid[name], books.fees.get(name, 0))
            for name, node in record["nodes"].items()
            if name in books.paid
        ],
    )
    sign = "=" if books.is_balanced else "≠"
    print(
        f"\nescrow {credits_text(books.held)} {sign} paid {credits_text(books.paid_in_all)}"
        f" + fee {credits_text(books.fees_in_all)}"
        f" + returned to the payer {credits_text(books.refunded)}"
    )


def _heading(text: str) -> None:
    print(f"\n── {text} " + "─" * max(2, 76 - len(text)), flush=True)
